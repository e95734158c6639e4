//! `Handlers`: the endpoints whose calls the core runs by itself, from the frame to the answer.
//!
//! They are functions of plain types, run in the loop, around which nothing stands. Python runs all others, and each call of
//! these that is not as it should be: it has the words for what is wrong.

use crate::clock;
use crate::crash;
use crate::python::codec::encoder::Encoder;
use crate::python::codec::msgpack::expected::Expected;
use crate::python::codec::msgpack::reader::{Buffers, Reader, Unread};
use crate::python::codec::msgpack::writer::Written;
use crate::python::rpc::incoming::Body;
use crate::python::rpc::server::call_contexts::Isolation;
use crate::python::rpc::server::current_call::Running;
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use std::sync::atomic::{AtomicBool, Ordering};

/// The most arguments of a call that the core runs.
const MOST: usize = 24;

/// A parameter that may be given by its name.
struct Parameter {
    name: Py<PyString>,
    expected: Py<Expected>,
    required: bool,
}

/// A function, and the types of its parameters.
///
/// `by_count`: by the number of positional arguments, what their array is to be; None for a number that does not fit, or
/// that the core cannot read. `parameters`: each with its name, its type and whether it must be given, if all may be given by name; `places`: how
/// many of them may also be given by their place. `coroutines`: what runs the coroutine that the function gives, if it
/// gives one.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Handler {
    name: Py<PyString>,
    function: Py<PyAny>,
    by_count: Vec<Option<Py<Expected>>>,
    parameters: Vec<Parameter>,
    places: usize,
    coroutines: Option<Py<Coroutines>>,
}

/// Runs coroutines, each in its first step and then as a task.
///
/// `is_full`: whether a call of this client has to wait. `start` is given a coroutine, the client, the endpoint's name, the
/// call's id, its deadline and the size of its request in bytes: the result, or `later` if it comes later.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Coroutines {
    is_full: Py<PyAny>,
    start: Py<PyAny>,
    later: Py<PyAny>,
}

