//! Tools, policy and budgets through the public library.
//!
//! Code calls tools here by the operations of the guest's ABI (`shim.py`), so
//! that what is tested is the host's side.
#![allow(clippy::disallowed_methods, reason = "these tests make files and measure time")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use fumehood::policy::{BudgetPreset, BudgetSettings, PolicyFile, preset};
use fumehood::{
    Budget, BuildError, Engine, MemorySink, Outcome, OutcomeKind, Sandbox, SandboxBuilder, Script,
    Tool, ToolError, tool,
};
use fumehood_host_fns::Phase;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Settings with the engine that all tests share.
fn builder() -> SandboxBuilder {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    let engine = ENGINE.get_or_init(|| {
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("code-cache");
        Engine::builder().cache_directory(cache).build().unwrap()
    });
    Sandbox::builder().engine(engine.clone())
}

/// A cell that has the shim.
fn cell(code: &str) -> Script {
    Script::cell(format!("{}\n{code}", include_str!("shim.py")))
}

fn run(sandbox: &Sandbox, code: &str) -> Outcome {
    sandbox.run(cell(code)).wait()
}

/// The value of a cell.
fn value(sandbox: &Sandbox, code: &str) -> Value {
    let outcome = run(sandbox, code);
    assert_eq!(outcome.kind, OutcomeKind::Completed, "{code}: {:?}", outcome.error);
    outcome.result.json.unwrap_or_else(|| panic!("{code}: {:?}", outcome.result.repr))
}

fn open_schema() -> Value {
    json!({"description": "A tool for tests. More of it.", "type": "object"})
}

/// Two numbers.
#[derive(Deserialize, JsonSchema)]
struct Two {
    zebra: i64,
    apple: Option<u8>,
}

#[derive(Serialize)]
struct Sum {
    sum: i64,
}

fn with_tools() -> SandboxBuilder {
    builder()
        .tool("echo", open_schema(), |arguments| async move { Ok(arguments) })
        .tool("fails", open_schema(), |_| async {
            Err(ToolError::with_source("no such order", "host detail: /etc/secret"))
        })
        .tool_blocking("blocks", open_schema(), |arguments| {
            std::thread::sleep(Duration::from_millis(1));
            Ok(json!([arguments, std::thread::current().name()]))
        })
        .typed_tool("sum", |two: Two| async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            Ok(Sum { sum: two.zebra + i64::from(two.apple.unwrap_or(0)) })
        })
        .typed_tool_blocking("difference", |two: Two| {
            Ok(two.zebra - i64::from(two.apple.unwrap_or(0)))
        })
}

#[test]
fn functions_of_every_kind_are_called_and_what_they_say_comes_back() {
    let audit = Arc::new(MemorySink::default());
    let sandbox = with_tools().audit(Arc::<MemorySink>::clone(&audit)).build().unwrap();
    let table = [
        ("tool('echo', a=[1, None, 'é'])", json!({"a": [1, null, "é"]})),
        ("tool('blocks', a=1)[0]", json!({"a": 1})),
        ("tool('sum', zebra=40, apple=2)", json!({"sum": 42})),
        ("tool('difference', zebra=40)", json!(40)),
        ("tool('fails')", json!(["Failed", "no such order"])),
        ("tool('nothing')", json!(["Unknown", "no tool has the name `nothing`"])),
        ("tool('sum', zebra='x')[0]", json!("Arguments")),
        ("tool('sum')[0]", json!("Arguments")),
        ("tool('sum', zebra=1, aple=2)[0]", json!("Arguments")),
        ("tool('sum', zebra=1, apple=256)[0]", json!("Arguments")),
        ("raw('echo', b'{\"a\": 1, \"a\": 2}')[0]", json!("Arguments")),
        ("raw('echo', b'{\"a\": \"\\\\ud800\"}')[0]", json!("Arguments")),
        ("raw('echo', b'{\"a\": NaN}')[0]", json!("Arguments")),
        ("raw('echo', b'[' * 100000)[0]", json!("Arguments")),
        ("search('test')[0]", json!(["blocks", "A tool for tests"])),
        ("describe('sum')['parameters']['required']", json!(["zebra"])),
        ("describe('sum')['description']", json!("Two numbers.")),
    ];
    for (code, expected) in table {
        assert_eq!(value(&sandbox, code), expected, "{code}");
    }
    let tools: Vec<_> =
        audit.records().into_iter().filter(|record| record.operation == "tool.call").collect();
    let intents = tools.iter().filter(|record| record.phase == Phase::Intent).count();
    // What does not fit the schema is not recorded as carried out.
    assert_eq!((intents, tools.len()), (5, 10), "{tools:#?}");
    assert_eq!(sandbox.used(Budget::ToolCalls), 5);
}

