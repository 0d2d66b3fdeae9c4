//! W: names and links at the ABI, below host directories and in memory.
//!
//! Invariant: exit code 0 of a program means that the call under attack
//! succeeded; any other code is its error number.

use fumehood_host_fns::Errno;

use crate::harness::wat::{NOT_REACHABLE, Program};
use crate::harness::{Attack, Attempt, Control, Expected, Setting};

/// Error numbers of a change that would leave its mount.
const NOT_ACROSS: &[Errno] = &[
    Errno::Xdev,
    Errno::Acces,
    Errno::Rofs,
    Errno::Loop,
    Errno::Perm,
    Errno::Notdir,
    Errno::Noent,
];

fn answer(call: &str) -> Program {
    Program::new(format!("(call $answer {call})"))
}

/// An attack that opens one path, and a control that opens another.
fn opens(id: &'static str, property: &'static str, path: &str, honest: &str) -> Attack {
    let open = |path: &str, flags: u32| answer(&format!("(call $open @\"{path}\" %{flags} %R)"));
    let flags = if honest.ends_with('/') { 2 } else { 0 };
    Attack::module(id, property, open(path, flags))
        .with(Setting::mounted())
        .control_module(open(honest, flags))
        .expect(
            Expected::Errno(NOT_REACHABLE),
            "a link is read and decided again as a guest path, never followed by the host",
        )
}

fn links() -> Vec<Attack> {
    vec![
        opens(
            "W-01",
            "a trailing slash does not make a link out of a mount lead anywhere",
            "ro/link/",
            "ro/good/",
        ),
        opens(
            "W-01b",
            "a link out of a mount in the middle of a path leads nowhere",
            "ro/link/secret.txt",
            "ro/good/secret.txt",
        ),
        opens(
            "W-01c",
            "a link to a directory of the host opens nothing of the host",
            "ro/etc/passwd",
            "ro/good/secret.txt",
        ),
        opens(
            "W-01d",
            "a relative link that climbs out of its mount leads nowhere",
            "ro/up",
            "ro/file.txt",
        ),
        opens(
            "W-01e",
            "a link to itself ends in an error, not in a loop",
            "ro/loop",
            "ro/file.txt",
        ),
        opens(
            "W-01f",
            "repeated slashes and dots do not change where a link leads",
            "ro/.//./link/.//secret.txt",
            "ro/.//./good/.//secret.txt",
        ),
        opens(
            "W-01g",
            "climbing above the root ends at the root of the guest, not of the host",
            "../../../../../../etc/passwd",
            "../../../ro/file.txt",
        ),
        opens(
            "W-01h",
            "an absolute path is a path of the guest, not of the host",
            "/etc/passwd",
            "/ro/file.txt",
        ),
    ]
}

fn renames() -> Vec<Attack> {
    let rename =
        |from: &str, to: &str| answer(&format!("(call $path_rename %3 @\"{from}\" %3 @\"{to}\")"));
    let attack = |id, property, from: &str, to: &str| {
        Attack::module(id, property, rename(from, to))
            .with(Setting::mounted())
            .control_module(rename("rw/dir", "rw/moved"))
            .expect(
                Expected::Errno(NOT_ACROSS),
                "names are changed below a handle of the mount and no link is followed",
            )
    };
    vec![
        attack(
            "W-02",
            "renaming what a link with a trailing slash leads to changes nothing outside",
            "rw/link/",
            "rw/x",
        ),
        attack(
            "W-02b",
            "renaming onto a link with a trailing slash changes nothing outside",
            "rw/file.txt",
            "rw/link/",
        ),
        attack(
            "W-02c",
            "renaming into a directory that a link leads to changes nothing outside",
            "rw/file.txt",
            "rw/link/file.txt",
        ),
        attack(
            "W-02d",
            "renaming out of a directory that a link leads to changes nothing outside",
            "rw/link/secret.txt",
            "rw/stolen",
        ),
        attack(
            "W-07e",
            "a file does not move from a writable mount into memory by its name",
            "rw/file.txt",
            "tmp/stolen",
        ),
    ]
}

