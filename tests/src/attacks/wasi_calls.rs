//! W: waiting, clocks, randomness, arguments, exit, and the brokered import.
//!
//! Invariant: no call of a guest costs the host more than its budget allows.

use fumehood::{Engine, Script};
use fumehood_host_fns::Errno;

use crate::harness::wat::Program;
use crate::harness::{Attack, Attempt, Expected, Observed, Setting, machine};

fn answer(call: &str) -> Program {
    Program::new(format!("(call $answer {call})"))
}

/// Stores a clock subscription of `nanoseconds` at 65536.
fn clock_at(nanoseconds: i64) -> String {
    format!(
        "(i64.store %65536 %L7) (i64.store %65544 %L0) (i32.store %65552 %1)
         (i64.store %65560 %L{nanoseconds}) (i64.store %65568 %L0) (i64.store %65576 %L0)"
    )
}

const POLL: &str = "(call $poll_oneoff %65536 %131072 %1 %80)";

fn waiting() -> Vec<Attack> {
    let few_calls = || Setting::default().limit(|limits| limits.broker.host_calls = 10_000);
    vec![
        Attack::module(
            "W-11",
            "waiting for more events than memory can hold is an error",
            answer("(call $poll_oneoff %65536 %131072 %-1 %80)"),
        )
        .control_module(Program::new(format!("{} (call $answer {POLL})", clock_at(0))))
        .expect(
            Expected::Errno(&[Errno::Inval, Errno::Fault]),
            "subscriptions are counted before they are read",
        ),
        Attack::module(
            "W-11b",
            "waiting for no time again and again uses up the budget of host calls",
            Program::repeat(1_000_000, &format!("(call $must {POLL})")).after(&clock_at(0)),
        )
        .with(few_calls())
        .control_module(Program::repeat(100, &format!("(call $must {POLL})")).after(&clock_at(0)))
        .expect(
            Expected::Ends(&["budget_exceeded"]),
            "every call and every subscription is charged",
        ),
        Attack::module(
            "W-11c",
            "a wait beyond the deadline ends at the deadline",
            Program::new(format!("{} (call $answer {POLL})", clock_at(3_600_000_000_000))),
        )
        .with(Setting::default().wall_ms(300))
        .control_module(Program::new(format!("{} (call $answer {POLL})", clock_at(1_000_000))))
        .alone()
        .expect(Expected::Ends(&["timeout"]), "a parked call wakes at the deadline"),
        Attack::module(
            "W-11f",
            "a wait for longer than any clock counts ends at the deadline",
            Program::new(format!("{} (call $answer {POLL})", clock_at(-1))),
        )
        .with(Setting::default().wall_ms(300))
        .control_module(Program::new(format!("{} (call $answer {POLL})", clock_at(1_000_000))))
        .alone()
        .expect(Expected::Ends(&["timeout"]), "a wait is cut to what is left of the deadline"),
        Attack::module(
            "W-11d",
            "a subscription of an unknown kind is an error",
            Program::new(format!("{} (i32.store8 %65544 %9) (call $answer {POLL})", clock_at(0))),
        )
        .control_module(Program::new(format!("{} (call $answer {POLL})", clock_at(0))))
        .expect(Expected::Errno(&[Errno::Inval]), "the kinds of subscriptions are a closed list"),
        refused_import(
            "W-11e",
            "the older interface of the same functions is not offered",
            "(import \"wasi_unstable\" \"poll_oneoff\" (func (param i32 i32 i32 i32) (result i32)))",
            &["wasi_unstable"],
        ),
        Attack::module(
            "W-25",
            "giving way again and again uses up the budget of host calls",
            Program::repeat(10_000_000, "(drop (call $sched_yield))"),
        )
        .with(few_calls())
        .control_module(Program::repeat(1000, "(drop (call $sched_yield))"))
        .expect(Expected::Ends(&["budget_exceeded"]), "every call of the host is charged"),
        Attack::module(
            "W-25b",
            "randomness without end uses up its budget",
            Program::repeat(1_000_000, "(call $must (call $random_get %65536 %131072))"),
        )
        .with(Setting::default().limit(|limits| limits.broker.random_bytes = 8 << 20))
        .control_module(Program::repeat(8, "(call $must (call $random_get %65536 %131072))"))
        .expect(Expected::Ends(&["budget_exceeded"]), "random bytes are charged"),
    ]
}

