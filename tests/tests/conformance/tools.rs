//! The embedder's tools as Python sees them: plain calls, awaited ones, every
//! way to fail, and catalogues and loads of the largest permitted size.

use std::time::Duration;

use fumehood::{OutcomeKind, SandboxBuilder, ToolError};
use libtest_mimic::{Failed, Trial};
use serde_json::{Value, json};

use crate::support::{run, sandbox};

/// `(name, code, repr of its value)`; the code runs with [`tools`].
const CASES: &[(&str, &str, &str)] = &[
    ("positional_and_named", "add(1, 2), add(a=3, b=4), add(5, b=6)", "(3, 7, 11)"),
    (
        "sync_in_a_loop",
        "import asyncio\nasync def f(): return add.sync(1, 2)\nasyncio.run(f())",
        "3",
    ),
    ("awaited", "await add(1, 2)", "3"),
    (
        "gathered_in_order_of_the_calls",
        "import asyncio\nawait asyncio.gather(*(after(30 - 10 * i, i) for i in range(3)))",
        "[0, 1, 2]",
    ),
    (
        "calls_overlap",
        "import asyncio, time\nstart = time.monotonic()\nvalues = await asyncio.gather(*(after(400, i) for i in range(20)))\nvalues == list(range(20)) and time.monotonic() - start < 4",
        "True",
    ),
    (
        "timers_and_tools_in_one_loop",
        "import asyncio\nevents = []\nasync def tick():\n    for i in range(3):\n        await asyncio.sleep(0.02); events.append(i)\nasync def tool():\n    await after(200, 0); events.append('tool')\nasync with asyncio.TaskGroup() as group:\n    group.create_task(tool()); group.create_task(tick())\nevents",
        "[0, 1, 2, 'tool']",
    ),
    (
        "a_time_limit_gives_a_call_up",
        "import asyncio\ntry:\n    await asyncio.wait_for(never(), 0.1)\nexcept TimeoutError:\n    result = await add(1, 1)\nresult",
        "2",
    ),
    (
        "values_come_back_as_they_went",
        "values = [None, True, 0, -1, 2**64 - 1, -2**63, 1.5, 1e300, '', 'é\\n\\x00\"😀', [], {}, [[1], {'a': (2, 3)}], {'z': 1, 'a': 2}]\nback = [echo(value) for value in values]\nback == [*values[:-2], [[1], {'a': [2, 3]}], values[-1]], list(back[-1])",
        "(True, ['z', 'a'])",
    ),
    ("name_and_repr", "add.__name__, repr(add)", "('add', '<tool add(a, b)>')"),
    ("found", "[tool['name'] for tool in search_tools('sum numbers')]", "['add']"),
    ("described", "describe_tool('add')['parameters']['required']", "['a', 'b']"),
    ("described_by_itself", "describe_tool(add)['name']", "'add'"),
    ("json_of_the_value", "echo({'z': [1, 2]})", "{'z': [1, 2]}"),
];

/// `(name, expression, type of the exception)`; a control call must work after
/// it, and nothing may be counted as executed for those that never left.
const FAILURES: &[(&str, &str, &str)] = &[
    ("missing_argument", "add(1)", "TypeError"),
    ("wrong_type", "add('1', 2)", "TypeError"),
    ("unknown_argument", "add(1, 2, c=3)", "TypeError"),
    ("too_many_positional", "add(1, 2, 3)", "TypeError"),
    ("argument_twice", "add(1, a=2)", "TypeError"),
    ("nan", "echo(float('nan'))", "ValueError"),
    ("infinity", "echo([float('inf')])", "ValueError"),
    ("lone_surrogate", "echo('\\ud800')", "ValueError"),
    ("lone_surrogate_in_a_key", "echo({'\\ud800': 1})", "TypeError"),
    ("key_that_is_no_text", "echo({1: 2})", "TypeError"),
    ("bytes", "echo(b'x')", "TypeError"),
    ("object", "echo(object())", "TypeError"),
    ("deeply_nested", "echo(nested(100_000))", "ValueError"),
    ("nested_deeper_than_the_host_takes", "echo(nested(150))", "TypeError"),
    ("holds_itself", "echo(endless)", "ValueError"),
    ("argument_of_100_mb", "echo('x' * 100_000_000)", "OverflowError"),
    ("argument_beyond_a_request", "echo('x' * 17_000_000)", "RuntimeError OverflowError"),
    ("failed", "fail('because')", "fumehood.ToolError"),
    ("whole_number_beyond_64_bits", "echo(-2**70)", "TypeError"),
    ("never_returns", "never()", "TimeoutError"),
    ("result_of_1_gb", "large(1 << 30)", "OverflowError"),
    ("no_such_tool_described", "describe_tool('none')", "NameError"),
];

