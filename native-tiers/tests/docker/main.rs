//! Commands in containers of a real engine.
//!
//! The engine is the one that `DOCKER_HOST` or the usual sockets name. Without
//! one these tests say so and prove nothing; with `FUMEHOOD_TEST_DOCKER` set that
//! is a failure. The image is a small one, made here of programs of this machine.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    missing_docs,
    reason = "tests"
)]

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use fumehood_host_fns::{
    Access, CancelToken, Guarantee, NativeCommand, NativeEnd, NativeError, NativeLimits,
    NativeMount, NativeResult, NativeTier, NoStreaming, OutputSink, Stream, Variables,
};
use fumehood_native_tiers::{DockerTier, ImageId};
use fumehood_policies::GuestPath;

/// Programs of the image.
const PROGRAMS: &[&str] = &[
    "/bin/sh",
    "/bin/bash",
    "/bin/cat",
    "/bin/sleep",
    "/bin/ls",
    "/bin/grep",
    "/bin/touch",
    "/bin/mkdir",
    "/usr/bin/head",
    "/usr/bin/id",
    "/usr/bin/env",
    "/usr/bin/wc",
    "/usr/bin/tail",
    "/usr/bin/setsid",
    "/usr/bin/seq",
    "/bin/cp",
];

fn sh(program: &str, arguments: &[&str], dir: &Path) -> Vec<u8> {
    let output = Command::new(program).args(arguments).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    output.stdout
}

/// A root file system as an archive: the programs and what they load.
fn archive() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    for name in ["tmp", "work", "home/agent", "etc", "proc", "dev", "sys"] {
        std::fs::create_dir_all(root.join(name)).unwrap();
    }
    for program in PROGRAMS {
        let needs = String::from_utf8(sh("ldd", &[program], root)).unwrap();
        let libraries = needs.split_whitespace().filter(|word| word.starts_with('/'));
        for path in libraries.chain([*program]) {
            let to = root.join(path.trim_start_matches('/'));
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            if !to.exists() {
                std::fs::copy(path, to).unwrap();
            }
        }
    }
    sh("tar", &["--owner=0", "--group=0", "-c", "."], root)
}

/// The engine and the image, or nothing.
fn engine() -> Option<&'static (PathBuf, ImageId)> {
    static ENGINE: OnceLock<Option<(PathBuf, ImageId)>> = OnceLock::new();
    ENGINE
        .get_or_init(|| {
            let socket = DockerTier::find_socket().filter(|socket| socket.exists());
            let Some(socket) = socket else {
                assert!(
                    std::env::var_os("FUMEHOOD_TEST_DOCKER").is_none(),
                    "FUMEHOOD_TEST_DOCKER promises an engine and there is none"
                );
                eprintln!("there is no container engine here: nothing is proven");
                return None;
            };
            let image = import(&socket);
            Some((socket, ImageId::parse(&image).unwrap()))
        })
        .as_ref()
}

/// Loads the image and gives its ID.
fn import(socket: &Path) -> String {
    use bollard::query_parameters::CreateImageOptions;
    use futures_util::StreamExt as _;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let path = socket.to_str().unwrap();
        let engine = bollard::Docker::connect_with_unix(path, 60, bollard::API_DEFAULT_VERSION);
        let engine = engine.unwrap().negotiate_version().await.unwrap();
        let options = CreateImageOptions {
            from_src: Some("-".to_owned()),
            repo: Some("fumehood-test".to_owned()),
            tag: Some("boundary".to_owned()),
            ..CreateImageOptions::default()
        };
        let body = bollard::body_full(archive().into());
        let mut steps = engine.create_image(Some(options), Some(body), None);
        while let Some(step) = steps.next().await {
            step.unwrap();
        }
        engine.inspect_image("fumehood-test:boundary").await.unwrap().id.unwrap()
    })
}

fn tier() -> Option<DockerTier> {
    let (socket, image) = engine()?;
    Some(DockerTier::new(socket, image.clone()))
}

/// One test at a time: each counts what is left of all of them.
fn one_at_a_time() -> std::sync::MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn command(text: &str) -> NativeCommand {
    NativeCommand {
        argv: ["/bin/bash", "-c", text].map(str::to_owned).to_vec(),
        variables: Variables::default(),
        cwd: "/work".to_owned(),
        stdin: Arc::from([].as_slice()),
        timeout: Duration::from_secs(60),
        limits: NativeLimits::default(),
        mounts: Vec::new(),
    }
}

