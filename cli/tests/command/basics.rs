//! The real binary, as a user meets it: exit codes, bad input, what is printed
//! where.
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use serde_json::Value;

use crate::support::{BINARY, Ran, cache, check_result};

/// Records of all tests: not among those of the user who runs them.
fn records() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("fumehood-cli-records")
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command
        .args(args)
        .env("FUMEHOOD_CACHE_DIR", cache())
        .env("FUMEHOOD_HOME", records())
        .stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Ran {
    command(args).output().unwrap().into()
}

/// Runs code and returns the one JSON object on standard output.
fn json(args: &[&str]) -> Value {
    let ran = run(args);
    assert_eq!(ran.stdout.lines().count(), 1);
    ran.result()
}

fn feed(mut child: Child, input: &[u8]) -> Ran {
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap().into()
}

fn piped(args: &[&str]) -> Child {
    command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn exit_codes_are_those_of_the_design() {
    let table: &[(&str, &[&str], i32, &str)] = &[
        ("print('x')", &[], 0, "completed"),
        ("import sys; sys.exit(0)", &[], 0, "exit"),
        ("import sys; sys.exit(7)", &[], 7, "exit"),
        ("import sys; sys.exit('no')", &[], 1, "exit"),
        ("1/0", &[], 1, "script_error"),
        ("def", &[], 1, "script_error"),
        ("import time; time.sleep(60)", &["--timeout", "0.3"], 124, "timeout"),
        ("while True: pass", &["--timeout", "0.3"], 124, "timeout"),
        ("while True: pass", &["--cpu", "0.3"], 124, "timeout"),
        ("x = 'x' * 10**10", &["--memory", "64"], 1, "script_error"),
        (
            "x = []\nwhile True:\n x.append('y' * 10**6 + str(len(x)))",
            &["--memory", "128"],
            137,
            "memory_limit",
        ),
        ("eval('-' * 100000 + '1')", &[], 134, "stack_exhausted"),
    ];
    for (code, more, exit_code, kind) in table {
        let args = [&["run", "--json", "-c", code], *more].concat();
        let value = json(&args);
        assert_eq!(value["outcome"]["kind"], *kind, "{code}: {value:#}");
        let plain = run(&[&["run", "-c", code], *more].concat());
        assert_eq!(plain.code, *exit_code, "{code}: {}", plain.stderr);
        assert_eq!(value["exit_code"], *exit_code, "{code}");
    }
    let code = "for i in range(10):\n try:\n  while True: pass\n except BaseException: pass";
    assert_eq!(run(&["run", "--timeout", "0.3", "-c", code]).code, 124);
}

#[test]
fn bad_input_is_one_sentence_and_64_and_runs_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("latin.py"), b"print('caf\xe9')\n").unwrap();
    std::fs::write(path("list.json"), b"[1]").unwrap();
    std::fs::write(path("broken.json"), b"{").unwrap();
    std::fs::write(path("good.py"), b"print('ran')\n").unwrap();
    let (latin, list, broken, good, here) =
        (path("latin.py"), path("list.json"), path("broken.json"), path("good.py"), path(""));
    let (missing, a_file) = (path("missing"), format!("/d={}", path("good.py")));
    let missing_mount = format!("/d={missing}");
    let bad_access = format!("/d={here}:rx");
    let table: Vec<Vec<&str>> = vec![
        vec![],
        vec!["no-such-command"],
        vec!["run"],
        vec!["run", &missing],
        vec!["run", &here],
        vec!["run", &latin],
        vec!["run", &good, "--no-such-flag"],
        vec!["run", &good, "--jsn"],
        vec!["run", &good, "-c", "1"],
        vec!["run", &good, "--json", "--json-lines"],
        vec!["run", &good, "--mount", &missing_mount],
        vec!["run", &good, "--mount", &a_file],
        vec!["run", &good, "--mount", &bad_access],
        vec!["run", &good, "--mount", "/d"],
        vec!["run", &good, "--mount", "=x"],
        vec!["run", &good, "--mount", "d=."],
        vec!["run", &good, "--mount", "/=."],
        vec!["run", &good, "--mount", "/d=/"],
        vec!["run", &good, "--mount", "/d=/proc"],
        vec!["run", &good, "--mount", "/d=/sys:rw"],
        vec!["run", &good, "--mount", "/d=.", "--mount", "/d/e=.."],
        vec!["run", &good, "--env", "A"],
        vec!["run", &good, "--env", "=1"],
        vec!["run", &good, "--env", "A B=1"],
        vec!["run", &good, "--env", "HOME=/root"],
        vec!["run", &good, "--timeout", "-1"],
        vec!["run", &good, "--timeout", "0"],
        vec!["run", &good, "--timeout", "NaN"],
        vec!["run", &good, "--timeout", "1e300"],
        vec!["run", &good, "--timeout", "soon"],
        vec!["run", &good, "--cpu", "-0.5"],
        vec!["run", &good, "--cpu=inf"],
        vec!["run", &good, "--memory", "0"],
        vec!["run", &good, "--memory", "-5"],
        vec!["run", &good, "--memory", "99999999999"],
        vec!["run", &good, "--stdin", &missing],
        vec!["run", &good, "--input-json", &list],
        vec!["run", &good, "--input-json", &broken],
        vec!["run", &good, "--input-json", &missing],
        vec!["run", "-", "--stdin", "-"],
        vec!["bench", "startup", "--runs", "0"],
        vec!["bench", "cpu", "--programs", &missing],
        vec!["cache", "build"],
        vec!["cache", "build", "--out", &here],
        vec!["cache", "verify", &missing],
    ];
    for args in table {
        let ran = run(&args);
        assert_eq!(ran.code, 64, "{args:?}: {} {}", ran.stdout, ran.stderr);
        assert_eq!(ran.stdout, "", "{args:?}");
        assert_eq!(ran.stderr.lines().count(), 1, "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.starts_with("fumehood: "), "{args:?}: {}", ran.stderr);
        println!("{args:?}\n    {}", ran.stderr.trim_end());
    }
}