#[pymethods]
impl Coroutines {
    #[new]
    #[pyo3(signature = (*, is_full, start, later))]
    fn new(is_full: Py<PyAny>, start: Py<PyAny>, later: Py<PyAny>) -> Self {
        Coroutines {
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

#[pymethods]
impl Handler {
    #[new]
    #[pyo3(signature = (name, function, *, by_count, parameters, places, coroutines))]
    fn new(
        name: Py<PyString>,
        function: Py<PyAny>,
        by_count: Vec<Option<Py<Expected>>>,
        parameters: Vec<(Py<PyString>, Py<Expected>, bool)>,
        places: usize,
        coroutines: Option<Py<Coroutines>>,
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

/// The arguments of a call: values of its own, behind a place that the one who is called may use.
struct Arguments {
    slots: [*mut ffi::PyObject; MOST + 1],
    len: usize,
}

impl Arguments {
    fn new() -> Self {
        Arguments {
            slots: [std::ptr::null_mut(); MOST + 1],
            len: 0,
        }
    }

    fn push(&mut self, value: Bound<'_, PyAny>) -> Result<(), Unread> {
        if self.len == MOST {
            return Err(Unread);
        }
        self.len += 1;
        self.slots[self.len] = value.into_ptr();
        Ok(())
    }

    /// Calls a function with these; the last ones have the names in `names`.
    fn call<'py>(
        &mut self,
        function: &Bound<'py, PyAny>,
        names: Option<&Bound<'py, PyTuple>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let named = names.map_or(0, |names| names.len());
        let count = (self.len - named) | ffi::PY_VECTORCALL_ARGUMENTS_OFFSET;
        let names = names.map_or(std::ptr::null_mut(), |names| names.as_ptr());
        // SAFETY: the values live as long as this does, and the place before the first is ours. A new reference comes,
        // or null with an exception.
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
            // SAFETY: a reference of ours, and the GIL is held wherever there are arguments.
            unsafe { ffi::Py_DECREF(value) };
        }
    }
}

impl Handler {
    /// Reads positional arguments.
    #[inline]
    fn read<'py>(
        &self,
        py: Python<'py>,
        reader: &mut Reader<'_, 'py>,
        count: usize,
    ) -> Result<Arguments, Unread> {
        let expected = self.by_count.get(count).and_then(Option::as_ref);
        let kinds = expected
            .and_then(|array| array.get().items())
            .ok_or(Unread)?;
        let mut arguments = Arguments::new();
        for kind in kinds {
            arguments.push(reader.value(py, kind.get())?)?;
        }
        Ok(arguments)
    }

    /// Reads positional arguments and those by name; and the names.
    fn read_named<'py>(
        &self,
        py: Python<'py>,
        reader: &mut Reader<'_, 'py>,
    ) -> Result<(Arguments, Bound<'py, PyTuple>), Unread> {
        let parameters = &self.parameters;
        if reader.array()? != 2 {
            return Err(Unread);
        }
        let places = reader.array()?;
        if places > self.places || parameters.len() > MOST {
            return Err(Unread);
        }
        let mut arguments = Arguments::new();
        let mut given = [false; MOST];
        for (index, parameter) in parameters[..places].iter().enumerate() {
            given[index] = true;
            arguments.push(reader.value(py, parameter.expected.get())?)?;
        }
        let count = reader.map()?;
        let mut names = Vec::with_capacity(count.min(MOST));
        for _ in 0..count {
            let name = reader.str()?;
            let is_meant = |parameter: &Parameter| {
                let own = parameter.name.bind(py).to_str();
                own.is_ok_and(|own| own.as_bytes() == name)
            };
            let index = parameters.iter().position(is_meant).ok_or(Unread)?;
            if std::mem::replace(&mut given[index], true) {
                return Err(Unread);
            }
            arguments.push(reader.value(py, parameters[index].expected.get())?)?;
            names.push(parameters[index].name.bind(py));
        }
        let is_missing = |(index, each): (usize, &Parameter)| each.required && !given[index];
        if parameters.iter().enumerate().any(is_missing) {
            return Err(Unread);
        }
        Ok((arguments, PyTuple::new(py, names).map_err(|_| Unread)?))
    }
}

/// What the protocol above says of requests, and what runs them.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Handlers {
    /// By the number of the endpoint.
    handlers: Vec<Option<Py<Handler>>>,
    encoder: Py<Encoder>,
    isolation: Py<Isolation>,
    running: Py<Running>,
    /// Not empty once a request with a deadline was run.
    inheriting: Py<PyList>,
    /// By how much our clock is ahead of the host's, of which deadlines are, in nanoseconds.
    clock_ahead: i64,
    /// The body of a result that is foreign: of the endpoint's name and the result.
    encode: Py<PyAny>,
    /// Answers that a call has failed: of the client's key, the call's id and the exception.
    fail: Py<PyAny>,
    /// Takes note that a one-way call has failed: of the client's key, the endpoint's name and the exception.
    note: Py<PyAny>,
    /// The low eight bits of the opcodes with positional arguments, with others too, with a deadline, and with a header.
    positional: u8,
    keywords: u8,
    timed: u8,
    headed: u8,
}

/// What a header says of a one-way call; if it says anything else, the call is for Python.
const ONE_WAY: &[u8] = b"one_way";

