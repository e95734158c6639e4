//! `ItemStream`: single items of a stream that arrive in lists.

use crate::python::support::coroutine_slots;
use crate::python::support::native_coroutine::{self, NativeCoroutine, Next, State};
use crate::python::support::step::{ThrowArguments, anext};
use crate::sync::lock;
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyNone, PyTuple};
use std::sync::Mutex;

/// The rest of the last list that has arrived.
#[derive(Default)]
struct Batch {
    items: Option<Py<PyList>>,
    /// Index of the next item.
    next: usize,
}

/// An asynchronous generator of single items, made from an asynchronous generator of lists of them.
///
/// A step of a Python generator takes twice as long as one of this class.
#[pyclass(frozen, weakref, module = "shmrpc._core")]
pub struct ItemStream {
    awaitable: Py<NextItem>,
}

/// An awaitable of the next item.
///
/// A stream reuses one awaitable, so that no object is made for each item. A program that awaits the same awaitable
/// again gets the item after that.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct NextItem {
    batches: Py<PyAny>,
    /// Never held while Python code runs.
    batch: Mutex<Batch>,
    state: Mutex<State<NextItem>>,
}

impl NextItem {
    /// Takes the next item of the current batch, and puts None in its place in the list. Returns None, and drops the
    /// batch, if there is no item left.
    #[inline]
    fn take_item<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut batch = lock(&self.batch);
        let Some(items) = batch.items.as_ref().map(|items| items.bind(py).clone()) else {
            return Ok(None);
        };
        if batch.next < items.len() {
            let item = items.get_item(batch.next)?;
            items.set_item(batch.next, PyNone::get(py))?;
            batch.next += 1;
            return Ok(Some(item));
        }
        let finished = std::mem::take(&mut *batch).items;
        drop(batch);
        drop(finished.map(|items| items.into_bound(py)));
        Ok(None)
    }

    /// Returns true if the current batch has another item.
    fn has_item(&self, py: Python<'_>) -> bool {
        let batch = lock(&self.batch);
        let items = batch.items.as_ref();
        items.is_some_and(|items| batch.next < items.bind(py).len())
    }

    /// Replaces the current batch, whose remaining items are dropped.
    fn set_batch(&self, batch: Batch) {
        let finished = std::mem::replace(&mut *lock(&self.batch), batch);
        drop(finished); // After the lock, because a destructor may run any code.
    }
}

impl NativeCoroutine for NextItem {
    type Start = ();
    type Suspended = ();

    const FINAL: State<Self> = State::New(());
    const POLLS_READY: bool = true;

    #[inline]
    fn state(&self) -> &Mutex<State<Self>> {
        &self.state
    }

    #[inline]
    fn poll_ready<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.take_item(py)
    }

    fn start<'py>(&self, py: Python<'py>, (): ()) -> PyResult<Next<'py, ()>> {
        self.next(py)
    }

    fn resume<'py>(&self, py: Python<'py>, (): ()) -> PyResult<Next<'py, ()>> {
        self.next(py)
    }

    fn next<'py>(&self, py: Python<'py>) -> PyResult<Next<'py, ()>> {
        match self.take_item(py)? {
            Some(item) => Ok(Next::Return(item)),
            None => anext(self.batches.bind(py)).map(Next::Await),
        }
    }

    fn receive<'py>(
        &self,
        _py: Python<'py>,
        result: PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let items = Some(result?.cast_into::<PyList>()?.unbind());
        self.set_batch(Batch { items, next: 0 });
        Ok(None)
    }

    fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self.batch.try_lock().as_deref() {
            Ok(Batch {
                items: Some(items), ..
            }) => visit.call(items),
            _ => Ok(()),
        }
    }

    fn forget(&self) {
        self.set_batch(Batch::default());
    }
}

native_coroutine::methods!(NextItem, [batches]);

/// A further awaitable of the next item: for a program that still holds the awaitable of the stream, and for `asend`
/// and `athrow`, which await something else first.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct SeparateNextItem {
    shared: Py<NextItem>,
    state: Mutex<State<SeparateNextItem>>,
}

impl NativeCoroutine for SeparateNextItem {
    type Start = ();
    type Suspended = ();

    const FINAL: State<Self> = State::Ended;

    fn state(&self) -> &Mutex<State<Self>> {
        &self.state
    }

    fn start<'py>(&self, py: Python<'py>, (): ()) -> PyResult<Next<'py, ()>> {
        self.next(py)
    }

    fn resume<'py>(&self, py: Python<'py>, (): ()) -> PyResult<Next<'py, ()>> {
        self.next(py)
    }

    fn next<'py>(&self, py: Python<'py>) -> PyResult<Next<'py, ()>> {
        self.shared.get().next(py)
    }

    fn receive<'py>(
        &self,
        py: Python<'py>,
        result: PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.shared.get().receive(py, result)
    }
}

