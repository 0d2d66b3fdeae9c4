//! `--project`, `--input` and the workspaces of sessions, with the real binary.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Stdio;

use serde_json::Value;

use crate::support::{Place, Ran};

/// Runs code on the project.
fn run_code(place: &Place, more: &[&str], code: &str) -> Ran {
    place.run(&[&["run", "--project", "project"], more, &["-c", code]].concat())
}

fn json(place: &Place, more: &[&str], text: &str) -> Value {
    run_code(place, &[&["--json"], more].concat(), text).result()
}

fn workspaces(place: &Place) -> Vec<String> {
    let value = place.run(&["session", "list", "--json"]).value();
    let all = value["workspaces"].as_array().unwrap().iter();
    all.map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

fn listed(value: &Value) -> Vec<&str> {
    let paths = value.as_array().unwrap().iter();
    paths.map(|path| path.as_str().or_else(|| path["path"].as_str()).unwrap()).collect()
}

#[test]
fn changes_come_back_and_nothing_else_is_touched() {
    let place = Place::with(&[("a.txt", "one"), ("b/c.txt", "two"), ("same.txt", "same")]);
    let untouched = fs::metadata(place.file("same.txt")).unwrap().modified().unwrap();
    let result = json(
        &place,
        &[],
        "import os\nprint(os.getcwd(), open('b/c.txt').read())\nopen('a.txt', 'w').write('1')\nopen('same.txt', 'w').write('same')\nos.unlink('b/c.txt')\nos.mkdir('empty')\nopen('new.py', 'w').write('x')",
    );
    assert_eq!(result["stdout"], "/work/project two\n");
    let project = &result["project"];
    assert_eq!(project["strategy"], "live");
    assert_eq!(project["state"], "synced");
    assert_eq!(project["unsynced"], false);
    assert_eq!(listed(&project["report"]["updated"]), ["a.txt", "empty/", "new.py"]);
    assert_eq!(listed(&project["report"]["deleted"]), ["b/c.txt"]);
    let files = &result["files"];
    assert_eq!(listed(&files["created"]), ["/work/project/empty/", "/work/project/new.py"]);
    assert_eq!(
        listed(&files["modified"]),
        ["/work/project/a.txt"],
        "what is the same is no change"
    );
    assert_eq!(listed(&files["deleted"]), ["/work/project/b/c.txt"]);
    assert_eq!(place.read("a.txt").as_deref(), Some("1"));
    assert!(place.read("b/c.txt").is_none() && place.file("empty").is_dir());
    assert_eq!(fs::metadata(place.file("same.txt")).unwrap().modified().unwrap(), untouched);
    assert!(workspaces(&place).is_empty(), "everything was brought back");
}

#[test]
fn every_end_of_a_program_brings_its_changes_back() {
    let place = Place::new();
    for (name, more, end, code) in [
        ("error", &[][..], "1/0", 1),
        ("exit", &[], "raise SystemExit(7)", 7),
        ("timeout", &["--timeout", "1"], "while True: pass", 124),
    ] {
        let ran = run_code(&place, more, &format!("open('{name}', 'w').write('x')\n{end}"));
        assert_eq!(ran.code, code, "{}", ran.stderr);
        assert_eq!(place.read(name).as_deref(), Some("x"), "{name}: {}", ran.stderr);
        assert!(ran.stderr.contains(name), "{}", ran.stderr);
    }
}

#[test]
fn a_program_of_the_project_finds_its_siblings() {
    let place = Place::with(&[
        ("tool/main.py", "import helper\nprint(helper.x, __file__)"),
        ("tool/helper.py", "x = 5"),
    ]);
    let ran = place.run(&["run", "--project", "project", "project/tool/main.py"]);
    assert_eq!(ran.stdout, "5 /work/project/tool/main.py\n", "{}", ran.stderr);
    assert!(place.read("tool/__pycache__").is_none() && !place.file("tool/__pycache__").exists());
}

#[test]
fn both_sides_keep_their_bytes() {
    let place = Place::with(&[("both.txt", "before"), ("mine.txt", "before")]);
    let dry =
        run_code(&place, &["--name", "w", "--dry-run"], "open('both.txt', 'w').write('agent')");
    assert!(dry.stderr.contains("would be 1 updated"), "{}", dry.stderr);
    assert_eq!(place.read("both.txt").as_deref(), Some("before"));
    place.put("both.txt", "user");
    let synced = place.run(&["session", "sync", "w"]);
    assert_eq!(synced.code, 1, "a conflict is a finding: {}", synced.stderr);
    assert_eq!(place.read("both.txt").as_deref(), Some("user"));
    assert_eq!(place.read("both.txt.sandbox").as_deref(), Some("agent"));
    assert!(workspaces(&place).is_empty(), "both versions are in the project now");
}

#[test]
fn a_name_goes_on_with_what_was_not_brought_back() {
    let place = Place::new();
    run_code(&place, &["--name", "w", "--dry-run"], "open('a', 'w').write('1')");
    let second = run_code(&place, &["--name", "w"], "print(open('a').read())");
    assert_eq!(second.stdout, "1\n");
    assert_eq!(place.read("a").as_deref(), Some("1"));
    assert!(workspaces(&place).is_empty());
    run_code(&place, &["--name", "k", "--keep"], "open('b', 'w').write('2')");
    assert_eq!(workspaces(&place), ["k"]);
    let other = place.run(&["run", "--project", "home", "--name", "k", "-c", "1"]);
    assert_eq!(other.code, 64, "{}", other.stderr);
    fs::create_dir(place.path("second")).unwrap();
    let other = place.run(&["run", "--project", "second", "--name", "k", "-c", "1"]);
    assert_eq!(other.code, 64);
    assert!(other.stderr.contains("belongs to the project"), "{}", other.stderr);
    let changed = run_code(&place, &["--name", "k", "--exclude", "*.log"], "1");
    assert_eq!(changed.code, 64, "{}", changed.stderr);
    assert_eq!(place.run(&["session", "rm", "k"]).code, 0, "there is nothing in it");
    assert!(workspaces(&place).is_empty());
}

#[test]
fn what_a_tool_would_run_is_held_back_until_it_is_accepted() {
    let place = Place::new();
    let code = "import os\nos.makedirs('.git/hooks')\nopen('.git/hooks/pre-commit', 'w').write('echo')\nopen('Makefile', 'w').write('all:')";
    let ran = run_code(&place, &[], code);
    assert!(ran.stderr.contains("held back"), "{}", ran.stderr);
    assert!(ran.stderr.contains("look at"), "{}", ran.stderr);
    assert!(place.read("Makefile").is_some() && place.read(".git/hooks/pre-commit").is_none());
    let name = workspaces(&place).pop().unwrap();
    assert!(ran.stderr.contains(&name), "{}", ran.stderr);
    let refused = place.run(&["session", "rm", &name]);
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    assert!(refused.stderr.contains("--discard"));
    let diff = place.run(&["session", "diff", "last"]);
    assert!(diff.stderr.contains("held back"), "{} {}", diff.stdout, diff.stderr);
    assert_eq!(place.run(&["session", "sync", &name]).code, 1);
    assert!(place.read(".git/hooks/pre-commit").is_none());
    let taken =
        place.run(&["session", "sync", &name, "--accept", ".git/hooks/pre-commit", "--json"]);
    let taken: Value = serde_json::from_str(&taken.stdout).unwrap();
    assert_eq!(listed(&taken["report"]["held_back"]), Vec::<&str>::new(), "{taken}");
    assert_eq!(place.read(".git/hooks/pre-commit").as_deref(), Some("echo"));
    assert_eq!(taken["removed"], true, "{taken}");
    assert!(workspaces(&place).is_empty());
    run_code(&place, &[], "import os\nopen('.bashrc', 'w').write('x')");
    let name = workspaces(&place).pop().unwrap();
    assert_eq!(place.run(&["session", "rm", &name, "--discard"]).code, 0);
    assert!(workspaces(&place).is_empty() && place.read(".bashrc").is_none());
}

#[test]
fn secrets_and_what_is_left_out_do_not_travel() {
    let place = Place::with(&[
        (".env", "TOKEN=1"),
        ("node_modules/x.js", "1"),
        ("a.log", "1"),
        ("seen", "1"),
    ]);
    let code = "import os\nprint(sorted(os.listdir()))";
    let ran = run_code(&place, &["--exclude", "*.log"], code);
    assert_eq!(ran.stdout, "['seen']\n");
    assert!(ran.stderr.contains(".env"), "{}", ran.stderr);
    let shown = run_code(&place, &["--show-hidden", ".env"], code);
    assert_eq!(shown.stdout, "['.env', 'a.log', 'seen']\n");
    assert!(!shown.stderr.contains("hidden"), "{}", shown.stderr);
    assert_eq!(run_code(&place, &["--exclude", "a/b"], "1").code, 64);
}

#[test]
fn odd_names_survive() {
    let place = Place::new();
    let names: [&[u8]; 3] = [b"new\nline", b"back\\slash", b"\xff\xfe"];
    for name in names {
        fs::write(place.path("project").join(OsStr::from_bytes(name)), "mine").unwrap();
    }
    let ran = run_code(
        &place,
        &[],
        "open(b'new\\nline', 'a').write('+')\nopen(b'agent\\\\\\xff', 'w').write('x')",
    );
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let read =
        |name: &[u8]| fs::read_to_string(place.path("project").join(OsStr::from_bytes(name)));
    assert_eq!(read(b"new\nline").unwrap(), "mine+");
    assert_eq!(read(b"back\\slash").unwrap(), "mine");
    assert_eq!(read(b"\xff\xfe").unwrap(), "mine");
    assert_eq!(read(b"agent\\\xff").unwrap(), "x");
    assert_eq!(ran.stderr.lines().filter(|line| !line.starts_with("fumehood: ")).count(), 0);
}

#[test]
fn inputs_are_read_only_and_the_hosts_names_mean_the_same() {
    let place = Place::with(&[("in.txt", "project")]);
    fs::create_dir_all(place.path("data/deep")).unwrap();
    fs::write(place.path("data/deep/x.csv"), "a,b").unwrap();
    fs::create_dir(place.path("other")).unwrap();
    fs::write(place.path("other/data"), "file").unwrap();
    fs::write(place.path("other/next"), "neighbour").unwrap();
    let code = format!(
        r#"import os
root = {:?}
print(sorted(os.listdir('/work/inputs')), [e.is_dir() for e in sorted(os.scandir('/work/inputs'), key=lambda e: e.name)])
print(open('/work/inputs/data/deep/x.csv').read(), open('/work/inputs/data-2').read())
print(open(root + '/project/in.txt').read(), open(root + '/data/deep/x.csv').read(), open(root + '/other/data').read())
open(root + '/project/made.txt', 'w').write('by the host name')
refused = 0
for action in (lambda: open('/work/inputs/data/deep/x.csv', 'w'), lambda: open('/work/inputs/data-2', 'a'), lambda: os.unlink('/work/inputs/data-2'), lambda: os.rename('/work/inputs/data-2', '/tmp/x'), lambda: open('/work/inputs/data/new', 'w'), lambda: open(root + '/other/next'), lambda: open('/work/inputs/data-2/next'), lambda: os.listdir(root + '/other'), lambda: os.rmdir('/work/inputs/data')):
    try:
        action()
    except OSError:
        refused += 1
print(refused)
"#,
        place.root().canonicalize().unwrap().to_str().unwrap()
    );
    let ran = run_code(&place, &["--input", "data", "--input", "other/data"], &code);
    assert_eq!(
        ran.stdout, "['data', 'data-2'] [True, False]\na,b file\nproject a,b file\n9\n",
        "{}",
        ran.stderr
    );
    assert_eq!(place.read("made.txt").as_deref(), Some("by the host name"));
    assert_eq!(fs::read_to_string(place.path("data/deep/x.csv")).unwrap(), "a,b");
}

#[test]
fn what_cannot_be_a_project_is_said_in_one_sentence() {
    let place =
        Place::with(&[("policy.toml", "version = 1\nflags = \"extend\"\n"), ("inner/x", "1")]);
    fs::create_dir(place.path("user")).unwrap();
    fs::write(place.path("file"), "1").unwrap();
    let table: &[(&[&str], i32, &str)] = &[
        (&["--project", "none"], 64, "does not exist"),
        (&["--project", "file"], 64, "not a directory"),
        (&["--project", "/"], 64, "root of this machine"),
        (&["--project", "user"], 64, "home directory"),
        (&["--project", "/proc"], 64, "kernel"),
        (&["--project", "/proc/self"], 64, "kernel"),
        (&["--project", "."], 64, "lie within each other"),
        (&["--project", "home"], 64, "lie within each other"),
        (&["--project", "project", "--policy", "project/policy.toml"], 64, "can change"),
        (&["--mount", "/m=project:rw", "--policy", "project/policy.toml"], 64, "can change"),
        (&["--mount", "/m=home:rw"], 64, "within each other"),
        (&["--project", "project", "--project-at", "work"], 64, "absolute"),
        (&["--project", "project", "--project-at", "/"], 64, "mount point"),
        (&["--project", "project", "--mount", "/work=user"], 64, "overlap"),
        (&["--project", "project", "--name", "../x"], 64, "no name for a workspace"),
        (&["--project", "project", "--name", "last"], 64, "no name for a workspace"),
        (&["--keep"], 64, "--project"),
        (&["--input", "none"], 64, "does not exist"),
        (&["--input", "/dev/null"], 64, "neither a file nor a directory"),
        (&["--input", "/"], 64, "root of this machine"),
        (&["--input", "/proc/self/environ"], 64, "kernel"),
        (&["--project", "project", "--policy", "strict"], 64, "does not mount"),
    ];
    // The home has to be there to be compared.
    assert_eq!(place.run(&["run", "-c", "1"]).code, 0);
    for (args, code, says) in table {
        let ran = place.run(&[&["run"], *args, &["-c", "print('ran')"]].concat());
        assert_eq!(ran.code, *code, "{args:?}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stdout.is_empty(), "{args:?}: {}", ran.stdout);
        assert!(ran.stderr.contains(says), "{args:?}: {}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{args:?}: {}", ran.stderr);
    }
    assert!(workspaces(&place).is_empty(), "nothing is left of what was refused");
    assert_eq!(fs::read_dir(place.path("home/workspaces")).map_or(0, Iterator::count), 0);
}

/// Whichever command runs it, and whoever asked for the mount.
#[test]
fn a_policy_that_the_code_could_change_confines_nobody() {
    let place = Place::new();
    let text = format!(
        "version = 1\n\n[fs]\n\n[[fs.mounts]]\nid = \"m\"\nat = \"/m\"\nhost = \"{}\"\naccess = \"read-write\"\n",
        place.path("project").display()
    );
    fs::write(place.path("project/policy.toml"), &text).unwrap();
    fs::write(place.path("policy.toml"), &text).unwrap();
    for command in [&["run", "-c", "print('ran')"][..], &["repl"]] {
        let ran = place.run(&[command, &["--policy", "project/policy.toml"]].concat());
        assert_eq!(ran.code, 64, "{command:?}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains("can change"), "{command:?}: {}", ran.stderr);
        assert!(ran.stdout.is_empty(), "{command:?}");
        let control = place.run(&[command, &["--policy", "policy.toml"]].concat());
        assert_eq!(control.code, 0, "{command:?}: {}", control.stderr);
    }
}

#[test]
fn a_workspace_serves_one_process_and_survives_its_end() {
    let place = Place::new();
    let code =
        "import time\nopen('a', 'w').write('agent')\nprint('written', flush=True)\ntime.sleep(60)";
    let mut first = place
        .command(&["run", "--project", "project", "--name", "w", "-c", code])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(first.stdout.take().unwrap()),
        &mut line,
    )
    .unwrap();
    assert_eq!(line, "written\n");
    let second = run_code(&place, &["--name", "w"], "1");
    assert_eq!(second.code, 66, "{}", second.stderr);
    assert!(second.stderr.contains("another process"), "{}", second.stderr);
    assert_eq!(place.run(&["session", "sync", "w"]).code, 2);
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(place.read("a").is_none());
    let synced = place.run(&["session", "sync", "w"]);
    assert_eq!(synced.code, 0, "{}", synced.stderr);
    assert_eq!(place.read("a").as_deref(), Some("agent"));
}

#[test]
fn changes_are_handed_on_as_an_archive() {
    let place = Place::with(&[("gone", "1"), ("kept", "1")]);
    run_code(
        &place,
        &["--name", "w", "--dry-run"],
        "import os\nos.unlink('gone')\nopen('new', 'w').write('2')",
    );
    assert_eq!(place.run(&["session", "export", "w", "--out", "w.tar.zst"]).code, 0);
    assert_eq!(
        place.run(&["session", "export", "w", "--out", "w.tar.zst"]).code,
        64,
        "it is there"
    );
    assert_eq!(place.run(&["session", "discard", "w"]).code, 0);
    assert!(place.read("gone").is_some() && workspaces(&place).is_empty());
    let imported = place.run(&["session", "import", "x", "w.tar.zst", "--project", "project"]);
    assert_eq!(imported.code, 0, "{}", imported.stderr);
    assert_eq!(place.run(&["session", "sync", "x"]).code, 0);
    assert!(place.read("gone").is_none() && place.read("new").as_deref() == Some("2"));
    fs::write(place.path("damaged"), "no archive").unwrap();
    let damaged = place.run(&["session", "import", "y", "damaged", "--project", "project"]);
    assert_eq!(damaged.code, 2, "{}", damaged.stderr);
    assert!(workspaces(&place).is_empty());
    assert_eq!(place.run(&["session", "diff", "none"]).code, 2);
}

#[test]
fn a_workspace_whose_project_is_gone_can_be_handed_on_and_removed() {
    let place = Place::with(&[("kept", "1")]);
    for name in ["v", "w"] {
        run_code(&place, &["--name", name, "--dry-run"], "open('new', 'w').write('2')");
    }
    fs::rename(place.path("project"), place.path("elsewhere")).unwrap();
    for command in ["diff", "sync"] {
        assert_eq!(place.run(&["session", command, "w"]).code, 2, "{command}");
    }
    assert_eq!(place.run(&["session", "export", "w", "--out", "w.tar.zst"]).code, 0);
    assert_eq!(place.run(&["session", "rm", "v"]).code, 1);
    assert_eq!(place.run(&["session", "rm", "v", "--discard"]).code, 0);
    let discarded = place.run(&["session", "discard", "w"]);
    assert_eq!(discarded.code, 0, "{}", discarded.stderr);
    assert!(workspaces(&place).is_empty());
    let args = ["session", "import", "x", "w.tar.zst", "--project", "elsewhere"];
    assert_eq!(place.run(&args).code, 0);
}

#[test]
fn a_live_session_brings_each_cells_changes_back() {
    // Who ends first, the session or its workspace, is chance.
    for _ in 0..20 {
        bring_each_cells_changes_back();
    }
}

fn bring_each_cells_changes_back() {
    let place = Place::with(&[("a", "1")]);
    let mut child = place
        .command(&["repl", "--project", "project"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let cells = b"held = open('held', 'w')\nheld.write('first ')\nheld.flush()\nopen('a', 'w').write('2')\nheld.write('second')\nheld.close()\n";
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), cells).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert_eq!(place.read("a").as_deref(), Some("2"), "{stderr}");
    assert_eq!(place.read("held").as_deref(), Some("first second"), "{stderr}");
    assert!(workspaces(&place).is_empty(), "{stderr}");
}
