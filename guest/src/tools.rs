//! Calls of the embedder's tools: Python arguments in, Python values or
//! exceptions out.
//!
//! Invariant: whether a call may happen and whether its arguments fit is the
//! host's to decide; here they only become a record.

use crate::{host, json, native};
use fumehood_guest_abi::{ToolCall, ToolEnded, ToolErrorKind, ToolReply, ToolStarted, ToolWait};
use fumehood_guest_abi::{ToolName, decode, encode, op};
use rustpython_vm::builtins::PyBaseExceptionRef;
use rustpython_vm::function::FuncArgs;
use rustpython_vm::{PyObjectRef, PyResult, VirtualMachine};

/// Every tool the host has.
pub(crate) fn list(vm: &VirtualMachine) -> PyResult<Vec<ToolName>> {
    answer(op::TOOL_LIST, &[], vm)
}

/// The record of a call: positional arguments take the schema's names.
pub(crate) fn request(
    name: &str,
    parameters: &[String],
    args: &FuncArgs,
    vm: &VirtualMachine,
) -> PyResult<Vec<u8>> {
    if args.args.len() > parameters.len() {
        return Err(vm.new_type_error(format!(
            "{name}() takes {} positional arguments but {} were given",
            parameters.len(),
            args.args.len()
        )));
    }
    let mut text = vec![b'{'];
    let separate = |text: &mut Vec<u8>| {
        if text.len() > 1 {
            text.push(b',');
        }
    };
    for (parameter, value) in parameters.iter().zip(&args.args) {
        if args.kwargs.contains_key(parameter.as_str()) {
            return Err(vm.new_type_error(format!(
                "{name}() got multiple values for argument '{parameter}'"
            )));
        }
        separate(&mut text);
        json::write_key(parameter, &mut text);
        json::write(value, &mut text, vm)?;
    }
    for (parameter, value) in args.kwargs.iter() {
        separate(&mut text);
        let parameter = parameter
            .as_str()
            .map_err(|_| vm.new_value_error("a name of an argument is no plain str"))?;
        json::write_key(parameter, &mut text);
        json::write(value, &mut text, vm)?;
    }
    text.push(b'}');
    record(&ToolCall { name: name.to_owned(), arguments: text }, vm)
}

/// Calls and waits.
pub(crate) fn call(request: &[u8], vm: &VirtualMachine) -> PyResult<PyObjectRef> {
    let reply: ToolReply = answer(op::TOOL_CALL, request, vm)?;
    value(reply, vm)
}

/// How a call that was started stands.
pub(crate) enum Started {
    /// It ended at once.
    Ended(PyResult<PyObjectRef>),
    /// It goes on under this number.
    Running(u64),
}

/// Calls and goes on.
pub(crate) fn start(request: &[u8], vm: &VirtualMachine) -> PyResult<Started> {
    Ok(match answer(op::TOOL_START, request, vm)? {
        ToolStarted::Ended(reply) => Started::Ended(value(reply, vm)),
        ToolStarted::Running { id } => Started::Running(id),
    })
}

/// Waits until started operations ended or the time is over.
pub(crate) fn wait(timeout_ns: Option<u64>, vm: &VirtualMachine) -> PyResult<Vec<ToolEnded>> {
    answer(op::TOOL_WAIT, &record(&ToolWait { timeout_ns }, vm)?, vm)
}

/// The value that a tool returned.
pub(crate) fn value_of(text: &[u8], vm: &VirtualMachine) -> PyResult<PyObjectRef> {
    json::read(text, vm)
}

/// The kinds of errors, by the number that Python code knows them by.
const KINDS: [ToolErrorKind; 6] = [
    ToolErrorKind::Denied,
    ToolErrorKind::Arguments,
    ToolErrorKind::Failed,
    ToolErrorKind::TimedOut,
    ToolErrorKind::TooLarge,
    ToolErrorKind::Unknown,
];

/// The number of a kind of error.
pub(crate) fn number_of(kind: ToolErrorKind) -> usize {
    KINDS.iter().position(|known| *known == kind).unwrap_or(KINDS.len())
}

/// The exception for such a number.
pub(crate) fn exception_of(
    number: u32,
    message: String,
    vm: &VirtualMachine,
) -> PyBaseExceptionRef {
    let kind = usize::try_from(number).ok().and_then(|number| KINDS.get(number));
    exception(kind.copied().unwrap_or(ToolErrorKind::Failed), message, vm)
}

/// Gives a started call up.
pub(crate) fn cancel(id: u64, vm: &VirtualMachine) -> PyResult<()> {
    let request = record(&id, vm)?;
    host::call(op::TOOL_CANCEL, &request).map(drop).map_err(|failure| native::raised(failure, vm))
}

/// Encodes a request.
pub(crate) fn record<T: serde::Serialize>(value: &T, vm: &VirtualMachine) -> PyResult<Vec<u8>> {
    encode(value).map_err(|_| vm.new_value_error("not a record"))
}

/// Carries out an operation and decodes its response.
pub(crate) fn answer<T: serde::de::DeserializeOwned>(
    operation: u32,
    request: &[u8],
    vm: &VirtualMachine,
) -> PyResult<T> {
    let response =
        host::call(operation, request).map_err(|failure| native::raised(failure, vm))?;
    decode(&response).map_err(|_| native::raised(host::Failure::Protocol, vm))
}

fn value(reply: ToolReply, vm: &VirtualMachine) -> PyResult<PyObjectRef> {
    match reply {
        ToolReply::Value(text) => value_of(&text, vm),
        ToolReply::Raised { kind, message } => Err(exception(kind, message, vm)),
    }
}

fn exception(kind: ToolErrorKind, message: String, vm: &VirtualMachine) -> PyBaseExceptionRef {
    let exceptions = &vm.ctx.exceptions;
    let class = match kind {
        ToolErrorKind::Denied => exceptions.permission_error,
        ToolErrorKind::Arguments => exceptions.type_error,
        ToolErrorKind::Failed => return native::tool_error(message, vm),
        ToolErrorKind::TimedOut => exceptions.timeout_error,
        ToolErrorKind::TooLarge => exceptions.overflow_error,
        ToolErrorKind::Unknown => exceptions.name_error,
    };
    vm.invoke_exception(class, vec![vm.ctx.new_str(message).into()])
        .unwrap_or_else(|failed| failed)
}
