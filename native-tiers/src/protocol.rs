//! What a tier and `fumehood-helper` say to each other.
//!
//! What: the helper is started with one socket as its standard input. It reads
//! one [`Spec`] from it, with the descriptors that go with it, and answers with
//! [`Event`]s, each a length of four bytes (little-endian) and JSON text.
//!
//! Invariant: the socket is the only thing the helper listens to. When the
//! other side closes it, everything that was started is ended.

use std::io;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fumehood_host_fns::{Missing, NativeEnd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Longest record in bytes: a command of 96 KiB and variables of 128 KiB, each
/// byte six as JSON at the worst, and paths.
pub const MAX_RECORD_BYTES: usize = 4 << 20;

/// Most directories that a command is given.
pub const MAX_MOUNTS: usize = 64;

/// Most of them that are overlays.
pub const MAX_OVERLAYS: usize = 4;

/// Most descriptors that come with a spec: those of the directories, the input
/// and the scratch directory.
const MAX_DESCRIPTORS: usize = MAX_MOUNTS + 3 * MAX_OVERLAYS + 2;

/// Version of the records; a helper of another one is refused.
pub const PROTOCOL_VERSION: u32 = 3;

/// Which boundary is put around the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Boundary {
    /// None: limits and the end of every descendant only.
    None,
    /// Landlock, seccomp and no capabilities.
    Kernel {
        /// In namespaces of its own, with a file system of its own.
        namespaces: bool,
    },
}

/// A directory of the command; its descriptor comes with the spec, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecMount {
    /// Where the command sees it, an absolute path without `.` and `..`.
    pub at: String,
    /// Whether it may be changed.
    pub writable: bool,
    /// Whether programs in it can be run.
    pub execute: bool,
    /// Whether its changes go elsewhere: three more descriptors come after its
    /// own, for the changes, the kernel's work, and what hides names of it.
    pub overlay: bool,
}

impl SpecMount {
    /// Descriptors that come with it.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        if self.overlay { 4 } else { 1 }
    }
}

/// The numbers that the kernel is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecLimits {
    /// Processor time of a process, in seconds.
    pub cpu_s: u64,
    /// Memory of all processes, in bytes.
    pub memory_bytes: u64,
    /// Processes and threads at once.
    pub processes: u64,
    /// Length of a file, in bytes.
    pub file_bytes: u64,
    /// Descriptors of a process.
    pub open_files: u64,
    /// Bytes of the private directories together.
    pub scratch_bytes: u64,
}

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// A program.
    Command {
        /// Absolute path and arguments.
        argv: Vec<String>,
        /// All of its variables.
        env: Vec<(String, String)>,
        /// Working directory.
        cwd: String,
    },
    /// Nothing: the boundary is put up and that is all.
    Nothing,
    /// The helper's own attempts to get out, reported as JSON text on standard
    /// output: one [`Attempt`] a line.
    Attempts,
}

/// One thing that was tried from inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// What was tried.
    pub name: String,
    /// The guarantee that forbids it.
    pub guarantee: fumehood_host_fns::Guarantee,
    /// Whether it was prevented.
    pub prevented: bool,
    /// How it ended, as the kernel says it.
    pub detail: String,
}

/// Everything the helper is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Must equal [`PROTOCOL_VERSION`].
    pub version: u32,
    /// The boundary.
    pub boundary: Boundary,
    /// What to run.
    pub work: Work,
    /// Its bounds.
    pub limits: SpecLimits,
    /// Its directories.
    pub mounts: Vec<SpecMount>,
    /// A directory for temporary files where none can be private; its
    /// descriptor comes last.
    pub scratch: Option<String>,
    /// Whether a control group bounds memory and processes already.
    pub control_group: bool,
    /// Which defences are left out.
    #[cfg(feature = "weaken")]
    pub weakened: u64,
}

/// What the helper tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The boundary stands; the program is started next.
    Started {
        /// The controls that are active.
        controls: Vec<String>,
    },
    /// The boundary cannot be had; nothing ran.
    Refused {
        /// Everything that is missing.
        missing: Vec<Missing>,
    },
    /// The program could not be started; nothing ran.
    NotStarted {
        /// A sentence.
        reason: String,
    },
    /// The program ended, and with it everything that it started, unless `left`
    /// says otherwise.
    Ended {
        /// How.
        end: NativeEnd,
        /// All its processes together had more memory than they may.
        memory_exceeded: bool,
        /// Largest memory of all processes that was seen, in bytes.
        peak_bytes: u64,
        /// Something that it started could not be ended in time.
        left: bool,
    },
    /// Everything is gone; always the last.
    Reaped {
        /// Processor time of everything, in microseconds.
        cpu_us: u64,
        /// Largest memory of one process, in bytes.
        peak_bytes: u64,
    },
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the record is too long")
}

/// Sends the spec and its descriptors.
///
/// # Errors
/// What the socket says.
pub fn send_spec(socket: &OwnedFd, spec: &Spec, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let text = serde_json::to_vec(spec)?;
    if text.len() > MAX_RECORD_BYTES {
        return Err(too_long());
    }
    let length = u32::try_from(text.len()).map_err(|_| too_long())?.to_le_bytes();
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(too_long());
    }
    let sent =
        rustix::net::sendmsg(socket, &[IoSlice::new(&length)], &mut control, SendFlags::NOSIGNAL)?;
    if sent != length.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    send_all(socket, &text)
}