/// A module that imports something that is not offered.
fn refused_import(
    id: &'static str,
    property: &'static str,
    import: &str,
    names: &'static [&'static str],
) -> Attack {
    Attack::module(id, property, Program::new("").imports(import))
        .control_module(Program::new(""))
        .expect(Expected::Refused(names), "a module is linked against a closed list of imports")
}

fn imports() -> Vec<Attack> {
    vec![
        refused_import(
            "W-26",
            "a module with an import of its own choice does not start",
            "(import \"env\" \"system\" (func (param i32) (result i32)))",
            &["env", "system"],
        ),
        refused_import(
            "W-26b",
            "an offered import with another type does not start",
            "(import \"wasi_snapshot_preview1\" \"sched_yield\" (func (param i64) (result i64)))",
            &["sched_yield"],
        ),
        refused_import(
            "W-26c",
            "a module cannot bring in a value of the host",
            "(import \"env\" \"secret\" (global i32))",
            &["env", "secret"],
        ),
        refused_import(
            "W-25c",
            "a guest cannot send signals",
            "(import \"wasi_snapshot_preview1\" \"proc_raise\" (func (param i32) (result i32)))",
            &["proc_raise"],
        ),
        refused_import(
            "W-25d",
            "a guest cannot accept connections",
            "(import \"wasi_snapshot_preview1\" \"sock_accept\" (func (param i32 i32 i32) (result i32)))",
            &["sock_accept"],
        ),
        Attack::host("W-26d", "bytes that are no module start nothing", |_, _| {
            match Engine::builder().module(&b"\0asm\x01\0\0\0\xff\xff\xff\xff"[..]).build() {
                Err(error) => Observed::refused(error.to_string()),
                Ok(_) => Observed::fact("accepted"),
            }
        })
        .control_module(Program::new(""))
        .expect(
            Expected::Refused(&["guest module"]),
            "a module is validated before anything of it runs",
        ),
        Attack::host(
            "W-26e",
            "a module that uses a switched-off feature does not start",
            |_, _| {
                let shared = wat::parse_str(
                    "(module (memory (export \"memory\") 1 1 shared) (func (export \"_start\")))",
                );
                match shared.map(|wasm| Engine::builder().module(wasm).build()) {
                    Ok(Err(error)) => Observed::refused(error.to_string()),
                    Ok(Ok(_)) => Observed::fact("accepted"),
                    Err(error) => Observed::broken(error.to_string()),
                }
            },
        )
        .control_module(Program::new(""))
        .expect(Expected::Refused(&["guest module"]), "only the features of the guest are on"),
    ]
}