fn number(arguments: &Value, name: &str) -> i64 {
    arguments[name].as_i64().unwrap_or_default()
}

fn tools() -> SandboxBuilder {
    let object = |properties: Value| {
        let required: Vec<_> =
            properties.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
        json!({
            "type": "object", "properties": properties, "required": required,
            "additionalProperties": false,
        })
    };
    let mut add = object(json!({"a": {"type": "integer"}, "b": {"type": "integer"}}));
    add["description"] = json!("The sum of two numbers.");
    let short = |name: &str, schema: Value| {
        fumehood::tool::plain(name, schema, |_| std::future::pending()).map(|tool| {
            // What never returns is given up after this.
            tool.timeout(Duration::from_millis(300))
        })
    };
    sandbox()
        .tool("add", add, |arguments| async move {
            Ok(json!(number(&arguments, "a") + number(&arguments, "b")))
        })
        .tool("echo", object(json!({"value": {}})), |mut arguments| async move {
            Ok(arguments["value"].take())
        })
        .tool(
            "after",
            object(json!({"ms": {"type": "integer"}, "value": {}})),
            |mut arguments| async move {
                let ms = u64::try_from(number(&arguments, "ms")).unwrap_or_default();
                tokio::time::sleep(Duration::from_millis(ms)).await;
                Ok(arguments["value"].take())
            },
        )
        .tool("fail", object(json!({"why": {"type": "string"}})), |arguments| async move {
            Err(ToolError::from(arguments["why"].as_str().unwrap_or_default()))
        })
        .tool("panic", object(json!({})), |_| async { panic!("this text stays on the host") })
        .tool("large", object(json!({"bytes": {"type": "integer"}})), |arguments| async move {
            let bytes = usize::try_from(number(&arguments, "bytes")).unwrap_or_default();
            Ok(Value::String("x".repeat(bytes)))
        })
        .with_tool(short("never", object(json!({}))).expect("a tool"))
}

const HELPERS: &str = "def nested(depth):\n    value = 1\n    for _ in range(depth):\n        value = [value]\n    return value\nendless = []\nendless.append(endless)\n";

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (name, code, expected) in CASES {
        trials.push(Trial::test(format!("tools::{name}"), move || value(code, expected)));
    }
    for (name, code, exception) in FAILURES {
        trials
            .push(Trial::test(format!("tools::failure::{name}"), move || failure(code, exception)));
    }
    trials.push(Trial::test("tools::ten_thousand_in_the_catalogue", catalogue));
    trials.push(Trial::test("tools::ten_thousand_awaited_at_once", awaited_at_once));
    trials.push(Trial::test("tools::one_that_panics_ends_the_run_alone", panicked));
    trials.push(Trial::test("tools::none_are_offered_without_any", no_tools));
    trials.push(Trial::test("tools::those_for_files_act_on_what_code_sees", for_files));
    trials
}

fn value(code: &str, expected: &str) -> Result<(), Failed> {
    let outcome = run(tools(), code)?;
    match outcome.result.repr.as_deref() {
        Some(repr) if repr == expected => Ok(()),
        other => Err(format!("{other:?}, not {expected}: {:?}", outcome.error).into()),
    }
}