#[test]
fn host_detail_of_an_error_stays_on_the_host() {
    let sandbox = with_tools().build().unwrap();
    let outcome = run(&sandbox, "tool('fails')");
    assert!(!outcome.to_json().to_string().contains("secret"));
}

#[test]
fn what_cannot_be_a_tool_is_an_error_before_anything_runs() {
    let echo = |builder: SandboxBuilder, name: &str, schema: Value| {
        builder.tool(name, schema, |arguments| async move { Ok(arguments) })
    };
    let code = |builder: SandboxBuilder| match builder.build().unwrap_err() {
        BuildError::Tool(error) => error.code(),
        other => panic!("{other}"),
    };
    assert_eq!(code(echo(builder(), "class", open_schema())), "tool_name");
    assert_eq!(code(echo(builder(), "x", json!({"type": 5}))), "tool_schema");
    assert_eq!(code(echo(with_tools(), "echo", open_schema())), "tool_duplicate");
    // The first thing that is wrong is told.
    assert_eq!(code(echo(echo(builder(), "1", open_schema()), "x", json!(1))), "tool_name");
}

#[test]
fn a_panic_ends_the_run_and_nothing_else() {
    let panicking = |_| async { panic!("host detail: /etc/secret") };
    let sandbox = with_tools()
        .tool("panics", open_schema(), panicking)
        .tool_blocking("panics_off_thread", open_schema(), |_| panic!("host detail: /etc/secret"))
        .tool("panics_at_once", open_schema(), |_| -> std::future::Ready<_> {
            panic!("host detail: /etc/secret")
        })
        .build()
        .unwrap();
    for code in [
        "tool('panics')",
        "tool('panics_off_thread')",
        "tool('panics_at_once')",
        "start('panics_off_thread')\nwait()",
        "try:\n tool('panics')\nexcept BaseException:\n pass",
    ] {
        let outcome = run(&sandbox, code);
        assert!(matches!(outcome.kind, OutcomeKind::SandboxFault { .. }), "{:?}", outcome.kind);
        assert!(!outcome.to_json().to_string().contains("secret"), "{code}");
        assert_eq!(value(&sandbox, "tool('echo', a=1)"), json!({"a": 1}));
    }
}

#[test]
fn a_tool_that_never_returns_is_given_up() {
    let brief = Duration::from_millis(50);
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let stuck = tool::blocking("stuck", open_schema(), move |_| {
        let _ = released.lock().unwrap().recv_timeout(Duration::from_secs(60));
        Ok(json!(1))
    });
    let never = tool::plain("never", open_schema(), |_| std::future::pending());
    let sandbox = builder()
        .with_tool(stuck.unwrap().timeout(brief))
        .with_tool(never.unwrap().timeout(brief))
        .tool("patient", open_schema(), |_| std::future::pending())
        .timeout(Duration::from_secs(20))
        .build()
        .unwrap();
    for name in ["stuck", "never"] {
        assert_eq!(value(&sandbox, &format!("tool('{name}')[0]")), json!("TimedOut"));
        let code = format!("start('{name}')\n[reply[0] for _, reply in wait()]");
        assert_eq!(value(&sandbox, &code), json!(["TimedOut"]));
    }
    // The end of a run, its caller's patience and the end of the sandbox wait
    // for no tool.
    let start = Instant::now();
    run(&sandbox, "start('patient')\nNone");
    let waiting = sandbox.run(cell("tool('patient')"));
    waiting.canceller().cancel();
    assert_eq!(waiting.wait().kind, OutcomeKind::Cancelled);
    drop(sandbox);
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    drop(release);
}

