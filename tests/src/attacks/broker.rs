//! H, P, R, S: policy text, the embedder's tools and budgets that go on from
//! run to run.
//!
//! Invariant: tools are called here by records that the attack encodes itself
//! (`tools.py`), so that nothing of the guest's own library stands between the
//! attack and the host.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fumehood::policy::BudgetSettings;
use fumehood::{SandboxBuilder, Script};
use serde_json::{Value, json};

use crate::harness::{Attack, Attempt, Expected, Observed, Setting, World, run_in};

/// Calls of tools by the operations of the guest's ABI.
const SHIM: &str = include_str!("tools.py");

/// Gives a sandbox what the attack needs.
type Prepare = fn(SandboxBuilder, &Arc<AtomicU64>) -> SandboxBuilder;

fn anything() -> Value {
    json!({"type": "object"})
}

/// Tools that count how often they were carried out.
fn tools(builder: SandboxBuilder, carried_out: &Arc<AtomicU64>) -> SandboxBuilder {
    let (counted, also) = (Arc::clone(carried_out), Arc::clone(carried_out));
    let narrow = json!({
        "type": "object",
        "properties": {"count": {"type": "integer", "maximum": 3}, "name": {"pattern": "^[a-z]+$"}},
        "required": ["count"],
        "additionalProperties": false,
    });
    builder
        .tool("narrow", narrow, move |_| {
            also.fetch_add(1, Ordering::SeqCst);
            async { Ok(Value::Null) }
        })
        .tool("echo", anything(), move |arguments| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move { Ok(arguments) }
        })
        .tool("large", anything(), |_| async { Ok(json!("x".repeat(100 << 20))) })
        .tool("never", anything(), |_| std::future::pending())
        .tool("panics", anything(), |_| async { panic!("canary-panic-text of the host") })
        .tool_blocking("panics_elsewhere", anything(), |_| panic!("canary-panic-text of the host"))
}

/// Runs cells one after the other in one sandbox; what they print and how each
/// ends is the fact, with how often the tool `echo` was carried out.
fn cells(world: &World<'_>, setting: &Setting, prepare: Prepare, codes: &[&str]) -> Observed {
    let carried_out = Arc::new(AtomicU64::new(0));
    let built = world.builder(setting).map(|builder| prepare(builder, &carried_out).build());
    let sandbox = match built {
        Ok(Ok(sandbox)) => sandbox,
        Ok(Err(error)) => return Observed::broken(error.to_string()),
        Err(error) => return Observed::broken(error),
    };
    let mut seen = Vec::new();
    let mut told = false;
    let mut facts = Vec::new();
    for code in codes {
        let script = Script::cell(format!("{SHIM}\n{code}"));
        let ran = run_in(&sandbox, setting.limits.wall, script);
        told |= ran.outcome.to_json().to_string().contains("canary-panic-text");
        let printed = ran.outcome.stdout_text();
        facts.push(format!("{} {}", ran.outcome.kind.as_str(), printed.trim_end()));
        seen.push(ran);
    }
    let carried_out = carried_out.load(Ordering::SeqCst);
    let told = if told { ", the guest was told of the host" } else { "" };
    Observed::fact(format!("{}; carried out: {carried_out}{told}", facts.join(", "))).seen(seen)
}

fn attack(
    id: &'static str,
    property: &'static str,
    prepare: Prepare,
    codes: &'static [&'static str],
    expected: &'static str,
    reason: &'static str,
) -> Attack {
    Attack::host(id, property, move |world, setting| cells(world, setting, prepare, codes))
        .control(
            Attempt::Host(Arc::new(move |world, setting| {
                cells(world, setting, tools, &["print(tool('echo', a=1))"])
            })),
            Expected::Harmless("completed {'a': 1}; carried out: 1"),
        )
        .expect(Expected::Harmless(expected), reason)
}