fn across_mounts() -> Vec<Attack> {
    let link = |from: &str, to: &str| format!("(call $path_link %3 %0 @\"{from}\" %3 @\"{to}\")");
    let rename = |from: &str, to: &str| format!("(call $path_rename %3 @\"{from}\" %3 @\"{to}\")");
    let attack = |id, property, call: String| {
        Attack::module(id, property, answer(&call))
            .with(Setting::mounted())
            .control_module(answer(
                "(call $path_rename %3 @\"rw/file.txt\" %3 @\"rw/dir/file.txt\")",
            ))
            .expect(
                Expected::Denied { rule: "mount:/ro" },
                "the rule of the read-only mount decides on both names of a change",
            )
    };
    vec![
        attack(
            "W-07",
            "a second name in a writable mount does not make a read-only file writable",
            link("ro/file.txt", "rw/stolen"),
        ),
        attack(
            "W-07b",
            "a file of a read-only mount cannot be moved into a writable one",
            rename("ro/file.txt", "rw/stolen"),
        ),
        attack(
            "W-07c",
            "a read-only mount gets no name for a file of a writable one",
            link("rw/file.txt", "ro/planted"),
        ),
        attack(
            "W-07d",
            "a read-only mount gets no file from a writable one",
            rename("rw/file.txt", "ro/planted"),
        ),
        attack(
            "W-07f",
            "a read-only mount gets no link",
            "(call $path_symlink @\"file.txt\" %3 @\"ro/planted\")".to_owned(),
        ),
        attack(
            "W-07g",
            "a file of a read-only mount is not opened for writing",
            "(call $open @\"ro/file.txt\" %0 %W)".to_owned(),
        ),
        attack(
            "W-07h",
            "a file of a read-only mount is not cut by opening it",
            "(call $open @\"ro/file.txt\" %8 %R)".to_owned(),
        ),
        attack(
            "W-07i",
            "the times of a file of a read-only mount stay",
            "(call $path_filestat_set_times %3 %1 @\"ro/file.txt\" %L1 %L1 %5)".to_owned(),
        ),
    ]
}

/// A descriptor opened for reading cannot be used to change its file.
fn rights() -> Vec<Attack> {
    let attack = |id, property, call: &str| {
        Attack::module(
            id,
            property,
            Program::new(format!(
                "(call $must (call $open @\"rw/file.txt\" %0 %R)) (call $answer {call})"
            )),
        )
        .with(Setting::mounted())
        .control_module(Program::new(format!(
            "(call $must (call $open @\"rw/file.txt\" %0 %W)) (call $answer {call})"
        )))
        .expect(
            Expected::Errno(&[Errno::Badf, Errno::Acces, Errno::Inval]),
            "what a descriptor may do was decided when it was opened",
        )
    };
    vec![
        attack("W-17d", "a descriptor for reading does not write", "(call $put (call $fd))"),
        attack(
            "W-17e",
            "a descriptor for reading does not change the length",
            "(call $fd_filestat_set_size (call $fd) %L0)",
        ),
    ]
}

