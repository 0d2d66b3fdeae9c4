//! The audit, through the command and against a second verifier.

use std::collections::BTreeSet;
use std::io::{BufRead, Cursor, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use fumehood::audit::{Trust, Verdict, verify_log};
use fumehood_tests::harness::machine::is_full;
use libtest_mimic::{Failed, Trial};
use serde_json::{Value, json};

use crate::evidence::{Dice, Evidence, honest, install, mutate};
use crate::support::{cache_directory, command_binary, root};

/// All cases.
pub fn trials() -> Vec<Trial> {
    let mut trials = vec![
        Trial::test("audit::both_verifiers_agree", both_verifiers_agree),
        Trial::test("audit::a_run_leaves_evidence", a_run_leaves_evidence),
        Trial::test("audit::tampering_is_told_by_the_command", tampering),
        Trial::test("audit::away_from_home", away_from_home),
        Trial::test("audit::no_place_no_run", no_place_no_run),
        Trial::test("audit::guest_text_stays_text", guest_text_stays_text),
        Trial::test("audit::nothing_secret_is_on_disk", nothing_secret_is_on_disk),
        Trial::test("audit::killed_at_any_time", killed_at_any_time),
        Trial::test("audit::what_is_exported_verifies", what_is_exported_verifies),
    ];
    let disk = Trial::test("audit::a_full_disk_denies_effects", full_disk);
    let can_mount = Command::new("unshare")
        .args(["-Urm", "mount", "-t", "tmpfs", "none", "/mnt"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    let is_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    trials.push(if can_mount || is_ci {
        disk
    } else {
        disk.with_kind("missing: mounts in a user namespace").with_ignored_flag(true)
    });
    trials
}

/// A home of its own and the command in it.
struct Home {
    directory: tempfile::TempDir,
    binary: PathBuf,
}

impl Home {
    fn new() -> Result<Self, Failed> {
        Ok(Self { directory: tempfile::tempdir()?, binary: command_binary()? })
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .args(arguments)
            .env("FUMEHOOD_HOME", self.path())
            .env("FUMEHOOD_CACHE_DIR", cache_directory())
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Result<Output, Failed> {
        Ok(self.command(arguments).output()?)
    }

    fn json(&self, arguments: &[&str]) -> Result<Value, Failed> {
        let output = self.run(arguments)?;
        serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("{arguments:?}: {error}: {output:?}").into())
    }

    /// Runs code and returns its session.
    fn session(&self, arguments: &[&str]) -> Result<String, Failed> {
        let output = self.run(&[&["run", "--json"], arguments].concat())?;
        let value: Value = serde_json::from_slice(&output.stdout)?;
        Ok(value["session"].as_str().ok_or("no session")?.to_owned())
    }

    fn log(&self, session: &str) -> PathBuf {
        self.path().join("sessions").join(session).join("audit.jsonl")
    }
}

fn want(condition: bool, what: impl std::fmt::Debug) -> Result<(), Failed> {
    if condition { Ok(()) } else { Err(format!("{what:?}").into()) }
}

/// What a verifier says, comparable.
type Said = (String, Option<u64>, BTreeSet<String>);

fn ours(evidence: &Evidence, with_key: bool, with_witness: bool) -> Said {
    let witness =
        with_witness.then(|| Box::new(Cursor::new(evidence.witness.clone())) as Box<dyn BufRead>);
    let trust = Trust { install: with_key.then(install), witness };
    let report = verify_log(evidence.log.as_slice(), trust).expect("memory can be read");
    let said = match &report.verdict {
        Verdict::Intact => ("intact", None, BTreeSet::new()),
        Verdict::Broken { at, .. } => ("broken", Some(*at), BTreeSet::new()),
        Verdict::Unverifiable { missing } => {
            let missing = missing.iter().map(|missing| missing.code().to_owned()).collect();
            ("unverifiable", None, missing)
        }
    };
    (said.0.to_owned(), said.1, said.2)
}

/// Reads cases from standard input, one a line, and answers each.
const THEIRS: &str = "
import json, sys
sys.path.insert(0, 'tests/audit')
import verify
for line in sys.stdin:
    case = json.loads(line)
    log, witness = (case[name] if case[name] is None else bytes.fromhex(case[name]) for name in ('log', 'witness'))
    verdict, what = verify.check(log, case['key'], witness)
    what = sorted(what) if isinstance(what, set) else what
    print(json.dumps([verdict, what]), flush=True)
";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn both_verifiers_agree() -> Result<(), Failed> {
    let [evidence, other] = honest();
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut cases = Vec::new();
    for (with_key, with_witness) in [(true, true), (false, true), (true, false), (false, false)] {
        cases.push((evidence.clone(), with_key, with_witness));
        cases.push((other.clone(), with_key, with_witness));
    }
    for _ in 0..if is_full() { 5000 } else { 400 } {
        let with_key = dice.roll(8) != 0;
        let with_witness = dice.roll(8) != 0;
        cases.push((mutate(&evidence, &other, &mut dice), with_key, with_witness));
    }
    let mut python = Command::new("python3")
        .args(["-c", THEIRS])
        .current_dir(root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut input = python.stdin.take().ok_or("no pipe")?;
    let lines: Vec<String> = cases
        .iter()
        .map(|(evidence, with_key, with_witness)| {
            json!({
                "log": hex(&evidence.log),
                "witness": with_witness.then(|| hex(&evidence.witness)),
                "key": with_key.then(|| hex(&install())),
            })
            .to_string()
        })
        .collect();
    let writer = std::thread::spawn(move || {
        for line in lines {
            if writeln!(input, "{line}").is_err() {
                return;
            }
        }
    });
    let output = python.wait_with_output()?;
    writer.join().map_err(|_| "the writer failed")?;
    let answers: Vec<&str> = std::str::from_utf8(&output.stdout)?.lines().collect();
    want(answers.len() == cases.len(), (answers.len(), cases.len(), output.status))?;
    let mut seen = BTreeSet::new();
    for ((evidence, with_key, with_witness), answer) in cases.iter().zip(answers) {
        let (verdict, what): (String, Value) = serde_json::from_str(answer)?;
        let ours = ours(evidence, *with_key, *with_witness);
        let theirs = match verdict.as_str() {
            "broken" => (verdict, what.as_u64(), BTreeSet::new()),
            "unverifiable" => (verdict, None, serde_json::from_value(what)?),
            _ => (verdict, None, BTreeSet::new()),
        };
        if ours != theirs {
            let kept = tempfile::Builder::new().prefix("disagreement").tempdir()?.keep();
            std::fs::write(kept.join("log"), &evidence.log)?;
            std::fs::write(kept.join("witness"), &evidence.witness)?;
            return Err(format!("ours {ours:?}, theirs {theirs:?}: {}", kept.display()).into());
        }
        seen.insert(ours.0);
    }
    want(seen.len() == 3, seen)
}

fn a_run_leaves_evidence() -> Result<(), Failed> {
    let home = Home::new()?;
    let code = "import os\nopen('/tmp/a', 'w').write('x')\nos.rename('/tmp/a', '/tmp/b')\nos.remove('/tmp/b')\ntry:\n    open('/x/y')\nexcept OSError: pass";
    let session = home.session(&["-c", code])?;
    let list = home.json(&["session", "list", "--json"])?;
    let first = &list["sessions"][0];
    want(first["session"] == session && first["state"] == "ended", first)?;
    want(first["end"]["outcome"] == "completed" && first["name"] == "<string>", first)?;
    let report = home.json(&["audit", "verify", &session, "--json"])?;
    want(report["verdict"] == "intact" && report["closed"] == true, &report)?;
    want(report["unknown"] == 0 && report["unsigned"] == json!([]), &report)?;
    let show = home.json(&["session", "show", &session, "--json"])?;
    want(show["audit"]["verdict"] == "intact", &show)?;

    let table = home.run(&["audit", "show", &session])?;
    let table = String::from_utf8(table.stdout)?;
    for part in ["fs.create", "fs.rename", "/tmp/a -> /tmp/b", "fs.remove", "run", "completed"] {
        want(table.contains(part), (part, &table))?;
    }
    let some = home.run(&["audit", "show", &session, "--op", "fs.re"])?;
    let some = String::from_utf8(some.stdout)?;
    want(some.lines().count() == 4 && !some.contains("fs.create"), &some)?;
    let none = home.run(&["audit", "show", &session, "--until", "1999-01-01T00:00:00Z"])?;
    want(String::from_utf8(none.stdout)?.lines().count() == 1, "later than 1999")?;
    let denied = home.run(&["audit", "show", &session, "--decision", "deny"])?;
    want(!String::from_utf8(denied.stdout)?.contains("fs.rename"), "only denials")?;
    let tree = home.run(&["audit", "show", &session, "--tree"])?;
    let tree = String::from_utf8(tree.stdout)?;
    want(tree.lines().any(|line| line.contains("Z    ") && line.contains("fs.create")), &tree)?;

    let exported = home.run(&["audit", "export", &session])?.stdout;
    want(exported == std::fs::read(home.log(&session))?, "the export is the log")?;
    let witness = home.json(&["audit", "witness", "verify", "--json"])?;
    want(witness["verdict"] == "intact" && witness["entries"] == 2, &witness)?;
    let shown = String::from_utf8(home.run(&["audit", "witness", "show"])?.stdout)?;
    want(shown.contains("open") && shown.contains("close") && shown.contains(&session), &shown)?;

    want(home.run(&["session", "rm", &session])?.status.success(), "removed")?;
    want(home.json(&["session", "list", "--json"])?["sessions"] == json!([]), "none left")?;
    want(home.run(&["audit", "verify", &session])?.status.code() == Some(2), "no such session")?;
    let witness = home.json(&["audit", "witness", "verify", "--json"])?;
    want(witness["verdict"] == "intact" && witness["entries"] == 3, &witness)?;

    let quiet = home.run(&["run", "--no-record", "-c", "print(1)"])?;
    want(quiet.status.success() && quiet.stdout == b"1\n", &quiet)?;
    want(home.json(&["session", "list", "--json"])?["sessions"] == json!([]), "nothing kept")
}

fn tampering() -> Result<(), Failed> {
    let home = Home::new()?;
    let session = home.session(&["-c", "for n in range(9): open(f'/tmp/{n}', 'w').close()"])?;
    let log = home.log(&session);
    let good = std::fs::read_to_string(&log)?;
    let changed = good.replacen("/tmp/3", "/tmp/4", 1);
    std::fs::write(&log, &changed)?;
    let output = home.run(&["audit", "verify", &session])?;
    let told = String::from_utf8(output.stdout)?;
    want(output.status.code() == Some(1) && told.starts_with("broken at "), &told)?;
    let json = home.json(&["audit", "verify", &session, "--json"])?;
    want(json["verdict"] == "broken" && json["why"] == "link", &json)?;
    std::fs::write(&log, good)?;
    std::fs::remove_file(home.path().join("witness.jsonl"))?;
    let output = home.run(&["audit", "verify", &session])?;
    let told = String::from_utf8(output.stdout)?;
    want(output.status.code() == Some(2) && told.contains("witness"), &told)
}

fn away_from_home() -> Result<(), Failed> {
    let home = Home::new()?;
    let session = home.session(&["-c", "open('/tmp/a', 'w').close()"])?;
    let away = tempfile::tempdir()?;
    let file = away.path().join("audit.jsonl");
    let witness = away.path().join("w");
    std::fs::copy(home.log(&session), &file)?;
    std::fs::copy(home.path().join("witness.jsonl"), &witness)?;
    let key = std::fs::read_to_string(home.path().join("install.pub"))?;
    let key = key.trim();
    let text = |path: &Path| path.display().to_string();
    let (file, witness) = (text(&file), text(&witness));
    let verdict = |arguments: &[&str]| -> Result<(Option<i32>, String), Failed> {
        let output = home.run(&[&["audit", "verify"], arguments].concat())?;
        Ok((output.status.code(), String::from_utf8(output.stdout)?))
    };
    let (code, told) = verdict(&[&file])?;
    want(code == Some(2) && told.contains("install key") && told.contains("witness"), told)?;
    let (code, told) = verdict(&[&file, "--install-key", key])?;
    want(code == Some(2) && told.contains("witness"), told)?;
    let (code, told) = verdict(&[&file, "--install-key", key, "--witness", &witness])?;
    want(code == Some(0) && told.starts_with("intact"), told)?;
    let directory = text(away.path());
    let (code, told) = verdict(&[&directory, "--install-key", key, "--witness", &witness])?;
    want(code == Some(0), told)?;
    let other = "ab".repeat(32);
    let (code, told) = verdict(&[&file, "--install-key", &other, "--witness", &witness])?;
    want(code == Some(1), told)?;
    // A session of this home against a key: the rest is that of the home.
    let (code, told) = verdict(&[&session, "--install-key", key])?;
    want(code == Some(0), told)?;
    let (code, told) = verdict(&[&session, "--install-key", &other])?;
    want(code == Some(1), told)?;
    let (code, told) = verdict(&["fh-none", "--install-key", key])?;
    want(code == Some(2), told)?;
    // The log at home, by its path.
    let (code, told) = verdict(&[&text(&home.log(&session))])?;
    want(code == Some(0), told)?;
    let (code, _) = verdict(&[&file, "--install-key", "nonsense"])?;
    want(code == Some(2) || code == Some(64), code)
}

fn no_place_no_run() -> Result<(), Failed> {
    let home = Home::new()?;
    let blocked = home.directory.path().join("file");
    std::fs::write(&blocked, "")?;
    let shared = home.directory.path().join("shared");
    std::fs::create_dir(&shared)?;
    std::fs::set_permissions(&shared, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    for (place, what) in [
        (blocked.join("below"), "below a file"),
        (shared.clone(), "readable by others"),
        (PathBuf::from("/proc/fumehood"), "not writable"),
    ] {
        let output =
            home.command(&["run", "-c", "print('ran')"]).env("FUMEHOOD_HOME", &place).output()?;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        want(output.status.code() == Some(66) && output.stdout.is_empty(), (what, &output))?;
        want(told.contains("--no-record") && told.contains("FUMEHOOD_HOME"), (what, &told))?;
    }
    Ok(())
}

fn guest_text_stays_text() -> Result<(), Failed> {
    let home = Home::new()?;
    let code = r#"
import os
for name in ['a\nb', 'a\x1b[2Jb', 'a\u202eb', 'a","seq":9,"x":"', '\\', 'é\u0001', 'x' * 200, '\u2028', '\x7f', '\x9b31m']:
    open('/tmp/' + name, 'w').close()
open(b'/tmp/\xff\xfe', 'w').close()
try:
    open('/nowhere/\x1b]52;c;aGk=\x07\u202e', 'w')
except OSError:
    pass
"#;
    let session = home.session(&["-c", code])?;
    let log = std::fs::read(home.log(&session))?;
    let plain = log.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\n'));
    want(plain, "the log is printable")?;
    for line in log.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        serde_json::from_slice::<Value>(line)?;
    }
    let report = home.json(&["audit", "verify", &session, "--json"])?;
    want(report["verdict"] == "intact", &report)?;
    for arguments in [vec!["audit", "show", &session], vec!["audit", "show", &session, "--tree"]] {
        let shown = String::from_utf8(home.run(&arguments)?.stdout)?;
        let hazard = shown.chars().find(|c| {
            (c.is_control() && *c != '\n')
                || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}')
        });
        want(hazard.is_none(), hazard)?;
        want(shown.lines().filter(|line| line.contains("fs.create")).count() == 12, &shown)?;
    }
    Ok(())
}

fn nothing_secret_is_on_disk() -> Result<(), Failed> {
    let home = Home::new()?;
    let program = home.directory.path().join("program.py");
    let input = home.directory.path().join("input");
    std::fs::write(&input, "canary-stdin")?;
    std::fs::write(
        &program,
        "import os, sys\nprint('canary-output', os.environ['API_TOKEN'], sys.argv, input())\n\
         open('/tmp/body', 'w').write('canary-body')\n# canary-source\n",
    )?;
    let (program, input) = (program.display().to_string(), input.display().to_string());
    let session = home.session(&[
        "--env",
        "API_TOKEN=canary-environment",
        "--stdin",
        &input,
        &program,
        "--",
        "canary-argument",
    ])?;
    want(home.json(&["audit", "verify", &session, "--json"])?["verdict"] == "intact", &session)?;
    let mut todo = vec![home.path()];
    let mut files = 0;
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            todo.extend(
                std::fs::read_dir(path)?
                    .map(|entry| entry.map(|e| e.path()))
                    .collect::<Result<Vec<_>, _>>()?,
            );
            continue;
        }
        files += 1;
        let bytes = std::fs::read(&path)?;
        let found = bytes.windows(7).any(|window| window == b"canary-");
        want(!found, path)?;
    }
    want(files >= 6, files)
}