#[test]
fn calls_that_were_started_go_on_together() {
    let barrier = Arc::new(tokio::sync::Barrier::new(200));
    let sandbox = builder()
        .tool("meet", open_schema(), move |arguments| {
            let barrier = Arc::clone(&barrier);
            async move {
                tokio::task::yield_now().await;
                barrier.wait().await;
                Ok(arguments)
            }
        })
        .build()
        .unwrap();
    let code = "ids = {start('meet', n=n): n for n in range(200)}\nmet = {}\n\
                while len(met) < 200:\n met.update(wait())\n\
                all(met[id] == {'n': n} for id, n in ids.items())";
    assert_eq!(value(&sandbox, code), json!(true));
}

#[test]
fn a_runtime_with_several_threads_is_used_and_one_with_one_is_left_alone() {
    let sandbox_of = || {
        builder()
            .tool("runtime", open_schema(), |_| async {
                tokio::task::yield_now().await;
                Ok(json!(tokio::runtime::Handle::current().id().to_string()))
            })
            .tool("spins", open_schema(), |_| async {
                tokio::task::yield_now().await;
                std::thread::sleep(Duration::from_millis(300));
                Ok(json!(1))
            })
            .build()
            .unwrap()
    };
    let several =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let outcome = several.block_on(async { sandbox_of().run(cell("tool('runtime')")).await });
    assert_eq!(outcome.result.json, Some(json!(several.handle().id().to_string())));

    let single = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    single.block_on(async {
        let sandbox = sandbox_of();
        let outcome = sandbox.run(cell("tool('runtime')")).await;
        assert_ne!(outcome.result.json, Some(json!(single.handle().id().to_string())));
        // While a tool blocks its thread, timers here go off.
        let spinning = sandbox.run(cell("start('spins')\nwait()[0][1]"));
        let ticks = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&ticks);
        let ticking = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(5)).await;
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert_eq!(spinning.await.result.json, Some(json!(1)));
        ticking.abort();
        assert!(ticks.load(Ordering::Relaxed) > 5);
    });
}

#[test]
fn large_catalogues_arguments_and_results_are_bounded() {
    let mut many = builder().budget(BudgetPreset::Large);
    for n in 0..10_000 {
        let mut one = open_schema();
        one["description"] = json!(format!("Number {n} of many."));
        many = many.tool(&format!("tool_{n}"), one, |arguments| async move { Ok(arguments) });
    }
    let sandbox = many
        .tool("large", open_schema(), |_| async { Ok(json!("x".repeat(64 << 20))) })
        .tool("deep", open_schema(), |_| async {
            Ok((0..500).fold(json!(0), |inner, _| Value::Array(vec![inner])))
        })
        .build()
        .unwrap();
    assert_eq!(value(&sandbox, "search('9999')"), json!([["tool_9999", "Number 9999 of many."]]));
    assert_eq!(value(&sandbox, "tool('tool_77', a=1)"), json!({"a": 1}));
    assert_eq!(value(&sandbox, "tool('large')[0]"), json!("TooLarge"));
    assert_eq!(value(&sandbox, "tool('deep')[0]"), json!("TooLarge"));
    let code = "try:\n raw('tool_1', b'{\"a\": \"' + b'x' * (100 << 20) + b'\"}')\n\
                except RuntimeError as error:\n said = str(error)\nsaid";
    assert_eq!(value(&sandbox, code), json!("larger than the sandbox accepts"));
}

