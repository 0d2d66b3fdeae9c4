//! Random trees, random edits of both sides, and what is compared afterwards.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "tests prepare and inspect the host side"
)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::strategy::Strategy as Strategy2;

use super::open::{Strategy, Workspace, WorkspaceOptions};
use super::testing::*;

/// Few names, so that both sides meet; odd ones among them, and one that a
/// sync would choose.
pub(super) const NAMES: [&[u8]; 6] = [b"a", b"b", b"c\\d", b"e\nf", b"\xff", b"a.sandbox"];

/// What one side does, on the directory it sees.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(super) enum Edit {
    Write(Vec<usize>, u8),
    Remove(Vec<usize>),
    MakeDirectory(Vec<usize>),
    Link(Vec<usize>, usize),
    Mode(Vec<usize>, bool),
    Rename(Vec<usize>, Vec<usize>),
}

pub(super) fn place() -> impl Strategy2<Value = Vec<usize>> {
    proptest::collection::vec(0..NAMES.len(), 1..4)
}

pub(super) fn edit() -> impl Strategy2<Value = Edit> {
    prop_oneof![
        4 => (place(), any::<u8>()).prop_map(|(at, byte)| Edit::Write(at, byte)),
        2 => place().prop_map(Edit::Remove),
        1 => place().prop_map(Edit::MakeDirectory),
        1 => (place(), 0..NAMES.len()).prop_map(|(at, to)| Edit::Link(at, to)),
        1 => (place(), any::<bool>()).prop_map(|(at, on)| Edit::Mode(at, on)),
        2 => (place(), place()).prop_map(|(from, to)| Edit::Rename(from, to)),
    ]
}

pub(super) fn edits(most: usize) -> impl Strategy2<Value = Vec<Edit>> {
    proptest::collection::vec(edit(), 0..most)
}

pub(super) fn relative(at: &[usize]) -> PathBuf {
    at.iter().map(|index| Path::new(std::ffi::OsStr::from_bytes(NAMES[*index]))).collect()
}

/// Whether every directory above is a real one.
pub(super) fn real(root: &Path, at: &[usize]) -> bool {
    let mut path = root.to_owned();
    for index in &at[..at.len() - 1] {
        path.push(std::ffi::OsStr::from_bytes(NAMES[*index]));
        if !fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
            return false;
        }
    }
    true
}

/// Edits a directory of the host.
pub(super) fn edit_host(root: &Path, edit: &Edit) {
    match edit {
        Edit::Write(at, byte) => {
            let mut parent = root.to_owned();
            for index in &at[..at.len() - 1] {
                parent.push(std::ffi::OsStr::from_bytes(NAMES[*index]));
                let _ = fs::create_dir(&parent);
            }
            let path = root.join(relative(at));
            if real(root, at) && !fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink())
            {
                let _ = fs::write(path, [*byte; 3]);
            }
        }
        Edit::Remove(at) if real(root, at) => {
            let path = root.join(relative(at));
            match fs::symlink_metadata(&path) {
                Ok(found) if found.is_dir() => fs::remove_dir_all(path).unwrap(),
                Ok(_) => fs::remove_file(path).unwrap(),
                Err(_) => {}
            }
        }
        Edit::MakeDirectory(at) if real(root, at) => {
            let _ = fs::create_dir(root.join(relative(at)));
        }
        Edit::Link(at, to) if real(root, at) => {
            let _ = symlink(std::ffi::OsStr::from_bytes(NAMES[*to]), root.join(relative(at)));
        }
        Edit::Mode(at, on) if real(root, at) => {
            let path = root.join(relative(at));
            if fs::symlink_metadata(&path).is_ok_and(|found| found.is_file()) {
                let mode = if *on { 0o755 } else { 0o644 };
                fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            }
        }
        Edit::Rename(from, to) if real(root, from) && real(root, to) => {
            let _ = fs::rename(root.join(relative(from)), root.join(relative(to)));
        }
        _ => {}
    }
}

/// Edits what the agent sees: through the guest with an overlay, in the copy
/// otherwise.
pub(super) fn edit_agent(lab: &Lab, workspace: &Workspace, edit_list: &[Edit]) {
    if lab.strategy == Strategy::Materialised {
        for edit in edit_list {
            edit_host(&lab.session().join("upper"), edit);
        }
        return;
    }
    let mut agent = agent(workspace);
    for edit in edit_list {
        edit_guest(&mut agent, edit);
    }
}