fn forged_calls() -> Vec<Attack> {
    vec![
        attack(
            "P-05i",
            "arguments that two parsers could read differently reach no tool",
            tools,
            &[r#"
texts = [b'{"a": 1, "a": 2}', b'{"a": 1, "\\u0061": 2}', b'{"a": "\\ud800"}', b'{"a": NaN}',
         b'{"a": Infinity}', b'{"a": 1e999}', b'{"a": 18446744073709551616}', b'[1]', b'{', b'',
         b'\xff', b'{"a": "\xed\xa0\x80"}', b'{} {}', b'[' * 100_000, b'{"a":' * 100_000]
print({raw('echo', text)[0] for text in texts})"#],
            "completed {'Arguments'}; carried out: 0",
            "arguments are parsed once, by one parser that accepts no such text",
        ),
        attack(
            "P-05j",
            "names that are no tool's reach none and are no oracle",
            tools,
            &[r#"
names = ['', 'ech', 'echo ', 'ECHO', '__class__', 'a' * 100_000, 'echo\0', '../echo', 'é']
print({raw(name, b'{}')[0] for name in names})"#],
            "completed {'Unknown'}; carried out: 0",
            "a tool is found by its exact name or not at all",
        ),
        attack(
            "P-05l",
            "arguments that do not fit a tool's schema do not reach it",
            tools,
            &[r#"
texts = [b'{}', b'{"count": "1"}', b'{"count": 4}', b'{"count": 1.5}', b'{"count": true}',
         b'{"count": 1, "more": 1}', b'{"count": 1, "name": "a; b"}', b'{"count": null}']
print({raw('narrow', text)[0] for text in texts})"#],
            "completed {'Arguments'}; carried out: 0",
            "arguments are checked by the schema that was registered, before anything is recorded as executed",
        ),
        attack(
            "P-05k",
            "forged ids of running calls give nothing and take nothing",
            tools,
            &[r#"
id = start('never')
errors = 0
for forged in (0, id + 1, 2**32, 2**64 - 1):
    try:
        _fumehood.call(7, number(forged))
    except Exception:
        errors += 1
for record in (b'', b'\xff' * 20, b'\1'):
    try:
        _fumehood.call(6, record)
    except Exception:
        errors += 1
print(errors < 8, raw('echo', b'{}'))"#],
            "completed True {}; carried out: 1",
            "ids are looked up in the calls of this run alone",
        ),
    ]
}

fn large_calls() -> Vec<Attack> {
    let roomy = || Setting::default().limit(|limits| limits.memory_bytes = 1 << 30);
    vec![
        attack(
            "R-13f",
            "arguments of a hundred megabytes are refused on their length alone",
            tools,
            &["large = b'{\"a\": \"' + b'x' * (100 << 20) + b'\"}'\ntry:\n    print(raw('echo', large))\nexcept Exception as error:\n    print(type(error).__name__)"],
            "completed RuntimeError; carried out: 0",
            "a request has a limit that is looked at before it is copied",
        )
        .with(roomy())
        .about_memory(),
        attack(
            "R-13g",
            "a result of a hundred megabytes is an error and not carried over",
            tools,
            &["print(tool('large')[0])"],
            "completed TooLarge; carried out: 0",
            "a result is written into a buffer that ends at its limit",
        )
        .about_memory(),
        attack(
            "R-13h",
            "calls that never end neither pile up nor outlive their run",
            tools,
            &["started = 0\ntry:\n    for _ in range(5000):\n        if not isinstance(start('never'), int):\n            break\n        started += 1\nexcept Exception:\n    pass\nprint(started > 0)", "print(raw('echo', b'{}'))"],
            "completed True, completed {}; carried out: 1",
            "calls that go on are counted, and given up with the run that started them",
        )
        .about_memory(),
        Attack::host("R-01n", "waiting for a call that never ends stops at the deadline", |world, setting| {
            cells(world, setting, tools, &["print(tool('never'))", "print(raw('echo', b'{}'))"])
        })
        .with(Setting::default().wall_ms(500))
        .control_cell("print('x')", "x")
        .alone()
        .expect(
            Expected::Harmless("timeout , completed {}; carried out: 1"),
            "a wait for a tool is a wait of the run, which its deadline ends",
        ),
    ]
}

fn panics() -> Vec<Attack> {
    let attack = |id, property, codes| {
        attack(
            id,
            property,
            tools,
            codes,
            "sandbox_fault , completed {}; carried out: 1",
            "a panic is caught where the tool is called and becomes a reference into the log",
        )
        .panics()
    };
    vec![
        attack(
            "H-25c",
            "a panic in a tool ends that run alone and is not shown",
            &[
                "try:\n    tool('panics')\nexcept BaseException as error:\n    print(error)",
                "print(raw('echo', b'{}'))",
            ],
        ),
        attack(
            "H-25d",
            "so does one in a tool on a thread of its own",
            &[
                "try:\n    tool('panics_elsewhere')\nexcept BaseException as error:\n    print(error)",
                "print(raw('echo', b'{}'))",
            ],
        ),
        attack(
            "H-25e",
            "so does one in a call that the program does not wait for",
            &[
                "start('panics_elsewhere')\ntry:\n    wait()\nexcept BaseException as error:\n    print(error)",
                "print(raw('echo', b'{}'))",
            ],
        ),
    ]
}

fn budgets() -> Vec<Attack> {
    let bytes: Prepare = |builder, _| {
        let budget = BudgetSettings { written_bytes: Some(100_000), ..BudgetSettings::default() };
        builder.budget(budget)
    };
    let few: Prepare = |builder, carried_out| {
        let policy =
            "version = 1\n[[tools.rules]]\nid = \"some\"\ntools = [\"echo\"]\nmax_calls = 3\n";
        tools(builder, carried_out).policy(policy)
    };
    let under_a_ceiling: Prepare = |builder, carried_out| {
        let rule = |most: u32| {
            format!(
                "version = 1\n[[tools.rules]]\nid = \"some\"\ntools = [\"*\"]\nmax_calls = {most}\n"
            )
        };
        tools(builder, carried_out).policy(rule(100)).ceiling(rule(2))
    };
    let denied: Prepare =
        |builder, carried_out| tools(builder, carried_out).policy("version = 1\n[tools]\n");
    vec![
        attack(
            "S-01",
            "what one run used is not there for the next",
            bytes,
            &["open('/tmp/a', 'wb').write(bytes(90_000))\nprint('written')", "try:\n    with open('/tmp/b', 'wb') as file:\n        file.write(bytes(20_000))\n    print('written')\nexcept OSError as error:\n    print('refused')", "try:\n    with open('/tmp/c', 'wb') as file:\n        file.write(bytes(20_000))\n    print('written')\nexcept OSError as error:\n    print('refused')"],
            "completed written, completed refused, completed refused; carried out: 0",
            "budgets are of the sandbox, and its runs share one meter",
        ),
        attack(
            "S-01b",
            "calls of a tool are counted over all runs",
            few,
            &["print(tool('echo', a=1), tool('echo', a=2))", "print(tool('echo', a=3), tool('echo', a=4)[0])", "print(tool('echo', a=5)[0])"],
            "completed {'a': 1} {'a': 2}, completed {'a': 3} Denied, completed Denied; carried out: 3",
            "the number of calls of a rule is counted on the shared meter",
        ),
        attack(
            "S-01c",
            "a call that was refused for its arguments does not give budget back",
            few,
            &["print([raw('echo', b'[')[0] for _ in range(5)], tool('echo', a=1), tool('echo', a=2), tool('echo', a=3), tool('echo', a=4)[0])"],
            "completed ['Arguments', 'Arguments', 'Arguments', 'Arguments', 'Arguments'] {'a': 1} {'a': 2} {'a': 3} Denied; carried out: 3",
            "a refusal before the decision takes nothing and returns nothing",
        ),
        attack(
            "S-01d",
            "a ceiling cannot be raised by the policy below it",
            under_a_ceiling,
            &["print(tool('echo', a=1), tool('echo', a=2), tool('echo', a=3)[0])"],
            "completed {'a': 1} {'a': 2} Denied; carried out: 2",
            "policies are put together so that the smallest number holds",
        ),
        attack(
            "H-28c",
            "ten thousand equal denials of a tool are one line with a number",
            denied,
            &["print({tool('echo', a=n)[0] for n in range(10_000)})"],
            "completed {'Denied'}; carried out: 0",
            "a denial is decided by name before arguments are looked at, and equal ones are summed",
        )
        .about_memory(),
        attack(
            "H-28d",
            "denials themselves are a budget",
            denied,
            &["try:\n    for n in range(1000):\n        tool('echo', a=n)\nexcept BaseException:\n    pass\nprint('went on')"],
            "budget_exceeded ; carried out: 0",
            "a program that only tries what is refused is stopped",
        )
        .with(Setting::default().limit(|limits| limits.broker.denials = 100)),
    ]
}

/// Texts that are no policy, and what the refusal has to name.
const NO_POLICIES: &[(&str, &str, &[&str])] = &[
    ("H-20", "version = 1\n[fs]\nmemroy = \"none\"\n", &[":3:", "memroy", "memory"]),
    ("H-20b", "version = 1\n[[net]]\nid = \"a\"\nhosts = []\n", &[":4:", "empty"]),
    (
        "H-20c",
        "version = 1\n[[tools.rules]]\nid = \"a\"\naction = \"alow\"\ntools = [\"x\"]\n",
        &[":4:", "alow", "allow"],
    ),
    (
        "H-20d",
        "version = 1\n[[tools.rules]]\nid = \"a\"\ntools = [\"x\"]\n[[tools.rules]]\nid = \"b\"\naction = \"deny\"\ntools = [\"x\"]\n",
        &["contradicts", "\"a\"", "\"b\""],
    ),
    (
        "H-20e",
        "version = 1\n[[tools.rules]]\nid = \"a\"\ntools = [\"x\"]\n[[tools.rules]]\nid = \"a\"\ntools = [\"y\"]\n",
        &[":5:", "\"a\""],
    ),
    (
        "H-20f",
        "version = 1\n[[example]]\nrequest = \"fs.create /tmp/x\"\nexpect = \"deny\"\n",
        &[":3:", "example"],
    ),
    ("H-20g", "version = 1\n[[net]]\nid = \"a\"\nhosts = [\"*.co.uk\"]\n", &[":4:", "co.uk"]),
    ("H-20h", "version = 2\n", &[":1:", "version"]),
    ("H-20i", "", &[":1:", "version"]),
    ("H-20j", "version = 1\n[bash]\naction = \"allow\"\n", &["bash"]),
    ("H-20k", "version = 1\nversion = 1\n", &[":2:"]),
];

fn policies() -> Vec<Attack> {
    let build = |text: &'static str, as_ceiling: bool| {
        move |world: &World<'_>, setting: &Setting| {
            let builder = match world.builder(setting) {
                Ok(builder) if as_ceiling => builder.ceiling(text),
                Ok(builder) => builder.policy(text),
                Err(error) => return Observed::broken(error),
            };
            match builder.build() {
                Ok(sandbox) => Observed::run(run_in(&sandbox, setting.limits.wall, "print('ran')")),
                Err(error) => Observed::refused(error.to_string()),
            }
        }
    };
    NO_POLICIES
        .iter()
        .map(|(id, text, parts)| {
            Attack::host(
                id,
                "a policy that says something unclear runs nothing",
                move |world, setting| {
                    let ceiling = build(text, true)(world, setting);
                    if ceiling.refused.is_none() {
                        return ceiling;
                    }
                    build(text, false)(world, setting)
                },
            )
            .control(
                Attempt::Host(Arc::new(build(
                    "version = 1\n[fs]\nmemory = \"read-write\"\n",
                    false,
                ))),
                Expected::Harmless("ran"),
            )
            .expect(
                Expected::Refused(parts),
                "text is understood completely or refused with its line and what is wrong",
            )
        })
        .collect()
}

/// A policy that mounts a directory of the world's.
fn mounting(world: &World<'_>, host: &str) -> String {
    let host = world.path(host);
    format!(
        "version = 1\n[[fs.mounts]]\nid = \"data\"\nat = \"/data\"\nhost = {host:?}\naccess = \"read-only\"\n"
    )
}

fn policy_paths() -> Vec<Attack> {
    let mounted = |id, property, host: &'static str, ceiling: Option<&'static str>, parts| {
        let build = move |world: &World<'_>, setting: &Setting, host: &str| {
            let root = world.path("to-root");
            if let Err(error) = std::os::unix::fs::symlink("/", &root)
                && error.kind() != std::io::ErrorKind::AlreadyExists
            {
                return Observed::broken(error.to_string());
            }
            let builder = match world.builder(setting) {
                Ok(builder) => builder.policy(mounting(world, host)),
                Err(error) => return Observed::broken(error),
            };
            let builder = match ceiling {
                Some(ceiling) => builder.ceiling(mounting(world, ceiling)),
                None => builder,
            };
            match builder.build() {
                Ok(sandbox) => Observed::run(run_in(
                    &sandbox,
                    setting.limits.wall,
                    "print(open('/data/file.txt').read())",
                )),
                Err(error) => Observed::refused(error.to_string()),
            }
        };
        Attack::host(id, property, move |world, setting| build(world, setting, host))
            .control(
                Attempt::Host(Arc::new(move |world, setting| build(world, setting, "ro"))),
                Expected::Harmless("inside"),
            )
            .expect(
                Expected::Refused(parts),
                "what is judged is the directory that was opened, whatever it was called",
            )
    };
    vec![
        mounted(
            "F-25",
            "a link in a policy's path does not mount what is forbidden",
            "to-root",
            None,
            &["root of this machine"],
        ),
        mounted(
            "F-25b",
            "a path of a policy that climbs does not leave the operator's ceiling",
            "ro/../outside",
            Some("ro"),
            &["outside"],
        ),
        mounted(
            "F-25c",
            "a link in a policy's path does not leave the operator's ceiling",
            "ro/link",
            Some("ro"),
            &["link"],
        ),
    ]
}

fn hidden_effects() -> Vec<Attack> {
    vec![attack(
        "R-11d",
        "a search over the tools is cut to a number however much is asked for",
        |builder, carried_out| {
            let mut builder = tools(builder, carried_out);
            for n in 0..2000 {
                builder = builder.tool(&format!("tool_{n}"), anything(), |arguments| async move {
                    Ok(arguments)
                });
            }
            builder
        },
        &[
            "print(len(search('tool', 2**32 - 1)) <= 100, len(search('tool ' * 10_000, 10)) <= 10, len(search('', 10)) <= 10)",
        ],
        "completed True True True; carried out: 0",
        "the number of results and the length of a query have limits of their own",
    )]
}

/// Every attack of this kind.
pub(super) fn all() -> Vec<Attack> {
    let mut all = forged_calls();
    all.extend(large_calls());
    all.extend(panics());
    all.extend(budgets());
    all.extend(policies());
    all.extend(policy_paths());
    all.extend(hidden_effects());
    all
}
