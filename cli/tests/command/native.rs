//! `run --tier` and `bash` with the real binary and real processes.

mod commands;
mod subprocess;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{BINARY, Place, Ran, cache};

/// Tiers of the helper.
const TIERS: [&str; 2] = ["landlock", "process"];

fn json(place: &Place, args: &[&str]) -> Value {
    place.run(args).result()
}

#[test]
fn a_program_runs_with_the_machines_python() {
    let place = Place::new();
    for tier in TIERS {
        let code = "import sys, os, platform\n\
                    print(platform.python_implementation(), sys.argv[1:], sys.stdin.read())\n\
                    print(os.environ.get('A'), os.environ.get('HOST_VARIABLE'), __name__)\n\
                    print('err', file=sys.stderr); sys.exit(7)";
        let mut child = place
            .command(&[
                "run", "--tier", tier, "--env", "A=b", "--stdin", "-", "-c", code, "--", "x y",
            ])
            .env("FUMEHOOD_CACHE_DIR", place.path("cache"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(b"input").unwrap();
        let ran = Ran::from(child.wait_with_output().unwrap());
        assert_eq!(
            ran.stdout, "CPython ['x y'] input\nb None __main__\n",
            "{tier}: {}",
            ran.stderr
        );
        assert_eq!((ran.code, ran.stderr.as_str()), (7, "err\n"), "{tier}");
    }
    assert!(!place.path("cache").exists(), "nothing is compiled");
}

#[test]
fn a_failure_shows_the_programs_own_lines() {
    let place = Place::new();
    fs::write(place.path("prog.py"), "def f():\n    return 1 / 0\n\nf()\n").unwrap();
    for tier in TIERS {
        let ran = place.run(&["run", "--tier", tier, "prog.py"]);
        assert_eq!(ran.code, 1);
        let wanted = "Traceback (most recent call last):\n  File \"prog.py\", line 4, in <module>\n    f()\n";
        assert!(ran.stderr.starts_with(wanted), "{tier}: {}", ran.stderr);
        assert!(ran.stderr.contains("return 1 / 0") && ran.stderr.ends_with("division by zero\n"));
        assert!(!ran.stderr.contains("start()"), "{}", ran.stderr);
        let ran = place.run(&["run", "--tier", tier, "-c", "a b"]);
        assert!(ran.code == 1 && ran.stderr.contains("SyntaxError"), "{}", ran.stderr);
    }
}

#[test]
fn the_result_is_that_of_every_tier() {
    let place = Place::new();
    fs::write(place.path("inputs.json"), "{\"n\": 6}").unwrap();
    for tier in TIERS {
        let more = ["run", "--json", "--tier", tier, "--input-json", "inputs.json"];
        let value = json(&place, &[&more[..], &["-c", "print(n * 7)"]].concat());
        assert_eq!(value["outcome"], json!({ "kind": "completed" }), "{value:#}");
        assert_eq!((&value["stdout"], &value["tier"]), (&json!("42\n"), &json!(tier)));
        let controls = value["controls"].as_array().unwrap();
        assert!(controls.contains(&json!("process-tree")), "{value:#}");
        assert_eq!(controls.contains(&json!("seccomp")), tier == "landlock");
        assert!(value["usage"]["wall_ms"].as_f64().unwrap() > 0.0);
        assert!(value["usage"]["cpu_ms"].as_f64().unwrap() > 0.0);
        // The record of the run says the same and is whole.
        let session = value["session"].as_str().unwrap();
        assert_eq!(place.run(&["audit", "verify", session]).code, 0);
        let shown = place.run(&["audit", "export", session]).stdout;
        let named = format!("\"tier\":\"{tier}\"");
        assert!(shown.contains("bash.run") && shown.contains(&named), "{shown}");
        let run = |more: &[&str], code: &str| {
            json(&place, &[&["run", "--json", "--tier", tier], more, &["-c", code]].concat())
        };
        let sleeps = "print('part', flush=True)\nimport time\ntime.sleep(60)";
        let value = run(&["--timeout", "4"], sleeps);
        assert_eq!(value["outcome"], json!({ "kind": "timeout", "clock": "wall" }));
        assert_eq!((&value["exit_code"], &value["stdout"]), (&json!(124), &json!("part\n")));
        let value = run(&["--cpu", "1"], "while True: pass");
        assert_eq!(value["outcome"], json!({ "kind": "timeout", "clock": "cpu" }), "{tier}");
        let grows = "import time\nx = bytearray(400 << 20)\nx[::4096] = b'x' * len(x[::4096])\ntime.sleep(9)";
        let value = run(&["--memory", "128"], grows);
        assert_eq!(value["outcome"], json!({ "kind": "memory_limit" }), "{tier} {value:#}");
        let value = run(&[], "raise ValueError('x')");
        assert_eq!((&value["outcome"]["kind"], &value["exit_code"]), (&json!("exit"), &json!(1)));
        assert!(value["stderr"].as_str().unwrap().ends_with("ValueError: x\n"));
    }
}

#[test]
fn the_first_line_of_events_names_the_tier_that_runs() {
    let place = Place::new();
    let ran = place.run(&["run", "--json-lines", "--tier", "process", "-c", "print(1)"]);
    let lines: Vec<Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (first, last) = (lines.first().unwrap(), lines.last().unwrap());
    assert_eq!((&first["event"], &first["tier"]), (&json!("start"), &json!("process")));
    assert!(first.get("guest").is_none(), "no guest runs: {first}");
    assert_eq!((&last["event"], &last["result"]["tier"]), (&json!("end"), &json!("process")));
}

/// Whether a file below a directory holds some bytes.
fn holds(directory: &Path, wanted: &[u8]) -> Option<PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).find_map(|path| {
        if path.is_dir() {
            return holds(&path, wanted);
        }
        let bytes = fs::read(&path).unwrap();
        bytes.windows(wanted.len()).any(|window| window == wanted).then_some(path)
    })
}