#[pymethods]
impl Handlers {
    #[new]
    #[pyo3(signature = (handlers, *, encoder, isolation, running, inheriting, clock_ahead, encode, fail, note, positional, keywords, timed, headed))]
    #[allow(clippy::too_many_arguments)] // By keyword alone, in one place.
    fn new(
        handlers: Vec<Option<Py<Handler>>>,
        encoder: Py<Encoder>,
        isolation: Py<Isolation>,
        running: Py<Running>,
        inheriting: Py<PyList>,
        clock_ahead: i64,
        encode: Py<PyAny>,
        fail: Py<PyAny>,
        note: Py<PyAny>,
        positional: u8,
        keywords: u8,
        timed: u8,
        headed: u8,
    ) -> Self {
        Handlers {
            handlers,
            encoder,
            isolation,
            running,
            inheriting,
            clock_ahead,
            encode,
            fail,
            note,
            positional,
            keywords,
            timed,
            headed,
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.handlers
            .iter()
            .flatten()
            .try_for_each(|each| visit.call(each))?;
        visit.call(&self.running)?;
        visit.call(&self.encode)?;
        visit.call(&self.fail)?;
        visit.call(&self.note)
    }
}

/// What has become of a request.
pub(crate) enum Ran<'py> {
    /// It is for Python, and nothing of it was done.
    Foreign,
    /// Its answer is written. The result, if freeing it takes long, so that the answer goes first.
    Written(Option<Bound<'py, PyAny>>),
    /// This is its answer.
    Encoded(Bound<'py, PyAny>),
    /// Nothing is left to do: its answer comes later, or is none, or it has failed, and that was answered.
    Done,
}

/// Results with larger bodies are freed after they were sent, in bytes.
const SLOW_TO_FREE: usize = 2048;

/// The calls of one client that the core may run.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Serving {
    handlers: Py<Handlers>,
    /// By id, the calls that are under way and those that wait: a new one may not have the id of one of these.
    calls: Py<PyDict>,
    waiting: Py<PyDict>,
    closed: AtomicBool,
}

#[pymethods]
impl Serving {
    #[new]
    fn new(handlers: Py<Handlers>, calls: Py<PyDict>, waiting: Py<PyDict>) -> Self {
        Serving {
            handlers,
            calls,
            waiting,
            closed: AtomicBool::new(false),
        }
    }

    /// Leaves all to Python from now on.
    fn close(&self) {
        // Relaxed: with the GIL.
        self.closed.store(true, Ordering::Relaxed);
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.handlers)?;
        visit.call(&self.calls)?;
        visit.call(&self.waiting)
    }
}

impl Serving {
    /// Runs a request of the client `key`; its answer is written to `answer`. The request is `short`, or what is in
    /// `whole`, which goes once it was read: what was made of it keeps the buffers that it needs.
    #[inline]
    #[allow(clippy::too_many_arguments)] // In one place.
    pub(crate) fn run<'py>(
        &self,
        py: Python<'py>,
        key: &Py<PyAny>,
        opcode: u32,
        id: u64,
        short: &[u8],
        whole: &mut Option<Body<'py>>,
        answer: &mut Written,
    ) -> PyResult<Ran<'py>> {
        let handlers = self.handlers.get();
        if !handlers.runs(opcode as u8) {
            return Ok(Ran::Foreign);
        }
        let Some(Some(handler)) = handlers.handlers.get((opcode >> 8) as usize) else {
            return Ok(Ran::Foreign);
        };
        // Relaxed: with the GIL.
        if self.closed.load(Ordering::Relaxed) || self.is_used(py, id)? {
            return Ok(Ran::Foreign);
        }
        let handler = handler.get();
        if let Some(coroutines) = &handler.coroutines {
            if coroutines
                .get()
                .is_full
                .bind(py)
                .call1((key,))?
                .is_truthy()?
            {
                return Ok(Ran::Foreign);
            }
        }
        let parts = match whole {
            None => Some((short, None)),
            Some(whole) => whole.parts(),
        };
        let request = parts.and_then(|(body, buffers)| {
            handlers.read(py, handler, opcode as u8, body, buffers).ok()
        });
        let Some(request) = request else {
            return Ok(Ran::Foreign);
        };
        let weight = whole.take().map_or(short.len(), |whole| whole.weight());
        crash::point!(RequestRead);
        let deadline = request.deadline;
        handlers
            .running
            .get()
            .begin(key.clone_ref(py), opcode, id, deadline);
        let one_way = request.one_way;
        let called = handlers.call(py, handler, request);
        if one_way {
            if let Err(error) = called {
                let note = handlers.note.bind(py);
                note.call1((key, &handler.name, error.into_value(py)))?;
            }
            return Ok(Ran::Done);
        }
        let done = called
            .and_then(|result| match &handler.coroutines {
                Some(coroutines) => coroutines
                    .get()
                    .run(&result, key, handler, id, deadline, weight),
                None => Ok(Some(result)),
            })
            .and_then(|result| {
                result.map_or(Ok(Ran::Done), |result| {
                    handlers.write(handler, result, answer)
                })
            });
        match done {
            Ok(ran) => Ok(ran),
            Err(error) => {
                self.fail(py, key, id, error)?;
                Ok(Ran::Done)
            }
        }
    }

    /// Answers that a call has failed.
    #[cold]
    pub(crate) fn fail(
        &self,
        py: Python<'_>,
        key: &Py<PyAny>,
        id: u64,
        error: PyErr,
    ) -> PyResult<()> {
        let fail = self.handlers.get().fail.bind(py);
        fail.call1((key, id, error.into_value(py))).map(drop)
    }

    #[inline]
    fn is_used(&self, py: Python<'_>, id: u64) -> PyResult<bool> {
        let (calls, waiting) = (self.calls.bind(py), self.waiting.bind(py));
        if calls.is_empty() && waiting.is_empty() {
            return Ok(false);
        }
        Ok(calls.contains(id)? || waiting.contains(id)?)
    }
}

