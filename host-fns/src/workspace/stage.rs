//! Putting a sync together: the journal, and the new versions in the stage.
//!
//! Invariant: the stage is a directory of the project that only this user may
//! enter; its name is in the journal before it is made. Nothing else of the
//! project is touched here.

use std::io;

use rustix::io::Errno as Host;

use crate::fs::handle::{self, Directory, Kind};
use crate::workspace::apply::item_name;
use crate::workspace::journal::{Entry, Journal, Op};
use crate::workspace::open::Workspace;
use crate::workspace::plan::{Change, Sink};
use crate::workspace::state::{self, State};
use crate::workspace::steps::Steps;
use crate::workspace::view::STAGE_PREFIX;

/// Writes the journal and puts new versions together in the stage.
pub(crate) struct Writer<'w> {
    pub(crate) workspace: &'w Workspace,
    pub(crate) steps: &'w dyn Steps,
    pub(crate) journal: Option<Journal>,
    pub(crate) stage: Option<Directory>,
    pub(crate) items: u64,
}

impl Writer<'_> {
    fn journal(&mut self) -> io::Result<&mut Journal> {
        match &mut self.journal {
            Some(journal) => Ok(journal),
            empty => {
                self.steps.step("begin")?;
                let mut journal = Journal::create(&self.workspace.root)?;
                let stage = stage_name()?;
                journal.add(&Entry::Begin { stage })?;
                Ok(empty.insert(journal))
            }
        }
    }

    fn stage(&mut self) -> io::Result<Directory> {
        if let Some(stage) = &self.stage {
            return Directory::again(stage).map_err(Into::into);
        }
        let missing = || io::Error::other("a journal without a stage");
        let name = self.journal()?.stage()?.ok_or_else(missing)?;
        self.steps.step("stage")?;
        self.workspace.project.make_directory(&name, 0o700)?;
        let stage = self.workspace.project.child(&name)?;
        let again = Directory::again(&stage)?;
        self.stage = Some(stage);
        Ok(again)
    }

    fn next_item(&mut self) -> u64 {
        self.items = self.items.saturating_add(1);
        self.items
    }

    fn add(&mut self, op: Op) -> io::Result<()> {
        self.steps.step("plan")?;
        self.journal()?.add(&Entry::Op(op))
    }

    fn make(&mut self, place: &[u8], mode: u32) -> io::Result<()> {
        let (stage, item) = (self.stage()?, self.next_item());
        let name = item_name(item);
        self.steps.step("put together")?;
        stage.make_directory(&name, mode)?;
        stage.set_mode(&name, mode)?;
        let inode = stage.look(&name)?.map_or(0, |look| look.inode);
        self.add(Op::Make { path: place.to_vec(), item, inode })
    }

    fn put(
        &mut self,
        place: &[u8],
        expected: &State,
        wanted: &State,
        from: (&Directory, &[u8]),
    ) -> io::Result<()> {
        let (stage, item) = (self.stage()?, self.next_item());
        let name = item_name(item);
        self.steps.step("put together")?;
        let made = put_together(&stage, &name, from)?;
        if !made.same(wanted) {
            return Err(io::Error::other("a file of the workspace changed during the sync"));
        }
        let inode = stage.look(&name)?.map_or(0, |look| look.inode);
        let (path, expected) = (place.to_vec(), expected.clone());
        self.add(Op::Put { path, item, inode, expected, state: made })
    }
}

/// Copies the agent's version into the stage.
fn put_together(
    stage: &Directory,
    name: &[u8],
    (dir, from): (&Directory, &[u8]),
) -> io::Result<State> {
    let look = dir.look(from)?.ok_or(Host::NOENT)?;
    if look.kind == Kind::Symlink {
        let target = dir.read_link(from)?;
        stage.make_symlink(name, &target)?;
        return Ok(State::Symlink { target });
    }
    let (mut file, look) = dir.open_file(from)?;
    let mut to = stage.create(name, 0o600)?;
    let (size, digest) = handle::copy(&mut file, &mut to)?;
    let mode = look.mode & state::MODE_BITS;
    rustix::fs::fchmod(&to, rustix::fs::Mode::from_raw_mode(mode as rustix::fs::RawMode))?;
    handle::set_modified(&to, look.modified)?;
    Ok(State::File { mode, size, digest })
}

impl Sink for Writer<'_> {
    fn take(&mut self, change: Change<'_>) -> io::Result<()> {
        match change {
            Change::Make { place, mode } => self.make(place, mode),
            Change::Put { place, expected, state, from } => self.put(place, expected, state, from),
            Change::Chmod { place, expected, mode } => {
                self.add(Op::Chmod { path: place.to_vec(), expected: expected.clone(), mode })
            }
            Change::Remove { place, expected } => {
                self.stage()?;
                let item = self.next_item();
                let (path, expected) = (place.to_vec(), expected.clone());
                self.add(Op::Remove { path, item, expected })
            }
            Change::RemoveDirectory { place, mode } => {
                self.add(Op::RemoveDirectory { path: place.to_vec(), mode })
            }
            Change::Settle { path, settle } => {
                let path = path.to_vec();
                self.journal()?.add(&Entry::Settle { path, settle })
            }
        }
    }
}

/// A name that is not used in the project; that it is not is checked when it
/// is made.
fn stage_name() -> io::Result<Vec<u8>> {
    let mut bytes = [0_u8; 16];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if filled != bytes.len() {
        return Err(io::Error::other("the system's random source gave too little"));
    }
    let name: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{STAGE_PREFIX}{name}").into_bytes())
}