#[test]
fn records_have_no_arguments_variables_input_or_output_of_a_process() {
    let place = Place::new();
    fs::write(place.path("input"), "canary-input").unwrap();
    let code = "import os, sys\nprint('canary-output', sys.argv, os.environ['A'], input())";
    for tier in TIERS {
        let value = json(
            &place,
            &[
                "run",
                "--json",
                "--tier",
                tier,
                "--env",
                "A=canary-variable",
                "--stdin",
                "input",
                "-c",
                code,
                "--",
                "canary-argument",
                "second",
            ],
        );
        assert!(value["stdout"].as_str().unwrap().contains("canary-argument"), "{value:#}");
        let log = place.run(&["audit", "export", value["session"].as_str().unwrap()]).stdout;
        assert!(log.contains("(arguments: 2)"), "{log}");
    }
    let command = "API_TOKEN=canary-token printf 'canary%s' -output";
    let value = json(&place, &["bash", "--json", "--tier", "process", command]);
    assert_eq!(value["stdout"], "canary-output", "{value:#}");
    assert_eq!(holds(&place.path("home"), b"canary-"), None);
}

#[test]
fn a_command_leaves_a_record_unless_none_is_wanted() {
    let place = Place::new();
    let quiet = place.run(&["bash", "--tier", "process", "--no-record", "exit 3"]);
    assert_eq!((quiet.code, place.path("home/sessions").exists()), (3, false), "{}", quiet.stderr);
    let value = json(&place, &["bash", "--json", "--tier", "process", "echo done; exit 3"]);
    let session = value["session"].as_str().unwrap();
    assert!(place.run(&["audit", "verify", session]).stdout.starts_with("intact"));
    assert!(place.run(&["audit", "export", session]).stdout.contains("echo done; exit 3"));
    let list = place.run(&["session", "list", "--json"]).stdout;
    let list: Value = serde_json::from_str(&list).unwrap();
    let first = &list["sessions"][0];
    assert_eq!((&first["session"], &first["state"]), (&json!(session), &json!("ended")));
    assert_eq!((&first["end"]["outcome"], &first["tier"]), (&json!("exit"), &json!("process")));
    fs::write(place.path("blocked"), "").unwrap();
    let mut refused = place.command(&["bash", "--tier", "process", "echo ran"]);
    let refused = refused.env("FUMEHOOD_HOME", place.path("blocked/below")).output().unwrap();
    assert_eq!((refused.status.code(), refused.stdout.as_slice()), (Some(66), &b""[..]));
}

