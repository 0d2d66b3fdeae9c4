//! The Python module `_fumehood`: brokered calls, for the overlay in `python/`.
//!
//! Invariant: a failed call is a Python exception with one line of text.

use crate::host::Failure;
use fumehood_guest_abi::CallError;
use rustpython_vm::VirtualMachine;
use rustpython_vm::builtins::PyBaseExceptionRef;

pub(crate) use self::_fumehood::{bind_tools, module_def};

/// The exception of a tool that failed.
pub(crate) fn tool_error(message: String, vm: &VirtualMachine) -> PyBaseExceptionRef {
    let arguments = vec![vm.ctx.new_str(message).into()];
    vm.invoke_exception(&_fumehood::tool_error(vm), arguments).unwrap_or_else(|failed| failed)
}

/// The exception of a brokered call that gave no response.
pub(crate) fn raised(failure: Failure, vm: &VirtualMachine) -> PyBaseExceptionRef {
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
    use crate::tools::{self, Started};
    use crate::host::Failure;
    use crate::{files, host};
    use fumehood_guest_abi::{BashCall, BashReply, CallError, Display, ToolName, ToolReply, ToolSearch, ToolSummary};
    use fumehood_guest_abi::{decode, encode, op};
    use rustpython_vm::builtins::{PyBytesRef, PyTypeRef, PyUtf8StrRef};
    use rustpython_vm::function::{ArgBytesLike, FuncArgs};
    use rustpython_derive::pyclass;
    use rustpython_vm::types::{Callable, Representable};
    use rustpython_vm::{AsObject, Py, PyObjectRef, PyPayload, PyResult};
    use rustpython_vm::{TryFromObject, VirtualMachine};
    use std::cell::{OnceCell, RefCell};

    thread_local! {
        /// Makes the future of a started call from its number.
        static FUTURE: RefCell<Option<PyObjectRef>> = const { RefCell::new(None) };
        static TOOL_ERROR: OnceCell<PyTypeRef> = const { OnceCell::new() };
    }

    /// A tool of the embedder said that it failed.
    #[pyattr(name = "ToolError")]
    pub(super) fn tool_error(vm: &VirtualMachine) -> PyTypeRef {
        let make = || {
            let base = vm.ctx.exceptions.runtime_error.to_owned();
            vm.ctx.new_exception_type("fumehood", "ToolError", Some(vec![base]))
        };
        TOOL_ERROR.with(|class| class.get_or_init(make).clone())
    }

    /// A function of the embedder.
    ///
    /// Inside a running event loop a call starts and can be awaited; outside it
    /// waits and gives the result.
    #[pyattr]
    #[pyclass(module = "fumehood", name = "Tool")]
    #[derive(Debug, PyPayload)]
    struct Tool {
        name: String,
        parameters: Vec<String>,
    }

    #[pyclass(with(Callable, Representable), flags(DISALLOW_INSTANTIATION))]
    impl Tool {
        #[pygetset(name = "__name__")]
        fn name(zelf: &Py<Self>) -> String {
            zelf.name.clone()
        }

        #[pygetset(name = "__qualname__")]
        fn qualified_name(zelf: &Py<Self>) -> String {
            zelf.name.clone()
        }

        /// Calls and waits, also inside a running event loop.
        #[pymethod]
        fn sync(zelf: &Py<Self>, args: FuncArgs, vm: &VirtualMachine) -> PyResult {
            tools::call(&tools::request(&zelf.name, &zelf.parameters, &args, vm)?, vm)
        }
    }

    /// Starts a call and gives its future.
    fn start(request: &[u8], vm: &VirtualMachine) -> PyResult {
        let make = FUTURE.with_borrow(Clone::clone);
        let Some(make) = make else {
            return Err(vm.new_runtime_error("the event loop is not ready"));
        };
        let none = || vm.ctx.none();
        match tools::start(request, vm)? {
            Started::Running(id) => make.call((id, none(), none()), vm),
            Started::Ended(Ok(value)) => make.call((none(), value, none()), vm),
            Started::Ended(Err(error)) => make.call((none(), none(), error), vm),
        }
    }

    impl Callable for Tool {
        type Args = FuncArgs;

        fn call(zelf: &Py<Self>, args: FuncArgs, vm: &VirtualMachine) -> PyResult {
            let request = tools::request(&zelf.name, &zelf.parameters, &args, vm)?;
            if vm.asyncio_running_loop.borrow().is_some() {
                start(&request, vm)
            } else {
                tools::call(&request, vm)
            }
        }
    }

    impl Representable for Tool {
        fn repr_str(zelf: &Py<Self>, _: &VirtualMachine) -> PyResult<String> {
            Ok(format!("<tool {}({})>", zelf.name, zelf.parameters.join(", ")))
        }
    }

    /// Makes every tool of the host a builtin name.
    pub(crate) fn bind_tools(vm: &VirtualMachine) -> PyResult<()> {
        let builtins = vm.builtins.as_object();
        for ToolName { name, parameters } in tools::list(vm)? {
            let tool = Tool { name: name.clone(), parameters }.into_pyobject(vm);
            builtins.set_attr(&vm.ctx.new_str(name), tool, vm)?;
        }
        Ok(())
    }

    /// Sets what makes the future of a started call.
    #[pyfunction]
    fn set_future(make: PyObjectRef) {
        FUTURE.set(Some(make));
    }

    /// Waits for started operations, at most so many seconds, and gives for each
    /// its number, the number of an error or `None`, and what came.
    #[pyfunction]
    fn wait(seconds: Option<f64>, vm: &VirtualMachine) -> PyResult<Vec<PyObjectRef>> {
        // Saturates: a longer wait than that ends with the run.
        let timeout = seconds.map(|seconds| (seconds.max(0.0) * 1e9) as u64);
        let ended = tools::wait(timeout, vm)?;
        let parts = ended.into_iter().map(|ended| {
            let (kind, value) = match ended.reply {
                ToolReply::Value(bytes) => (vm.ctx.none(), vm.ctx.new_bytes(bytes).into()),
                ToolReply::Raised { kind, message } => {
                    let kind = vm.ctx.new_int(tools::number_of(kind)).into();
                    (kind, vm.ctx.new_str(message).into())
                }
            };
            vm.ctx.new_tuple(vec![vm.ctx.new_int(ended.id).into(), kind, value]).into()
        });
        Ok(parts.collect())
    }

    /// Gives the value of what `wait` gave for a tool, or raises its exception.
    #[pyfunction]
    fn tool_value(kind: Option<u32>, answer: PyObjectRef, vm: &VirtualMachine) -> PyResult {
        match kind {
            None => tools::value_of(&ArgBytesLike::try_from_object(vm, answer)?.borrow_buf(), vm),
            Some(kind) => {
                let message = answer.str(vm)?.to_string_lossy().into_owned();
                Err(tools::exception_of(kind, message, vm))
            }
        }
    }

    /// Gives a started call up.
    #[pyfunction]
    fn tool_cancel(id: u64, vm: &VirtualMachine) -> PyResult<()> {
        tools::cancel(id, vm)
    }

    /// Finds tools; gives pairs of name and first sentence.
    #[pyfunction]
    fn tool_search(
        query: PyUtf8StrRef,
        limit: u32,
        vm: &VirtualMachine,
    ) -> PyResult<Vec<PyObjectRef>> {
        let request = ToolSearch { query: query.as_str().to_owned(), limit };
        let found: Vec<ToolSummary> =
            tools::answer(op::TOOL_SEARCH, &tools::record(&request, vm)?, vm)?;
        Ok(found
            .into_iter()
            .map(|tool| {
                let name = vm.ctx.new_str(tool.name).into();
                vm.ctx.new_tuple(vec![name, vm.ctx.new_str(tool.description).into()]).into()
            })
            .collect())
    }

    /// Gives what is known of a tool as JSON text, empty if there is none.
    #[pyfunction]
    fn tool_describe(name: PyUtf8StrRef, vm: &VirtualMachine) -> PyResult<String> {
        let request = tools::record(&name.as_str(), vm)?;
        let text = host::call(op::TOOL_DESCRIBE, &request).map_err(|failure| raised(failure, vm))?;
        String::from_utf8(text).map_err(|_| raised(Failure::Protocol, vm))
    }

    /// The name of the native tier; `None` if there is none.
    #[pyfunction]
    fn bash_tier(vm: &VirtualMachine) -> PyResult<Option<String>> {
        match host::call(op::BASH_TIER, &[]) {
            // A host that knows no native tiers has none.
            Err(Failure::Refused(CallError::UnknownOperation)) => Ok(None),
            Err(failure) => Err(raised(failure, vm)),
            Ok(name) => {
                let name: String =
                    decode(&name).map_err(|_| raised(Failure::Protocol, vm))?;
                Ok((!name.is_empty()).then_some(name))
            }
        }
    }

    /// Runs a command in the native tier; gives the number of an error and its
    /// text, or `None` and the parts of the result. `env` is names and values in
    /// turn.
    #[pyfunction]
    fn bash(
        command: PyUtf8StrRef,
        timeout_ms: Option<u64>,
        stdin: ArgBytesLike,
        cwd: Option<PyUtf8StrRef>,
        env: Vec<PyUtf8StrRef>,
        vm: &VirtualMachine,
    ) -> PyResult<(Option<u32>, PyObjectRef)> {
        let text = |text: &PyUtf8StrRef| text.as_str().to_owned();
        let request = BashCall {
            command: text(&command),
            timeout_ms,
            stdin: stdin.borrow_buf().to_vec(),
            cwd: cwd.as_ref().map(text),
            env: env.chunks_exact(2).map(|pair| (text(&pair[0]), text(&pair[1]))).collect(),
        };
        match tools::answer(op::BASH_RUN, &tools::record(&request, vm)?, vm)? {
            BashReply::Raised { kind, message } => {
                Ok((Some(kind as u32), vm.ctx.new_str(message).into()))
            }
            BashReply::Ended(result) => {
                let texts = |list: Vec<String>| -> PyObjectRef {
                    let list = list.into_iter().map(|text| vm.ctx.new_str(text).into());
                    vm.ctx.new_list(list.collect()).into()
                };
                let parts = vec![
                    vm.ctx.new_int(result.exit_code).into(),
                    vm.ctx.new_bytes(result.stdout).into(),
                    vm.ctx.new_bytes(result.stderr).into(),
                    vm.ctx.new_int(result.dropped_stdout).into(),
                    vm.ctx.new_int(result.dropped_stderr).into(),
                    vm.ctx.new_bool(result.timed_out).into(),
                    vm.ctx.new_bool(result.memory_exceeded).into(),
                    texts(result.denials),
                    vm.ctx.new_str(result.tier).into(),
                    texts(result.controls),
                ];
                Ok((None, vm.ctx.new_tuple(parts).into()))
            }
        }
    }

    /// Gives the time zone database; see `vendor/tzdata/generate.py`.
    #[pyfunction]
    fn zone_data(vm: &VirtualMachine) -> PyBytesRef {
        vm.ctx.new_bytes(include_bytes!("../vendor/tzdata/zones.zlib").to_vec())
    }

    /// Makes a symbolic link.
    #[pyfunction]
    fn symlink(target: ArgBytesLike, path: ArgBytesLike, vm: &VirtualMachine) -> PyResult<()> {
        files::symlink(&target.borrow_buf(), &path.borrow_buf(), vm)
    }

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

    /// Carries out one brokered operation on frames: the text and the bytes of
    /// the response, of which `most` are expected at most.
    #[pyfunction]
    fn exchange(
        operation: u32,
        text: ArgBytesLike,
        bytes: ArgBytesLike,
        most: usize,
        vm: &VirtualMachine,
    ) -> PyResult<(PyBytesRef, PyBytesRef)> {
        let (text, bytes) =
            host::exchange(operation, &text.borrow_buf(), &bytes.borrow_buf(), most)
                .map_err(|failure| raised(failure, vm))?;
        Ok((vm.ctx.new_bytes(text), vm.ctx.new_bytes(bytes)))
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