#[test]
fn budget_policy_and_audit_go_on_from_run_to_run() {
    let audit = Arc::new(MemorySink::default());
    let policy = "version = 1\n[[tools.rules]]\nid = \"some\"\ntools = [\"echo\"]\nmax_calls = 3\n\
                  [budget]\ntool_calls_total = 5\n";
    let sandbox =
        with_tools().policy(policy).audit(Arc::<MemorySink>::clone(&audit)).build().unwrap();
    let denied = |outcome: &Outcome| -> Vec<(String, String)> {
        outcome.denials.iter().map(|denial| (denial.rule.clone(), denial.target.clone())).collect()
    };
    let outcome = run(&sandbox, "[tool('echo', n=n) for n in range(2)], tool('fails')[0]");
    assert_eq!(outcome.result.json, Some(json!([[{"n": 0}, {"n": 1}], "Denied"])));
    assert_eq!(denied(&outcome), [("default-deny".to_owned(), "fails".to_owned())]);
    let outcome = run(&sandbox, "tool('echo'), tool('echo')[0]");
    assert_eq!(outcome.result.json, Some(json!([{}, "Denied"])));
    assert_eq!(denied(&outcome), [("budget".to_owned(), "echo".to_owned())]);
    assert_eq!((sandbox.used(Budget::ToolCalls), sandbox.left(Budget::ToolCalls)), (3, 2));
    let records = audit.records();
    let sequence: Vec<u64> = records.iter().map(|record| record.sequence).collect();
    assert_eq!(sequence, (1..=sequence.len() as u64).collect::<Vec<_>>());
    assert!(records.iter().all(|record| record.policy == records[0].policy));
    assert_eq!(records[0].policy.digest, sandbox.policy().digest());
}

#[test]
fn a_budget_of_the_session_ends_a_later_run_too() {
    let budget = BudgetSettings { host_calls: Some(400), ..BudgetSettings::default() };
    let sandbox = builder().budget(budget).build().unwrap();
    let code = "import _fumehood\nfor _ in range(150): _fumehood.call(_fumehood.NOOP, b'')";
    let kinds: Vec<OutcomeKind> =
        (0..6).map(|_| sandbox.run(code).wait()).map(|outcome| outcome.kind).collect();
    assert_eq!(kinds.first(), Some(&OutcomeKind::Completed));
    let over = OutcomeKind::BudgetExceeded { name: "host_calls".to_owned() };
    assert_eq!(kinds.last(), Some(&over));
    assert!(kinds.iter().skip_while(|kind| **kind != over).all(|kind| *kind == over));
    assert_eq!(sandbox.left(Budget::HostCalls), 0);
}

#[test]
fn only_the_smallest_number_holds() {
    let wall = |builder: SandboxBuilder| builder.build().unwrap().limits().wall.as_secs();
    let limits = |seconds| fumehood::Limits {
        wall: Duration::from_secs(seconds),
        ..fumehood::Limits::default()
    };
    let policy = "version = 1\nbudget.wall_s = 40\n";
    let ceiling = "version = 1\nbudget.wall_s = 30\n";
    assert_eq!(wall(builder()), 60);
    assert_eq!(wall(builder().limits(limits(500))), 500);
    assert_eq!(wall(builder().budget(BudgetPreset::Large)), 600);
    assert_eq!(wall(builder().budget(BudgetPreset::Large).timeout(Duration::from_secs(5))), 5);
    assert_eq!(wall(builder().limits(limits(500)).budget(BudgetPreset::Small)), 10);
    assert_eq!(wall(builder().limits(limits(500)).policy(policy)), 40);
    assert_eq!(wall(builder().policy(policy).timeout(Duration::from_secs(7))), 7);
    assert_eq!(wall(builder().policy(policy).timeout(Duration::from_secs(70))), 40);
    assert_eq!(wall(builder().policy(policy).ceiling(ceiling)), 30);
    assert_eq!(wall(builder().limits(limits(500)).ceiling(ceiling)), 30);
    let extend = "version = 1\nflags = \"extend\"\nbudget.wall_s = 40\n";
    let longer = || builder().policy(extend).timeout(Duration::from_secs(70));
    assert_eq!(wall(longer()), 70);
    assert_eq!(wall(longer().ceiling(ceiling)), 30);

    let lowered = builder().policy(policy).timeout(Duration::from_secs(70)).build().unwrap();
    let said: Vec<String> = lowered.limited().iter().map(ToString::to_string).collect();
    assert_eq!(said, ["budget.wall_s: 70 was asked for, policy allows 40"]);
    for wrong in [Duration::ZERO, Duration::MAX] {
        assert!(matches!(builder().timeout(wrong).build(), Err(BuildError::Limit { .. })));
    }
}