fn failure(code: &str, exception: &str) -> Result<(), Failed> {
    let code = format!(
        "{HELPERS}try:\n    {code}\nexcept Exception as error:\n    \
         kind = type(error)\n    text = str(error)\n\
         name = kind.__name__ if kind.__module__ == 'builtins' else kind.__module__ + '.' + kind.__name__\n\
         del kind\n(name, text, add(1, 2))"
    );
    let outcome = run(tools(), code.as_str())?;
    let Some(Value::Array(parts)) = outcome.result.json else {
        return Err(format!("{:?} {:?}", outcome.kind, outcome.error).into());
    };
    let name = parts[0].as_str().unwrap_or_default();
    if !exception.split(' ').any(|one| one == name) {
        return Err(format!("raised {parts:?}, not {exception}").into());
    }
    let text = parts[1].as_str().unwrap_or_default();
    if text.contains("stays on the host") || text.contains(".rs") || text.is_empty() {
        return Err(format!("the text is {text:?}").into());
    }
    if parts[2] != json!(3) {
        return Err("the next call did not work".into());
    }
    Ok(())
}

fn catalogue() -> Result<(), Failed> {
    let mut builder = sandbox();
    for index in 0..10_000 {
        let schema = json!({
            "type": "object", "properties": {"x": {"type": "integer"}},
            "description": format!("Gives number {index} of the catalogue."),
        });
        builder = builder
            .tool(&format!("tool_{index}"), schema, move |_| async move { Ok(json!(index)) });
    }
    let outcome = run(
        builder,
        "tool_0(), tool_9999(x=1), search_tools('number 4711 catalogue', 1)[0]['name'], len(search_tools('catalogue', 50))",
    )?;
    match outcome.result.repr.as_deref() {
        Some("(0, 9999, 'tool_4711', 50)") => Ok(()),
        other => Err(format!("{other:?} {:?}", outcome.error).into()),
    }
}

fn awaited_at_once() -> Result<(), Failed> {
    let code = "import asyncio\nvalues = await asyncio.gather(*(after(50, i) for i in range(9_999)))\nvalues == list(range(9_999)) and add.sync(1, 2)";
    let outcome = run(tools().timeout(Duration::from_secs(120)), code)?;
    match outcome.result.repr.as_deref() {
        Some("3") => Ok(()),
        other => Err(format!("{other:?} {:?} {:?}", outcome.kind, outcome.error).into()),
    }
}

/// A defect of the host is not the program's to handle: it ends the run, and
/// nothing of it reaches the guest or the next run.
fn panicked() -> Result<(), Failed> {
    let code = "try:\n    panic()\nexcept BaseException as error:\n    print(error)";
    let outcome = run(tools(), code)?;
    let shown = format!("{:?} {} {}", outcome.error, outcome.stdout_text(), outcome.stderr_text());
    if !matches!(&outcome.kind, OutcomeKind::SandboxFault { reference } if reference.starts_with("tool-fault-"))
        || outcome.exit_code != 65
        || shown.contains("stays on the host")
    {
        return Err(format!("{:?} {shown}", outcome.kind).into());
    }
    value("add(1, 2)", "3")
}

fn no_tools() -> Result<(), Failed> {
    let outcome = run(sandbox(), "add(1, 2)")?;
    let error = outcome.error.ok_or("no error")?;
    if outcome.kind != OutcomeKind::ScriptError || error.type_name != "NameError" {
        return Err(error.traceback.into());
    }
    Ok(())
}

fn for_files() -> Result<(), Failed> {
    let code = "\
write_file('d/a.txt', 'one\\ntwo\\n')
edit_file('d/a.txt', 'two', 'three')
try:
    read_file('none')
except Exception as error:
    text = str(error)
(read_file('d/a.txt'), glob('*.txt'), grep('thr'), open('d/a.txt').read(), 'no such file' in text)";
    let outcome = run(sandbox().file_tools(), code)?;
    let want = json!(["1\tone\n2\tthree\n", "d/a.txt", "  d/a.txt:2: three", "one\nthree\n", true]);
    if outcome.result.json != Some(want) {
        return Err(format!("{:?} {:?}", outcome.result, outcome.error).into());
    }
    let error = run(sandbox(), "read_file('x')")?.error.ok_or("they are there unasked")?;
    if error.type_name != "NameError" {
        return Err(error.traceback.into());
    }
    Ok(())
}
