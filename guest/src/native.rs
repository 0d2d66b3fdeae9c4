//! The Python module `_fumehood`: brokered calls, for the overlay in `python/`.
//!
//! Invariant: a failed call is a Python exception with one line of text.

use crate::host::Failure;
use fumehood_guest_abi::CallError;
use rustpython_vm::VirtualMachine;
use rustpython_vm::builtins::PyBaseExceptionRef;

pub(crate) use self::_fumehood::module_def;

fn raised(failure: Failure, vm: &VirtualMachine) -> PyBaseExceptionRef {
    let text = match failure {
        Failure::Refused(CallError::Denied) => {
            let denied = vm.ctx.exceptions.permission_error.to_owned();
            let text = "denied by the sandbox policy: not a fault, do not retry";
            return vm.new_exception_msg(denied, text.into());
        }
        Failure::Refused(CallError::UnknownOperation) => "this sandbox does not know the operation",
        Failure::Refused(CallError::Malformed) => "the sandbox could not read the request",
        Failure::Refused(CallError::TooLarge) => "larger than the sandbox accepts",
        Failure::Refused(CallError::NothingPending) => "no response is waiting",
        Failure::Refused(CallError::Failed) => "the sandbox could not carry the operation out",
        Failure::Protocol => "the sandbox gave an answer that makes no sense",
    };
    vm.new_runtime_error(text)
}

#[rustpython_derive::pymodule]
mod _fumehood {
    use super::raised;
    use crate::host;
    use fumehood_guest_abi::{Display, encode, op};
    use rustpython_vm::builtins::{PyBytesRef, PyUtf8StrRef};
    use rustpython_vm::function::ArgBytesLike;
    use rustpython_vm::{PyResult, VirtualMachine};

    #[pyattr]
    const NOOP: u32 = op::NOOP;

    /// Carries out one brokered operation and returns the response.
    #[pyfunction]
    fn call(operation: u32, request: ArgBytesLike, vm: &VirtualMachine) -> PyResult<PyBytesRef> {
        let request = request.borrow_buf().to_vec();
        host::call(operation, &request)
            .map(|response| vm.ctx.new_bytes(response))
            .map_err(|failure| raised(failure, vm))
    }

    /// Hands the host one rich output.
    #[pyfunction]
    fn display(mime: PyUtf8StrRef, content: ArgBytesLike, vm: &VirtualMachine) -> PyResult<()> {
        let record =
            Display { mime: mime.as_str().to_owned(), bytes: content.borrow_buf().to_vec() };
        let record = encode(&record).map_err(|_| vm.new_value_error("not a record"))?;
        host::call(op::DISPLAY, &record).map(drop).map_err(|failure| raised(failure, vm))
    }
}