#[test]
fn a_directory_is_refused_before_the_guest_is_compiled() {
    let cache = tempfile::tempdir().unwrap();
    let ran: Ran = Command::new(BINARY)
        .args(["run", "--no-record", "-c", "1", "--mount", "/d=/"])
        .env("FUMEHOOD_CACHE_DIR", cache.path().join("empty"))
        .output()
        .unwrap()
        .into();
    assert_eq!((ran.code, ran.stderr.lines().count()), (64, 1), "{}", ran.stderr);
    assert!(!cache.path().join("empty").exists());
}

#[test]
fn a_program_that_breaks_the_interpreter_is_told_so() {
    // One instruction after the other that jumps, pops and loads out of range.
    let code = [
        "def f():",
        "    return 1",
        "for n in range(256):",
        "    for m in (0, 7, 255):",
        "        try:",
        "            made = bytes([n, m, n, 255 - m] * 4)",
        "            type(f)(f.__code__.replace(co_code=made), {})()",
        "        except Exception:",
        "            pass",
    ]
    .join("\n");
    let code = code.as_str();
    let value = json(&["run", "--json", "-c", code]);
    assert_eq!(value["outcome"]["kind"], "script_error", "{value:#}");
    assert_eq!(value["error"]["type"], "InterpreterCrash");
    let ran = run(&["run", "-c", code]);
    // The interpreter's own words come first.
    let last = ran.stderr.lines().last().unwrap();
    assert!(ran.code == 1 && last.starts_with("fumehood: ") && last.contains("bytecode"), "{last}");
}

