//! Takes the `(os error N)` that Rust appends out of the text of `OSError`.
//!
//! Why here: RustPython does so for Unix and not for WASI, and exception
//! classes cannot be changed from Python.
//! Invariant: only the text changes; class and number stay.

use rustpython_vm::builtins::PyStr;
use rustpython_vm::{AsObject, PyObject, PyObjectRef, PyRef, PyResult, VirtualMachine};
use std::cell::Cell;

type Stringify = fn(&PyObject, &VirtualMachine) -> PyResult<PyRef<PyStr>>;

thread_local! {
    static ORIGINAL: Cell<Option<Stringify>> = const { Cell::new(None) };
}

/// Puts the wrapper in place; runs once, before any Python of a user.
pub(crate) fn install(vm: &VirtualMachine) {
    let class = vm.ctx.exceptions.os_error;
    ORIGINAL.set(class.slots.str.load());
    let method = vm.new_method("__str__", class, text);
    class.set_attr(vm.ctx.intern_str("__str__"), method.into());
}

fn text(exception: PyObjectRef, vm: &VirtualMachine) -> PyResult<PyRef<PyStr>> {
    if let Ok(reason) = exception.get_attr("strerror", vm)
        && let Some(reason) = reason.downcast_ref::<PyStr>()
        && let Some((plain, _)) = reason.to_string_lossy().rsplit_once(" (os error ")
    {
        exception.set_attr("strerror", vm.ctx.new_str(plain), vm)?;
    }
    match ORIGINAL.get() {
        Some(original) => original(exception.as_object(), vm),
        None => exception.repr(vm),
    }
}
