//! F: paths and the virtual file system, tried by agent Python and by a host
//! that changes its directories meanwhile.
//!
//! Invariant: a cell prints `GOT` for everything it should not have; its last
//! line counts what was refused.

use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fumehood::{AuditRecord, AuditSink, MemorySink, Sandbox};
use fumehood_host_fns::AuditUnavailable;

use crate::harness::{
    Attack, Attempt, Capability, Expected, INSIDE, OUTSIDE, Observed, Setting, World, machine,
    run_in,
};

/// Counts what is refused and shows what is not.
pub(super) const COUNT_REFUSALS: &str = r"
import errno, os, sys
refused = 0
def attempt(action, *arguments):
    global refused
    try:
        value = action(*arguments)
    except (OSError, ValueError):
        refused += 1
    else:
        print('GOT', arguments, value)
def read(path):
    with open(path) as file:
        return file.read()
def report():
    print('refused', refused)
";

fn cell(
    id: &'static str,
    property: &'static str,
    code: &str,
    expected: &'static str,
    reason: &'static str,
) -> Attack {
    Attack::cell(id, property, format!("{COUNT_REFUSALS}\n{code}\nreport()"))
        .with(Setting::mounted())
        .control_cell(
            format!("{COUNT_REFUSALS}\nprint(read('/ro/file.txt'), read('/rw/good/secret.txt'))"),
            "inside inside",
        )
        .expect(Expected::Harmless(expected), reason)
}

fn by_path() -> Vec<Attack> {
    vec![
        cell("F-01", "no spelling of a path leads out of the guest's own tree",
            "for path in ['../../etc/passwd', '/ro/../../etc/passwd', '/ro/../etc/passwd', '/ro/dir/../../../../etc/passwd', 'a/../' * 1000 + 'x', '/ro/' + 'a/../' * 900 + 'file.txt', '/ro/' + './' * 2500 + 'file.txt', '~/x', 'file:///etc/passwd']:\n    attempt(read, path)",
            "refused 9", "paths are bounded and collapsed by one parser before anything is looked up"),
        cell("F-02", "a link that the host put into a mount does not lead out of it",
            "for path in ['/ro/link/secret.txt', '/ro/passwd', '/ro/etc/passwd', '/ro/up', '/rw/link/secret.txt', '/rw/up', '/ro/good/../../outside/secret.txt']:\n    attempt(read, path)",
            "refused 7", "links are resolved inside the mount or not at all"),
        cell("F-02b", "a link that the code makes does not lead out of a mount",
            "for target, name in [('/etc/passwd', '/rw/a'), ('../outside/secret.txt', '/rw/b'), ('../../../../etc', '/rw/dir/c')]:\n    attempt(os.symlink, target, name)\n    attempt(read, name)",
            "refused 6", "a link that would lead out is not made"),
        cell("F-02c", "where a link of the host leads is not told where that is outside",
            "for path in ['/ro/link', '/ro/passwd', '/ro/up']:\n    attempt(os.readlink, path)",
            "refused 3", "the target of a link that leads out is a host path and stays on the host"),
        cell("F-08", "views of the kernel and of the host's devices are not there",
            "for path in ['/proc/self/environ', '/proc/self/mem', '/proc/1/root/etc/passwd', '/proc/1/environ', '/dev/mem', '/dev/fd/3', '/dev/tty', '/sys/kernel/uevent_seqnum', '/etc/shadow', '/run/docker.sock', '/var/run/docker.sock']:\n    attempt(read, path)",
            "refused 11", "the tree holds what the broker put into it"),
        cell("F-11", "a file does not change its mount by a rename or a second name",
            "open('/tmp/mine', 'w').write('x')\nfor action in (os.rename, os.replace, os.link):\n    attempt(action, '/rw/file.txt', '/tmp/a')\n    attempt(action, '/tmp/mine', '/rw/b')\n    attempt(action, '/ro/file.txt', '/rw/c')\nprint(sorted(os.listdir('/rw')) == sorted(os.listdir('/ro')))",
            "True\nrefused 9", "the broker answers with an error before either side is touched"),
        cell("F-11b", "mount points and what is above them stay where they are",
            "for path in ['/rw', '/ro']:\n    attempt(os.rmdir, path)\n    attempt(os.rename, path, '/tmp/x')\n    attempt(os.rename, '/tmp', path)\nattempt(os.rmdir, '/')\nattempt(os.rename, '/', '/tmp/y')",
            "refused 8", "mount points are pinned"),
        cell("F-19b", "every way to fail on a mount tells paths of the guest alone",
            "import shutil, tempfile, glob\nfor action in (read, os.listdir, os.rmdir, os.unlink, os.stat, os.readlink, os.mkdir):\n    for path in ('/ro/none', '/ro/link', '/ro/file.txt/x', '/ro/etc/none', '/ro/' + 'n' * 300):\n        try:\n            action(path)\n        except OSError as error:\n            print(error, file=sys.stderr)\n            refused += 1\nfor error_of in (lambda: shutil.copytree('/ro', '/ro/x'), lambda: shutil.rmtree('/ro'), lambda: os.chdir('/ro/link'), lambda: tempfile.mkdtemp(dir='/ro')):\n    try:\n        error_of()\n    except OSError as error:\n        print(error, error.filename, file=sys.stderr)\nprint(os.getcwd(), os.path.realpath('/ro/good'))\nrefused = 0",
            "/work /ro/dir\nrefused 0", "an error is a number, and the text is made in the guest"),
        Attack::cell("F-19", "the message of a failed operation names the path that the code used",
            "try:\n    open('/ro/none')\nexcept OSError as error:\n    print(str(error).split(']')[-1].strip(), error.filename)")
            .with(Setting::mounted())
            .control_cell("print(open('/ro/file.txt').read())", INSIDE)
            .expect(Expected::AnyOf(vec![
                Expected::Harmless("No such file or directory: '/ro/none' /ro/none"),
                Expected::Harmless("No such file or directory (os error 44): '/ro/none' /ro/none"),
            ]), "the guest knows no other path than its own"),
        cell("F-14", "names with strange bytes are stored, and NUL and too long ones are refused",
            "os.mkdir('/tmp/names')\nstrange = [b'a\\nb', b'esc\\x1b[31m', b'\\xff\\xfe', 'bidi\\u202e'.encode(), b'n' * 255]\nfor name in strange:\n    open(b'/tmp/names/' + name, 'w').close()\nprint(sorted(os.listdir(b'/tmp/names')) == sorted(strange))\nattempt(read, '/tmp/a\\0b')\nattempt(os.mkdir, b'/tmp/' + b'n' * 256)",
            "True\nrefused 2", "names are bytes; NUL and a component of more than 255 bytes are no name"),
    ]
}