#[test]
fn a_home_directory_is_mounted_only_by_force() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("f"), "x").unwrap();
    let mount = format!("/h={}", home.path().display());
    let with_home =
        |args: &[&str]| -> Ran { command(args).env("HOME", home.path()).output().unwrap().into() };
    let code = "print(open('/h/f').read())";
    assert_eq!(with_home(&["run", "-c", code, "--mount", &mount]).code, 64);
    assert_eq!(with_home(&["run", "-c", code, "--force-mount", &mount]).stdout, "x\n");
}

#[test]
fn help_and_version_are_not_errors() {
    for args in [&["--help"][..], &["run", "--help"], &["--version"], &["bench", "--help"]] {
        let ran = run(args);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{args:?}");
        assert!(!ran.stdout.is_empty());
    }
    let version: Value = serde_json::from_str(&run(&["version", "--json"]).stdout).unwrap();
    assert!(!version["memory_path"].as_str().unwrap().is_empty());
    assert!(version["wasmtime"].as_str().unwrap().starts_with("48."));
    assert_eq!(version["guest"].as_str().unwrap().len(), 64);
}

#[test]
fn a_program_gets_its_arguments_input_and_variables() {
    let directory = tempfile::tempdir().unwrap();
    let input = directory.path().join("in.json");
    std::fs::write(&input, r#"{"rows": [1, 2, 3], "name": "é"}"#).unwrap();
    let code = "import sys, os\nprint(sys.argv[1:], sum(rows), name, os.environ['A'])";
    let ran = run(&[
        "run",
        "-c",
        code,
        "--input-json",
        input.to_str().unwrap(),
        "--env",
        "A=b=c",
        "--",
        "-x",
        "y z",
        "--json",
    ]);
    assert_eq!(ran.stdout, "['-x', 'y z', '--json'] 6 é b=c\n", "{}", ran.stderr);

    let inputs = r#"{"z": {"y": 1, "x": 2}, "a": 123456789012345678901234567890, "m": 1.5}"#;
    std::fs::write(&input, inputs).unwrap();
    let code = "print(z, a * 10, [n for n in globals() if n in ('z', 'a', 'm')])";
    let ran = run(&["run", "-c", code, "--input-json", input.to_str().unwrap()]);
    let expected = "{'y': 1, 'x': 2} 1234567890123456789012345678900 ['z', 'a', 'm']\n";
    assert_eq!(ran.stdout, expected, "{}", ran.stderr);

    let code = "import sys\nprint(input(), sys.stdin.read())";
    let ran = feed(piped(&["run", "-c", code, "--stdin", "-"]), b"one\ntwo");
    assert_eq!(ran.stdout, "one two\n", "{}", ran.stderr);
    let file = directory.path().join("stdin");
    std::fs::write(&file, "three\n").unwrap();
    let ran = run(&["run", "-c", code, "--stdin", file.to_str().unwrap()]);
    assert_eq!(ran.stdout, "three \n", "{}", ran.stderr);

    // The command's own standard input is not the program's unless it is said.
    let ran = feed(piped(&["run", "-c", "input()"]), b"secret\n");
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("EOFError"), "{}", ran.stderr);

    let ran = feed(piped(&["run", "-"]), b"print(__name__, 6 * 7)");
    assert_eq!(ran.stdout, "__main__ 42\n", "{}", ran.stderr);
    let ran = run(&["run", "-c", "print(__name__, 6 * 7)"]);
    assert_eq!(ran.stdout, "__main__ 42\n", "{}", ran.stderr);
}