fn run_with(
    tier: &DockerTier,
    text: &str,
    change: impl FnOnce(&mut NativeCommand),
) -> NativeResult {
    let mut command = command(text);
    change(&mut command);
    tier.run(&command, &CancelToken::new(), &NoStreaming).unwrap()
}

/// IDs of containers of this tier that this process made.
fn left(tier: &Path) -> usize {
    use bollard::query_parameters::ListContainersOptionsBuilder;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let list = runtime.block_on(async {
        let path = tier.to_str().unwrap();
        let engine = bollard::Docker::connect_with_unix(path, 60, bollard::API_DEFAULT_VERSION);
        let engine = engine.unwrap().negotiate_version().await.unwrap();
        let options = ListContainersOptionsBuilder::new().all(true).build();
        engine.list_containers(Some(options)).await.unwrap()
    });
    let own = format!("{}:", std::process::id());
    let of_this = |labels: &std::collections::HashMap<String, String>| {
        labels.get("org.fumehood.run").is_some_and(|owner| owner.starts_with(&own))
    };
    list.iter().filter(|one| one.labels.as_ref().is_some_and(of_this)).count()
}

#[test]
fn commands_run_and_nothing_is_left() {
    let _turn = one_at_a_time();
    let Some(tier) = tier() else { return };
    tier.prepare(&Guarantee::ALL).unwrap();
    let result = run_with(&tier, "echo out; echo err >&2; exit 3", |_| {});
    assert_eq!(result.end, NativeEnd::Exited(3));
    assert_eq!((result.stdout.text(), result.stderr.text()), ("out\n".into(), "err\n".into()));
    assert!(!result.timed_out && !result.memory_exceeded);
    assert!(result.controls.contains(&"no-capabilities".to_owned()));
    let result = run_with(&tier, "wc -c", |c| c.stdin = vec![b'x'; 3_000_000].into());
    assert_eq!(result.stdout.text().trim(), "3000000");
    assert_eq!(run_with(&tier, "cat; echo $?", |_| {}).stdout.text(), "0\n");
    // What is given and never read does not hold the command up.
    let result = run_with(&tier, "echo ok", |c| c.stdin = vec![b'x'; 3_000_000].into());
    assert_eq!(result.stdout.text(), "ok\n");
    let result = run_with(&tier, "head -c 3000000 /dev/zero; head -c 200000 /dev/zero >&2", |c| {
        c.limits.output_bytes = 100_000;
    });
    assert_eq!((result.stdout.bytes.len(), result.stdout.dropped), (100_000, 2_900_000));
    assert_eq!((result.stderr.bytes.len(), result.stderr.dropped), (100_000, 100_000));
    let result = run_with(&tier, "env", |c| {
        c.variables = Variables::new([("A".to_owned(), "b c".to_owned())]).unwrap();
    });
    assert!(result.stdout.text().contains("A=b c") && !result.stdout.text().contains("CARGO"));
    // As a shell would say it: the container's first process starts programs.
    let result = run_with(&tier, "", |c| c.argv = vec!["/nowhere".to_owned()]);
    assert!(result.end == NativeEnd::Exited(127) && result.stderr.text().contains("/nowhere"));
    assert_eq!(left(&engine().unwrap().0), 0);
}

#[test]
fn the_container_is_hard() {
    let _turn = one_at_a_time();
    let Some(tier) = tier() else { return };
    for (text, wanted) in [
        ("id -u | grep -qv '^0$' && echo yes", "yes"),
        ("grep -q 'CapEff:.0000000000000000' /proc/self/status && echo yes", "yes"),
        ("grep -q 'CapBnd:.0000000000000000' /proc/self/status && echo yes", "yes"),
        ("grep -q 'NoNewPrivs:.1' /proc/self/status && echo yes", "yes"),
        ("grep -q 'Seccomp:.2' /proc/self/status && echo yes", "yes"),
        ("touch /x 2>/dev/null || echo yes", "yes"),
        ("touch /usr/x 2>/dev/null || echo yes", "yes"),
        ("(echo x > /dev/tcp/127.0.0.1/1) 2>/dev/null || echo yes", "yes"),
        ("ls /sys/class/net | grep -v lo | wc -l", "0"),
        ("cp /usr/bin/id /tmp/id && /tmp/id 2>/dev/null || echo yes", "yes"),
        ("ls /dev/kvm /dev/mem /dev/sda /dev/vda 2>/dev/null | wc -l", "0"),
        ("ls /run/docker.sock /var/run/docker.sock 2>/dev/null | wc -l", "0"),
        // The positive controls: what it may do it can.
        ("touch /tmp/x /work/x /home/agent/x /dev/shm/x && echo yes", "yes"),
    ] {
        let result = run_with(&tier, text, |_| {});
        assert_eq!(result.stdout.text().trim(), wanted, "{text}: {}", result.stderr.text());
    }
}