fn budgets() -> Vec<Attack> {
    let small = || {
        Setting::default().limit(|limits| {
            limits.broker.memory_inodes = 2000;
            limits.broker.memory_file_bytes = 8 << 20;
        })
    };
    let attack = |id, property, code: &str, honest: &str, expected| {
        Attack::cell(id, property, format!("import errno, os\n{code}"))
            .with(small())
            .control_cell(format!("import errno, os\n{honest}"), "done")
            .about_memory()
            .expect(
                Expected::Harmless(expected),
                "inodes, depth and bytes of the tree in memory are counted",
            )
    };
    vec![
        attack("F-16", "a million small files end with an error and bounded memory",
            "os.mkdir('/tmp/d')\ntry:\n    for n in range(1_000_000):\n        open(f'/tmp/d/{n}', 'w').close()\nexcept OSError as error:\n    print(errno.errorcode[error.errno], n < 2000)",
            "os.mkdir('/tmp/d')\nfor n in range(1000):\n    open(f'/tmp/d/{n}', 'w').close()\nprint('done')", "ENOSPC True"),
        attack("F-16b", "ten thousand nested directories end with an error",
            "try:\n    for n in range(10_000):\n        os.mkdir('d')\n        os.chdir('d')\nexcept OSError as error:\n    print(errno.errorcode[error.errno] in ('ENAMETOOLONG', 'ENOSPC'), n < 300)",
            "for n in range(100):\n    os.mkdir('d')\n    os.chdir('d')\nprint('done')", "True True"),
        attack("F-16c", "a sparse file of ten gigabytes is not stored",
            "try:\n    with open('/tmp/f', 'wb') as file:\n        file.seek(10 << 30)\n        file.write(b'x')\nexcept OSError as error:\n    print(errno.errorcode[error.errno] in ('EFBIG', 'ENOSPC'), os.path.getsize('/tmp/f'))",
            "with open('/tmp/f', 'wb') as file:\n    file.seek(1 << 20)\n    file.write(b'x')\nprint('done')", "True 0"),
        attack("F-16d", "files do not hold more bytes together than the limit",
            "try:\n    for n in range(1000):\n        with open(f'/tmp/{n}', 'wb') as file:\n            file.write(b'x' * 100_000)\nexcept OSError as error:\n    print(errno.errorcode[error.errno], n < 90)",
            "for n in range(50):\n    with open(f'/tmp/{n}', 'wb') as file:\n        file.write(b'x' * 100_000)\nprint('done')", "ENOSPC True"),
        attack("F-16e", "a file that was removed but is open still counts",
            "held = []\ntry:\n    for n in range(200):\n        file = open('/tmp/x', 'wb', buffering=0)\n        held.append(file)\n        file.write(b'x' * 1_000_000)\n        os.unlink('/tmp/x')\nexcept OSError as error:\n    print(errno.errorcode[error.errno], n < 10)",
            "for n in range(50):\n    with open('/tmp/x', 'wb', buffering=0) as file:\n        file.write(b'x' * 1_000_000)\n    os.unlink('/tmp/x')\nprint('done')", "ENOSPC True"),
        Attack::host("F-17", "appending a byte again and again is denied at the budget and recorded in a few lines", |world, setting| {
            let sink = Arc::new(MemorySink::default());
            let sandbox = world.builder(setting).map(|builder| builder.audit(Arc::clone(&sink) as Arc<dyn AuditSink>).build());
            let Ok(Ok(sandbox)) = sandbox else { return Observed::broken("no sandbox") };
            let code = "import errno\ntry:\n    with open('/tmp/f', 'ab', buffering=0) as file:\n        for n in range(1_000_000):\n            file.write(b'x')\nexcept OSError as error:\n    print(n)";
            let ran = run_in(&sandbox, setting.limits.wall, code);
            let budget = ran.outcome.denials.iter().any(|denial| denial.rule == "budget");
            let lines = sink.records().len();
            let fact = format!("{} written, budget denied: {budget}, few records: {}", ran.outcome.stdout_text().trim(), lines < 100);
            Observed::fact(fact).seen([ran]).note(format!("{lines} audit records"))
        })
        .with(Setting::default().limit(|limits| limits.broker.written_bytes = 100_000))
        .control_cell("with open('/tmp/f', 'ab', buffering=0) as file:\n    print(sum(file.write(b'x') for n in range(1000)))", "1000")
        .expect(Expected::Harmless("100000 written, budget denied: true, few records: true"), "writes draw on a reservation and are summed"),
    ]
}

