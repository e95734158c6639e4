//! Timeouts that users pass.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBool;
use std::thread;
use std::time::{Duration, Instant};

/// Returns the instant this many seconds from now, where a negative number counts as 0; None, which means no deadline,
/// without a timeout or for one that is too long for an instant.
pub(crate) fn deadline(timeout: Option<f64>) -> Option<Instant> {
    let limit = Duration::try_from_secs_f64(timeout?.max(0.0)).ok()?;
    Instant::now().checked_add(limit)
}

/// Returns the seconds of a user's timeout, which may be infinite. Raises TypeError for a bool or an object that is no
/// number, and ValueError for a negative number or NaN.
pub(crate) fn parse_timeout(timeout: &Bound<'_, PyAny>) -> PyResult<f64> {
    let seconds = match timeout.is_instance_of::<PyBool>() {
        true => None,
        false => timeout.extract().ok(),
    };
    match seconds {
        Some(seconds) if f64::is_nan(seconds) || seconds < 0.0 => {
            let given = timeout.repr()?;
            let text =
                format!("timeout: expected seconds, 0 or more (None: no limit), got {given}");
            Err(PyValueError::new_err(text))
        }
        Some(seconds) => Ok(seconds),
        None => {
            let given = timeout.repr()?;
            let text =
                format!("timeout: expected a number of seconds (None: no limit), got {given}");
            Err(PyTypeError::new_err(text))
        }
    }
}

/// Blocks this thread until the deadline, or forever if it is None. The caller has released the GIL.
pub(crate) fn sleep_until(deadline: Option<Instant>) {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match left {
            Some(Duration::ZERO) => return,
            Some(left) => thread::park_timeout(left),
            None => thread::park(),
        }
    }
}