/// Every file in a directory was made by an effect that has an intent.
fn effects_are_recorded(log: &Path, made: &Path) -> Result<(), Failed> {
    let log = std::fs::read_to_string(log)?;
    for entry in std::fs::read_dir(made)? {
        let name = entry?.file_name().into_string().map_err(|_| "not text")?;
        let wanted = format!("\"op\":\"fs.create\",\"target\":\"/rw/{name}\"");
        let intent =
            log.lines().any(|line| line.contains(r#""type":"intent""#) && line.contains(&wanted));
        want(intent, ("no intent for", name))?;
    }
    Ok(())
}

fn killed_at_any_time() -> Result<(), Failed> {
    let home = Home::new()?;
    let runs = if is_full() { 1000 } else { 24 };
    let mut dice = Dice(0x1234_5678_9abc_def1);
    let code = "import itertools, os\nfor n in itertools.count():\n    open(f'/rw/{n % 500}', 'w').close()\n    open('/tmp/x', 'w').close()";
    let mut made = Vec::new();
    let mut left = runs;
    while left > 0 {
        let together = left.min(4);
        left -= together;
        let mut running = Vec::new();
        for _ in 0..together {
            let place = tempfile::tempdir()?;
            let mount = format!("/rw={}:rw", place.path().display());
            let child = home
                .command(&["run", "--json-lines", "--mount", &mount, "-c", code])
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()?;
            running.push((child, place, Duration::from_millis(dice.roll(150) as u64)));
        }
        running.sort_by_key(|(_, _, after)| *after);
        let mut waited = Duration::ZERO;
        for (mut child, place, after) in running {
            std::thread::sleep(after.saturating_sub(waited));
            waited = after;
            child.kill()?;
            let output = child.wait_with_output()?;
            let first = String::from_utf8_lossy(&output.stdout);
            let start: Option<Value> =
                first.lines().next().and_then(|line| serde_json::from_str(line).ok());
            made.push((start.and_then(|start| Some(start["session"].as_str()?.to_owned())), place));
        }
    }
    for (session, place) in &made {
        match session {
            Some(session) => effects_are_recorded(&home.log(session), place.path())?,
            None => want(std::fs::read_dir(place.path())?.count() == 0, "no record, no effect")?,
        }
    }
    let list = home.json(&["session", "list", "--json"])?;
    let sessions = list["sessions"].as_array().ok_or("a list")?;
    let mut recovered = 0;
    for session in sessions {
        let name = session["session"].as_str().ok_or("a name")?;
        if std::fs::metadata(home.log(name))?.len() == 0 {
            continue; // Killed before the header: nothing ran.
        }
        let before = home.json(&["audit", "verify", name, "--json"])?;
        want(before["verdict"] == "intact", (name, &before))?;
        want(home.run(&["session", "recover", name])?.status.success(), (name, &before))?;
        let after = home.json(&["audit", "verify", name, "--json"])?;
        want(after["verdict"] == "intact" && after["closed"] == true, (name, &after))?;
        want(after["unsigned"] == before["unsigned"], (&before, &after))?;
        let shown = String::from_utf8(home.run(&["audit", "show", name])?.stdout)?;
        let unknown = shown.lines().filter(|line| line.contains("unknown")).count() as u64;
        want(Some(unknown) == after["unknown"].as_u64(), (unknown, &after))?;
        recovered += 1;
    }
    let witness = home.json(&["audit", "witness", "verify", "--json"])?;
    want(witness["verdict"] == "intact", &witness)?;
    want(recovered * 3 > runs, ("most were killed while they ran", recovered))
}

/// A log and a witness with lines that were torn and set aside.
fn what_is_exported_verifies() -> Result<(), Failed> {
    let home = Home::new()?;
    let code = "import time\nopen('/tmp/a', 'w').close()\ntime.sleep(60)";
    let mut child = home
        .command(&["run", "--json-lines", "-c", code])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut first = String::new();
    let output = child.stdout.take().ok_or("no output")?;
    std::io::BufReader::new(output).read_line(&mut first)?;
    child.kill()?;
    child.wait()?;
    let start: Value = serde_json::from_str(&first)?;
    let session = start["session"].as_str().ok_or("no session")?;
    let (log, witness) = (home.log(session), home.path().join("witness.jsonl"));
    for file in [&log, &witness] {
        let mut file = std::fs::OpenOptions::new().append(true).open(file)?;
        file.write_all(b"{\"seq\":\xff\x1b[2J#\n{\"seq\"")?;
    }
    let recovered = home.run(&["session", "recover", session])?;
    want(recovered.status.success(), &recovered)?;
    let away = tempfile::tempdir()?;
    let (to_log, to_witness) = (away.path().join("log"), away.path().join("witness"));
    for (arguments, from, to) in [
        (&["audit", "export", session][..], &log, &to_log),
        (&["audit", "witness", "export"][..], &witness, &to_witness),
    ] {
        let exported = home.run(arguments)?;
        want(exported.status.success(), (arguments, &exported))?;
        want(exported.stdout == std::fs::read(from)?, (arguments, "is what is there"))?;
        std::fs::write(to, exported.stdout)?;
    }
    let key = home.path().join("install.pub").display().to_string();
    let (log, witness) = (to_log.display().to_string(), to_witness.display().to_string());
    let output =
        home.run(&["audit", "verify", &log, "--install-key", &key, "--witness", &witness])?;
    want(output.status.success() && output.stdout.starts_with(b"intact"), &output)
}

fn full_disk() -> Result<(), Failed> {
    let home = Home::new()?;
    let made = home.directory.path().join("made");
    std::fs::create_dir(&made)?;
    std::fs::create_dir(home.path())?;
    let code = "import errno\ndenied = 0\nfor n in range(20000):\n    try:\n        open(f'/rw/{n % 100}', 'w').close()\n    except OSError as error:\n        assert error.errno == errno.EIO, error\n        denied += 1\n        if denied == 3: break\nprint('denied', denied)";
    let script = r#"
mount -t tmpfs -o size=1500k,mode=0700 none "$FUMEHOOD_HOME" || exit 77
"$1" run --json --mount /rw="$2":rw -c "$3" > "$4/result"
echo $? > "$4/code"
session=$(ls "$FUMEHOOD_HOME/sessions")
"$1" audit verify "$session" --json > "$4/verdict"
cp "$FUMEHOOD_HOME/sessions/$session/audit.jsonl" "$4/log"
# With no room at all a run is refused.
head -c 3000000 /dev/zero > "$FUMEHOOD_HOME/filler" 2> /dev/null
"$1" run -c 'print(1)' > "$4/refused-out" 2> "$4/refused-err"
echo $? > "$4/refused"
"#;
    let out = home.directory.path();
    let status = Command::new("unshare")
        .args(["-Urm", "sh", "-c", script, "sh"])
        .arg(&home.binary)
        .arg(&made)
        .arg(code)
        .arg(out)
        .env("FUMEHOOD_HOME", home.path())
        .env("FUMEHOOD_CACHE_DIR", cache_directory())
        .status()?;
    want(status.success(), status)?;
    let result: Value = serde_json::from_slice(&std::fs::read(out.join("result"))?)?;
    want(result["stdout"] == "denied 3\n", &result)?;
    let denial = &result["denials"][0];
    let reason = denial["reason"].as_str().unwrap_or_default();
    want(denial["rule"] == "audit" && reason.contains("no room"), denial)?;
    let verdict: Value = serde_json::from_slice(&std::fs::read(out.join("verdict"))?)?;
    want(verdict["verdict"] == "intact" && verdict["closed"] == true, &verdict)?;
    want(verdict["unknown"] == 0 && verdict["unsigned"] == json!([]), &verdict)?;
    effects_are_recorded(&out.join("log"), &made)?;
    let read = |name: &str| std::fs::read_to_string(out.join(name));
    want(read("refused")?.trim() == "66" && read("refused-out")?.is_empty(), read("refused-err")?)?;
    let told = read("refused-err")?;
    want(told.contains("--no-record") && told.contains("space"), told)
}