/// Mounts that must be refused before anything runs.
fn refused_mounts() -> Vec<Attack> {
    let mount = |world: &World<'_>, setting: &Setting, list: &[(&str, &str)]| -> Observed {
        let builder = match world.builder(setting) {
            Ok(builder) => builder,
            Err(error) => return Observed::broken(error),
        };
        let built = list.iter().fold(builder, |builder, (at, host)| {
            let host = if *host == "~" {
                machine::home()
            } else if host.starts_with('/') {
                host.into()
            } else {
                world.path(host)
            };
            builder.mount_read_only(*at, host)
        });
        match built.build() {
            Ok(sandbox) => Observed::run(run_in(&sandbox, setting.limits.wall, "print('mounted')")),
            Err(error) => Observed::refused(error.to_string()),
        }
    };
    let attack = |id, property, list: &'static [(&'static str, &'static str)], names| {
        Attack::host(id, property, move |world, setting| mount(world, setting, list))
            .control(
                Attempt::Host(Arc::new(move |world, setting| {
                    mount(world, setting, &[("/a", "ro"), ("/b", "rw")])
                })),
                Expected::Harmless("mounted"),
            )
            .expect(Expected::Refused(names), "mounts are checked when the sandbox is built")
    };
    vec![
        attack("F-08b", "the view of processes is not mounted", &[("/p", "/proc")], &["/proc"]),
        attack(
            "F-08c",
            "a directory inside the view of processes is not mounted",
            &[("/p", "/proc/self")],
            &["kernel"],
        ),
        attack(
            "F-08d",
            "the view of devices and drivers is not mounted",
            &[("/p", "/sys")],
            &["/sys"],
        ),
        attack("F-08e", "the directory of devices is not mounted", &[("/p", "/dev")], &["/dev"]),
        attack(
            "F-08f",
            "the whole machine is not mounted",
            &[("/p", "/")],
            &["root of this machine"],
        ),
        attack(
            "F-08g",
            "the whole machine is not mounted by another spelling",
            &[("/p", "/etc/..")],
            &["root of this machine"],
        ),
        attack(
            "F-08j",
            "the operator's home directory is not mounted whole",
            &[("/p", "~")],
            &["home directory"],
        ),
        attack(
            "F-08h",
            "a directory that does not exist is named and nothing starts",
            &[("/p", "none")],
            &["does not exist"],
        ),
        attack(
            "F-08i",
            "a file is not mounted as a directory",
            &[("/p", "ro/file.txt")],
            &["not a directory"],
        ),
        attack(
            "F-10",
            "a mount inside another mount is refused",
            &[("/a", "ro"), ("/a/b", "rw")],
            &["overlap"],
        ),
        attack(
            "F-10b",
            "two mounts at one place are refused",
            &[("/a", "ro"), ("/a/.", "rw")],
            &["overlap"],
        ),
        attack(
            "F-10c",
            "a mount in place of the root is refused",
            &[("/", "ro")],
            &["mount point"],
        ),
        attack(
            "F-10d",
            "a mount above another mount is refused",
            &[("/a/b", "ro"), ("/a", "rw")],
            &["overlap"],
        ),
    ]
}

