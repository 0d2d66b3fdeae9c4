//! Attacks, as data, against the boundary and against none.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Child, Command, Stdio};

use fumehood_host_fns::NativeTier;
use serde::Deserialize;
use tempfile::TempDir;

use crate::{is_root, landlock, process, run, said, without_namespaces};

#[derive(Deserialize)]
struct File {
    attack: Vec<Attack>,
}

/// What these tests need of an attack; the harness of `tests/` reads the rest.
#[derive(Deserialize)]
struct Attack {
    id: String,
    attack: String,
    #[serde(default)]
    root_only: bool,
    /// `process` unless said otherwise: where the attack must succeed.
    control: Option<String>,
    /// Why it works without namespaces; the test fails when it does not.
    gap_without_namespaces: Option<String>,
    /// A path without which the machine has nothing to reach.
    needs: Option<String>,
}

/// What there is to reach outside.
struct Outside {
    dir: TempDir,
    _listeners: (std::net::TcpListener, UnixListener, UnixListener),
    port: u16,
    victim: Child,
    /// An open file whose descriptor is inherited.
    inherited: std::fs::File,
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = self.victim.kill();
        let _ = self.victim.wait();
    }
}

impl Outside {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("outside-").tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("secret"), "REACHED\n").unwrap();
        std::fs::write(path("secret.cut"), "x").unwrap();
        std::fs::write(path("token"), "#!/bin/sh\necho REACHED\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(path("token"), mode).unwrap();
        let inherited = std::fs::File::create(path("inherited-descriptor")).unwrap();
        rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = tcp.local_addr().unwrap().port();
        let named = UnixListener::bind(path("socket")).unwrap();
        let name = format!("fumehood-test-{port}");
        let name = SocketAddr::from_abstract_name(name).unwrap();
        let hidden = UnixListener::bind_addr(&name).unwrap();
        let victim = Command::new("/bin/sleep")
            .arg("600")
            .env_clear()
            .env("FUMEHOOD_VICTIM", "REACHED")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self { dir, _listeners: (tcp, named, hidden), port, victim, inherited }
    }

    fn fill(&self, text: &str) -> String {
        let at = |name: &str| self.dir.path().join(name).to_string_lossy().into_owned();
        let values = BTreeMap::from([
            ("{pid}", std::process::id().to_string()),
            ("{victim}", self.victim.id().to_string()),
            ("{port}", self.port.to_string()),
            ("{socket}", at("socket")),
            ("{abstract}", format!("fumehood-test-{}", self.port)),
            ("{secret}", at("secret")),
            ("{token}", at("token")),
            ("{inherited}", "inherited-descriptor".to_owned()),
        ]);
        values.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }
}

fn attacks() -> Vec<Attack> {
    let file: File = toml::from_str(include_str!("attacks.toml")).unwrap();
    let here = |attack: &Attack| {
        attack.needs.as_ref().is_none_or(|path| std::path::Path::new(path).exists())
    };
    file.attack.into_iter().filter(here).collect()
}

/// The ids of those that reached what they wanted.
fn reached(tier: &dyn NativeTier, outside: &Outside) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for attack in attacks() {
        let result = run(tier, &outside.fill(&attack.attack));
        if result.stdout.text().contains("REACHED") {
            found.push((attack.id, said(&result)));
        }
    }
    found
}