/// A request that was read.
struct Request<'py> {
    arguments: Arguments,
    names: Option<Bound<'py, PyTuple>>,
    deadline: Option<u64>,
    one_way: bool,
}

impl Handlers {
    #[inline]
    fn read<'py>(
        &self,
        py: Python<'py>,
        handler: &Handler,
        kind: u8,
        body: &[u8],
        buffers: Option<&Buffers<'py>>,
    ) -> Result<Request<'py>, Unread> {
        let mut reader = Reader::new(body, buffers);
        let (mut names, mut deadline, mut one_way) = (None, None, false);
        let arguments = if kind == self.positional {
            let count = reader.array()?;
            handler.read(py, &mut reader, count)?
        } else if kind == self.keywords {
            let (arguments, named) = handler.read_named(py, &mut reader)?;
            names = Some(named);
            arguments
        } else if kind == self.timed && !self.inheriting.bind(py).is_empty() {
            let count = reader.array()?.checked_sub(1).ok_or(Unread)?;
            let until = reader.unsigned()?;
            if clock::now().saturating_add_signed(-self.clock_ahead) >= until {
                return Err(Unread);
            }
            deadline = Some(until);
            handler.read(py, &mut reader, count)?
        } else if kind == self.headed && handler.coroutines.is_none() {
            let is_three = reader.array()? == 3;
            if !is_three || reader.map()? != 1 || reader.str()? != ONE_WAY || !reader.bool()? {
                return Err(Unread);
            }
            one_way = true;
            let count = reader.array()?;
            let arguments = handler.read(py, &mut reader, count)?;
            if reader.map()? != 0 {
                return Err(Unread);
            }
            arguments
        } else {
            return Err(Unread);
        };
        reader.end()?;
        Ok(Request {
            arguments,
            names,
            deadline,
            one_way,
        })
    }

    /// Whether frames of this kind may be requests that the core runs.
    #[inline]
    fn runs(&self, kind: u8) -> bool {
        [self.positional, self.keywords, self.timed, self.headed].contains(&kind)
    }

    /// Calls the function, in a context of its own.
    #[inline]
    fn call<'py>(
        &self,
        py: Python<'py>,
        handler: &Handler,
        mut request: Request<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.isolation.get().renew(py)?;
        let function = handler.function.bind(py);
        let result = request.arguments.call(function, request.names.as_ref());
        crash::point!(FunctionCalled);
        result
    }

    /// Writes a result.
    #[inline]
    fn write<'py>(
        &self,
        handler: &Handler,
        result: Bound<'py, PyAny>,
        answer: &mut Written,
    ) -> PyResult<Ran<'py>> {
        answer.clear();
        let ran = if self.encoder.get().write(&result, answer).is_err() {
            answer.clear(); // It may have buffers of what the result holds.
            let encode = self.encode.bind(result.py());
            Ran::Encoded(encode.call1((&handler.name, result))?)
        } else {
            let slow = answer.body.len() > SLOW_TO_FREE || !answer.beside.is_empty();
            Ran::Written(slow.then_some(result))
        };
        crash::point!(ResultWritten);
        Ok(ran)
    }
}

impl Coroutines {
    /// Runs a coroutine: its result, or None if that comes later.
    fn run<'py>(
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