#[test]
fn a_file_in_a_mounted_directory_finds_its_siblings() {
    let directory = tempfile::tempdir().unwrap();
    let package = directory.path().join("app");
    std::fs::create_dir(&package).unwrap();
    std::fs::write(package.join("helper.py"), "def double(x):\n    return 2 * x\n").unwrap();
    let main = package.join("main.py");
    std::fs::write(
        &main,
        "import helper\nprint(helper.double(21), __file__)\nraise ValueError('no')\n",
    )
    .unwrap();
    let mount = format!("/src={}", directory.path().display());
    let ran = run(&["run", main.to_str().unwrap(), "--mount", &mount]);
    assert_eq!(ran.stdout, "42 /src/app/main.py\n", "{}", ran.stderr);
    assert!(ran.stderr.contains("File \"/src/app/main.py\", line 3"), "{}", ran.stderr);
    assert!(ran.stderr.contains("raise ValueError('no')"), "{}", ran.stderr);
    let host = directory.path().to_str().unwrap();
    assert!(!ran.stderr.contains(host), "{}", ran.stderr);

    // Outside of any mount it has its name and no siblings.
    let ran = run(&["run", main.to_str().unwrap()]);
    assert!(ran.stderr.contains("ModuleNotFoundError"), "{}", ran.stderr);
    assert!(ran.stderr.contains("File \"main.py\", line 1"), "{}", ran.stderr);
    let value = json(&["run", main.to_str().unwrap(), "--json"]);
    assert!(!value.to_string().contains(host), "{value:#}");
}

#[test]
fn mounts_are_read_only_unless_said_otherwise() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("in.txt"), "data").unwrap();
    let code = "print(open('/d/in.txt').read())\nopen('/d/out.txt', 'w').write('done')";
    let mount = format!("/d={}", directory.path().display());
    let ran = run(&["run", "-c", code, "--mount", &mount]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, "data\n"), "{}", ran.stderr);
    assert!(!directory.path().join("out.txt").exists());
    assert!(ran.stderr.contains("fumehood: denied"), "{}", ran.stderr);

    let value = json(&["run", "--json", "-c", code, "--mount", &mount]);
    assert_eq!(value["denials"][0]["target"], "/d/out.txt", "{value:#}");
    assert_eq!(value["outcome"]["kind"], "script_error");

    let ran = run(&["run", "-c", code, "--mount", &format!("{mount}:rw")]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(std::fs::read(directory.path().join("out.txt")).unwrap(), b"done");
}

#[test]
fn a_denial_that_the_code_swallowed_is_still_told() {
    let directory = tempfile::tempdir().unwrap();
    let mount = format!("/d={}", directory.path().display());
    let code = "try:\n open('/d/x', 'w')\nexcept OSError:\n print('fine')";
    let ran = run(&["run", "-c", code, "--mount", &mount]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "fine\n"));
    assert!(ran.stderr.contains("/d/x"), "{}", ran.stderr);
}

#[test]
fn output_is_passed_on_unchanged_when_piped() {
    let code = "import sys\nsys.stdout.buffer.write(bytes(range(256)))\nsys.stdout.buffer.write(b'\\x1b[31m')";
    let output = command(&["run", "-c", code]).output().unwrap();
    let mut expected: Vec<u8> = (0..=255).collect();
    expected.extend_from_slice(b"\x1b[31m");
    assert_eq!(output.stdout, expected);
    assert_eq!(output.stderr, b"");
    // Standard output is one JSON object, whatever the program prints.
    let value = json(&["run", "--json", "-c", "print('\\x1b\\x7f\\x9b\\u2028')"]);
    assert_eq!(value["stdout"], "\u{1b}\u{7f}\u{9b}\u{2028}\n");
}