#[test]
fn no_attack_reaches_anything_with_namespaces() {
    let tier = landlock();
    tier.prepare(&fumehood_host_fns::Guarantee::ALL[..6]).unwrap();
    let found = reached(&tier, &Outside::new());
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn no_attack_reaches_anything_without_namespaces() {
    let outside = Outside::new();
    let found = without_namespaces(|| {
        let tier = landlock();
        tier.prepare(&fumehood_host_fns::Guarantee::REQUIRED).unwrap();
        assert!(!tier.controls().contains(&"user-namespace".to_owned()));
        reached(&tier, &outside)
    });
    let gaps = attacks().into_iter().filter(|attack| attack.gap_without_namespaces.is_some());
    let gaps: Vec<String> = gaps.map(|attack| attack.id).collect();
    let ids: Vec<String> = found.iter().map(|(id, _)| id.clone()).collect();
    assert_eq!(ids, gaps, "{found:#?}");
}

#[test]
fn every_attack_works_where_there_is_no_boundary() {
    let (tier, outside) = (process(), Outside::new());
    let mut failing = Vec::new();
    for attack in attacks() {
        if attack.root_only && !is_root() {
            continue;
        }
        let text = outside.fill(&attack.attack);
        let said = match attack.control.as_deref() {
            None => said(&run(&tier, &text)),
            // What the helper does also without a boundary: a plain process shows it.
            Some("inherited") => {
                let mut child = Command::new("/bin/bash");
                let mut child = child.args(["-c", &text]).stdout(Stdio::piped()).spawn().unwrap();
                let mut text = String::new();
                child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
                child.wait().unwrap();
                text
            }
            Some(_) => continue,
        };
        if !said.contains("REACHED") {
            failing.push((attack.id, said));
        }
    }
    let _ = &outside.inherited;
    assert!(failing.is_empty(), "these prove nothing: {failing:#?}");
}

#[test]
fn every_attempt_of_the_helper_is_prevented() {
    let not_prevented = |attempts: Vec<fumehood_native_tiers::Attempt>| {
        assert!(attempts.len() > 60);
        attempts.into_iter().filter(|attempt| !attempt.prevented).collect::<Vec<_>>()
    };
    let found = not_prevented(landlock().attempts().unwrap());
    assert!(found.is_empty(), "{found:#?}");
    let alone = without_namespaces(|| landlock().attempts().unwrap());
    let found = not_prevented(alone);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn the_attempts_of_the_helper_are_real() {
    let attempts = process().attempts().unwrap();
    let prevented: Vec<_> =
        attempts.iter().filter(|attempt| attempt.prevented).map(|a| a.name.as_str()).collect();
    // Without a boundary the kernel itself refuses these, by the rights of an
    // ordinary user or because the machine has no such thing.
    let share = if is_root() { attempts.len() / 3 } else { attempts.len() * 2 / 3 };
    assert!(prevented.len() < share, "{prevented:?}");
    for name in [
        "io_uring_enter",
        "process_vm_readv",
        "memfd_create",
        "unshare user",
        "setns",
        "clone user",
        "clone3",
        "name_to_handle_at",
        "mount",
        "umount2",
        "chroot",
        "personality",
        "shmget",
        "socket AF_INET",
        "socket AF_UNIX",
        "socketpair of datagrams",
        "connect",
        "bind",
        "signal the helper itself",
        "ioctl TIOCSTI",
    ] {
        assert!(!prevented.contains(&name), "{name} proves nothing");
    }
}

#[test]
fn what_programs_need_is_there() {
    for (tier, what) in [(landlock(), "boundary"), (process(), "none")] {
        for (text, wanted) in [
            ("echo $((6*7))", "42"),
            ("python3 -c 'print(sum(range(10)))'", "45"),
            (
                "python3 -c 'import socket; a,b=socket.socketpair(); a.send(b\"hi\"); print(b.recv(9))'",
                "b'hi'",
            ),
            ("python3 -c 'import asyncio; print(asyncio.run(asyncio.sleep(0, 7)))'", "7"),
            (
                "python3 -c 'import threading; t=threading.Thread(target=lambda: print(5)); t.start(); t.join()'",
                "5",
            ),
            ("python3 -c 'import multiprocessing as m; print(m.Pool(2).map(abs, [-3]))'", "[3]"),
            ("python3 -c 'import subprocess; print(subprocess.run([\"true\"]).returncode)'", "0"),
            (
                "python3 -c 'import tempfile; f=tempfile.NamedTemporaryFile(); f.write(b\"x\"); print(8)'",
                "8",
            ),
            ("diff <(echo a) <(echo a) && echo same", "same"),
            ("seq 3 | sort -r | head -1", "3"),
            ("cat <<< here", "here"),
            ("mkdir d && cd d && echo x > f && chmod 600 f && stat -c %a f", "600"),
            ("id -u", &rustix::process::geteuid().as_raw().to_string()),
            ("test -w /dev/null && echo > /dev/null && head -c 2 /dev/urandom | wc -c", "2"),
            ("date +%Y | cut -c1-2", "20"),
        ] {
            let result = run(&tier, text);
            assert_eq!(result.stdout.text().trim(), wanted, "{what}: {text}: {}", said(&result));
        }
    }
}