#[test]
fn what_a_tier_cannot_give_is_refused_before_anything_runs() {
    let place = Place::new();
    let started = "import os; open('/tmp/started', 'w')";
    let refused = |args: &[&str]| {
        let ran = place.run(&[&["run", "--tier", "landlock"], args, &["-c", started]].concat());
        assert_eq!((ran.code, ran.stdout.as_str()), (66, ""), "{args:?}: {}", ran.stderr);
        ran.stderr
    };
    for (args, named) in [
        (&["--allow", "example.com"][..], "--allow"),
        (&["--cell"], "--cell"),
        (&["--helper", "/nowhere/fumehood-helper"], "missing: helper"),
        (&["--policy", "workspace"], "[fs.rules]"),
    ] {
        let said = refused(args);
        assert!(said.contains(named), "{args:?}: {said}");
    }
    let ran = place.run(&["run", "--tier", "seatbelt", "-c", started]);
    assert!(ran.code == 66 && ran.stderr.contains("seatbelt"), "{}", ran.stderr);
    let ran = place.run(&["run", "--tier", "docker", "-c", started]);
    assert!(ran.code == 64 && ran.stderr.contains("--image"), "{}", ran.stderr);
    // A policy that says nothing of commands allows none.
    fs::write(place.path("p.toml"), "version = 1\nflags = \"extend\"\n").unwrap();
    let ran = place.run(&["run", "--tier", "landlock", "--policy", "p.toml", "-c", started]);
    assert!(ran.code == 66 && ran.stderr.contains("[bash]"), "{} {}", ran.code, ran.stderr);
    fs::write(place.path("p.toml"), "version = 1\n[bash]\naction = \"allow\"\n").unwrap();
    let ran = place.run(&["run", "--tier", "landlock", "--policy", "p.toml", "-c", "print(1)"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "1\n"), "{}", ran.stderr);
    let wanted = "version = 1\n[bash]\naction = \"allow\"\n[native]\ntiers = [\"landlock\"]\n";
    fs::write(place.path("p.toml"), wanted).unwrap();
    let ran = place.run(&["run", "--tier", "process", "--policy", "p.toml", "-c", "print(1)"]);
    assert!(ran.code != 0 && ran.stdout.is_empty(), "{}", ran.stderr);
    // A place that the machine does not have cannot be given without a file
    // system of the tier's own.
    let data = format!("/data={}", place.path("project").display());
    let ran = place.run(&["run", "--tier", "process", "--mount", &data, "-c", "print(1)"]);
    assert!(ran.code == 66 && ran.stderr.contains("private-mounts"), "{}", ran.stderr);
}

#[test]
fn mounts_are_those_of_the_other_tiers() {
    let place = Place::with(&[("f", "content\n")]);
    let host = place.path("project").display().to_string();
    for (tier, at) in [("landlock", "/data"), ("process", host.as_str())] {
        let (only, both) = (format!("{at}={host}"), format!("{at}={host}:rw"));
        let code = format!(
            "print(open('{at}/f').read(), end='')\ntry:\n    open('{at}/new-{tier}', 'w').write('x')\n    print('written')\nexcept OSError as e:\n    print(e.errno)"
        );
        if tier == "landlock" {
            let ran = place.run(&["run", "--tier", tier, "--mount", &only, "-c", &code]);
            assert_eq!(ran.stdout, "content\n30\n", "{tier}: {}", ran.stderr);
        }
        let value = json(&place, &["run", "--json", "--tier", tier, "--mount", &both, "-c", &code]);
        assert_eq!(value["stdout"], "content\nwritten\n", "{value:#}");
        let made = json!([format!("{at}/new-{tier}")]);
        let wanted = json!({ "created": made, "modified": [], "deleted": [] });
        assert_eq!(value["files"], wanted, "{value:#}");
    }
}

/// What every program below does to the project, and what the result says.
const CHANGES: &str = "printf new > new.txt; printf changed > changed.txt; rm gone.txt; mkdir -p d/e; \
                       printf deep > d/e/f; rm -r whole; mkdir whole; printf again > whole/z; touch kept.txt";

fn project() -> Place {
    Place::with(&[
        ("changed.txt", "old"),
        ("gone.txt", "x"),
        ("kept.txt", "kept"),
        ("whole/a", "a"),
        ("whole/b/c", "c"),
        (".env", "SECRET=1"),
        ("sub/.env", "SECRET=2"),
        ("node_modules/m/index.js", "m"),
    ])
}