#[test]
fn output_comes_while_the_program_runs() {
    let code = "import time\nprint('first', flush=True)\ntime.sleep(30)";
    let mut child = piped(&["run", "--timeout", "5", "-c", code]);
    let start = Instant::now();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "first\n");
    assert!(start.elapsed() < Duration::from_secs(4));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_cell_prints_the_value_of_its_last_expression() {
    let ran = run(&["run", "--cell", "-c", "x = 20\nx + 1.5"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "21.5\n"), "{}", ran.stderr);
    let ran = run(&["run", "--cell", "-c", "print('a', end='')\n'b'"]);
    assert_eq!(ran.stdout, "a\n'b'\n");
    assert_eq!(run(&["run", "--cell", "-c", "x = 1"]).stdout, "");
    assert_eq!(run(&["run", "-c", "1 + 1"]).stdout, "");
    let value = json(&["run", "--cell", "--json", "-c", "{'a': [1, None, 'é']}"]);
    assert_eq!(value["result"]["json"], serde_json::json!({ "a": [1, null, "é"] }));
    let ran = run(&["run", "--cell", "--json", "-c", "{'z': {'y': 1, 'x': 2}, 'a': 3}"]);
    assert!(ran.stdout.contains(r#""json":{"z":{"y":1,"x":2},"a":3}"#), "{}", ran.stdout);
    // JSON readers would round it.
    let value = json(&["run", "--cell", "--json", "-c", "{'a': 2**70}"]);
    assert_eq!(value["result"]["repr"], format!("{{'a': {}}}", 1_u128 << 70));
    assert_eq!(value["result"]["json"], Value::Null);
}

#[test]
fn rich_outputs_are_data() {
    let code = "display({'a': 1})\ndisplay('x')";
    let ran = run(&["run", "-c", code]);
    assert!(ran.stderr.contains("2 rich outputs"), "{} {}", ran.stdout, ran.stderr);
    let value = json(&["run", "--json", "-c", code]);
    let bytes = value["displays"][0]["bytes"].as_str().unwrap();
    let bytes = base64::engine::general_purpose::STANDARD.decode(bytes).unwrap();
    let shown: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(shown, serde_json::json!({ "a": 1 }));
}

#[test]
fn json_lines_tell_what_happens() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("f"), "x").unwrap();
    let mount = format!("/d={}", directory.path().display());
    let code = "import sys\nprint('out é')\nprint('err', file=sys.stderr)\nopen('/d/f').read()\n\
                try:\n open('/d/f', 'w')\nexcept OSError: pass";
    let ran = run(&["run", "--json-lines", "-c", code, "--mount", &mount]);
    // Output stands between the records of what came before and after it.
    let place =
        |text: &str| ran.stdout.find(text).unwrap_or_else(|| panic!("{text}: {}", ran.stdout));
    assert!(place("out é") < place("\"/d/f\""), "{}", ran.stdout);
    let events: Vec<Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let named =
        |name: &str| events.iter().filter(|event| event["event"] == name).collect::<Vec<_>>();
    assert_eq!(events.first().unwrap()["event"], "start");
    let end = events.last().unwrap();
    assert_eq!(end["event"], "end");
    check_result(&end["result"]);
    assert_eq!(end["result"]["session"], events[0]["session"]);
    let text = |stream: &str| -> String {
        named("output")
            .iter()
            .filter(|event| event["stream"] == stream)
            .map(|event| event["text"].as_str().unwrap())
            .collect()
    };
    assert_eq!((text("stdout").as_str(), text("stderr").as_str()), ("out é\n", "err\n"));
    assert_eq!(named("denial").len(), 1, "{}", ran.stdout);
    assert_eq!(named("denial")[0]["target"], "/d/f");
    assert!(
        named("host_call").iter().any(|call| call["target"] == "/d/f" && call["verdict"] == "deny"),
        "{}",
        ran.stdout
    );
    assert_eq!(ran.stderr, "");
}

#[test]
fn a_reader_that_goes_away_ends_the_run_quietly() {
    let code = "i = 0\nwhile True:\n print('line', i, flush=True)\n i += 1";
    for more in [&[][..], &["--json-lines"]] {
        let mut child = piped(&[&["run", "--timeout", "30", "-c", code], more].concat());
        let start = Instant::now();
        let mut some = [0; 64];
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut some).unwrap();
        drop(stdout);
        let ran = Ran::from(child.wait_with_output().unwrap());
        assert!(start.elapsed() < Duration::from_secs(10));
        assert_eq!((ran.code, ran.stderr.as_str()), (125, ""));
    }
}