fn devices() -> Attack {
    Attack::host("F-07", "opening a pipe, socket or device in a mount is an error at once", |world, setting| {
        let made = [
            ("pipe", rustix::fs::FileType::Fifo, 0),
            ("null", rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
        ];
        let mut names = vec!["socket"];
        let directory = world.path("rw");
        let Ok(_socket) = UnixListener::bind(directory.join("socket")) else {
            return Observed::broken("no socket");
        };
        for (name, kind, device) in made {
            let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
            // Only root may make a device; the others are enough then.
            if rustix::fs::mknodat(rustix::fs::CWD, directory.join(name), kind, mode, device).is_ok() {
                names.push(name);
            }
        }
        let count = names.len();
        let code = format!(
            "{COUNT_REFUSALS}\nimport time\nstart = time.monotonic()\nfor name in {names:?}:\n    attempt(read, '/rw/' + name)\n    attempt(open, '/rw/' + name, 'w')\n    attempt(open, '/rw/' + name, 'r+b')\nprint(refused == {}, time.monotonic() - start < 1)",
            count * 3
        );
        Observed { notes: vec![format!("tried {names:?}")], ..world.cell(setting, &code) }
    })
    .with(Setting::mounted())
    .control_cell("print(open('/rw/file.txt').read())", INSIDE)
    .expect(Expected::Harmless("True True"), "only regular files and directories are opened, and never in a way that blocks")
}

/// Runs a cell while another thread does `step` again and again.
pub(super) fn against(
    world: &World<'_>,
    setting: &Setting,
    code: &str,
    step: impl Fn() -> bool + Send + Sync,
) -> Observed {
    beside(step, || world.cell(setting, code))
}

/// Runs something while another thread does `step` again and again.
pub(super) fn beside(
    step: impl Fn() -> bool + Send + Sync,
    run: impl FnOnce() -> Observed,
) -> Observed {
    let stop = AtomicBool::new(false);
    let steps = AtomicU64::new(0);
    let observed = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) && step() {
                steps.fetch_add(1, Ordering::Relaxed);
            }
        });
        let observed = run();
        stop.store(true, Ordering::Relaxed);
        observed
    });
    observed.note(format!("{} swaps", steps.load(Ordering::Relaxed)))
}

