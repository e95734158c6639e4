//! `ItemStream`: the items of a stream, one by one, of a generator that gives them as they come: together.

use crate::python::support::delegate::{self, Course, HandingOn, Next};
use crate::python::support::step::{self, Awaited, Thrown};
use crate::sync::lock;
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyNone, PyTuple};
use std::sync::Mutex;

/// What is left of the items that have come together.
#[derive(Default)]
struct Run {
    items: Option<Py<PyList>>,
    next: usize,
}

/// An asynchronous generator of single items; `runs` is one of lists of them.
///
/// A step of a generator of Python's takes twice as long as one of this.
#[pyclass(frozen, weakref, module = "shmrpc._core")]
pub struct ItemStream {
    step: Py<ItemStep>,
}

/// The next item, to be awaited. A stream has one, so that there is nothing to make for each item; whoever keeps it and
/// awaits it again gets the item after that.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct ItemStep {
    runs: Py<PyAny>,
    /// Never held while Python code runs.
    run: Mutex<Run>,
    course: Mutex<Course>,
}

impl ItemStep {
    /// The next item of those that are there. The list keeps none that was taken.
    #[inline]
    fn item<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut run = lock(&self.run);
        let Some(items) = run.items.as_ref().map(|items| items.bind(py).clone()) else {
            return Ok(None);
        };
        if run.next < items.len() {
            let item = items.get_item(run.next)?;
            items.set_item(run.next, PyNone::get(py))?;
            run.next += 1;
            return Ok(Some(item));
        }
        let over = std::mem::take(&mut *run).items;
        drop(run);
        drop(over.map(|items| items.into_bound(py)));
        Ok(None)
    }

    fn has_item(&self, py: Python<'_>) -> bool {
        let run = lock(&self.run);
        let items = run.items.as_ref();
        items.is_some_and(|items| run.next < items.bind(py).len())
    }

    fn put(&self, run: Run) {
        let over = std::mem::replace(&mut *lock(&self.run), run);
        drop(over); // What goes with it may run anybody's code.
    }
}

impl HandingOn for ItemStep {
    const OVER: Course = Course::New;

    #[inline]
    fn course(&self) -> &Mutex<Course> {
        &self.course
    }

    #[inline]
    fn at_once<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.item(py)
    }

    fn next<'py>(&self, py: Python<'py>) -> PyResult<Next<'py>> {
        match self.item(py)? {
            Some(item) => Ok(Next::Over(item)),
            None => delegate::anext(self.runs.bind(py)).map(Next::Await),
        }
    }

    fn take<'py>(
        &self,
        _py: Python<'py>,
        came: PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let items = Some(came?.cast_into::<PyList>()?.unbind());
        self.put(Run { items, next: 0 });
        Ok(None)
    }

    fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self.run.try_lock().as_deref() {
            Ok(Run {
                items: Some(items), ..
            }) => visit.call(items),
            _ => Ok(()),
        }
    }

    fn forget(&self) {
        self.put(Run::default());
    }
}

delegate::methods!(ItemStep, runs);

/// The same, apart: where the one of the stream is in somebody's hands, or where it begins with something else.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct OtherStep {
    step: Py<ItemStep>,
    course: Mutex<Course>,
}

impl HandingOn for OtherStep {
    const OVER: Course = Course::Ended;

    fn course(&self) -> &Mutex<Course> {
        &self.course
    }

    fn next<'py>(&self, py: Python<'py>) -> PyResult<Next<'py>> {
        self.step.get().next(py)
    }

    fn take<'py>(
        &self,
        py: Python<'py>,
        came: PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.step.get().take(py, came)
    }
}

delegate::methods!(OtherStep, step);

impl ItemStream {
    /// The next item, to be awaited.
    #[inline]
    fn next_step<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let step = self.step.bind(py);
        // SAFETY: it lives, and the GIL is ours: nobody takes or leaves it meanwhile.
        let holders = unsafe { ffi::Py_REFCNT(step.as_ptr()) };
        match holders == 1 && delegate::is_new(step.get()) {
            true => Ok(step.clone().into_any()),
            false => self.other_step(py, Course::New),
        }
    }

    #[cold]
    fn other_step<'py>(&self, py: Python<'py>, course: Course) -> PyResult<Bound<'py, PyAny>> {
        let step = OtherStep {
            step: self.step.clone_ref(py),
            course: Mutex::new(course),
        };
        Ok(Bound::new(py, step)?.into_any())
    }

    /// A step that begins with what a method of the generator gives.
    fn beginning<'py>(
        &self,
        py: Python<'py>,
        method: &str,
        arguments: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let runs = self.step.get().runs.bind(py);
        let further = runs.call_method1(method, arguments)?;
        self.other_step(py, Course::Further(further.unbind()))
    }
}

#[pymethods]
impl ItemStream {
    #[new]
    fn new(py: Python<'_>, runs: Py<PyAny>) -> PyResult<Self> {
        let step = ItemStep {
            runs,
            run: Mutex::default(),
            course: Mutex::new(Course::New),
        };
        Ok(ItemStream {
            step: Py::new(py, step)?,
        })
    }

    fn __aiter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __anext__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.next_step(py)
    }

    /// The next item. The value means nothing to a stream.
    fn asend<'py>(&self, py: Python<'py>, value: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if value.is_none() || self.step.get().has_item(py) {
            return self.next_step(py);
        }
        self.beginning(py, "asend", &PyTuple::new(py, [value])?)
    }

    /// Raises an exception where the stream is, once this is awaited.
    #[pyo3(signature = (*thrown))]
    fn athrow<'py>(
        &self,
        py: Python<'py>,
        thrown: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.step.get().put(Run::default());
        self.beginning(py, "athrow", thrown)
    }

    /// Ends the stream, also before its end.
    fn aclose<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.step.get().put(Run::default());
        self.step.get().runs.bind(py).call_method0("aclose")
    }

    /// What a generator has besides: `ag_running`, `ag_frame`, `__name__`.
    fn __getattr__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        self.step.get().runs.bind(py).getattr(name)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.step)
    }
}

/// Has a stream taken for a generator, and its items asked for without a call of PyO3's.
pub(crate) fn prepare(py: Python<'_>) -> PyResult<()> {
    step::prepare::<ItemStep>(py);
    step::prepare::<OtherStep>(py);
    let class = py.get_type::<ItemStream>();
    // SAFETY: it is a type on the heap, whose slots lie in itself, and nobody uses it yet. The GIL is ours.
    unsafe {
        if let Some(slots) = (*class.as_type_ptr()).tp_as_async.as_mut() {
            slots.am_anext = Some(am_anext);
        }
    }
    let abstract_class = py.import("collections.abc")?.getattr("AsyncGenerator")?;
    abstract_class.call_method1("register", (class,)).map(drop)
}

/// As `__anext__`.
unsafe extern "C" fn am_anext(stream: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the interpreter calls this with the GIL, and with an instance of ours.
    let (py, stream) = unsafe {
        let py = Python::assume_attached();
        let stream = Bound::from_borrowed_ptr(py, stream);
        (py, stream.cast_into_unchecked::<ItemStream>())
    };
    match stream.get().next_step(py) {
        Ok(step) => step.into_ptr(),
        Err(error) => {
            error.restore(py);
            std::ptr::null_mut()
        }
    }
}
