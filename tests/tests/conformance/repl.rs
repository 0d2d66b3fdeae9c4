//! `fumehood repl`, through a pipe and on a terminal.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};

use crate::support::{cache_directory, command_binary, engine};

/// All cases.
pub fn trials() -> Vec<Trial> {
    let mut trials = vec![
        Trial::test("repl::a_pipe_gives_cells", cells_from_a_pipe),
        Trial::test("repl::a_trap_leaves_the_session_as_it_was", a_trap),
        Trial::test("repl::commands_are_obeyed", commands),
        Trial::test("repl::the_exit_code_is_that_of_the_last_cell", exit_codes),
    ];
    let on_terminal =
        Trial::test("repl::a_terminal_has_editing_completion_and_ctrl_c", on_terminal);
    let has_script = Command::new("script").arg("--version").output().is_ok();
    trials.push(match has_script || std::env::var("CI").is_ok_and(|value| value == "true") {
        true => on_terminal,
        false => on_terminal.with_kind("missing: script").with_ignored_flag(true),
    });
    trials
}

struct Said {
    stdout: String,
    stderr: String,
    code: Option<i32>,
}

fn piped(input: &str, arguments: &[&str]) -> Result<Said, Failed> {
    // The guest is compiled for it, so that the command says nothing of that.
    engine();
    let mut child = Command::new(command_binary()?)
        .arg("repl")
        .args(arguments)
        .env("FUMEHOOD_CACHE_DIR", cache_directory())
        .env("FUMEHOOD_HOME", cache_directory().with_file_name("repl-records"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().ok_or("no input")?;
    let text = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output()?;
    writer.join().map_err(|_| "the writer failed")??;
    Ok(Said {
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        code: output.status.code(),
    })
}

fn same(found: &str, expected: &str) -> Result<(), Failed> {
    if found == expected { Ok(()) } else { Err(format!("{found:?} and not {expected:?}").into()) }
}

fn has(text: &str, part: &str) -> Result<(), Failed> {
    if text.contains(part) { Ok(()) } else { Err(format!("{part:?} is not in {text:?}").into()) }
}

fn cells_from_a_pipe() -> Result<(), Failed> {
    let input = "x = 20\ndef f(a):\n    if a:\n        return a + 1\n    else:\n        return 0\n\
        f(x) * 2\n\nprint('out')\n_ + 1\ntext = '''a\n\nb'''\nlen(text)\n'no newline at the end'";
    let said = piped(input, &[])?;
    same(&said.stdout, "42\nout\n43\n4\n'no newline at the end'\n")?;
    same(&said.stderr, "")?;
    same(&format!("{:?}", said.code), "Some(0)")
}

fn a_trap() -> Result<(), Failed> {
    let input = "x = 1\nx = 2; import os; os._exit(3)\nx\nimport time\nx = 3; time.sleep(60)\nx\n";
    let said = piped(input, &["--timeout", "5"])?;
    same(&said.stdout, "1\n1\n")?;
    has(&said.stderr, "the session is as it was before this cell")?;
    has(&said.stderr, "wall-clock time")
}

fn commands() -> Result<(), Failed> {
    let input = "x = 1\nx = 2\n%undo\nx\nx = 3\nx = 4\n%undo 2\nx\n%undo 99\n%undo x\n%nothing\n\
        open('/tmp/f', 'w').write('abc')\n%files\n%usage\n%help\n";
    let said = piped(input, &[])?;
    has(&said.stdout, "the last cell is taken back\n1\n2 cells are taken back\n1\n3\n")?;
    has(&said.stdout, "           3  /tmp/f\n")?;
    has(&said.stdout, "host_calls")?;
    has(&said.stdout, "%undo [N]")?;
    has(&said.stderr, "can take back")?;
    has(&said.stderr, "`x` is not a number of cells")?;
    has(&said.stderr, "there is no command `%nothing`")
}

fn exit_codes() -> Result<(), Failed> {
    same(&format!("{:?}", piped("1\nraise ValueError(1)\n", &[])?.code), "Some(1)")?;
    same(&format!("{:?}", piped("1 / 0\n2\n", &[])?.code), "Some(0)")?;
    let said = piped("import sys\nsys.exit(7)\nprint('never')\n", &[])?;
    same(&said.stdout, "")?;
    same(&format!("{:?}", said.code), "Some(7)")
}

/// What is typed, each after the text before it has been seen.
const TYPED: &[(&str, &str)] = &[
    (PROMPT, "value_with_a_long_name = 6\r"),
    (PROMPT, "value_with\t"),
    (COMPLETED, " * 7\r"),
    ("\n42", ""),
    (PROMPT, "def f():\r    return 'from a block'\r\r"),
    (PROMPT, "f()\r"),
    ("\n'from a block'", ""),
    (PROMPT, "value_with_a_long_name = 0; print('runs'); import time; time.sleep(600)\r"),
    ("runs\r\n", "\x03"),
    ("as it was before this cell", ""),
    (PROMPT, "value_with_a_long_name + 1\r"),
    ("\r\n7\r\n", ""),
    (PROMPT, "\x1b[A\x7f2\r"),
    ("\r\n8\r\n", ""),
    (PROMPT, "print('\\x1b[31m' + 'green')\r"),
    ("\\x1b[31mgreen", ""),
    (PROMPT, "never run\x03"),
    (PROMPT, "\x04"),
];
/// What the editor writes once when it starts to listen; what is typed before
/// that can be lost.
const PROMPT: &str = "\x1b[?2004h";
/// What a Tab gives. A completion that takes too long gives nothing, and the
/// key is pressed again.
const COMPLETED: &str = "value_with_a_long_name";
const PRESS_AGAIN: Duration = Duration::from_secs(5);

/// The command on a terminal of its own, which `script` makes.
fn on_terminal() -> Result<(), Failed> {
    // A shell that stays would get Ctrl-C too, and end with it.
    let command = format!("exec '{}' repl", command_binary()?.display());
    let mut child = Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        // Not the user's own, whatever it is.
        .env("SHELL", "/bin/sh")
        .env("FUMEHOOD_CACHE_DIR", cache_directory())
        .env("FUMEHOOD_HOME", cache_directory().with_file_name("repl-records"))
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut stdin = child.stdin.take().ok_or("no input")?;
    let mut stdout = child.stdout.take().ok_or("no output")?;
    let (sender, seen) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = stdout.read(&mut buffer) {
            let _ = sender.send(buffer[..length].to_vec());
        }
    });
    let mut text = String::new();
    let mut from = 0;
    // The first prompt can wait for the guest to be compiled, beside others.
    let patience = Duration::from_secs(300);
    for (wanted, typed) in TYPED {
        let (start, mut pressed) = (Instant::now(), Instant::now());
        while !text[from..].contains(wanted) {
            if start.elapsed() > patience {
                let _ = child.kill();
                return Err(
                    format!("{wanted:?} was not seen in {:?} of {text:?}", &text[from..]).into()
                );
            }
            if let Ok(bytes) = seen.recv_timeout(Duration::from_millis(100)) {
                text.push_str(&String::from_utf8_lossy(&bytes));
            }
            if wanted == &COMPLETED && pressed.elapsed() > PRESS_AGAIN {
                stdin.write_all(b"\t")?;
                pressed = Instant::now();
            }
        }
        from += text[from..].find(wanted).unwrap_or(0) + wanted.len();
        stdin.write_all(typed.as_bytes())?;
        stdin.flush()?;
    }
    let status = child.wait()?;
    same(&format!("{:?}", status.code()), "Some(0)")
}