pub(super) fn guest_path(at: &[usize]) -> Vec<u8> {
    at.iter().fold(b"/p".to_vec(), |path, index| [path.as_slice(), b"/", NAMES[*index]].concat())
}

pub(super) fn edit_guest(agent: &mut crate::testing::Guest, edit: &Edit) {
    use crate::call::HostCall;
    use crate::testing::{CREATE, ROOT, TRUNCATE, W};
    let mut call = |call: HostCall<'_>| agent.call(call).is_ok();
    match edit {
        Edit::Write(at, byte) => {
            for length in 1..at.len() {
                let path = guest_path(&at[..length]);
                call(HostCall::PathCreateDirectory { dir: ROOT, path: &path });
            }
            let path = guest_path(at);
            let open = HostCall::PathOpen {
                dir: ROOT,
                follow: false,
                path: &path,
                open_flags: CREATE | TRUNCATE,
                rights_base: W,
                rights_inheriting: 0,
                fd_flags: 0,
            };
            if let Ok(crate::call::HostAnswer::Descriptor(fd)) = agent.call(open) {
                agent.write(fd, &[*byte; 3]).unwrap();
                agent.close(fd).unwrap();
            }
        }
        Edit::Remove(at) => remove_guest(agent, &guest_path(at)),
        Edit::MakeDirectory(at) => {
            call(HostCall::PathCreateDirectory { dir: ROOT, path: &guest_path(at) });
        }
        Edit::Link(at, to) => {
            let path = guest_path(at);
            call(HostCall::PathSymlink { target: NAMES[*to], dir: ROOT, path: &path });
        }
        Edit::Mode(..) => {}
        Edit::Rename(from, to) => {
            let (old, new) = (guest_path(from), guest_path(to));
            call(HostCall::PathRename { old_dir: ROOT, old: &old, new_dir: ROOT, new: &new });
        }
    }
}

pub(super) fn remove_guest(agent: &mut crate::testing::Guest, path: &[u8]) {
    use crate::call::HostCall;
    use crate::testing::ROOT;
    let look = HostCall::PathFilestatGet { dir: ROOT, follow: false, path };
    if agent.call(look).is_err() || agent.call(HostCall::PathUnlinkFile { dir: ROOT, path }).is_ok()
    {
        return;
    }
    for name in NAMES {
        remove_guest(agent, &[path, b"/", name].concat());
    }
    let _ = agent.call(HostCall::PathRemoveDirectory { dir: ROOT, path });
}

/// What the agent sees, as a tree.
pub(super) fn agent_tree(lab: &Lab, workspace: &Workspace) -> Tree {
    if lab.strategy == Strategy::Materialised {
        return tree(&lab.session().join("upper"));
    }
    let mut agent = agent(workspace);
    let mut found = Tree::new();
    walk_guest(&mut agent, b"/p", &mut found);
    found
}

pub(super) fn walk_guest(agent: &mut crate::testing::Guest, at: &[u8], found: &mut Tree) {
    use crate::call::{FileType, HostAnswer, HostCall};
    use crate::testing::ROOT;
    for name in NAMES.into_iter().flat_map(|name| {
        let mut all = vec![name.to_vec()];
        for tail in [".sandbox", ".sandbox.2", ".sandbox.3", ".local"] {
            all.push([name, tail.as_bytes()].concat());
        }
        all
    }) {
        let path = [at, b"/", name.as_slice()].concat();
        let get = HostCall::PathFilestatGet { dir: ROOT, follow: false, path: &path };
        let Ok(HostAnswer::Filestat(stat)) = agent.call(get) else { continue };
        let key = path.strip_prefix(b"/p/").unwrap().to_vec();
        match stat.file_type {
            FileType::Directory => {
                found.insert(key, Seen::Directory);
                walk_guest(agent, &path, found);
            }
            FileType::SymbolicLink => {
                let mut into = [0; 64];
                let read = HostCall::PathReadlink { dir: ROOT, path: &path, into: &mut into };
                let length = agent.size(read).unwrap();
                found.insert(key, Seen::Symlink(into[..length].to_vec()));
            }
            _ => {
                let open = HostCall::PathOpen {
                    dir: ROOT,
                    follow: false,
                    path: &path,
                    open_flags: 0,
                    rights_base: crate::testing::R,
                    rights_inheriting: 0,
                    fd_flags: 0,
                };
                let Ok(HostAnswer::Descriptor(fd)) = agent.call(open) else { panic!("no file") };
                let bytes = agent.read(fd, 64).unwrap();
                agent.close(fd).unwrap();
                found.insert(key, Seen::File(bytes, 0));
            }
        }
    }
}