#[test]
fn the_limits_bind() {
    let _turn = one_at_a_time();
    let Some(tier) = tier() else { return };
    // Memory, by the engine's own report; `tail` keeps what has no line.
    let hog = "head -c 400m /dev/zero | tail";
    let result = run_with(&tier, hog, |c| c.limits.memory_bytes = 64 << 20);
    assert!(result.memory_exceeded, "{:?} {}", result.end, result.stderr.text());
    let result = run_with(&tier, "head -c 20m /dev/zero | tail | wc -c", |_| {});
    assert!(!result.memory_exceeded && result.stdout.text().trim() == "20971520");
    let result = run_with(&tier, "kill -9 $$", |_| {});
    assert!(!result.memory_exceeded && result.end == NativeEnd::Exited(137));
    // Processes.
    let many = "for i in $(seq 60); do sleep 2 & done 2>&1; echo end";
    let result = run_with(&tier, many, |c| c.limits.processes = 20);
    assert!(format!("{}{}", result.stdout.text(), result.stderr.text()).contains("fork"));
    let result = run_with(&tier, many, |_| {});
    assert_eq!(result.stdout.text(), "end\n");
    // Files and scratch.
    let write = "head -c 3000000 /dev/zero > /tmp/f; wc -c < /tmp/f";
    let result = run_with(&tier, write, |c| c.limits.file_bytes = 1_000_000);
    assert_eq!(result.stdout.text().trim(), "1000000");
    let result = run_with(&tier, write, |c| c.limits.scratch_bytes = 4 << 20);
    assert_eq!(result.stdout.text().trim(), "1048576");
    assert_eq!(run_with(&tier, write, |_| {}).stdout.text().trim(), "3000000");
    // Processor time.
    let spin = "while :; do :; done";
    let result = run_with(&tier, spin, |c| c.limits.cpu = Duration::from_secs(1));
    assert!(!result.timed_out && result.end != NativeEnd::Exited(0), "{:?}", result.end);
    assert_eq!(left(&engine().unwrap().0), 0);
}

#[derive(Default)]
struct Kept(Mutex<Vec<(Instant, Vec<u8>)>>);

impl OutputSink for Kept {
    fn write(&self, _stream: Stream, bytes: &[u8]) {
        self.0.lock().unwrap().push((Instant::now(), bytes.to_vec()));
    }
}

#[test]
fn time_and_cancellation_end_the_container_and_keep_its_output() {
    let _turn = one_at_a_time();
    let Some(tier) = tier() else { return };
    let text = "trap '' TERM; echo part; setsid sleep 60 & sleep 60";
    let result = run_with(&tier, text, |c| c.timeout = Duration::from_secs(3));
    assert!(result.timed_out && !result.cancelled);
    assert_eq!(result.stdout.text(), "part\n");
    assert!(result.wall < Duration::from_secs(20), "{:?}", result.wall);
    let token = Arc::new(CancelToken::new());
    let shared = Arc::clone(&token);
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(2));
        shared.cancel();
    });
    let result = tier.run(&command("echo a; sleep 60"), &token, &NoStreaming).unwrap();
    assert!(result.cancelled && !result.timed_out && result.wall < Duration::from_secs(20));
    // A child in the background is not waited for.
    let result = run_with(&tier, "sleep 50 & echo hi", |_| {});
    assert!(result.stdout.text() == "hi\n" && result.wall < Duration::from_secs(30));
    let kept = Kept::default();
    tier.run(&command("echo one; sleep 1; echo two"), &CancelToken::new(), &kept).unwrap();
    let kept = kept.0.into_inner().unwrap();
    let [(first, one), (second, two)] = kept.as_slice() else { panic!("{kept:?}") };
    assert_eq!((one.as_slice(), two.as_slice()), (&b"one\n"[..], &b"two\n"[..]));
    assert!(second.duration_since(*first).as_millis() > 500);
    assert_eq!(left(&engine().unwrap().0), 0);
}