/// Exchanges a directory with a link that leads out, without a moment between.
pub(super) fn exchange(world: &World<'_>, mount: &str) -> impl Fn() -> bool + Send + Sync + use<> {
    let (directory, link) = (world.path(mount).join("swap"), world.path(mount).join("link"));
    move || {
        rustix::fs::renameat_with(
            rustix::fs::CWD,
            &directory,
            rustix::fs::CWD,
            &link,
            rustix::fs::RenameFlags::EXCHANGE,
        )
        .is_ok()
    }
}

fn race() -> Attack {
    let tries = if machine::is_full() { 100_000 } else { 20_000 };
    let code = format!(
        "inside = outside = refused = 0\nfor n in range({tries}):\n    try:\n        with open('/ro/swap/secret.txt') as file:\n            text = file.read()\n    except OSError:\n        refused += 1\n    else:\n        if text == '{INSIDE}':\n            inside += 1\n        else:\n            outside += 1\nprint(outside, inside > 0, refused > 0)"
    );
    Attack::host(
        "F-04",
        "a directory that the host swaps for a link during an open never leads outside",
        move |world, setting| against(world, setting, &code, exchange(world, "ro")),
    )
    .with(Setting::mounted().wall_ms(120_000))
    .control(
        // Without the defence: the host's own open follows the link.
        Attempt::Host(Arc::new(|world, _| {
            let swap = exchange(world, "ro");
            let path = world.path("ro/swap/secret.txt");
            let escaped =
                (0..1000).any(|_| swap() && machine::read(&path).as_deref() == Some(OUTSIDE));
            Observed::fact(if escaped { "escaped" } else { "stayed" })
        })),
        Expected::Harmless("escaped"),
    )
    .expect(
        Expected::Harmless("0 True True"),
        "each component is opened below a handle of the one before, without following",
    )
}

/// Swaps between the decision and the open: a sink sees the intent in between.
struct SwapAtIntent<F> {
    inner: MemorySink,
    swap: Mutex<Option<F>>,
}

impl<F: FnOnce() + Send> AuditSink for SwapAtIntent<F> {
    fn record(&self, record: AuditRecord) -> Result<(), AuditUnavailable> {
        if record.operation == "fs.read" && record.target.to_string().contains("swap") {
            let swap = self.swap.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(swap) = swap {
                swap();
            }
        }
        self.inner.record(record)
    }
}

fn between_decision_and_open() -> Attack {
    Attack::host("F-23", "what changes between a decision and the open is not what is opened", |world, setting| {
        let swap = exchange(world, "ro");
        let swapped = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&swapped);
        let act = move || told.store(swap(), Ordering::SeqCst);
        let sink = Arc::new(SwapAtIntent { inner: MemorySink::default(), swap: Mutex::new(Some(act)) });
        let sandbox = match world.builder(setting).map(|builder| builder.audit(sink).build()) {
            Ok(Ok(sandbox)) => sandbox,
            _ => return Observed::broken("no sandbox"),
        };
        let ran = run_in(&sandbox, setting.limits.wall, "try:\n    print(open('/ro/swap/secret.txt').read())\nexcept OSError:\n    print('refused')");
        let text = ran.outcome.stdout_text().trim().to_owned();
        Observed::fact(format!("swapped: {}, {text}", swapped.load(Ordering::SeqCst))).seen([ran])
    })
    .with(Setting::mounted())
    .control_cell("print(open('/ro/swap/secret.txt').read())", INSIDE)
    .expect(
        Expected::AnyOf(vec![Expected::Harmless("swapped: true, refused"), Expected::Harmless("swapped: true, inside")]),
        "a link that turns up is a new path and is decided again",
    )
}

fn pinned_root() -> Attack {
    Attack::host(
        "F-05",
        "a mount stays the directory that was mounted, whatever gets its name later",
        |world, setting| {
            let build = || -> Result<Sandbox, String> { world.sandbox(setting) };
            let sandbox = match build() {
                Ok(sandbox) => sandbox,
                Err(error) => return Observed::broken(error),
            };
            let moved = machine::rename(&world.path("ro"), &world.path("moved"))
                .and_then(|()| std::os::unix::fs::symlink(world.path("outside"), world.path("ro")));
            if let Err(error) = moved {
                return Observed::broken(error.to_string());
            }
            Observed::run(run_in(
                &sandbox,
                setting.limits.wall,
                "import os\nprint(os.path.exists('/ro/secret.txt'), open('/ro/file.txt').read())",
            ))
        },
    )
    .with(Setting::mounted())
    .control(
        // A sandbox built after the change does see the other directory.
        Attempt::Host(Arc::new(|world, setting| {
            let moved = machine::rename(&world.path("ro"), &world.path("moved"))
                .and_then(|()| machine::make_directory(&world.path("ro")))
                .and_then(|()| machine::write(&world.path("ro/other.txt"), "other"));
            match moved {
                Ok(()) => world.cell(setting, "print(open('/ro/other.txt').read())"),
                Err(error) => Observed::broken(error.to_string()),
            }
        })),
        Expected::Harmless("other"),
    )
    .expect(Expected::Harmless("False inside"), "the directory is opened once and kept as a handle")
}

