//! JSON text from Python values and back, for arguments and results of tools.
//!
//! Why not the `json` module: a call of a tool must cost less than its encoder
//! takes to start. Invariant: only plain data crosses; what JSON has no word
//! for (NaN, bytes, keys that are no strings, lone surrogates) is a Python
//! exception, and nothing deeper than [`MAX_DEPTH`] is followed.

use rustpython_vm::builtins::{PyBaseExceptionRef, PyDict, PyFloat, PyInt, PyList, PyStr, PyTuple};
use rustpython_vm::{AsObject, PyObject, PyObjectRef, PyResult, VirtualMachine};
use serde_json::Value;

/// Deeper nesting is refused; the host refuses less.
const MAX_DEPTH: usize = 200;
/// Longer text is refused before it is built; the host refuses less.
const MAX_BYTES: usize = 64 << 20;

/// Appends `value` to `out` as JSON text.
pub(crate) fn write(value: &PyObject, out: &mut Vec<u8>, vm: &VirtualMachine) -> PyResult<()> {
    write_at(value, MAX_DEPTH, out, vm)
}

/// Appends the member name `name` and its colon.
pub(crate) fn write_key(name: &str, out: &mut Vec<u8>) {
    write_text(name, out);
    out.push(b':');
}

/// The Python value of JSON text that the host made.
pub(crate) fn read(text: &[u8], vm: &VirtualMachine) -> PyResult<PyObjectRef> {
    let mut parser = serde_json::Deserializer::from_slice(text);
    parser.disable_recursion_limit();
    let value = <Value as serde::Deserialize>::deserialize(&mut parser)
        .and_then(|value| parser.end().map(|()| value))
        .map_err(|_| vm.new_value_error("the sandbox gave text that is not JSON"))?;
    python(value, vm)
}

fn write_at(
    value: &PyObject,
    depth: usize,
    out: &mut Vec<u8>,
    vm: &VirtualMachine,
) -> PyResult<()> {
    has_room(out, 0, vm)?;
    if vm.is_none(value) {
        out.extend_from_slice(b"null");
    } else if let Some(text) = value.downcast_ref::<PyStr>() {
        let text = text.to_str().ok_or_else(|| {
            vm.new_value_error("a str with lone surrogates cannot be given to a tool")
        })?;
        has_room(out, text.len(), vm)?;
        write_text(text, out);
    } else if value.fast_isinstance(vm.ctx.types.bool_type) {
        let text: &[u8] = if value.is(&vm.ctx.true_value) { b"true" } else { b"false" };
        out.extend_from_slice(text);
    } else if let Some(number) = value.downcast_ref::<PyInt>() {
        out.extend_from_slice(number.to_str_radix_10().as_bytes());
    } else if let Some(number) = value.downcast_ref::<PyFloat>() {
        let number = serde_json::Number::from_f64(number.to_f64())
            .ok_or_else(|| vm.new_value_error("JSON has no NaN and no infinity"))?;
        out.extend_from_slice(number.as_str().as_bytes());
    } else if let Some(list) = value.downcast_ref::<PyList>() {
        let items = list.borrow_vec().to_vec();
        write_items(&items, depth, out, vm)?;
    } else if let Some(tuple) = value.downcast_ref::<PyTuple>() {
        write_items(tuple.as_slice(), depth, out, vm)?;
    } else if let Some(dict) = value.downcast_ref::<PyDict>() {
        write_members(dict, depth, out, vm)?;
    } else {
        let message = format!("{} is no plain data for a tool", value.class().name());
        return Err(vm.new_type_error(message));
    }
    Ok(())
}

/// Whether `more` bytes may follow what is written.
fn has_room(out: &[u8], more: usize, vm: &VirtualMachine) -> PyResult<()> {
    if out.len().saturating_add(more) > MAX_BYTES {
        return Err(vm.new_overflow_error("the arguments are larger than a tool accepts"));
    }
    Ok(())
}

fn write_items(
    items: &[PyObjectRef],
    depth: usize,
    out: &mut Vec<u8>,
    vm: &VirtualMachine,
) -> PyResult<()> {
    let depth = deeper(depth, vm)?;
    out.push(b'[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_at(item, depth, out, vm)?;
    }
    out.push(b']');
    Ok(())
}

fn write_members(
    dict: &PyDict,
    depth: usize,
    out: &mut Vec<u8>,
    vm: &VirtualMachine,
) -> PyResult<()> {
    let depth = deeper(depth, vm)?;
    out.push(b'{');
    for (index, (key, value)) in dict.items_vec().into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        let name = key
            .downcast_ref::<PyStr>()
            .and_then(|name| name.to_str())
            .ok_or_else(|| vm.new_type_error("the keys of a dict for a tool must be plain str"))?;
        has_room(out, name.len(), vm)?;
        write_key(name, out);
        write_at(&value, depth, out, vm)?;
    }
    out.push(b'}');
    Ok(())
}

fn deeper(depth: usize, vm: &VirtualMachine) -> PyResult<usize> {
    depth.checked_sub(1).ok_or_else(|| too_deep(vm))
}

fn too_deep(vm: &VirtualMachine) -> PyBaseExceptionRef {
    vm.new_value_error("the arguments are nested deeper than a tool accepts")
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    // A string is always JSON, and a vector takes every byte.
    let _ = serde_json::to_writer(out, text);
}

fn python(value: Value, vm: &VirtualMachine) -> PyResult<PyObjectRef> {
    Ok(match value {
        Value::Null => vm.ctx.none(),
        Value::Bool(value) => vm.ctx.new_bool(value).into(),
        Value::Number(number) => return number_object(number.as_str(), vm),
        Value::String(text) => vm.ctx.new_str(text).into(),
        Value::Array(items) => {
            let items = items.into_iter().map(|item| python(item, vm));
            vm.ctx.new_list(items.collect::<PyResult<_>>()?).into()
        }
        Value::Object(members) => {
            let dict = vm.ctx.new_dict();
            for (name, member) in members {
                dict.set_item(name.as_str(), python(member, vm)?, vm)?;
            }
            dict.into()
        }
    })
}

fn number_object(text: &str, vm: &VirtualMachine) -> PyResult<PyObjectRef> {
    if let Ok(number) = text.parse::<i64>() {
        return Ok(vm.ctx.new_int(number).into());
    }
    if !text.contains(['.', 'e', 'E'])
        && let Ok(number) = text.parse::<malachite_bigint::BigInt>()
    {
        return Ok(vm.ctx.new_bigint(&number).into());
    }
    let number = text.parse::<f64>().map_err(|_| vm.new_value_error("not a number"))?;
    Ok(vm.ctx.new_float(number).into())
}
