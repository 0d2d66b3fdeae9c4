//! Runs one cell or script and describes how it ended.
//!
//! The common case stays in Rust and runs no Python but the program's own;
//! errors, inputs and values that are not `None` go through the kernel module.
//! Invariant: whatever the program did, one record comes back and both output
//! streams are flushed.

use crate::guest::Kernel;
use fumehood_guest_abi::{ErrorInfo, Exec, ExecResult, Mode, Status};
use rustpython_vm::builtins::{PyBaseExceptionRef, PyCode, PyInt, PyStr, PyTuple};
use rustpython_vm::bytecode::{BorrowedConstant, CodeFlags, Constant as _};
use rustpython_vm::{AsObject, PyObject, PyObjectRef, PyRef, PyResult, VirtualMachine, compiler};

/// Runs `exec` in the namespace of `kernel`.
pub(crate) fn run(exec: &Exec, kernel: &Kernel, vm: &VirtualMachine) -> ExecResult {
    let result = evaluate(exec, kernel, vm)
        .and_then(|value| describe(exec, value, kernel, vm))
        .unwrap_or_else(|exception| report(exec, exception, kernel, vm));
    let result = match exec.mode {
        Mode::Script => finish(exec, result, kernel, vm),
        Mode::Cell => result,
    };
    flush(vm);
    result
}

fn evaluate(exec: &Exec, kernel: &Kernel, vm: &VirtualMachine) -> PyResult<PyObjectRef> {
    if exec.mode == Mode::Script || exec.inputs_json.is_some() {
        let inputs = match &exec.inputs_json {
            Some(json) => vm.ctx.new_bytes(json.clone()).into(),
            None => vm.ctx.none(),
        };
        let script = vm.ctx.new_bool(exec.mode == Mode::Script);
        kernel.call("begin", (script, exec.filename.as_str(), inputs), vm)?;
    }
    let source = decode(exec, kernel, vm)?;
    let code = compile(exec, &source, vm)?;
    remember(exec, &code, &source, kernel, vm)?;
    let is_coroutine = code.flags.contains(CodeFlags::COROUTINE);
    let mut value = vm.run_code_obj(code, kernel.scope.clone())?;
    if is_coroutine {
        value = kernel.call("run_coroutine", (value,), vm)?;
    }
    if exec.mode == Mode::Script || (!vm.is_none(&value) && ends_in_definition(&source)) {
        return Ok(vm.ctx.none());
    }
    Ok(value)
}

/// The source as text; anything unusual is left to CPython's own rules.
fn decode(exec: &Exec, kernel: &Kernel, vm: &VirtualMachine) -> PyResult<String> {
    let source = exec.source.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&exec.source);
    if let Ok(text) = std::str::from_utf8(source)
        && !text.contains('\0')
        && !text.lines().take(2).any(|line| line.contains("coding"))
    {
        return Ok(text.to_owned());
    }
    let source = vm.ctx.new_bytes(exec.source.clone());
    let text = kernel.call("decode", (source, exec.filename.as_str()), vm)?;
    Ok(text_of(&text))
}

fn compile(exec: &Exec, source: &str, vm: &VirtualMachine) -> PyResult<PyRef<PyCode>> {
    let mut options = vm.compile_opts();
    let mode = match exec.mode {
        Mode::Script => compiler::Mode::Exec,
        Mode::Cell => {
            options.allow_top_level_await = true;
            compiler::Mode::BlockExpr
        }
    };
    vm.compile_with_opts(source, mode, exec.filename.as_str(), options)
        .map_err(|error| error.into_pyexception(vm, Some(source)))
}