fn refused(builder: SandboxBuilder) -> String {
    builder.build().map(drop).unwrap_err().to_string()
}

#[test]
fn a_policy_that_cannot_be_held_to_runs_nothing() {
    for (text, said) in [
        ("version = 1\ntols = 1\n", "policy:2:"),
        ("version = 2\n", "policy:1:"),
        ("version = 1\n[[example]]\nrequest = \"env A\"\nexpect = \"allow\"\n", "policy:3:"),
    ] {
        let error = builder().policy(text).build().map(drop).unwrap_err();
        assert!(matches!(error, BuildError::Policy(_)));
        assert!(error.to_string().starts_with(said), "{error}");
        let error = refused(builder().ceiling(text));
        assert!(error.starts_with("ceiling:"), "{error}");
    }
    let bash = "version = 1\n[bash]\naction = \"allow\"\n";
    for builder in [builder().policy(bash), builder().ceiling(bash)] {
        let error = builder.build().map(drop).unwrap_err();
        assert!(
            matches!(&error, BuildError::Unsupported { sections } if *sections == ["bash"]),
            "{error}"
        );
    }
}

/// A policy that mounts a directory.
fn mounts(host: &Path, access: &str, more: &str) -> PolicyFile {
    let text = format!(
        "version = 1\n{more}\n[[fs.mounts]]\nid = \"data\"\nat = \"/data\"\nhost = {host:?}\n\
         access = \"{access}\"\n"
    );
    PolicyFile::parse(&text, "p").unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn mounts_only_take_away_unless_the_policy_says_so() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().canonicalize().unwrap();
    std::fs::create_dir_all(root.join("data")).unwrap();
    std::fs::create_dir_all(root.join("other")).unwrap();
    std::fs::write(root.join("data/f"), "x").unwrap();
    let (data, other) = (root.join("data"), root.join("other"));
    let writes = |builder: SandboxBuilder| {
        let sandbox = builder.build().unwrap();
        let outcome = sandbox.run("open('/data/f', 'w').close()").wait();
        (outcome.kind == OutcomeKind::Completed, outcome.denials.first().map(|d| d.rule.clone()))
    };
    let policy = |access| builder().policy(mounts(&data, access, ""));
    assert_eq!(writes(policy("read-write")), (true, None));
    assert_eq!(writes(policy("read-only")), (false, Some("data".to_owned())));
    let lowered = policy("read-write").mount_read_only("/data", &data);
    assert_eq!(writes(lowered), (false, Some("data".to_owned())));
    // The same directory by another spelling.
    let spelled = policy("read-write").mount_read_only("/data", data.join("../data/."));
    assert!(!writes(spelled).0);
    let raised = policy("read-only").mount_read_write("/data", &data).build().unwrap();
    assert_eq!(raised.limited().len(), 1);
    let said = refused(policy("read-write").mount_read_only("/other", &other));
    assert!(said.contains("does not mount") && said.contains("extend"), "{said}");
    let extended = builder()
        .policy(mounts(&data, "read-only", "flags = \"extend\""))
        .mount_read_only("/other", &other);
    assert!(extended.build().is_ok());

    // open-read lets everything that is mounted be read, credentials excepted.
    std::fs::write(data.join(".env"), "KEY=1").unwrap();
    let sandbox = builder()
        .policy(preset("open-read").unwrap())
        .mount_read_write("/data", &data)
        .build()
        .unwrap();
    let outcome = sandbox
        .run("import os\nopen('/data/f').close()\ntry:\n open('/data/.env')\nexcept OSError:\n pass\nopen('/data/g', 'w')")
        .wait();
    let rules: Vec<_> = outcome.denials.iter().map(|denial| denial.rule.as_str()).collect();
    assert_eq!(rules, ["no-credentials", "default-deny"], "{:?}", outcome.error);
}

