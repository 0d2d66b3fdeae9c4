//! Approvals of a run that goes on, from other processes.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Place, Ran};

fn start(place: &Place, args: &[&str]) -> Child {
    place.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn end(child: Child) -> Ran {
    child.wait_with_output().unwrap().into()
}

/// The drafts of the run, once there are so many.
fn drafts_of(place: &Place, count: usize) -> Vec<Value> {
    let started = Instant::now();
    loop {
        let ran = place.run(&["policy", "draft", "last", "--json"]);
        let drafts = serde_json::from_str::<Value>(&ran.stdout).ok();
        let drafts = drafts.and_then(|drafts| drafts["drafts"].as_array().cloned());
        if let Some(drafts) = drafts.filter(|drafts| drafts.len() >= count) {
            return drafts;
        }
        assert!(started.elapsed() < Duration::from_secs(300), "{}", ran.stderr);
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A server that says hello.
fn serve() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(
                b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
            );
        }
    });
    at
}

/// Asks until it is allowed, twice.
fn program(at: SocketAddr, elsewhere: SocketAddr) -> String {
    format!(
        "import time, urllib.request\n\
         def get(url):\n    try:\n        return urllib.request.urlopen(url).read().decode()\n    except OSError as error:\n        assert 'denied by policy' in str(error), error\n\
         def wait(url):\n    while not (text := get(url)):\n        time.sleep(0.05)\n    print(text, flush=True)\n\
         get('http://{elsewhere}/')\nwait('http://{at}/first')\nwait('http://{at}/second')\n\
         assert get('http://{elsewhere}/') is None\n"
    )
}

fn field<'d>(draft: &'d Value, key: &str) -> &'d str {
    draft[key].as_str().unwrap()
}

fn find<'d>(drafts: &'d [Value], text: &str) -> &'d Value {
    drafts.iter().find(|draft| field(draft, "text").contains(text)).unwrap()
}

#[test]
fn a_rule_that_is_approved_holds_for_the_next_request() {
    let (at, elsewhere) = (serve(), serve());
    let place = Place::new();
    std::fs::write(place.path("policy.toml"), "version = 1\n").unwrap();
    std::fs::write(place.path("agent.py"), program(at, elsewhere)).unwrap();
    let child = start(
        &place,
        &["run", "--live", "--policy", "policy.toml", "--timeout", "120", "agent.py"],
    );
    let drafts = drafts_of(&place, 2);
    let first = find(&drafts, &format!("ports = [{}]", at.port()));
    let other = find(&drafts, &format!("ports = [{}]", elsewhere.port()));
    assert!(first["notes"].to_string().contains("internal address"));
    // Its socket is nobody else's.
    let socket = std::fs::read_dir(place.path("home"))
        .unwrap()
        .flatten()
        .find(|entry| entry.file_name().to_string_lossy().starts_with("live-fh-"));
    let mode = socket.unwrap().metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let decide = |which: &str, draft: &Value, more: &[&str]| {
        place.run(&[&["policy", which, "last", field(draft, "id")][..], more].concat())
    };
    // Rejected, and approved from elsewhere afterwards.
    assert_eq!(decide("reject", other, &["--reason", "not needed"]).code, 0);
    let Ran { code, stderr, .. } = decide("approve", other, &["--token", field(other, "token")]);
    assert_eq!(code, 1);
    assert!(stderr.contains("was rejected before; nothing was changed"), "{stderr}");
    // With another draft's token, or none's.
    for token in [field(other, "token"), "0", ""] {
        let Ran { code, stderr, .. } = decide("approve", first, &["--token", token]);
        assert_eq!(code, 1);
        assert!(stderr.contains("stale"), "{stderr}");
    }
    assert_eq!(place.run(&["policy", "approve", "last", "draft-9", "--token", "0"]).code, 1);
    let approve = ["--token", field(first, "token"), "--into", "next.toml"];
    let Ran { code, stderr, .. } = decide("approve", first, &approve);
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("as generation 2"), "{stderr}");
    // Twice.
    let Ran { code, stderr, .. } = decide("approve", first, &approve);
    assert_eq!(code, 1);
    assert!(stderr.contains("was approved before; nothing was changed"), "{stderr}");
    // The second path of the same place is a draft of its own.
    let drafts = drafts_of(&place, 3);
    let second = find(&drafts, "/second");
    assert_ne!(second["id"], first["id"]);
    assert_eq!(decide("approve", second, &["--token", field(second, "token")]).code, 0);
    let session = {
        let Ran { code, stdout, stderr } = end(child);
        assert_eq!((code, stdout.as_str()), (0, "hello\nhello\n"), "{stderr}");
        for draft in &drafts {
            assert!(
                !stderr.contains(field(draft, "token")) && !stdout.contains(field(draft, "token"))
            );
        }
        stderr.split_whitespace().find(|word| word.starts_with("fh-")).unwrap().to_owned()
    };
    // After its end nothing is decided any more.
    let token = field(second, "token");
    let Ran { code, stderr, .. } =
        place.run(&["policy", "approve", &session, "draft-3", "--token", token]);
    assert_eq!(code, 2);
    assert!(stderr.contains("no running session"), "{stderr}");
    let text = std::fs::read_to_string(place.path("next.toml")).unwrap();
    assert!(text.contains("/first") && !text.contains("/second"), "{text}");
    // What changed is in the log, which is whole.
    let log = std::fs::read_to_string(
        place.path("home").join("sessions").join(&session).join("audit.jsonl"),
    )
    .unwrap();
    assert_eq!(log.matches("\"policy.replace\"").count(), 2);
    assert_eq!(place.run(&["audit", "verify", &session]).code, 0);
}

