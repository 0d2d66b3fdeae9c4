//! What RustPython leaves out of its file functions on WASI.
//!
//! Invariant: a failure is the `OSError` that Linux would raise.

use crate::host;
use rustpython_vm::builtins::{PyBytes, PyBytesRef};
use rustpython_vm::convert::ToPyException as _;
use rustpython_vm::function::{ArgBytesLike, OptionalArg};
use rustpython_vm::{PyObjectRef, PyResult, TryFromObject as _, VirtualMachine};
use std::ffi::CString;

/// Makes a symbolic link at `path` that says `target`.
pub(crate) fn symlink(target: &[u8], path: &[u8], vm: &VirtualMachine) -> PyResult<()> {
    let text = |bytes: &[u8]| {
        CString::new(bytes).map_err(|_| vm.new_value_error("embedded null byte"))
    };
    let (target, path) = (text(target)?, text(path)?);
    host::symlink(&target, &path).map_err(|error| error.to_pyexception(vm))
}

/// Gives the buffered readers a `readline` of their own: the inherited one
/// reads byte by byte.
pub(crate) fn install(vm: &VirtualMachine) -> PyResult<()> {
    let io = vm.import("_io", 0)?;
    for name in ["BufferedReader", "BufferedRandom"] {
        let class = io.get_attr(name, vm)?;
        let class = class
            .downcast_ref::<rustpython_vm::builtins::PyType>()
            .ok_or_else(|| vm.new_system_error("not a class"))?;
        // The classes live as long as the interpreter.
        let class: &'static rustpython_vm::Py<rustpython_vm::builtins::PyType> =
            Box::leak(Box::new(class.to_owned()));
        let method = vm.new_method("readline", class, readline);
        class.set_attr(vm.ctx.intern_str("readline"), method.into());
    }
    Ok(())
}

fn readline(
    reader: PyObjectRef,
    size: OptionalArg<Option<isize>>,
    vm: &VirtualMachine,
) -> PyResult<PyBytesRef> {
    let most = size.flatten().and_then(|size| usize::try_from(size).ok()).unwrap_or(usize::MAX);
    let mut line = Vec::new();
    while line.len() < most {
        let ahead = ArgBytesLike::try_from_object(vm, vm.call_method(&reader, "peek", ())?)?;
        let (take, ends) = ahead.with_ref(|ahead| {
            let ahead = &ahead[..ahead.len().min(most - line.len())];
            match ahead.iter().position(|byte| *byte == b'\n') {
                Some(index) => (index + 1, true),
                None => (ahead.len(), false),
            }
        });
        if take == 0 {
            break;
        }
        let part = vm.call_method(&reader, "read", (take,))?;
        if line.is_empty() && ends {
            if let Ok(part) = part.downcast::<PyBytes>() {
                return Ok(part);
            }
            return Err(vm.new_type_error("read() should return bytes"));
        }
        ArgBytesLike::try_from_object(vm, part)?.with_ref(|part| line.extend_from_slice(part));
        if ends {
            break;
        }
    }
    Ok(vm.ctx.new_bytes(line))
}
