//! Gives `OSError` the texts of Linux.
//!
//! Why here: the interpreter asks for the text of a number on Unix only; on
//! WASI it keeps what Rust says, with `(os error N)` at the end. Exceptions are
//! made without running anything that could be replaced, so the text is put
//! right when it is first looked at.
//! Invariant: only the text changes; class and number stay.

use rustpython_vm::builtins::{PyInt, PyStr, PyTuple, PyType};
use rustpython_vm::host_env::errno::strerror_string;
use rustpython_vm::{AsObject, Py, PyObject, PyObjectRef, PyRef, PyResult, VirtualMachine};
use std::cell::OnceCell;

type Stringify = fn(&PyObject, &VirtualMachine) -> PyResult<PyRef<PyStr>>;

/// What Rust appends.
const MARK: &str = " (os error ";

thread_local! {
    static ORIGINAL: OnceCell<Original> = const { OnceCell::new() };
}

struct Original {
    str: Stringify,
    repr: Stringify,
    /// The descriptors of the attributes.
    strerror: PyObjectRef,
    args: PyObjectRef,
}

/// Puts the wrappers in place; runs once, before any Python of a user.
pub(crate) fn install(vm: &VirtualMachine) {
    let exceptions = &vm.ctx.exceptions;
    let class = exceptions.os_error;
    let name = |name: &str| vm.ctx.intern_str(name);
    let (Some(str), Some(repr), Some(strerror), Some(args)) = (
        class.slots.str.load(),
        class.slots.repr.load(),
        class.get_attr(name("strerror")),
        class.get_attr(name("args")),
    ) else {
        return;
    };
    let _ = ORIGINAL.with(|slot| slot.set(Original { str, repr, strerror, args }));
    let classes: [&'static Py<PyType>; 16] = [
        class,
        exceptions.blocking_io_error,
        exceptions.child_process_error,
        exceptions.connection_error,
        exceptions.broken_pipe_error,
        exceptions.connection_aborted_error,
        exceptions.connection_refused_error,
        exceptions.connection_reset_error,
        exceptions.file_exists_error,
        exceptions.file_not_found_error,
        exceptions.interrupted_error,
        exceptions.is_a_directory_error,
        exceptions.not_a_directory_error,
        exceptions.permission_error,
        exceptions.process_lookup_error,
        exceptions.timeout_error,
    ];
    for class in classes {
        class.slots.str.store(Some(shown));
        class.slots.repr.store(Some(represented));
        let shown = vm.new_method("__str__", class, shown_method);
        class.set_attr(name("__str__"), shown.into());
        let represented = vm.new_method("__repr__", class, represented_method);
        class.set_attr(name("__repr__"), represented.into());
    }
    let strerror = vm.ctx.new_getset("strerror", class, get_strerror, set_strerror);
    class.set_attr(name("strerror"), strerror.into());
    let args = vm.ctx.new_getset("args", class, get_args, set_args);
    class.set_attr(name("args"), args.into());
}

fn original<T>(use_it: impl FnOnce(&Original) -> T, vm: &VirtualMachine) -> PyResult<T> {
    ORIGINAL.with(|slot| {
        slot.get().map(use_it).ok_or_else(|| vm.new_system_error("errors are not set up"))
    })
}

/// Replaces a text of Rust's by that of Linux.
fn put_right(error: &PyObject, vm: &VirtualMachine) -> PyResult<()> {
    let (strerror, args) = original(|it| (it.strerror.clone(), it.args.clone()), vm)?;
    let get = |descriptor: &PyObjectRef| {
        vm.call_method(descriptor, "__get__", (error.to_owned(), error.class().to_owned()))
    };
    let text = get(&strerror)?;
    let Some(text) = text.downcast_ref::<PyStr>() else { return Ok(()) };
    let text = text.to_string_lossy();
    let Some((plain, _)) = text.rsplit_once(MARK) else { return Ok(()) };
    let number = error.get_attr("errno", vm)?;
    let known = number
        .downcast_ref::<PyInt>()
        .and_then(|number| number.try_to_primitive::<i32>(vm).ok())
        .and_then(strerror_string);
    let text: PyObjectRef = vm.ctx.new_str(known.as_deref().unwrap_or(plain)).into();
    vm.call_method(&strerror, "__set__", (error.to_owned(), text.clone()))?;
    let arguments = get(&args)?;
    if let Some(arguments) = arguments.downcast_ref::<PyTuple>()
        && arguments.len() == 2
    {
        let arguments = vm.ctx.new_tuple(vec![number, text]);
        vm.call_method(&args, "__set__", (error.to_owned(), arguments))?;
    }
    Ok(())
}

fn shown(error: &PyObject, vm: &VirtualMachine) -> PyResult<PyRef<PyStr>> {
    put_right(error, vm)?;
    original(|it| it.str, vm)?(error, vm)
}

fn represented(error: &PyObject, vm: &VirtualMachine) -> PyResult<PyRef<PyStr>> {
    put_right(error, vm)?;
    original(|it| it.repr, vm)?(error, vm)
}

fn shown_method(error: PyObjectRef, vm: &VirtualMachine) -> PyResult<PyRef<PyStr>> {
    shown(&error, vm)
}

fn represented_method(error: PyObjectRef, vm: &VirtualMachine) -> PyResult<PyRef<PyStr>> {
    represented(&error, vm)
}

fn get_strerror(error: PyObjectRef, vm: &VirtualMachine) -> PyResult {
    put_right(&error, vm)?;
    let descriptor = original(|it| it.strerror.clone(), vm)?;
    vm.call_method(&descriptor, "__get__", (error.clone(), error.class().to_owned()))
}

fn set_strerror(error: PyObjectRef, value: PyObjectRef, vm: &VirtualMachine) -> PyResult<()> {
    let descriptor = original(|it| it.strerror.clone(), vm)?;
    vm.call_method(&descriptor, "__set__", (error, value)).map(drop)
}

fn get_args(error: PyObjectRef, vm: &VirtualMachine) -> PyResult {
    put_right(&error, vm)?;
    let descriptor = original(|it| it.args.clone(), vm)?;
    vm.call_method(&descriptor, "__get__", (error.clone(), error.class().to_owned()))
}

fn set_args(error: PyObjectRef, value: PyObjectRef, vm: &VirtualMachine) -> PyResult<()> {
    let descriptor = original(|it| it.args.clone(), vm)?;
    vm.call_method(&descriptor, "__set__", (error, value)).map(drop)
}