#[test]
fn arguments_and_ceiling_stay_when_a_rule_is_approved() {
    let at = serve();
    let place = Place::new();
    let code = format!(
        "import time, urllib.request\nend = time.time() + 60\nwhile time.time() < end:\n    try:\n        print(urllib.request.urlopen('http://{at}/x').read())\n        break\n    except OSError:\n        time.sleep(0.05)\n"
    );
    // No policy: the arguments are one, and a draft is added to it.
    let child = start(&place, &["run", "--live", "--allow", "a.example", "-c", &code]);
    let drafts = drafts_of(&place, 1);
    let token = field(&drafts[0], "token");
    let Ran { code: code_of, stderr, .. } =
        place.run(&["policy", "approve", "last", "draft-1", "--token", token]);
    assert_eq!(code_of, 0, "{stderr}");
    assert_eq!(end(child).stdout, "b'hello'\n");
    // A ceiling is not lifted by a rule below it.
    std::fs::write(
        place.path("ceiling.toml"),
        "version = 1\n[fs]\nmemory = \"read-write\"\n[[net]]\nid = \"c\"\nhosts = [\"a.example\"]\n",
    )
    .unwrap();
    let code = code.replace("+ 60", "+ 6");
    let child = start(&place, &["run", "--live", "--ceiling", "ceiling.toml", "-c", &code]);
    let drafts = drafts_of(&place, 1);
    let token = field(&drafts[0], "token");
    let Ran { code: approved, stderr, .. } =
        place.run(&["policy", "approve", "last", "draft-1", "--token", token]);
    assert_eq!(approved, 1, "{stderr}");
    assert!(stderr.contains("is denied all the same (rule default-deny)"), "{stderr}");
    assert!(!stderr.contains("holds from the next request"), "{stderr}");
    assert_eq!(end(child).stdout, "");
}

#[test]
fn a_run_whose_code_could_approve_itself_takes_no_approvals() {
    let place = Place::new();
    let native = "version = 1\n[native]\ntiers = [\"process\"]\n";
    std::fs::write(place.path("native.toml"), native).unwrap();
    std::fs::write(place.path("p.yaml"), "version: 1\n").unwrap();
    std::fs::create_dir(place.path("home")).unwrap();
    std::fs::set_permissions(place.path("home"), PermissionsExt::from_mode(0o700)).unwrap();
    let mount = format!("/m={}", place.root().display());
    for (args, code, part) in [
        (&["--mount", mount.as_str()][..], 66, "in reach of the code"),
        (&["--policy", "native.toml"], 66, "`process`"),
        (&["--deterministic"], 66, "determinism"),
        (&["--policy", "p.yaml"], 66, "TOML"),
        (&["--no-record"], 64, "--no-record"),
    ] {
        let args = [&["run", "--live", "-c", "print(1)"][..], args].concat();
        let Ran { code: got, stdout, stderr } = place.run(&args);
        assert_eq!((got, stdout.as_str()), (code, ""), "{args:?}: {stderr}");
        assert!(stderr.contains(part), "{args:?}: {stderr}");
    }
    let left = std::fs::read_dir(place.path("home")).unwrap().flatten();
    let sockets = left.filter(|entry| entry.file_name().to_string_lossy().starts_with("live-"));
    assert_eq!(sockets.count(), 0);
    // One that was not asked to.
    assert_eq!(place.run(&["run", "-c", "print(1)"]).code, 0);
    let Ran { code, stderr, .. } = place.run(&["policy", "draft", "last"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("--live"), "{stderr}");
    for name in ["../x", "", "nobody"] {
        assert_eq!(place.run(&["policy", "draft", name]).code, 2, "{name}");
    }
}