#[test]
fn directories_are_given_as_they_are_asked_for() {
    let _turn = one_at_a_time();
    let Some(tier) = tier() else { return };
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f"), "content\n").unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(dir.path(), open).unwrap();
    let mount = |access, execute| {
        let fd: OwnedFd = std::fs::File::open(dir.path()).unwrap().into();
        NativeMount {
            at: GuestPath::parse(&GuestPath::root(), b"/work/data").unwrap().path,
            dir: Arc::new(fd),
            host: dir.path().to_owned(),
            access,
            execute,
            overlay: None,
        }
    };
    let text = "cat data/f; echo x > data/g && echo written";
    let given = mount(Access::ReadOnly, true);
    assert_eq!(run_with(&tier, text, |c| c.mounts = vec![given]).stdout.text(), "content\n");
    let given = mount(Access::ReadWrite, true);
    let result = run_with(&tier, text, |c| c.mounts = vec![given]);
    assert_eq!(result.stdout.text(), "content\nwritten\n", "{}", result.stderr.text());
    // What the engine would mount is not what was opened any more.
    let given = mount(Access::ReadOnly, true);
    std::fs::rename(dir.path(), dir.path().with_extension("moved")).unwrap();
    let mut command = command(text);
    command.mounts = vec![given];
    let refused = tier.run(&command, &CancelToken::new(), &NoStreaming);
    assert!(matches!(refused, Err(NativeError::Unavailable(_))), "{refused:?}");
    std::fs::remove_dir_all(dir.path().with_extension("moved")).unwrap();
}

#[test]
fn what_is_not_there_is_named() {
    let _turn = one_at_a_time();
    let nowhere = Path::new("/nowhere/engine.sock");
    let image = ImageId::parse(&format!("sha256:{}", "a".repeat(64))).unwrap();
    let tier = DockerTier::new(nowhere, image.clone());
    let unavailable = tier.prepare(&[]).unwrap_err();
    assert_eq!(unavailable.missing[0].name, "engine");
    assert!(!tier.probe().available);
    assert!(tier.run(&command("true"), &CancelToken::new(), &NoStreaming).is_err());
    let Some((socket, _)) = engine() else { return };
    let tier = DockerTier::new(socket, image);
    assert_eq!(tier.prepare(&[]).unwrap_err().missing[0].name, "image");
    assert!(tier.run(&command("true"), &CancelToken::new(), &NoStreaming).is_err());
}

#[test]
fn containers_whose_maker_is_gone_are_removed() {
    let _turn = one_at_a_time();
    let Some((socket, image)) = engine() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let made = |owner: &str| {
        let labels = [("org.fumehood.run".to_owned(), owner.to_owned())];
        let body = bollard::models::ContainerCreateBody {
            image: Some(image.as_str().to_owned()),
            cmd: Some(vec!["/bin/sleep".to_owned(), "1".to_owned()]),
            labels: Some(labels.into_iter().collect()),
            ..bollard::models::ContainerCreateBody::default()
        };
        runtime.block_on(async {
            let path = socket.to_str().unwrap();
            let engine = bollard::Docker::connect_with_unix(path, 60, bollard::API_DEFAULT_VERSION);
            let engine = engine.unwrap().negotiate_version().await.unwrap();
            let options = None::<bollard::query_parameters::CreateContainerOptions>;
            engine.create_container(options, body).await.unwrap().id
        })
    };
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let since = stat.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap().to_owned();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let space = std::fs::metadata("/proc/self/ns/pid").unwrap();
    let here = format!("{}:{}", boot.trim(), std::os::unix::fs::MetadataExt::ino(&space));
    let gone = made(&format!("2000000000:1:{here}"));
    let own = made(&format!("{}:{since}:{here}", std::process::id()));
    // Of a client whose processes are not seen here.
    let foreign = made("2000000000:1:another-start:1");
    let removed = DockerTier::clean(socket).unwrap();
    assert!(removed.contains(&gone) && !removed.contains(&own) && !removed.contains(&foreign));
    runtime.block_on(async {
        let path = socket.to_str().unwrap();
        let engine = bollard::Docker::connect_with_unix(path, 60, bollard::API_DEFAULT_VERSION);
        let engine = engine.unwrap().negotiate_version().await.unwrap();
        for id in [&own, &foreign] {
            let options = None::<bollard::query_parameters::RemoveContainerOptions>;
            engine.remove_container(id, options).await.unwrap();
        }
    });
}