/// Gives `linecache` the lines of a source: `linecache._register_code`, without
/// running Python for each cell.
fn remember(
    exec: &Exec,
    code: &PyCode,
    source: &str,
    kernel: &Kernel,
    vm: &VirtualMachine,
) -> PyResult<()> {
    let context = &vm.ctx;
    let lines = source.lines().map(|line| context.new_str(format!("{line}\n")).into());
    let filename = PyObjectRef::from(context.new_str(exec.filename.as_str()));
    let entry = PyObjectRef::from(context.new_tuple(vec![
        context.new_int(source.len()).into(),
        context.none(),
        context.new_list(lines.collect()).into(),
        filename.clone(),
    ]));
    // A name such as `<cell>` may come again with other lines.
    if !exec.filename.starts_with('<') {
        kernel.file_lines.set_item(exec.filename.as_str(), entry.clone(), vm)?;
    }
    let mut rest = vec![&code.code];
    while let Some(code) = rest.pop() {
        let first = code.first_line_number.map_or(0, |line| line.get());
        let key = PyObjectRef::from(context.new_tuple(vec![
            filename.clone(),
            code.qualname.to_owned().into(),
            context.new_int(first).into(),
        ]));
        kernel.code_lines.set_item(&*key, entry.clone(), vm)?;
        for constant in code.constants.iter() {
            if let BorrowedConstant::Code { code } = constant.borrow_constant() {
                rest.push(code);
            }
        }
    }
    Ok(())
}

/// Whether the last statement is a function or class, whose object the
/// compiler hands back although it is no value of the cell.
fn ends_in_definition(source: &str) -> bool {
    use ruff_python_ast::Stmt;
    if !source.contains("def ") && !source.contains("class ") {
        return false;
    }
    ruff_python_parser::parse_module(source).is_ok_and(|parsed| {
        matches!(parsed.suite().last(), Some(Stmt::FunctionDef(_) | Stmt::ClassDef(_)))
    })
}

fn describe(
    exec: &Exec,
    value: PyObjectRef,
    kernel: &Kernel,
    vm: &VirtualMachine,
) -> PyResult<ExecResult> {
    let (mut repr, mut json) = (None, None);
    if !vm.is_none(&value) {
        kernel.scope.globals.set_item("_", value.clone(), vm)?;
        let described = kernel.call("describe", (value, exec.max_value_bytes), vm)?;
        if let Some(parts) = described.downcast_ref::<PyTuple>() {
            let mut parts = parts.iter().map(|part| optional_text(part, vm));
            repr = parts.next().flatten();
            json = parts.next().flatten();
        }
    }
    Ok(ExecResult { status: Status::Completed, repr, json, error: None })
}

/// Describes an uncaught exception, which the kernel also prints.
fn report(
    exec: &Exec,
    exception: PyBaseExceptionRef,
    kernel: &Kernel,
    vm: &VirtualMachine,
) -> ExecResult {
    let fallback = exception.class().name().to_string();
    let arguments = (PyObjectRef::from(exception), exec.max_value_bytes);
    let mut status = Status::ScriptError;
    let mut error =
        ErrorInfo { type_name: fallback, message: String::new(), traceback: String::new() };
    if let Ok(report) = kernel.call("report", arguments, vm) {
        if let Some(code) = exit_code(&report) {
            status = Status::Exit(code);
        } else if let Some(parts) = report.downcast_ref::<PyTuple>() {
            let mut parts = parts.iter().map(|part| text_of(part));
            error.type_name = parts.next().unwrap_or_default();
            error.message = parts.next().unwrap_or_default();
            error.traceback = parts.next().unwrap_or_default();
        }
    }
    let error = (status == Status::ScriptError).then_some(error);
    ExecResult { status, repr: None, json: None, error }
}

/// What CPython does when a program ends: exit handlers. An exit code they set
/// is not heard, as in CPython.
fn finish(exec: &Exec, result: ExecResult, kernel: &Kernel, vm: &VirtualMachine) -> ExecResult {
    match kernel.call("finish", (), vm) {
        Ok(_) => result,
        Err(exception) => report(exec, exception, kernel, vm),
    }
}

fn flush(vm: &VirtualMachine) {
    for name in ["stdout", "stderr"] {
        if let Ok(stream) = vm.sys_module.as_object().get_attr(name, vm)
            && !vm.is_none(&stream)
        {
            // A stream that the program closed or replaced may refuse.
            let _ = vm.call_method(&stream, "flush", ());
        }
    }
}

fn exit_code(report: &PyObject) -> Option<i32> {
    let code = report.downcast_ref::<PyInt>()?;
    i32::try_from(code.as_bigint()).ok()
}

fn optional_text(object: &PyObject, vm: &VirtualMachine) -> Option<String> {
    (!vm.is_none(object)).then(|| text_of(object))
}

fn text_of(object: &PyObject) -> String {
    object
        .downcast_ref::<PyStr>()
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default()
}