/// A tree without permission bits, where a side does not show them.
pub(super) fn plain(tree: Tree) -> Tree {
    tree.into_iter()
        .map(|(path, seen)| match seen {
            Seen::File(bytes, _) => (path, Seen::File(bytes, 0)),
            other => (path, other),
        })
        .collect()
}

/// How often each content is there.
pub(super) fn contents(tree: &Tree) -> BTreeMap<Vec<u8>, usize> {
    let mut counts = BTreeMap::new();
    for seen in tree.values() {
        if let Seen::File(bytes, _) = seen {
            *counts.entry(bytes.clone()).or_insert(0) += 1;
        }
    }
    counts
}

/// A lab after both sides edited: what was agreed on, and what each has.
pub(super) struct Edited {
    pub(super) lab: Lab,
    pub(super) workspace: Workspace,
    pub(super) base: Tree,
    pub(super) user: Tree,
    pub(super) agent: Tree,
}

pub(super) fn edited(strategy: Strategy, base: &[Edit], agent: &[Edit], user: &[Edit]) -> Edited {
    edited_with(&WorkspaceOptions::default(), strategy, base, agent, user)
}

pub(super) fn edited_with(
    options: &WorkspaceOptions,
    strategy: Strategy,
    base: &[Edit],
    agent: &[Edit],
    user: &[Edit],
) -> Edited {
    let lab = Lab::fast(strategy);
    base.iter().for_each(|edit| edit_host(&lab.project(), edit));
    let before = lab.tree();
    let workspace = lab.create_with(options);
    edit_agent(&lab, &workspace, agent);
    user.iter().for_each(|edit| edit_host(&lab.project(), edit));
    let (user, agent) = (lab.tree(), plain(agent_tree(&lab, &workspace)));
    Edited { lab, workspace, base: before, user, agent }
}

/// No byte of the user's is gone that was not agreed on: each file that the
/// user has and that is not what was agreed on at its path is still there with
/// its content, at its path or beside it.
pub(super) fn nothing_lost(edited: &Edited, after: &Tree) {
    for (path, seen) in &edited.user {
        if edited.base.get(path) == Some(seen) {
            continue;
        }
        if let Seen::File(..) | Seen::Symlink(_) = seen {
            assert_eq!(after.get(path), Some(seen), "{}", path.escape_ascii());
        } else {
            assert!(after.contains_key(path), "directory {}", path.escape_ascii());
        }
    }
}

/// No content of the agent's is gone: everything it has is in the project.
pub(super) fn agents_work_is_there(edited: &Edited, after: &Tree) {
    let there = contents(after);
    for (bytes, _) in contents(&edited.agent) {
        let known =
            edited.base.values().any(|seen| matches!(seen, Seen::File(b, _) if *b == bytes));
        assert!(known || there.contains_key(&bytes), "{bytes:?}");
    }
}

pub(super) fn no_stray(tree: &Tree) {
    assert!(!tree.keys().any(|path| path.starts_with(b".fumehood")), "a stray stage");
}

/// Where the user did nothing, the project is what the agent has.
pub(super) fn agrees(lab: &Lab, workspace: &Workspace) {
    assert_eq!(plain(lab.tree()), plain(agent_tree(lab, workspace)), "both sides agree");
}

/// As many cases, unless `PROPTEST_CASES` says otherwise.
pub(super) fn cases(cases: u32) -> ProptestConfig {
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    let default = ProptestConfig::default();
    ProptestConfig { cases: if asked { default.cases } else { cases }, ..default }
}

pub(super) fn strategies() -> impl Strategy2<Value = Strategy> {
    prop_oneof![Just(Strategy::Live), Just(Strategy::Materialised)]
}
