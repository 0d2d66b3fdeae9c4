//! Changes of a workspace as one file: a compressed tar archive.
//!
//! What: the form of a layer of the OCI image specification: changed files,
//! links and directories; `.wh.<name>` for what is removed, `.wh..wh..opq` for
//! a directory that hides the one below it.
//! Why: a session's changes can be kept elsewhere and taken up again.
//!
//! Invariant: an archive is taken in completely or not at all. An entry is
//! refused unless its path is relative, has no `..`, goes through no symbolic
//! link, comes once, and is a regular file, a directory or a symbolic link.
//! What is unpacked is bounded, whatever the archive says of itself.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};

use fumehood_policies::{MAX_COMPONENT_BYTES, MAX_PATH_BYTES};
use rustix::fs::Mode;
use tar::{Archive, Builder, EntryType, Header};

use crate::fs::handle::{Directory, Kind, joined, os, split};
use crate::fs::overlay::{
    Layer, OPAQUE, holds_file_whiteouts, is_opaque, make_whiteout, mark_whiteouts,
};
use crate::fs::stays_below;
use crate::workspace::baseline::Baselines;
use crate::workspace::local::Began;
use crate::workspace::open::{Strategy, Workspace};
use crate::workspace::report::ProjectPath;
use crate::workspace::settle::measure;
use crate::workspace::state::MODE_BITS;

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE_MARK: &[u8] = b".wh..wh..opq";
const INCOMING: &[u8] = b"incoming";
/// Compression of an export; the default of the library.
const LEVEL: i32 = 3;
/// Bytes of one copy.
const CHUNK: usize = 64 << 10;

/// Why an archive is not taken in, or not made.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// An entry could reach outside, or is nothing that a project holds.
    #[error("the archive is refused, nothing was taken in: its entry `{path}` {reason}")]
    Unsafe {
        /// The entry's path.
        path: ProjectPath,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// It would not fit the workspace.
    #[error(
        "the archive is refused, nothing was taken in: it holds more than {bytes} bytes or {inodes} entries"
    )]
    TooLarge {
        /// The limit.
        bytes: u64,
        /// The limit.
        inodes: u64,
    },
    /// The workspace has changes of its own.
    #[error("the workspace has changes of its own: sync or discard them first")]
    NotEmpty,
    /// A whole copy has no changes that could be told from it.
    #[error(
        "only the changes of a live workspace can be exported or imported: sync this one instead"
    )]
    NotLive,
    /// It cannot be read or written.
    #[error("the archive cannot be read or written: it may be damaged, or there is no space")]
    Io {
        /// Why.
        #[from]
        source: io::Error,
    },
}

impl From<rustix::io::Errno> for ArchiveError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Io { source: error.into() }
    }
}

impl ArchiveError {
    /// A stable identifier.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unsafe { .. } => "archive_unsafe",
            Self::TooLarge { .. } => "archive_too_large",
            Self::NotEmpty => "archive_workspace_not_empty",
            Self::NotLive => "archive_not_live",
            Self::Io { .. } => "archive_io",
        }
    }
}

fn refuse<T>(path: &[u8], reason: &'static str) -> Result<T, ArchiveError> {
    Err(ArchiveError::Unsafe { path: ProjectPath(path.to_vec()), reason })
}

/// Counts down what may still be unpacked.
struct Room {
    bytes: u64,
    inodes: u64,
}

impl Room {
    fn entry(&mut self, whole: &Workspace) -> Result<(), ArchiveError> {
        self.inodes = self.inodes.checked_sub(1).ok_or_else(|| too_large(whole))?;
        Ok(())
    }
}

fn too_large(workspace: &Workspace) -> ArchiveError {
    let limits = workspace.limits();
    ArchiveError::TooLarge { bytes: limits.bytes, inodes: limits.inodes }
}

impl Workspace {
    /// Writes the agent's changes as a compressed archive.
    ///
    /// # Errors
    /// [`ArchiveError`] if there is no such form of them, or writing fails.
    pub fn export(&self, out: impl Write) -> Result<(), ArchiveError> {
        if self.strategy() == Strategy::Materialised {
            return Err(ArchiveError::NotLive);
        }
        export_tree(out, &self.layer.upper)
    }