fn process() -> Vec<Attack> {
    let nothing = "(call $must (call $args_sizes_get %65536 %65540))
         (call $unless (i32.eqz (i32.or (i32.load %65536) (i32.load %65540))) %1)
         (call $must (call $environ_sizes_get %65536 %65540))
         (call $unless (i32.eqz (i32.or (i32.load %65536) (i32.load %65540))) %2)
         (memory.fill %65536 %170 %64)
         (call $must (call $args_get %65536 %65568)) (call $must (call $environ_get %65536 %65568))
         (call $unless (i64.eq (i64.load %65536) %L-6148914691236517206) %3)";
    vec![
        Attack::module("W-23", "arguments and environment of the host are not given to a module", Program::new(nothing))
            .no_control("the control would be a module that sees the host's own arguments")
            .expect(Expected::Harmless(""), "the functions answer that there is nothing"),
        Attack::cell(
            "W-23b",
            "the environment of a program holds what it was given and nothing of the host",
            "import os, sys\nprint(sorted(set(os.environ) - set('HOME HOSTNAME LANG LC_ALL LOGNAME PWD TMPDIR TZ USER'.split())), len(sys.argv), os.environ['HOME'], os.environ['USER'])",
        )
        .control(
            Attempt::Host(std::sync::Arc::new(|_, _| {
                let canary = machine::host_details().is_empty();
                Observed::fact(if canary { "nothing to find" } else { "something to find" })
            })),
            Expected::Harmless("something to find"),
        )
        .expect(Expected::Harmless("[] 1 /home/agent agent"), "the environment is made by the host and fixed"),
        Attack::module("W-25e", "an exit code outside the usual range is only a number", Program::new("(call $proc_exit %-2147483648)"))
            .control(Attempt::Module(Program::new("(call $proc_exit %0)")), Expected::Harmless(""))
            .expect(Expected::Ends(&["exit"]), "an exit code is data"),
        Attack::host(
            "W-31",
            "a run whose caller goes away in the middle of a host call ends and leaves nothing",
            |world, setting| {
                let program = Program::new(format!("{} (call $answer {POLL})", clock_at(3_600_000_000_000)));
                let sink = std::sync::Arc::new(fumehood::MemorySink::default());
                let sandbox = match world.program_sandbox(&program, setting) {
                    Ok(sandbox) => sandbox,
                    Err(error) => return Observed::broken(error),
                };
                drop(sandbox);
                let engine = match program.build().map(|wasm| Engine::builder().module(wasm).build()) {
                    Ok(Ok(engine)) => engine,
                    _ => return Observed::broken("no engine"),
                };
                let audit = std::sync::Arc::clone(&sink);
                let built = fumehood::Sandbox::builder().engine(engine).audit(audit).limits(setting.limits.clone()).build();
                let Ok(sandbox) = built else { return Observed::broken("no sandbox") };
                let before = std::sync::Arc::strong_count(&sink);
                let run = sandbox.run(Script::new(""));
                std::thread::sleep(std::time::Duration::from_millis(100));
                let during = std::sync::Arc::strong_count(&sink);
                drop(run);
                let start = machine::now();
                while std::sync::Arc::strong_count(&sink) > before && start.elapsed().as_secs() < 5 {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                let ended = during > before && std::sync::Arc::strong_count(&sink) == before;
                let again = sandbox.run(Script::new("").stdin("p")).wait();
                Observed::fact(format!("ended: {ended}, next: {}", again.stdout_text()))
                    .note(format!("ended {:.1} ms after it was dropped", start.elapsed().as_secs_f64() * 1000.0))
            },
        )
        .control_module(Program::new(format!("{} (call $answer {POLL})", clock_at(1_000_000))))
        .alone()
        .expect(Expected::Harmless("ended: true, next: 42"), "a run owns its store, and dropping it wakes the call"),
        Attack::host("W-32", "no host function uses what exists only inside a call of the guest", |_, _| {
            let Some(tree) = machine::source_tree() else {
                return Observed::waiting(crate::harness::Capability::SourceTree);
            };
            let uses = machine::tree(&tree.join("runtime/src")).into_iter().filter(|(_, text)| {
                String::from_utf8_lossy(text).contains("get_module_export")
            });
            Observed::fact(format!("{} files", uses.count()))
        })
        .no_control("the property is about source text that must not be there")
        .expect(Expected::Harmless("0 files"), "the memory is remembered once, after instantiation"),
    ]
}

fn brokered() -> Vec<Attack> {
    let call = |arguments: &str| {
        Program::new(format!("(call $unless (i64.lt_s (call $brokered {arguments}) %L0) %1)"))
    };
    let attack = |id, property, arguments: &str| {
        Attack::module(id, property, call(arguments))
            .control_module(Program::new(
                "(call $unless (i64.eqz (call $brokered %1 %0 %0 %0 %0)) %1)",
            ))
            .expect(
                Expected::Harmless(""),
                "a request is bounded before it is decoded and decoded without trust",
            )
    };
    vec![
        attack(
            "P-05b",
            "an operation that does not exist is an error",
            "%4000000 %65536 %16 %65536 %16",
        ),
        attack("P-05c", "a request longer than memory is an error", "%2 %65536 %-1 %65536 %16"),
        attack("P-05d", "a request behind the end of memory is an error", "%2 %-16 %16 %65536 %16"),
        attack("P-05e", "a response behind the end of memory is an error", "%1 %65536 %0 %-16 %16"),
        attack(
            "P-05f",
            "a record that states more bytes than it has is an error",
            "%2 @\"\\04text\\ff\\ff\\ff\\ff\\0f\" %65536 %16",
        ),
        attack("P-05g", "a response that nobody waits for is an error", "%0 %65536 %0 %65536 %16"),
        attack(
            "P-05h",
            "a record with bytes behind it is an error",
            "%2 @\"\\0atext/plain\\01xmore\" %65536 %16",
        ),
    ]
}

/// Every attack of this kind.
pub(super) fn all() -> Vec<Attack> {
    let mut all = waiting();
    all.extend(imports());
    all.extend(process());
    all.extend(brokered());
    all
}
