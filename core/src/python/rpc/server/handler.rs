//! `Handler`: a function that the core calls itself, and `CoroutineRunner`: the runner of a coroutine that it returns.

use crate::python::codec::msgpack::expected_type::ExpectedType;
use crate::python::codec::msgpack::reader::Reader;
use crate::python::codec::msgpack::unreadable::Unreadable;
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

/// The maximum number of arguments of a call that the core runs.
const MAX_ARGUMENTS: usize = 24;

/// A parameter that can be given by name.
struct Parameter {
    name: Py<PyString>,
    expected: Py<ExpectedType>,
    required: bool,
}

/// A function, and the types of its parameters.
///
/// `by_count` has, for each number of positional arguments, the type of their array; None for a number that does not
/// fit, or for types that the core cannot read. `parameters` has the name and the type of each parameter, and True if
/// it is required; it is empty unless all parameters may be given by name. `places` is the number of parameters that
/// may also be given by position. `coroutines` runs the coroutine that the function returns; None if the function
/// returns none.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Handler {
    name: Py<PyString>,
    function: Py<PyAny>,
    by_count: Vec<Option<Py<ExpectedType>>>,
    parameters: Vec<Parameter>,
    places: usize,
    coroutines: Option<Py<CoroutineRunner>>,
}

/// Runs coroutines, each in its first step and then as a task.
///
/// `is_full` takes a client, and returns true if a call of this client has to wait. `start` takes a coroutine, the
/// client, the endpoint's name, the call's id, its deadline and the size of its request in bytes; it returns the
/// result, or `later` if the result comes later.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct CoroutineRunner {
    is_full: Py<PyAny>,
    start: Py<PyAny>,
    later: Py<PyAny>,
}

#[pymethods]
impl CoroutineRunner {
    #[new]
    #[pyo3(signature = (*, is_full, start, later))]
    fn new(is_full: Py<PyAny>, start: Py<PyAny>, later: Py<PyAny>) -> Self {
        CoroutineRunner {
            is_full,
            start,
            later,
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.is_full)?;
        visit.call(&self.start)
    }
}

impl CoroutineRunner {
    /// Returns true if a call of this client has to wait. Raises what the function `is_full` raises.
    pub(crate) fn is_full(&self, py: Python<'_>, client: &Py<PyAny>) -> PyResult<bool> {
        self.is_full.bind(py).call1((client,))?.is_truthy()
    }

    /// Runs the first step of a coroutine, and makes a task of the rest. Returns the result; None if the result comes
    /// later, when Python sends the reply. Raises what the first step raises.
    pub(crate) fn run<'py>(
        &self,
        coroutine: &Bound<'py, PyAny>,
        client: &Py<PyAny>,
        handler: &Handler,
        id: u64,
        deadline: Option<u64>,
        size: usize,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let start = self.start.bind(coroutine.py());
        let result = start.call1((coroutine, client, &handler.name, id, deadline, size))?;
        Ok((!result.is(&self.later)).then_some(result))
    }
}

#[pymethods]
impl Handler {
    #[new]
    #[pyo3(signature = (name, function, *, by_count, parameters, places, coroutines))]
    fn new(
        name: Py<PyString>,
        function: Py<PyAny>,
        by_count: Vec<Option<Py<ExpectedType>>>,
        parameters: Vec<(Py<PyString>, Py<ExpectedType>, bool)>,
        places: usize,
        coroutines: Option<Py<CoroutineRunner>>,
    ) -> Self {
        let parameters = parameters
            .into_iter()
            .map(|(name, expected, required)| Parameter {
                name,
                expected,
                required,
            });
        Handler {
            name,
            function,
            by_count,
            parameters: parameters.collect(),
            places,
            coroutines,
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.function)?;
        self.coroutines
            .as_ref()
            .map_or(Ok(()), |each| visit.call(each))
    }
}

/// The arguments of a call: owned references, behind a slot that the callee may use.
pub(crate) struct Arguments {
    slots: [*mut ffi::PyObject; MAX_ARGUMENTS + 1],
    len: usize,
}

impl Arguments {
    fn new() -> Self {
        Arguments {
            slots: [std::ptr::null_mut(); MAX_ARGUMENTS + 1],
            len: 0,
        }
    }