    /// Takes the changes of an archive into a workspace that has none.
    ///
    /// # Errors
    /// [`ArchiveError`]; the workspace is then as it was.
    pub fn import(&mut self, archive: impl Read) -> Result<(), ArchiveError> {
        if self.strategy() == Strategy::Materialised {
            return Err(ArchiveError::NotLive);
        }
        if !self.layer.upper.names()?.is_empty() {
            return Err(ArchiveError::NotEmpty);
        }
        let work = &self.layer.work;
        work.remove_tree(INCOMING)?;
        work.make_directory(INCOMING, 0o700)?;
        let incoming = work.child(INCOMING)?;
        let unpacked = self.unpack(archive, &incoming).and_then(|()| {
            // What the changes cover is what the project has now.
            self.begin_below(&incoming, Began::Now)?;
            let (bytes, inodes) = measure(&incoming)?;
            if holds_file_whiteouts(&incoming)? {
                mark_whiteouts(&self.layer.upper, self.layer.form)?;
            }
            for name in incoming.names()? {
                incoming.move_new(&name, &self.layer.upper, &name)?;
            }
            self.layer.quota.set(bytes, inodes);
            Ok(())
        });
        match unpacked {
            Ok(()) => work.remove_tree(INCOMING)?,
            Err(_) => self.undo_import()?,
        }
        unpacked
    }

    /// Takes back an import that was killed: the workspace had no changes
    /// before it.
    pub(crate) fn undo_import(&self) -> io::Result<()> {
        take_import_back(&self.layer.upper, &self.layer.work, &self.layer.baselines)
    }

    fn unpack(&self, archive: impl Read, root: &Directory) -> Result<(), ArchiveError> {
        let limits = self.limits();
        let mut room = Room { bytes: limits.bytes, inodes: limits.inodes };
        // Headers take room too, so the whole stream is bounded.
        let most = limits.bytes.saturating_add(limits.inodes.saturating_mul(2048));
        let decoder = zstd::Decoder::new(archive)?.take(most.saturating_add(1));
        let mut archive = Archive::new(decoder);
        let mut seen: BTreeSet<[u8; 16]> = BTreeSet::new();
        for entry in archive.entries()? {
            let mut entry = entry?;
            let raw = entry.path_bytes().into_owned();
            let path = checked_path(&raw)?;
            if path.is_empty() {
                continue;
            }
            room.entry(self)?;
            if !seen.insert(crate::workspace::baseline::key(&path)) {
                return refuse(&raw, "comes twice");
            }
            let (above, name) = split(&path);
            let dir = parents(root, above).map_err(|_| ArchiveError::Unsafe {
                path: ProjectPath(raw.clone()),
                reason: "goes through something that is not a directory",
            })?;
            let mode = entry.header().mode().unwrap_or(0o644) & MODE_BITS;
            if name == OPAQUE_MARK {
                dir.set_attribute(OPAQUE, b"y")?;
                continue;
            }
            if let Some(gone) = name.strip_prefix(WHITEOUT) {
                if matches!(gone, b"" | b"." | b"..") || gone.starts_with(WHITEOUT) {
                    return refuse(&raw, "is no name of something removed");
                }
                make_whiteout(&dir, gone, self.layer.form).map_err(|_| clash(&raw))?;
                mark_whiteouts(&dir, self.layer.form)?;
                continue;
            }
            match entry.header().entry_type() {
                EntryType::Regular | EntryType::Continuous => {
                    let mut file = dir.create(name, 0o600).map_err(|_| clash(&raw))?;
                    room.bytes = copy(&mut entry, &mut file, room.bytes)
                        .map_err(ArchiveError::from)?
                        .ok_or_else(|| too_large(self))?;
                    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode as rustix::fs::RawMode))?;
                }
                EntryType::Directory => match dir.make_directory(name, mode | 0o700) {
                    Ok(()) => dir.set_mode(name, mode | 0o700)?,
                    Err(_) if dir.look(name)?.is_some_and(|look| look.kind == Kind::Directory) => {
                        dir.set_mode(name, mode | 0o700)?;
                    }
                    Err(_) => return Err(clash(&raw)),
                },
                EntryType::Symlink => {
                    let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                    if !may_be_link(&target) {
                        return refuse(&raw, "is a link that can lead out of the project");
                    }
                    dir.make_symlink(name, &target).map_err(|_| clash(&raw))?;
                }
                EntryType::Link => return refuse(&raw, "is a hard link"),
                _ => return refuse(&raw, "is neither a file, a directory nor a symbolic link"),
            }
        }
        Ok(())
    }
}

