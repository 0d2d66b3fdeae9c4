//! The file tools, on a host directory, an overlay and in memory.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "tests prepare and inspect the host side"
)]

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use fumehood_guest_abi::ToolErrorKind;
use fumehood_policies::Access;
use serde_json::{Value, json};

use crate::fs::HostMount;
use crate::testing::Guest;
use crate::tools::{ToolSet, file_tools};
use crate::workspace::Strategy;
use crate::workspace::testing::Lab;

fn equipped(mount: HostMount) -> Guest {
    Guest::with(|config| {
        let mut set = ToolSet::new();
        for tool in file_tools().unwrap() {
            set.add(tool).unwrap();
        }
        config.tools = set.into();
        config.mounts.push(mount);
    })
}

fn call(guest: &mut Guest, name: &str, arguments: Value) -> Result<String, String> {
    match guest.broker.call_tool(name, &arguments) {
        Ok(value) => Ok(value.as_str().unwrap().to_owned()),
        Err(error) => Err(error.message),
    }
}

fn told(guest: &mut Guest, name: &str, arguments: Value) -> String {
    call(guest, name, arguments).unwrap()
}

fn failed(guest: &mut Guest, name: &str, arguments: Value) -> String {
    call(guest, name, arguments).unwrap_err()
}

/// The same on both kinds of mounts.
fn on_both(test: impl Fn(&Lab, &mut Guest)) {
    let lab = Lab::new(Strategy::Live);
    fs::write(lab.root.path().join("canary"), "canary").unwrap();
    let mount = HostMount::open("/p", &lab.project(), Access::ReadWrite, false).unwrap();
    test(&lab, &mut equipped(mount));
    let lab = Lab::new(Strategy::Live);
    fs::write(lab.root.path().join("canary"), "canary").unwrap();
    let workspace = lab.create();
    test(&lab, &mut equipped(workspace.mount("/p").unwrap()));
    assert!(lab.tree().values().all(|seen| !format!("{seen:?}").contains("agent")));
}

#[test]
fn files_are_written_read_edited_and_deleted() {
    on_both(|_, guest| {
        let write = json!({"path": "a/b/f.txt", "content": "one\ntwo\nagent\n"});
        assert_eq!(told(guest, "write_file", write.clone()), "Written 14 bytes to /p/a/b/f.txt");
        assert_eq!(
            failed(guest, "write_file", write),
            "FileExistsError: File exists; set overwrite=True to replace it"
        );
        assert_eq!(
            told(guest, "read_file", json!({"path": "/p/a/b/f.txt"})),
            "1\tone\n2\ttwo\n3\tagent\n"
        );
        assert_eq!(
            told(guest, "read_file", json!({"path": "a/b/f.txt", "offset": 1, "limit": 1})),
            "2\ttwo\n\n[truncated: read byte or line limit reached]\n"
        );
        assert_eq!(told(guest, "read_file", json!({"path": "a/b/f.txt", "limit": 0})), "");
        assert_eq!(
            failed(guest, "edit_file", json!({"path": "a/b/f.txt", "old": "none", "new": ""})),
            "ValueError: old_string was not found; it must match the file exactly"
        );
        let twice = json!({"path": "a/b/f.txt", "old": "o", "new": "$0"});
        assert!(failed(guest, "edit_file", twice).contains("matches 2 times;"));
        let all = json!({"path": "a/b/f.txt", "old": "o", "new": "$0", "replace_all": true});
        assert_eq!(told(guest, "edit_file", all), "Replaced 2 occurrence(s) in /p/a/b/f.txt");
        assert_eq!(guest.get("/p/a/b/f.txt").unwrap(), b"$0ne\ntw$0\nagent\n");
        let over = json!({"path": "a/b/f.txt", "content": "new", "overwrite": true});
        told(guest, "write_file", over);
        assert_eq!(guest.get("/p/a/b/f.txt").unwrap(), b"new");
        assert_eq!(guest.list("/p/a/b").unwrap(), ["f.txt"], "no temporary file is left");
        assert!(failed(guest, "delete", json!({"path": "a"})).contains("recursive=True"));
        assert_eq!(
            told(guest, "delete", json!({"path": "a", "recursive": true})),
            "Deleted /p/a and 2 entries below it"
        );
        for base in [".", "/p", "/"] {
            assert!(
                failed(guest, "delete", json!({"path": base, "recursive": true}))
                    .contains("Refusing to delete the base directory itself")
            );
        }
        told(guest, "write_file", json!({"path": "e/x", "content": ""}));
        assert_eq!(told(guest, "delete", json!({"path": "e/x"})), "Deleted /p/e/x");
        assert_eq!(told(guest, "delete", json!({"path": "e"})), "Deleted empty directory /p/e");
        assert_eq!(
            failed(guest, "read_file", json!({"path": "e"})),
            "FileNotFoundError: no such file or directory: /p/e"
        );
        let files = guest.broker.report().files;
        assert!(files.created.is_empty() && files.modified.is_empty(), "{files:?}");
    });
}