fn send_all(socket: &OwnedFd, mut rest: &[u8]) -> io::Result<()> {
    while !rest.is_empty() {
        match rustix::net::send(socket, rest, SendFlags::NOSIGNAL) {
            Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn receive_all(socket: &OwnedFd, into: &mut [u8]) -> io::Result<()> {
    let mut at = 0;
    while let Some(rest) = into.get_mut(at..).filter(|rest| !rest.is_empty()) {
        match rustix::io::read(socket, rest) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => at = at.saturating_add(got),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn receive_text<T: DeserializeOwned>(socket: &OwnedFd, length: [u8; 4]) -> io::Result<T> {
    let length = usize::try_from(u32::from_le_bytes(length)).map_err(|_| too_long())?;
    if length > MAX_RECORD_BYTES {
        return Err(too_long());
    }
    let mut text = vec![0; length];
    receive_all(socket, &mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Receives the spec and its descriptors, which are closed at `exec`.
///
/// # Errors
/// What the socket says, or that the record is none.
pub fn receive_spec(socket: &OwnedFd) -> io::Result<(Spec, Vec<OwnedFd>)> {
    let mut length = [0; 4];
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut length)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL,
    )?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    if got.bytes != length.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let spec: Spec = receive_text(socket, length)?;
    let expected = spec
        .mounts
        .iter()
        .map(SpecMount::descriptors)
        .fold(1 + usize::from(spec.scratch.is_some()), usize::saturating_add);
    if spec.version != PROTOCOL_VERSION || fds.len() != expected {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the spec is of another version"));
    }
    Ok((spec, fds))
}

/// Sends one event.
///
/// # Errors
/// What the socket says.
pub fn send_event(socket: impl AsFd, event: &Event) -> io::Result<()> {
    let text = serde_json::to_vec(event)?;
    let length = u32::try_from(text.len()).map_err(|_| too_long())?;
    let mut record = length.to_le_bytes().to_vec();
    record.extend_from_slice(&text);
    let mut rest = record.as_slice();
    while !rest.is_empty() {
        match rustix::io::write(&socket, rest) {
            Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Puts events together from bytes as they come.
#[derive(Debug, Default)]
pub struct Events {
    bytes: Vec<u8>,
}

impl Events {
    /// Takes bytes, and gives the events that are complete.
    ///
    /// # Errors
    /// What was received is no record.
    pub fn take(&mut self, bytes: &[u8]) -> io::Result<Vec<Event>> {
        self.bytes.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some((length, rest)) = self.bytes.split_first_chunk::<4>() {
            let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| too_long())?;
            if length > MAX_RECORD_BYTES {
                return Err(too_long());
            }
            let Some(text) = rest.get(..length) else { break };
            events.push(serde_json::from_slice(text)?);
            self.bytes.drain(..length.saturating_add(4));
        }
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Spec {
        Spec {
            version: PROTOCOL_VERSION,
            boundary: Boundary::Kernel { namespaces: true },
            work: Work::Command {
                argv: vec!["/bin/sh".to_owned(), "-c".to_owned(), "true\n\u{1}".repeat(20_000)],
                env: Vec::new(),
                cwd: "/".to_owned(),
            },
            limits: SpecLimits {
                cpu_s: 1,
                memory_bytes: 1,
                processes: 1,
                file_bytes: 1,
                open_files: 1,
                scratch_bytes: 1,
            },
            mounts: Vec::new(),
            scratch: None,
            control_group: false,
            #[cfg(feature = "weaken")]
            weakened: 0,
        }
    }

    fn pair() -> (OwnedFd, OwnedFd) {
        rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .unwrap()
    }

    #[test]
    fn a_spec_arrives_with_its_descriptors() {
        let (here, there) = pair();
        let spec = spec();
        let received = std::thread::scope(|scope| {
            let receiver = scope.spawn(|| receive_spec(&there));
            send_spec(&here, &spec, &[here.as_fd()]).unwrap();
            receiver.join().unwrap().unwrap()
        });
        assert_eq!(received.0, spec);
        assert_eq!(received.1.len(), 1);
    }

    #[test]
    fn a_spec_that_is_none_is_refused() {
        for bytes in [&b"\xff\xff\xff\xff"[..], b"\x02\x00\x00\x00{}", b"\x01"] {
            let (here, there) = pair();
            send_all(&here, bytes).unwrap();
            drop(here);
            assert!(receive_spec(&there).is_err());
        }
        let (here, there) = pair();
        let received = std::thread::scope(|scope| {
            let receiver = scope.spawn(|| receive_spec(&there));
            send_spec(&here, &spec(), &[here.as_fd(), here.as_fd()]).unwrap();
            receiver.join().unwrap()
        });
        assert!(received.is_err());
    }

    #[test]
    fn events_are_put_together_from_any_pieces() {
        let (here, there) = pair();
        let sent = [
            Event::Started { controls: vec!["x".to_owned()] },
            Event::Reaped { cpu_us: 1, peak_bytes: 2 },
        ];
        for event in &sent {
            send_event(&here, event).unwrap();
        }
        drop(here);
        let mut got = Vec::new();
        let mut events = Events::default();
        let mut byte = [0];
        while rustix::io::read(&there, &mut byte).unwrap() == 1 {
            got.extend(events.take(&byte).unwrap());
        }
        assert_eq!(got, sent);
        assert!(Events::default().take(b"\xff\xff\xff\xff").is_err());
    }
}