/// The same, of a workspace's parts.
pub(super) fn take_import_back(
    upper: &Directory,
    work: &Directory,
    baselines: &Baselines,
) -> io::Result<()> {
    if work.look(INCOMING)?.is_none() {
        return Ok(());
    }
    for name in upper.names()? {
        upper.remove_tree(&name)?;
    }
    baselines.clear()?;
    work.remove_tree(INCOMING).map_err(Into::into)
}

fn clash(path: &[u8]) -> ArchiveError {
    ArchiveError::Unsafe { path: ProjectPath(path.to_vec()), reason: "clashes with another entry" }
}

/// A relative path without odd components; empty for the archive's own root.
fn checked_path(raw: &[u8]) -> Result<Vec<u8>, ArchiveError> {
    if raw.first() == Some(&b'/') {
        return refuse(raw, "is absolute");
    }
    if raw.len() > MAX_PATH_BYTES || raw.contains(&0) {
        return refuse(raw, "has no usable path");
    }
    let mut path = Vec::new();
    for name in raw.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return refuse(raw, "has `..` in its path"),
            name if name.len() > MAX_COMPONENT_BYTES => return refuse(raw, "has too long a name"),
            name => path = joined(&path, name),
        }
    }
    Ok(path)
}

/// Whether a link is one that a guest could have made.
fn may_be_link(target: &[u8]) -> bool {
    !target.is_empty() && target.len() <= MAX_PATH_BYTES && stays_below(target).is_ok()
}

/// The directory of an entry; what is missing of it is made.
fn parents(root: &Directory, above: &[u8]) -> rustix::io::Result<Directory> {
    let mut at = Directory::again(root)?;
    for name in above.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        match at.make_directory(name, 0o755) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => at = at.child(name)?,
            Err(error) => return Err(error),
        }
    }
    Ok(at)
}

/// Copies at most `room` bytes; what is left of it, or `None` if there is
/// more.
fn copy(from: &mut impl Read, to: &mut impl Write, mut room: u64) -> io::Result<Option<u64>> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let length = from.read(&mut chunk)?;
        if length == 0 {
            return Ok(Some(room));
        }
        let Some(left) = room.checked_sub(length as u64) else { return Ok(None) };
        room = left;
        to.write_all(chunk.get(..length).unwrap_or_default())?;
    }
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(0);
    header
}

fn named(path: &[u8]) -> &std::path::Path {
    std::path::Path::new(os(path))
}

/// Writes an upper tree as a compressed archive.
pub(super) fn export_tree(out: impl Write, upper: &Directory) -> Result<(), ArchiveError> {
    let compressed = zstd::Encoder::new(out, LEVEL)?;
    let mut archive = Builder::new(compressed);
    export_below(&mut archive, &[], upper)?;
    archive.into_inner()?.finish()?.flush()?;
    Ok(())
}