fn check_changes(place: &Place, value: &Value, at: &str) {
    let path = |name: &str| format!("{at}/{name}");
    let created = ["d/", "d/e/", "d/e/f", "new.txt", "whole/z"].map(path);
    let files = &value["files"];
    assert_eq!(files["created"], json!(created), "{value:#}");
    assert_eq!(files["modified"], json!([path("changed.txt")]), "{value:#}");
    let deleted = ["gone.txt", "whole/a", "whole/b/", "whole/b/c"].map(path);
    assert_eq!(files["deleted"], json!(deleted), "{value:#}");
    assert_eq!(value["project"]["state"], "synced", "{value:#}");
    assert_eq!(place.read("new.txt").as_deref(), Some("new"));
    assert_eq!(place.read("changed.txt").as_deref(), Some("changed"));
    assert_eq!(place.read("d/e/f").as_deref(), Some("deep"));
    assert_eq!(place.read("whole/z").as_deref(), Some("again"));
    assert_eq!(place.read("kept.txt").as_deref(), Some("kept"));
    assert!(!place.file("gone.txt").exists() && !place.file("whole/a").exists());
    assert_eq!(place.read(".env").as_deref(), Some("SECRET=1"));
    assert!(place.file("node_modules/m/index.js").exists());
    assert!(value["project"]["report"]["conflicts"].as_array().unwrap().is_empty());
}

#[test]
fn a_command_works_on_a_project_and_its_changes_come_back() {
    for tier in TIERS {
        let place = project();
        let hidden = "ls -a . sub | grep -c -e '^.env$' -e node_modules";
        let text = format!("{hidden}; {CHANGES}; pwd");
        let args = ["bash", "--json", "--tier", tier, "--project", "project", &text];
        let value = json(&place, &args);
        let said = value["stdout"].as_str().unwrap();
        let (count, at) = said.trim().split_once('\n').unwrap_or_else(|| panic!("{value:#}"));
        assert_eq!(count, "0", "secrets and what is left out are not seen: {value:#}");
        check_changes(&place, &value, at);
        let strategy = value["project"]["strategy"].as_str().unwrap();
        if tier == "process" {
            assert_eq!(strategy, "materialised");
        } else {
            assert!(at == "/work/project" && ["kernel", "materialised"].contains(&strategy));
        }
    }
}

#[test]
fn what_is_left_out_stays_out_and_keeps_no_workspace() {
    use std::os::unix::fs::PermissionsExt as _;
    for tier in TIERS {
        let place = project();
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(place.path("project"), mode).unwrap();
        let text = "stat -c %a .; mkdir -p node_modules/new whole/__pycache__; touch node_modules/new/x whole/__pycache__/y; mkfifo pipe; ls node_modules";
        let value = json(&place, &["bash", "--json", "--tier", tier, "--project", "project", text]);
        // The top is as the project's, and what is made there is seen there.
        assert_eq!(value["stdout"], "755\nnew\n", "{value:#}");
        assert_eq!(value["project"]["state"], "synced", "{value:#}");
        assert!(!place.file("node_modules/new").exists() && !place.file("pipe").exists());
        assert!(place.file("node_modules/m/index.js").exists());
        assert!(!place.file("whole/__pycache__").exists());
        let text = "mkdir -p node_modules/new && touch node_modules/new/x";
        let value = json(&place, &["bash", "--json", "--tier", tier, "--project", "project", text]);
        assert_eq!(value["project"]["unsynced"], false, "{value:#}");
    }
}

#[test]
fn a_native_program_works_on_a_project() {
    for tier in TIERS {
        let place = project();
        let code = format!(
            "import os, subprocess\nassert not os.path.exists('.env')\n\
             subprocess.run(['/bin/sh', '-c', {CHANGES:?}], check=True)\nprint(os.getcwd())"
        );
        let args = ["run", "--json", "--tier", tier, "--project", "project", "-c", &code];
        let value = json(&place, &args);
        let at = value["stdout"].as_str().unwrap().trim().to_owned();
        check_changes(&place, &value, &at);
    }
}

#[test]
fn the_same_tree_is_python_s_and_bash_s() {
    let place = project();
    fs::write(
        place.path("p.toml"),
        "version = 1\nflags = \"extend\"\n[fs]\nmemory = \"read-write\"\n[bash]\naction = \"allow\"\n",
    )
    .unwrap();
    let code = format!(
        "open('by-python', 'w').write('p')\n\
         print(bash('cat by-python; pwd').stdout)\n\
         bash({CHANGES:?})\n\
         import os\n\
         print(open('new.txt').read(), open('changed.txt').read(), os.path.exists('gone.txt'), sorted(os.listdir('whole')))\n\
         open('new.txt', 'a').write('+')\n\
         os.remove('by-python')\n\
         print(bash('cat new.txt; ls by-python').stdout)\n\
         open('new.txt', 'w').write('new')\n"
    );
    let args = ["run", "--json", "--policy", "p.toml", "--project", "project", "-c", &code];
    let value = json(&place, &args);
    let wanted = "p/work/project\n\nnew changed False ['z']\nnew+\n";
    assert_eq!(value["stdout"], wanted, "{value:#}");
    check_changes(&place, &value, "/work/project");
}