native_coroutine::methods!(SeparateNextItem, [shared]);

impl ItemStream {
    /// Returns an awaitable of the next item: the stream's own, unless a program holds it or it is in use.
    #[inline]
    fn next_item<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let awaitable = self.awaitable.bind(py);
        // SAFETY: it lives, and with the GIL held no thread adds or drops a reference meanwhile.
        let references = unsafe { ffi::Py_REFCNT(awaitable.as_ptr()) };
        match references == 1 && native_coroutine::is_new(awaitable.get()) {
            true => Ok(awaitable.clone().into_any()),
            false => self.separate_next_item(py, State::New(())),
        }
    }

    /// Returns a further awaitable of the next item, in this state.
    #[cold]
    fn separate_next_item<'py>(
        &self,
        py: Python<'py>,
        state: State<SeparateNextItem>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let awaitable = SeparateNextItem {
            shared: self.awaitable.clone_ref(py),
            state: Mutex::new(state),
        };
        Ok(Bound::new(py, awaitable)?.into_any())
    }

    /// Calls a method of the generator of lists, and returns an awaitable that awaits its result and then the next
    /// item.
    fn next_item_after<'py>(
        &self,
        py: Python<'py>,
        method: &str,
        arguments: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let batches = self.awaitable.get().batches.bind(py);
        let awaitable = batches.call_method1(method, arguments)?;
        self.separate_next_item(py, State::Delegated(awaitable.unbind()))
    }
}

#[pymethods]
impl ItemStream {
    #[new]
    fn new(py: Python<'_>, batches: Py<PyAny>) -> PyResult<Self> {
        let awaitable = NextItem {
            batches,
            batch: Mutex::default(),
            state: Mutex::new(State::New(())),
        };
        Ok(ItemStream {
            awaitable: Py::new(py, awaitable)?,
        })
    }

    fn __aiter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __anext__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.next_item(py)
    }

    /// Returns an awaitable of the next item. Drops the sent value if an item has arrived already.
    fn asend<'py>(&self, py: Python<'py>, value: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if value.is_none() || self.awaitable.get().has_item(py) {
            return self.next_item(py);
        }
        self.next_item_after(py, "asend", &PyTuple::new(py, [value])?)
    }

    /// Returns an awaitable that raises an exception at the point where the stream is suspended. Drops at once the
    /// items that have arrived.
    #[pyo3(signature = (*thrown))]
    fn athrow<'py>(
        &self,
        py: Python<'py>,
        thrown: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.awaitable.get().set_batch(Batch::default());
        self.next_item_after(py, "athrow", thrown)
    }

    /// Returns an awaitable that closes the stream. Drops at once the items that have arrived.
    fn aclose<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.awaitable.get().set_batch(Batch::default());
        let batches = self.awaitable.get().batches.bind(py);
        batches.call_method0("aclose")
    }

    /// Returns any other attribute of the generator, such as `ag_running`, `ag_frame` and `__name__`.
    fn __getattr__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        self.awaitable.get().batches.bind(py).getattr(name)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.awaitable)
    }
}

/// Registers `ItemStream` as an `AsyncGenerator`, and sets the slots by which the interpreter calls it directly.
pub(crate) fn register(py: Python<'_>) -> PyResult<()> {
    coroutine_slots::install::<NextItem>(py);
    coroutine_slots::install::<SeparateNextItem>(py);
    let class = py.get_type::<ItemStream>();
    // SAFETY: it is a heap type, which contains its slots, and no code uses it yet. The GIL is held.
    unsafe {
        if let Some(slots) = (*class.as_type_ptr()).tp_as_async.as_mut() {
            slots.am_anext = Some(am_anext);
        }
    }
    let abstract_class = py.import("collections.abc")?.getattr("AsyncGenerator")?;
    abstract_class.call_method1("register", (class,)).map(drop)
}

/// Does what `__anext__` does.
unsafe extern "C" fn am_anext(stream: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the interpreter calls this with the GIL, and with an instance of `ItemStream`.
    let (py, stream) = unsafe {
        let py = Python::assume_attached();
        let stream = Bound::from_borrowed_ptr(py, stream);
        (py, stream.cast_into_unchecked::<ItemStream>())
    };
    match stream.get().next_item(py) {
        Ok(awaitable) => awaitable.into_ptr(),
        Err(error) => {
            error.restore(py);
            std::ptr::null_mut()
        }
    }
}