#[test]
fn a_ceiling_sees_where_a_mount_leads() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().canonicalize().unwrap();
    for name in ["srv/data", "secret"] {
        std::fs::create_dir_all(root.join(name)).unwrap();
    }
    std::os::unix::fs::symlink(root.join("secret"), root.join("srv/link")).unwrap();
    std::os::unix::fs::symlink(root.join("srv"), root.join("same")).unwrap();
    let ceiling = mounts(&root.join("srv"), "read-only", "");
    let with = |host: &str| {
        builder().ceiling(ceiling.clone()).mount_read_write("/data", root.join(host)).build()
    };
    let good = with("srv/data").unwrap();
    assert_eq!(good.limited().len(), 1);
    assert_eq!(good.run("open('/data/f', 'w')").wait().kind, OutcomeKind::ScriptError);
    for bad in ["secret", "srv/link", "srv/../secret", "same/data", "srv/data/../../secret"] {
        let error = with(bad).map(drop).unwrap_err();
        assert!(matches!(error, BuildError::NotAllowed(_)), "{bad}: {error}");
    }
    // A file's own mount is held to it as well.
    let policy = mounts(&root.join("srv/link"), "read-only", "");
    assert!(builder().policy(policy).ceiling(ceiling.clone()).build().is_err());
    // A directory under a ceiling's linked name is the same one.
    let linked = mounts(&root.join("same"), "read-only", "");
    let through = builder().ceiling(linked).mount_read_only("/data", root.join("same/data"));
    assert!(through.build().is_ok());
}

#[test]
fn variables_come_from_the_policy_or_not_at_all() {
    let show = |builder: SandboxBuilder, name: &str| {
        let sandbox = builder.build().unwrap();
        sandbox.run(format!("import os\nos.environ.get('{name}')")).wait().result.json
    };
    let policy = "version = 1\n[env]\nset = { GREETING = \"hello\", LANG = \"C.UTF-8\" }\n\
                  allow = [\"PATH\", \"OTHER\"]\n";
    let given = |name: &str| show(builder().policy(policy), name);
    assert_eq!(given("GREETING"), Some(json!("hello")));
    // Of the host's, what is named.
    assert_eq!(given("PATH"), Some(json!(std::env::var("PATH").unwrap())));
    assert_eq!(show(builder(), "PATH"), None);
    let set = builder().policy(policy).env("OTHER", "2");
    assert_eq!(show(set, "OTHER"), Some(json!("2")));
    let said = refused(builder().policy(policy).env("THIRD", "3"));
    assert!(said.contains("THIRD"), "{said}");
    for text in ["set = { HOME = \"/root\" }", "allow = [\"HOME\"]"] {
        let policy = format!("version = 1\n[env]\n{text}\n");
        let said = refused(builder().policy(policy));
        assert!(said.contains("`HOME` is the same in every sandbox"), "{said}");
    }
}

#[test]
fn tools_can_be_left_out_by_pattern() {
    let sandbox = with_tools().only_tools(["e*", "s*"]).build().unwrap();
    let code = "[tool('echo'), tool('fails')[0], tool('sum', zebra=1)]";
    assert_eq!(value(&sandbox, code), json!([{}, "Denied", {"sum": 1}]));
}

#[test]
fn one_tool_can_be_in_several_sandboxes() {
    let shared: Arc<Tool> =
        Arc::new(tool::plain("echo", open_schema(), |arguments| async { Ok(arguments) }).unwrap());
    for _ in 0..2 {
        let sandbox = builder().with_tool(Arc::clone(&shared)).build().unwrap();
        assert_eq!(value(&sandbox, "tool('echo', a=1)"), json!({"a": 1}));
    }
}