    /// Adds an argument. Fails, and drops the argument, if there are `MAX_ARGUMENTS` already.
    fn push(&mut self, value: Bound<'_, PyAny>) -> Result<(), Unreadable> {
        if self.len == MAX_ARGUMENTS {
            return Err(Unreadable);
        }
        self.len += 1;
        self.slots[self.len] = value.into_ptr();
        Ok(())
    }

    /// Calls a function, and returns or raises its result. `names` are the names of the last arguments.
    pub(crate) fn call<'py>(
        &mut self,
        function: &Bound<'py, PyAny>,
        names: Option<&Bound<'py, PyTuple>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let named = names.map_or(0, |names| names.len());
        let count = (self.len - named) | ffi::PY_VECTORCALL_ARGUMENTS_OFFSET;
        let names = names.map_or(std::ptr::null_mut(), |names| names.as_ptr());
        // SAFETY: the values live as long as `self`, and the callee may use the slot before the first. The result is a
        // new reference, or null with an exception.
        unsafe {
            let arguments = self.slots.as_mut_ptr().add(1);
            let result = ffi::PyObject_Vectorcall(function.as_ptr(), arguments, count, names);
            Bound::from_owned_ptr_or_err(function.py(), result)
        }
    }
}

impl Drop for Arguments {
    fn drop(&mut self) {
        for &value in &self.slots[1..=self.len] {
            // SAFETY: an owned reference, and the GIL is held wherever arguments exist.
            unsafe { ffi::Py_DECREF(value) };
        }
    }
}

impl Handler {
    pub(crate) fn name(&self) -> &Py<PyString> {
        &self.name
    }

    pub(crate) fn function<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.function.bind(py)
    }

    /// Returns the runner of the coroutine that the function returns; None if the function returns none.
    pub(crate) fn coroutines(&self) -> Option<&CoroutineRunner> {
        self.coroutines.as_ref().map(|coroutines| coroutines.get())
    }

    /// Reads `count` positional arguments, behind the head of their array. Fails if their number or a type does not
    /// fit, or if there are more than `MAX_ARGUMENTS`.
    #[inline]
    pub(crate) fn read_positional<'py>(
        &self,
        py: Python<'py>,
        reader: &mut Reader<'_, 'py>,
        count: usize,
    ) -> Result<Arguments, Unreadable> {
        let expected = self.by_count.get(count).and_then(Option::as_ref);
        let kinds = expected
            .and_then(|array| array.get().spec().items())
            .ok_or(Unreadable)?;
        let mut arguments = Arguments::new();
        for kind in kinds {
            arguments.push(reader.value(py, kind)?)?;
        }
        Ok(arguments)
    }

    /// Reads positional and keyword arguments, with the head of their array. Returns the arguments, and the names of
    /// the keyword arguments, which come last. Fails if a name, a number or a type does not fit, if an argument is
    /// missing or occurs twice, or if the function has more than `MAX_ARGUMENTS` parameters.
    pub(crate) fn read_named<'py>(
        &self,
        py: Python<'py>,
        reader: &mut Reader<'_, 'py>,
    ) -> Result<(Arguments, Bound<'py, PyTuple>), Unreadable> {
        let parameters = &self.parameters;
        if reader.array()? != 2 {
            return Err(Unreadable);
        }
        let places = reader.array()?;
        if places > self.places || parameters.len() > MAX_ARGUMENTS {
            return Err(Unreadable);
        }
        let mut arguments = Arguments::new();
        let mut given = [false; MAX_ARGUMENTS];
        for (index, parameter) in parameters[..places].iter().enumerate() {
            given[index] = true;
            arguments.push(reader.value(py, parameter.expected.get().spec())?)?;
        }
        let count = reader.map()?;
        let mut names = Vec::with_capacity(count.min(MAX_ARGUMENTS));
        for _ in 0..count {
            let name = reader.str()?;
            let is_match = |parameter: &Parameter| {
                let own = parameter.name.bind(py).to_str();
                own.is_ok_and(|own| own.as_bytes() == name)
            };
            let index = parameters.iter().position(is_match).ok_or(Unreadable)?;
            if std::mem::replace(&mut given[index], true) {
                return Err(Unreadable);
            }
            arguments.push(reader.value(py, parameters[index].expected.get().spec())?)?;
            names.push(parameters[index].name.bind(py));
        }
        let is_missing = |(index, each): (usize, &Parameter)| each.required && !given[index];
        if parameters.iter().enumerate().any(is_missing) {
            return Err(Unreadable);
        }
        Ok((arguments, PyTuple::new(py, names).map_err(|_| Unreadable)?))
    }
}