#[test]
fn a_file_that_is_replaced_keeps_its_permissions() {
    on_both(|lab, guest| {
        for (name, mode) in [("run.sh", 0o755), ("secret", 0o600), ("fixed", 0o444)] {
            lab.write(name, "one two");
            let set = |mode| {
                fs::set_permissions(lab.user(name), fs::Permissions::from_mode(mode)).unwrap();
            };
            set(mode);
            for (tool, arguments) in [
                ("edit_file", json!({"path": name, "old": "two", "new": "three"})),
                ("write_file", json!({"path": name, "content": "four", "overwrite": true})),
            ] {
                told(guest, tool, arguments);
                let upper = lab.session().join("upper").join(name);
                let seen = if upper.exists() { upper } else { lab.user(name) };
                let now = fs::metadata(seen).unwrap().permissions().mode() & 0o7777;
                assert_eq!(now, mode, "{tool} {name}");
            }
            assert_eq!(guest.get(&format!("/p/{name}")).unwrap(), b"four");
        }
    });
}

#[test]
fn links_are_never_followed() {
    on_both(|lab, guest| {
        symlink(lab.root.path().join("canary"), lab.user("out")).unwrap();
        symlink(lab.root.path(), lab.user("up")).unwrap();
        lab.write("real/x", "x");
        symlink("real", lab.user("in")).unwrap();
        for path in ["out", "up/canary", "in/x"] {
            for (tool, arguments) in [
                ("read_file", json!({"path": path})),
                ("write_file", json!({"path": path, "content": "agent", "overwrite": true})),
                ("edit_file", json!({"path": path, "old": "x", "new": "agent"})),
                ("grep", json!({"path": path, "pattern": "x"})),
            ] {
                let message = failed(guest, tool, arguments);
                assert!(message.starts_with("PermissionError"), "{tool} {path}: {message}");
                assert!(!message.contains(lab.root.path().to_str().unwrap()), "{message}");
            }
        }
        assert_eq!(told(guest, "glob", json!({"pattern": "x"})), "real/x");
        assert_eq!(told(guest, "grep", json!({"pattern": "canary|x"})), "  real/x:1: x");
        let list = told(guest, "list_directory", json!({}));
        assert!(list.contains("  in [symlink; access disabled]"), "{list}");
        assert!(list.contains("  real/"), "{list}");
        assert_eq!(told(guest, "delete", json!({"path": "in"})), "Deleted symlink /p/in");
        assert_eq!(guest.get("/p/real/x").unwrap(), b"x");
        assert_eq!(fs::read(lab.root.path().join("canary")).unwrap(), b"canary");
    });
}

#[test]
fn names_are_bytes_and_shown_on_one_line() {
    on_both(|lab, guest| {
        let odd: &[u8] = b"a\nb\\\xff.txt";
        fs::write(lab.project().join(std::ffi::OsStr::from_bytes(odd)), "odd\n").unwrap();
        let shown = "a\\u{a}b\\\\\\xff.txt";
        assert_eq!(told(guest, "glob", json!({"pattern": "*.txt"})), shown);
        assert!(
            told(guest, "list_directory", json!({})).ends_with(&format!("  {shown} (4 bytes)"))
        );
        assert_eq!(told(guest, "grep", json!({"pattern": "o"})), format!("  {shown}:1: odd"));
        assert_eq!(told(guest, "read_file", json!({"path": shown})), "1\todd\n");
        assert!(failed(guest, "read_file", json!({"path": "a\u{0}b"})).starts_with("ValueError"));
    });
}