fn names() -> Vec<Attack> {
    // Names that mean something on other systems are plain names here: each is
    // created in memory and is then the only entry of its directory.
    let plain = |id, property, name: &str, expected: &'static str| {
        let create = |name: &str| {
            Program::new(format!(
                "(call $must (call $path_create_directory %3 @\"tmp/d\"))
                 (call $must (call $open @\"tmp/d/{name}\" %1 %W))
                 (call $must (call $open @\"tmp/d\" %2 %R))
                 (call $must (call $fd_readdir (call $fd) %65536 %4096 %L2 %80))
                 (call $print %65560 (i32.load %65552))"
            ))
        };
        Attack::module(id, property, create(name))
            .control(Attempt::Module(create("plain")), Expected::Harmless("plain"))
            .expect(
                Expected::Harmless(expected),
                "names are bytes, and only NUL and the slash mean anything",
            )
    };
    vec![
        plain(
            "W-08b",
            "a drive prefix is a name like any other and reaches no drive",
            "C:secret",
            "C:secret",
        ),
        plain(
            "W-08c",
            "backslashes separate nothing and reach no device",
            r"\5c\5c?\5cC:\5cx",
            r"\\?\C:\x",
        ),
        plain(
            "W-10b",
            "a stream suffix is part of a name and reaches no stream",
            "file::$DATA",
            "file::$DATA",
        ),
        plain("W-10c", "a short alias is a name of its own", "PROGRA~1", "PROGRA~1"),
        Attack::module(
            "W-08d",
            "two slashes at the front reach no other host",
            answer("(call $open @\"//server/share\" %0 %R)"),
        )
        .control_module(answer("(call $open @\"//tmp\" %2 %R)"))
        .expect(Expected::Errno(NOT_REACHABLE), "slashes at the front are one slash"),
        Attack::module(
            "F-14b",
            "a NUL in a name is refused and cuts nothing",
            answer("(call $open @\"ro/file.txt\\00/../../x\" %0 %R)"),
        )
        .with(Setting::mounted())
        .control_module(answer("(call $open @\"ro/file.txt\" %0 %R)"))
        .expect(Expected::Errno(&[Errno::Inval, Errno::Ilseq]), "a path with NUL is no path"),
    ]
}

fn times() -> Vec<Attack> {
    let times = |accessed: &str, modified: &str, flags: u32| {
        answer(&format!(
            "(call $path_filestat_set_times %3 %1 @\"rw/file.txt\" {accessed} {modified} %{flags})"
        ))
    };
    let attack = |id, property, program| {
        Attack::module(id, property, program)
            .with(Setting::mounted())
            .control_module(times("%L1000000000", "%L1000000000", 5))
            .expect(
                Expected::Errno(&[Errno::Inval, Errno::Overflow]),
                "times are checked before anything is changed",
            )
    };
    vec![
        attack(
            "W-19",
            "a time that no clock shows is an error, not a panic",
            times("%L-1", "%L-1", 5),
        ),
        attack("W-19b", "a time cannot be both given and now", times("%L0", "%L0", 3)),
        attack("W-19c", "flags that do not exist are an error", times("%L0", "%L0", 255)),
        attack(
            "W-19d",
            "a time before the epoch is an error or what it says",
            times("%L-9223372036854775808", "%L0", 1),
        ),
    ]
}

fn readdir() -> Vec<Attack> {
    // Fills the buffer with 0xAA, lists `/tmp/d` with one file into a part of
    // it, and checks that nothing behind the part was written.
    let list = |size: u32, cookie: &str, check: &str| {
        Program::new(format!(
            "(call $must (call $path_create_directory %3 @\"tmp/d\"))
             (call $must (call $open @\"tmp/d/name\" %1 %W))
             (call $must (call $open @\"tmp/d\" %2 %R))
             (memory.fill %65536 %170 %1024)
             (call $must (call $fd_readdir (call $fd) %65536 %{size} {cookie} %80))
             (call $unless (i32.le_u (i32.load %80) %{size}) %1)
             (call $unless (i32.eq (i32.load8_u (i32.add %65536 %{size})) %170) %2)
             {check}"
        ))
    };
    let padding = "(call $unless (i32.eqz (i32.shr_u (i32.load %65556) %8)) %3)";
    let truncated = |id, property, size, check: &str| {
        Attack::module(id, property, list(size, "%L0", check))
            .control_module(list(512, "%L0", "(call $unless (i32.gt_u (i32.load %80) %24) %4)"))
            .expect(
                Expected::Harmless(""),
                "a listing is cut at the end of the buffer and at nothing else",
            )
    };
    vec![
        truncated(
            "W-20",
            "a listing into no bytes writes none",
            0,
            "(call $unless (i32.eqz (i32.load %80)) %3)",
        ),
        truncated(
            "W-20b",
            "a listing into one byte writes one",
            1,
            "(call $unless (i32.eq (i32.load %80) %1) %3)",
        ),
        truncated(
            "W-20c",
            "a listing cut inside its header writes nothing behind it",
            23,
            "(call $unless (i32.eq (i32.load %80) %23) %3)",
        ),
        truncated("W-20d", "the padding of a directory entry holds nothing", 24, padding),
        Attack::module(
            "W-20e",
            "a cookie that was never given lists nothing and reads nothing",
            list(512, "%L-1", "(call $unless (i32.eqz (i32.load %80)) %3)"),
        )
        .control_module(list(512, "%L0", "(call $unless (i32.load %80) %3)"))
        .expect(Expected::Harmless(""), "a cookie is an index that is checked"),
        Attack::module(
            "W-20f",
            "a directory with more entries than the limit is an error and no unbounded list",
            Program::new(
                "
                 (call $must (call $path_create_directory %3 @\"tmp/d\"))
                 (loop $again
                   (i32.store8 %4104 (i32.add %97 (i32.rem_u (local.get $i) %26)))
                   (i32.store8 %4105 (i32.add %97 (i32.div_u (local.get $i) %26)))
                   (call $must (call $open %4098 %8 %1 %W))
                   (call $must (call $fd_close (call $fd)))
                   (local.set $i (i32.add (local.get $i) %1))
                   (br_if $again (i32.lt_u (local.get $i) %200)))
                 (call $must (call $open @\"tmp/d\" %2 %R))
                 (call $answer (call $fd_readdir (call $fd) %65536 %4096 %L0 %80))",
            )
            .functions("(func $keep (drop (i32.add @\"tmp/d/__\")))"),
        )
        .with(Setting::default().limit(|limits| limits.broker.directory_entries = 100))
        .control(Attempt::Module(list(512, "%L0", "")), Expected::Harmless(""))
        .expect(
            Expected::Errno(&[Errno::Overflow, Errno::Nomem, Errno::Nospc]),
            "the entries of a listing are counted",
        ),
    ]
}

/// Every attack of this kind.
pub(super) fn all() -> Vec<Attack> {
    let mut all = links();
    all.extend(renames());
    all.extend(across_mounts());
    all.extend(rights());
    all.extend(names());
    all.extend(times());
    all.extend(readdir());
    debug_assert!(all.iter().all(|attack| !matches!(attack.control, Control::Absent(_))));
    all
}