#[test]
fn ctrl_c_stops_the_run_and_tells_its_outcome() {
    for signal in ["INT", "TERM"] {
        let mut child = piped(&["run", "--json", "-c", "import time\ntime.sleep(30)"]);
        std::thread::sleep(Duration::from_millis(500));
        let id = child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &id]).status().unwrap().success());
        let mut text = String::new();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(125));
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["outcome"]["kind"], "cancelled");
    }
}

#[test]
fn limits_are_told_with_what_to_do() {
    let ran = run(&["run", "--timeout", "0.2", "-c", "while True: pass"]);
    assert_eq!(
        ran.stderr,
        "fumehood: the run was stopped after 0.2 s of wall-clock time; allow more with --timeout\n"
    );
    let ran = run(&["run", "-c", "import sys\nfor _ in range(12): sys.stdout.write('x' * 2**20)"]);
    assert_eq!(ran.stdout.len(), 10 << 20);
    assert!(ran.stderr.contains("2097152 bytes of stdout"), "{}", ran.stderr);
}

#[test]
fn compiled_code_is_made_checked_used_and_removed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("guest.code");
    let path = file.to_str().unwrap();
    let ran = run(&["cache", "build", "--out", path]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("Compiling"), "{}", ran.stderr);
    assert_eq!(run(&["cache", "verify", path]).code, 0);
    let ran = run(&["cache", "verify", path, "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&ran.stdout).unwrap()["good"], true);

    let bare = |args: &[&str]| -> Ran {
        Command::new(BINARY).args(args).env_clear().stdin(Stdio::null()).output().unwrap().into()
    };
    let ran = bare(&["run", "-c", "print(1+1)", "--compiled", path]);
    assert_eq!((ran.code, ran.stdout.as_str()), (66, ""), "there is no place for a record");
    assert!(ran.stderr.contains("--no-record") && ran.stderr.contains("FUMEHOOD_HOME"));
    let ran = bare(&["run", "--no-record", "-c", "print(1+1)", "--compiled", path]);
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "2\n", ""));

    let mut bytes = std::fs::read(&file).unwrap();
    bytes[1000] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    assert_eq!(run(&["cache", "verify", path]).code, 1);
    bytes.truncate(5000);
    std::fs::write(&file, &bytes).unwrap();
    for refused in [path, "/no/such/file", directory.path().to_str().unwrap()] {
        let ran = bare(&["run", "--no-record", "-c", "print(1+1)", "--compiled", refused]);
        assert_eq!((ran.code, ran.stdout.as_str()), (66, ""), "{}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    }

    let info: Value = serde_json::from_str(&run(&["cache", "info", "--json"]).stdout).unwrap();
    assert!(info["bytes"].as_u64().unwrap() > 1 << 20, "{info:#}");
    assert_eq!(run(&["cache", "verify"]).code, 0);

    // In a cache of its own: nothing there, then one file, then nothing again.
    let own = directory.path().join("cache");
    let with_own = |args: &[&str]| -> Ran {
        command(args).env("FUMEHOOD_CACHE_DIR", &own).output().unwrap().into()
    };
    assert_eq!(with_own(&["cache", "verify"]).code, 2);
    assert_eq!(with_own(&["cache", "clear"]).code, 0);
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("0123456789abcdef-0123456789abcdef.code"), "x").unwrap();
    std::fs::write(own.join("mine.txt"), "x").unwrap();
    let cleared: Value =
        serde_json::from_str(&with_own(&["cache", "clear", "--json"]).stdout).unwrap();
    assert_eq!(cleared["removed"].as_array().unwrap().len(), 1);
    assert!(own.join("mine.txt").exists());
    assert_eq!(bare(&["cache", "info"]).code, 2);
    // A name is used as it was given, and not passed over for another place.
    let mut info = command(&["cache", "info", "--json"]);
    let output = info.env("FUMEHOOD_CACHE_DIR", "cache").current_dir(directory.path()).output();
    let info: Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
    let named = info["directory"].as_str().unwrap();
    assert_eq!(Path::new(named), std::fs::canonicalize(own).unwrap());
}