fn shown_names() -> Attack {
    Attack::host("F-14c", "strange names are escaped where they are shown", |world, setting| {
        let ran = world.cell(setting, "for name in (b'a\\nb', b'esc\\x1b[31m', b'\\xff', 'bidi\\u202e'.encode()):\n    open(b'/tmp/' + name, 'w').close()");
        let Some(last) = ran.ran.last() else { return ran };
        let created = last.outcome.files.created.join("");
        let clean = created.chars().all(|c| !c.is_control() && c != '\u{202e}');
        Observed::fact(format!("{} created, clean: {clean}", last.outcome.files.created.len())).seen(ran.ran.clone())
    })
    .no_control("the names themselves are the control: F-14 shows that they are stored")
    .expect(Expected::Harmless("4 created, clean: true"), "names are escaped when a report is made")
}

/// A policy where the code could change it.
fn policies_within_reach() -> Vec<Attack> {
    /// Links that lead to the text, or from where it is named.
    type Links = &'static [(&'static str, &'static str)];
    let build = |world: &World<'_>, setting: &Setting, links: Links, named: &str| -> Observed {
        for (target, link) in links {
            let target = world.path(target);
            if let Err(error) = machine::symlink(&target, &world.path(link)) {
                return Observed::broken(error.to_string());
            }
        }
        for place in ["ro", "rw", "apart"] {
            let made = machine::make_directory(&world.path(place));
            let written =
                made.and_then(|()| machine::write(&world.path(place).join("policy.toml"), "x"));
            if let Err(error) = written {
                return Observed::broken(error.to_string());
            }
        }
        let builder = match world.builder(setting) {
            Ok(builder) => builder.out_of_reach(world.path(named)),
            Err(error) => return Observed::broken(error),
        };
        match builder.build() {
            Ok(sandbox) => Observed::run(run_in(&sandbox, setting.limits.wall, "print('built')")),
            Err(error) => Observed::refused(error.to_string()),
        }
    };
    let attack = |id, property, links: Links, named: &'static str| {
        Attack::host(id, property, move |world, setting| build(world, setting, links, named))
            .with(Setting::mounted())
            .control(
                Attempt::Host(Arc::new(move |world, setting| {
                    build(world, setting, &[], "apart/policy.toml")
                })),
                Expected::Harmless("built"),
            )
            .expect(Expected::Refused(&["can change"]), "what decides is kept from what is decided")
    };
    vec![
        attack(
            "H-23",
            "a policy in a directory that the code can change confines nobody",
            &[],
            "rw/policy.toml",
        ),
        attack(
            "H-23b",
            "a policy that is reached through a link into such a directory confines nobody",
            &[("rw/policy.toml", "elsewhere.toml")],
            "elsewhere.toml",
        ),
        attack(
            "H-23c",
            "a policy whose name lies in such a directory confines nobody",
            &[("apart/policy.toml", "rw/named.toml")],
            "rw/named.toml",
        ),
        attack(
            "H-23d",
            "another name of such a directory is the same directory",
            &[("rw", "other")],
            "other/policy.toml",
        ),
    ]
}

/// Cases of this section whose capability is not there.
pub(super) const WAITING: &[(&str, Capability)] = &[];

/// Every attack of this kind.
pub(super) fn all() -> Vec<Attack> {
    let mut all = by_path();
    all.extend(budgets());
    all.extend(refused_mounts());
    all.extend(policies_within_reach());
    all.extend([devices(), race(), between_decision_and_open(), pinned_root(), shown_names()]);
    all
}