#[test]
fn searching_is_bounded() {
    on_both(|_, guest| {
        for number in 0..3 {
            let content = format!("line {}\n", "x".repeat(300)).repeat(400);
            let path = format!("d{number}/f.py");
            told(guest, "write_file", json!({"path": path, "content": content}));
        }
        let found = told(guest, "grep", json!({"pattern": "line", "include": "*.py"}));
        assert_eq!(found.lines().count(), 1001);
        assert!(found.ends_with("[truncated: there is more]"));
        assert!(found.lines().next().unwrap().len() < 230);
        assert_eq!(
            told(guest, "grep", json!({"pattern": "line", "include": "*.rs"})),
            "No lines match."
        );
        // Exponential in a matcher that backtracks.
        let slow = json!({"pattern": "(x+x+)+y"});
        assert_eq!(told(guest, "grep", slow), "No lines match.");
        for pattern in ["(?=x)", "(x)\\1", "("] {
            let message = failed(guest, "grep", json!({"pattern": pattern}));
            assert!(message.starts_with("ValueError: the pattern cannot be used"), "{message}");
        }
        let large = failed(guest, "grep", json!({"pattern": "\\w{200}"}));
        assert!(large.starts_with("ValueError: the pattern cannot be used"), "{large}");
        assert!(failed(guest, "glob", json!({"pattern": "*".repeat(5000)})).contains("4096"));
        assert_eq!(told(guest, "glob", json!({"pattern": "d*"})).lines().count(), 6);
    });
}

#[test]
fn long_lines_and_long_texts_are_searched_piece_by_piece() {
    on_both(|_, guest| {
        let content = format!("{}end\nend\n", "x".repeat(40_000));
        told(guest, "write_file", json!({"path": "long", "content": content}));
        assert_eq!(
            told(guest, "grep", json!({"pattern": "end"})),
            "  long:2: end\n[truncated: of longer lines only 32768 bytes were searched]"
        );
        assert!(!told(guest, "grep", json!({"pattern": "^x"})).contains("truncated"));
        // Compiled as a pattern it would take hundreds of megabytes.
        let old = "ab".repeat(500_000);
        let whole = format!("{old}c{old}");
        told(guest, "write_file", json!({"path": "text", "content": whole}));
        let edit = json!({"path": "text", "old": old, "new": "n", "replace_all": true});
        assert_eq!(told(guest, "edit_file", edit), "Replaced 2 occurrence(s) in /p/text");
        assert_eq!(guest.get("/p/text").unwrap(), b"ncn");
    });
}

#[test]
fn every_step_is_decided() {
    use fumehood_policies::{Flags, Policy, PolicyFile};
    let text = "version = 1\n[fs]\n[[fs.rules]]\nid = \"secret\"\naction = \"deny\"\npaths = [\"/**/secret*\"]\n[[tools.rules]]\nid = \"files\"\ntools = [\"*\"]\n";
    let file = PolicyFile::parse(text, "test").unwrap();
    let policy = Policy::combine(Some(&file), &Flags::default(), None).unwrap().policy;
    let mut guest = Guest::with(|config| {
        let mut set = ToolSet::new();
        for tool in file_tools().unwrap() {
            set.add(tool).unwrap();
        }
        config.tools = set.into();
        config.policy = Some(policy);
        config.files.push((crate::testing::path("/work/secret"), b"hush".to_vec()));
        config.files.push((crate::testing::path("/work/open"), b"hello".to_vec()));
    });
    assert_eq!(told(&mut guest, "grep", json!({"pattern": "h"})), "  open:1: hello");
    for (tool, arguments) in [
        ("read_file", json!({"path": "secret"})),
        ("write_file", json!({"path": "secret", "content": "", "overwrite": true})),
        ("delete", json!({"path": "secret"})),
    ] {
        let message = failed(&mut guest, tool, arguments);
        assert!(message.starts_with("PermissionError"), "{message}");
    }
    let denials = guest.broker.report().denials;
    assert!(denials.iter().all(|denial| denial.rule == "secret") && !denials.is_empty());
    let unknown = guest.broker.call_tool("none", &json!({})).unwrap_err();
    assert_eq!(unknown.kind, Some(ToolErrorKind::Unknown));
    let wrong = guest.broker.call_tool("read_file", &json!({"path": 1})).unwrap_err();
    assert_eq!(wrong.kind, Some(ToolErrorKind::Arguments));
}