fn export_below<W: Write>(
    archive: &mut Builder<W>,
    path: &[u8],
    dir: &Directory,
) -> Result<(), ArchiveError> {
    let in_files = holds_file_whiteouts(dir)?;
    if !path.is_empty() && is_opaque(dir)? {
        let mut mark = header(EntryType::Regular, 0o600, 0);
        archive.append_data(&mut mark, named(&joined(path, OPAQUE_MARK)), io::empty())?;
    }
    for name in dir.names()? {
        let Some(look) = dir.look(&name)? else { continue };
        let inner = joined(path, &name);
        if Layer::is_whiteout(dir, &name, &look, in_files)? {
            let gone = joined(path, &[WHITEOUT, name.as_slice()].concat());
            let mut mark = header(EntryType::Regular, 0o600, 0);
            archive.append_data(&mut mark, named(&gone), io::empty())?;
            continue;
        }
        if name.starts_with(WHITEOUT) {
            return refuse(&inner, "has a name that means something else in an archive");
        }
        let mode = look.mode & MODE_BITS;
        match look.kind {
            Kind::Directory => {
                let mut entry = header(EntryType::Directory, mode, 0);
                archive.append_data(&mut entry, named(&inner), io::empty())?;
                export_below(archive, &inner, &dir.child(&name)?)?;
            }
            Kind::Symlink => {
                let target = dir.read_link(&name)?;
                let mut entry = header(EntryType::Symlink, 0o777, 0);
                archive.append_link(&mut entry, named(&inner), os(&target))?;
            }
            Kind::File => {
                let (file, look) = dir.open_file(&name)?;
                let mut entry = header(EntryType::Regular, mode, look.size);
                archive.append_data(&mut entry, named(&inner), file.take(look.size))?;
            }
            Kind::Whiteout | Kind::Other => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "tests prepare host files")]

    use super::*;
    use crate::fs::WorkspaceLimits;
    use crate::fs::overlay::WhiteoutForm;
    use crate::workspace::WorkspaceOptions;
    use crate::workspace::testing::*;

    /// The workspace of a lab, with whiteouts of a form.
    fn with_form(lab: &Lab, form: WhiteoutForm) -> Workspace {
        let mut workspace = lab.create();
        std::sync::Arc::get_mut(&mut workspace.layer).unwrap().form = form;
        workspace
    }

    fn lab() -> Lab {
        let lab = Lab::new(Strategy::Live);
        for name in ["keep", "edit", "gone", "d/x", "again/old", "sub/gone", "sub/keep"] {
            lab.write(name, "base");
        }
        lab
    }

    #[test]
    fn changes_travel_in_an_archive() {
        let forms = [WhiteoutForm::Device, WhiteoutForm::Attribute];
        for (from, to) in forms.into_iter().flat_map(|from| forms.map(|to| (from, to))) {
            // A device is for root alone in some places.
            let usable =
                |form| form == WhiteoutForm::Attribute || lab().create().layer.form == form;
            if usable(from) && usable(to) {
                travels(from, to);
            }
        }
    }

    fn travels(from: WhiteoutForm, to: WhiteoutForm) {
        let (first, second) = (lab(), lab());
        let workspace = with_form(&first, from);
        let mut agent_one = agent(&workspace);
        agent_one.put("/p/edit", b"agent").unwrap();
        agent_one.unlink("/p/gone").unwrap();
        agent_one.rename("/p/d", "/p/e").unwrap();
        agent_one.unlink("/p/again/old").unwrap();
        agent_one.rmdir("/p/again").unwrap();
        agent_one.mkdir("/p/again").unwrap();
        agent_one.unlink("/p/sub/gone").unwrap();
        agent_one.put("/p/sub/empty", b"").unwrap();
        agent_one.symlink("edit", "/p/link").unwrap();
        let mut bytes = Vec::new();
        workspace.export(&mut bytes).unwrap();
        let mut other = with_form(&second, to);
        other.import(bytes.as_slice()).unwrap();
        assert!(matches!(other.import(bytes.as_slice()), Err(ArchiveError::NotEmpty)));
        let mut agent_two = agent(&other);
        assert_eq!(agent_two.list("/p").unwrap(), agent_one.list("/p").unwrap(), "{to:?}");
        assert_eq!(agent_two.get("/p/e/x").unwrap(), b"base");
        assert!(agent_two.list("/p/again").unwrap().is_empty());
        assert_eq!(agent_two.list("/p/sub").unwrap(), ["empty", "keep"], "{to:?}");
        second.write("edit", "user");
        let report = sync(&mut other);
        assert_eq!(paths(&report).2, ["edit"], "what it began with was noted");
        assert!(!second.has("gone") && second.has("e/x") && second.has("link"));
        assert!(!second.has("sub/gone") && second.has("sub/empty") && second.has("sub/keep"));
    }

    fn archive(entries: &[(&[u8], EntryType, &[u8])]) -> Vec<u8> {
        let mut builder = Builder::new(zstd::Encoder::new(Vec::new(), 1).unwrap());
        for (path, kind, content) in entries {
            let link = matches!(kind, EntryType::Symlink | EntryType::Link);
            let mut header = header(*kind, 0o644, if link { 0 } else { content.len() as u64 });
            let raw = header.as_gnu_mut().unwrap();
            raw.name[..path.len()].copy_from_slice(path);
            if link {
                raw.linkname[..content.len()].copy_from_slice(content);
            }
            header.set_cksum();
            builder.append(&header, if link { &[][..] } else { *content }).unwrap();
        }
        builder.into_inner().unwrap().finish().unwrap()
    }

    #[test]
    fn every_unsafe_entry_is_refused_and_nothing_is_left() {
        let file = EntryType::Regular;
        let long = [b'a'; 60];
        for (entries, code) in [
            (vec![(&b"../x"[..], file, &b"x"[..])], "archive_unsafe"),
            (vec![(b"a/../../x", file, b"x")], "archive_unsafe"),
            (vec![(b"/etc/x", file, b"x")], "archive_unsafe"),
            (vec![(b"l", EntryType::Symlink, b"/etc")], "archive_unsafe"),
            (vec![(b"d/l", EntryType::Symlink, b"../../x")], "archive_unsafe"),
            (
                vec![(b"a", EntryType::Symlink, b"."), (b"l", EntryType::Symlink, b"a/../secret")],
                "archive_unsafe",
            ),
            (vec![(b"d/l", EntryType::Symlink, b"../keep")], "archive_unsafe"),
            (vec![(b"l", EntryType::Symlink, b"d"), (b"l/x", file, b"x")], "archive_unsafe"),
            (vec![(b"h", EntryType::Link, b"keep")], "archive_unsafe"),
            (vec![(b"n", EntryType::Char, b"")], "archive_unsafe"),
            (vec![(b"n", EntryType::Block, b"")], "archive_unsafe"),
            (vec![(b"n", EntryType::Fifo, b"")], "archive_unsafe"),
            (vec![(b"a", file, b"x"), (b"./a", file, b"y")], "archive_unsafe"),
            (vec![(b"a", file, b"x"), (b"a/b", file, b"y")], "archive_unsafe"),
            (vec![(b".wh...", file, b"")], "archive_unsafe"),
            (vec![(b"big", file, &long), (b"big2", file, &long)], "archive_too_large"),
        ] {
            let lab = lab();
            let before = lab.tree();
            let limits = WorkspaceLimits { bytes: 100, inodes: 10 };
            let mut workspace =
                lab.create_with(&WorkspaceOptions { limits, ..WorkspaceOptions::default() });
            let result = workspace.import(archive(&entries).as_slice());
            assert_eq!(result.map_err(|error| error.code()), Err(code), "{entries:?}");
            assert!(!workspace.has_changes().unwrap());
            assert!(workspace.layer.work.names().unwrap().is_empty());
            assert_eq!(lab.tree(), before);
        }
    }

    #[test]
    fn an_import_that_was_killed_is_taken_back() {
        let lab = lab();
        let workspace = lab.create();
        let upper = lab.session().join("upper");
        std::fs::create_dir(lab.session().join("work/incoming")).unwrap();
        std::fs::write(upper.join("half"), "half").unwrap();
        drop(workspace);
        let workspace = Workspace::open(&lab.session()).unwrap();
        assert!(!workspace.has_changes().unwrap());
        assert!(workspace.layer.work.names().unwrap().is_empty());
    }

    #[test]
    fn a_bomb_is_cut_off() {
        let lab = lab();
        let limits = WorkspaceLimits { bytes: 1 << 20, inodes: 10 };
        let mut workspace =
            lab.create_with(&WorkspaceOptions { limits, ..WorkspaceOptions::default() });
        let zeros = vec![0; 64 << 20];
        let bomb = archive(&[(b"zeros", EntryType::Regular, &zeros)]);
        assert!(bomb.len() < 100_000);
        let result = workspace.import(bomb.as_slice()).map_err(|error| error.code());
        assert_eq!(result, Err("archive_too_large"));
        let result = workspace.import(&b"no archive"[..]).map_err(|error| error.code());
        assert_eq!(result, Err("archive_io"));
        assert!(!workspace.has_changes().unwrap());
    }
}