#[test]
fn a_live_session_leaves_a_record_unless_none_is_wanted() {
    let home = tempfile::tempdir().unwrap();
    let at_home = |args: &[&str], input: &str| -> Ran {
        let mut child = command(args)
            .env("FUMEHOOD_HOME", home.path().join("home"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap().into()
    };
    let cells = "open('/tmp/made', 'w').close()\n1 / 0\n";
    assert_eq!(at_home(&["repl", "--no-record"], cells).code, 1);
    assert!(!home.path().join("home").exists());
    let ran = at_home(&["repl"], cells);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    let list: Value =
        serde_json::from_str(&at_home(&["session", "list", "--json"], "").stdout).unwrap();
    let [session] = list["sessions"].as_array().unwrap().as_slice() else {
        panic!("one session has one record: {list:#}");
    };
    assert!(session["name"] == "<repl>" && session["state"] == "ended", "{session:#}");
    let end = &session["end"];
    assert!(end["outcome"] == "script_error" && end["exit_code"] == 1, "{session:#}");
    let verified = at_home(&["audit", "verify", "last"], "");
    assert!(verified.code == 0 && verified.stdout.starts_with("intact"), "{}", verified.stdout);
    let log = at_home(&["audit", "export", "last"], "").stdout;
    assert!(log.contains("\"target\":\"/tmp/made\""), "{log}");
    assert_eq!(log.matches("\"op\":\"run\"").count(), 4, "two cells: {log}");
}

#[test]
fn nothing_is_logged_unless_asked_for() {
    assert_eq!(run(&["run", "-c", "print(1)"]).stderr, "");
    let ran: Ran =
        command(&["run", "-c", "print(1)"]).env("FUMEHOOD_LOG", "trace").output().unwrap().into();
    assert_eq!(ran.stdout, "1\n");
}

/// `audit export --format otlp`, which only a build with the feature has.
#[cfg(feature = "otlp")]
#[test]
fn calls_are_exported_as_spans() {
    let home = tempfile::tempdir().unwrap();
    let at_home = |args: &[&str]| {
        let output = command(args).env("FUMEHOOD_HOME", home.path().join("home")).output();
        Ran::from(output.unwrap())
    };
    let code = "open('/tmp/made', 'w').write('x')\ntry:\n    open('/etc/passwd')\nexcept OSError:\n    pass";
    let ran = at_home(&["run", "-c", code]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let exported = at_home(&["audit", "export", "last", "--format", "otlp"]);
    assert_eq!(exported.code, 0, "{}", exported.stderr);
    let mut spans = Vec::new();
    for line in exported.stdout.lines() {
        let data: Value = serde_json::from_str(line).unwrap();
        let resource = &data["resourceSpans"][0];
        assert!(resource["resource"]["attributes"].to_string().contains("service.name"));
        spans.extend(resource["scopeSpans"][0]["spans"].as_array().unwrap().clone());
    }
    let run = spans.iter().find(|span| span["parentSpanId"] == "").unwrap();
    for span in &spans {
        let id = |key: &str| span[key].as_str().unwrap().to_owned();
        assert_eq!((id("traceId").len(), id("spanId").len()), (32, 16), "{span}");
        assert_eq!(span["traceId"], run["traceId"]);
        let time = |key: &str| id(key).parse::<u64>().unwrap();
        assert!(time("startTimeUnixNano") <= time("endTimeUnixNano"), "{span}");
    }
    let of = |target: &str| {
        spans.iter().find(|span| span["attributes"].to_string().contains(target)).unwrap()
    };
    assert_eq!(of("/tmp/made")["status"]["code"], 1);
    assert_eq!(of("/etc/passwd")["status"]["code"], 2);
    let ids: std::collections::BTreeSet<_> =
        spans.iter().map(|span| span["spanId"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), spans.len(), "an id is of one span");
    let again = at_home(&["audit", "export", "last", "--format", "otlp"]);
    assert_eq!(again.stdout, exported.stdout, "the same log gives the same spans");
}