#[test]
fn a_copy_for_a_tier_without_a_file_system_of_its_own_goes_on_by_name() {
    let place = project();
    let run = |text: &str| {
        let args = ["bash", "--json", "--tier", "process", "--project", "project", "--keep"];
        json(&place, &[&args[..], &["--name", "n", text]].concat())
    };
    let value = run("echo 1 > one");
    assert_eq!(value["project"]["state"], "synced");
    let value = run("cat one; echo 2 > two");
    assert_eq!((&value["stdout"], place.read("two").as_deref()), (&json!("1\n"), Some("2\n")));
}

#[test]
fn a_file_that_cannot_be_read_is_left_alone() {
    let place = project();
    fs::write(place.file("locked"), "locked").unwrap();
    fs::set_permissions(place.file("locked"), fs::Permissions::from_mode(0o0)).unwrap();
    for command in [
        &["bash", "--json", "--project", "project", "echo x > new"][..],
        &["run", "--json", "--tier", "process", "--project", "project", "-c", "open('new', 'w')"],
    ] {
        let value = json(&place, command);
        assert_eq!(value["project"]["state"], "synced", "{value:#}");
        let mode = fs::metadata(place.file("locked")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0);
        fs::remove_file(place.file("new")).unwrap();
    }
    fs::set_permissions(place.file("locked"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(place.read("locked").as_deref(), Some("locked"));
}

/// The project is on a file system of its own that is nearly full, which root
/// or a user namespace can mount.
#[test]
fn a_full_disk_while_changes_are_brought_back_loses_nothing() {
    let write =
        "open('big', 'wb').write(bytes(range(256)) * 8000); open('f', 'w').write('changed')";
    let bash =
        "python3 -c \"open('big', 'wb').write(bytes(range(256)) * 8000)\"; printf changed > f";
    for run in [
        format!("run --json --project project -c \"{write}\""),
        format!("run --json --tier landlock --project project -c \"{write}\""),
        format!("bash --json --project project {}", quoted(bash)),
    ] {
        let place = Place::new();
        let script = format!(
            "mount -t tmpfs -o size=512k tmpfs project || exit 99; printf mine > project/f; \
             \"$0\" {run} > result.json; ls -A project > left; cat project/f > f; \
             mount -o remount,size=8m project; \
             \"$0\" session sync \"$(\"$0\" session list --json | grep -o 'fh-[0-9a-f]*' | head -1)\"; \
             wc -c < project/big > size; cat project/f > after"
        );
        let root = rustix::process::geteuid().is_root();
        let mut command = Command::new("unshare");
        command
            .args(if root { &["-m"][..] } else { &["-Urm"] })
            .args(["sh", "-c", &script, BINARY])
            .current_dir(place.root())
            .env("FUMEHOOD_HOME", place.path("home"))
            .env("FUMEHOOD_CACHE_DIR", cache())
            .env("HOME", place.path("user"));
        let output = command.output().unwrap();
        if output.status.code() == Some(99) || output.status.code() == Some(1) {
            assert!(!root, "{}", String::from_utf8_lossy(&output.stderr));
            eprintln!("nothing may be mounted here: nothing is proven");
            return;
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let text = |name: &str| fs::read_to_string(place.path(name)).unwrap_or_default();
        let value: Value = serde_json::from_str(&text("result.json"))
            .unwrap_or_else(|error| panic!("{run}: {error} {said}"));
        let project = &value["project"];
        assert_eq!(project["state"], "failed", "{run}: {value:#}");
        assert_eq!(project["error"]["code"], "sync_no_space", "{value:#}");
        assert!(project["error"]["message"].as_str().unwrap().contains("free space"));
        assert_eq!(value["exit_code"], 0, "the program's own code");
        assert_eq!((text("left").as_str(), text("f").as_str()), ("f\n", "mine"), "{run}");
        assert_eq!((text("size").trim(), text("after").as_str()), ("2048000", "changed"), "{said}");
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[test]
fn a_command_and_its_limits() {
    let place = Place::new();
    let ran = place.run(&["bash", "echo out; echo err >&2; exit 3"]);
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (3, "out\n", "err\n"));
    let start = Instant::now();
    let value = json(&place, &["bash", "--json", "--timeout", "1", "echo a; sleep 60"]);
    assert!(start.elapsed() < Duration::from_secs(20));
    assert_eq!((&value["timed_out"], &value["stdout"]), (&json!(true), &json!("a\n")));
    let value = json(&place, &["bash", "--json", "kill -9 $$"]);
    let ended = (&value["outcome"]["kind"], &value["exit_code"], &value["memory_exceeded"]);
    assert_eq!(ended, (&json!("exit"), &json!(137), &json!(false)));
    let ran = place.run(&["bash", "exit 124"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (124, ""));
    assert_eq!(place.run(&["bash", " "]).code, 64);
    let ran = place.run(&["bash", "--require", "tree-memory", "--tier", "process", "true"]);
    assert!(ran.code == 66 || ran.code == 0, "{}", ran.stderr);
    assert!(ran.code == 0 || ran.stderr.contains("missing: tree-memory"), "{}", ran.stderr);
}

/// An image with the machine's python3, by its ID; none without an engine.
fn image(place: &Place) -> Option<String> {
    let docker = |args: &[&str]| Command::new("docker").args(args).output();
    let there = docker(&["info"]).is_ok_and(|output| output.status.success());
    if !there {
        assert!(
            std::env::var_os("FUMEHOOD_TEST_DOCKER").is_none(),
            "FUMEHOOD_TEST_DOCKER promises an engine and there is none"
        );
        eprintln!("there is no container engine here: nothing is proven");
        return None;
    }
    let script = "set -e; mkdir -p r/tmp r/work r/home/agent r/etc r/proc r/dev r/sys r/usr/bin r/bin; \
        for p in /usr/bin/python3 /bin/sh /bin/cat /bin/rm /bin/mkdir /bin/touch /bin/ls /bin/sleep /bin/grep; do \
          mkdir -p r$(dirname $p); cp -L $p r$p; \
          for l in $(ldd $p | grep -o '/[^ ]*'); do mkdir -p r$(dirname $l); cp -Ln $l r$l; done; done; \
        lib=$(/usr/bin/python3 -c 'import os; print(os.path.dirname(os.__file__))'); mkdir -p r$lib; \
        tar -C $lib --exclude=test --exclude=__pycache__ --exclude='dist-packages' -c . | tar -C r$lib -x; \
        for l in $(ls $lib/lib-dynload/*.so | xargs ldd | grep -o '=> /[^ ]*' | cut -c4- | sort -u); do \
          mkdir -p r$(dirname $l); cp -Ln $l r$l; done; \
        tar -C r --owner=0 --group=0 -c . | docker import - fumehood-test:python";
    let made = Command::new("bash").args(["-c", script]).current_dir(place.root()).output();
    let made = made.unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Some(String::from_utf8(made.stdout).unwrap().trim().to_owned())
}

#[test]
fn a_container_is_a_tier_like_the_others() {
    let place = project();
    let Some(image) = image(&place) else { return };
    let tier = ["--json", "--tier", "docker", "--image", &image];
    let run = |args: &[&str], first: &str| json(&place, &[&[first], &tier[..], args].concat());
    let code = "import sys, os\nprint(sys.stdin.read(), os.getuid() != 0)\nraise ValueError('x')";
    fs::write(place.path("in"), "input").unwrap();
    let value = run(&["--stdin", "in", "-c", code], "run");
    assert_eq!(value["stdout"], "input True\n", "{value:#}");
    assert_eq!((&value["outcome"]["kind"], &value["exit_code"]), (&json!("exit"), &json!(1)));
    assert!(value["stderr"].as_str().unwrap().ends_with("ValueError: x\n"), "{value:#}");
    assert!(value["controls"].as_array().unwrap().contains(&json!("no-capabilities")));
    let value = run(&["--project", "project", &format!("{CHANGES}; pwd")], "bash");
    assert_eq!(value["stdout"], "/work/project\n", "{value:#}");
    assert_eq!(value["project"]["strategy"], "materialised");
    check_changes(&place, &value, "/work/project");
    let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(place.file("new.txt")).unwrap());
    assert_eq!(
        owner,
        std::os::unix::fs::MetadataExt::uid(&fs::metadata(place.path("project")).unwrap())
    );
    // An image that the engine does not have is not pulled.
    let none = format!("sha256:{}", "a".repeat(64));
    let ran = place.run(&["run", "--tier", "docker", "--image", &none, "-c", "print(1)"]);
    assert!(ran.code == 66 && ran.stderr.contains("missing: image"), "{}", ran.stderr);
}
