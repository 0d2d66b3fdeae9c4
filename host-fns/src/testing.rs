//! A guest for tests: host calls with short names.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::Path;
use std::sync::Arc;

use fumehood_policies::{Access, GuestPath};

use crate::audit::MemorySink;
use crate::broker::{Broker, BrokerConfig, Refusal};
use crate::call::{FileType, Filestat, HostAnswer, HostCall, SetTime};
use crate::descriptors::rights;
use crate::errno::Errno;
use crate::fs::HostMount;
use crate::limits::Limits;

pub(crate) const ROOT: u32 = 3;
pub(crate) const R: u64 = rights::FD_READ;
pub(crate) const W: u64 = rights::FD_WRITE;
pub(crate) const CREATE: u16 = 1;
pub(crate) const DIRECTORY: u16 = 2;
pub(crate) const EXCLUSIVE: u16 = 4;
pub(crate) const TRUNCATE: u16 = 8;

pub(crate) fn path(raw: &str) -> GuestPath {
    GuestPath::parse(&GuestPath::root(), raw.as_bytes()).unwrap().path
}

pub(crate) struct Guest {
    pub(crate) broker: Broker,
    pub(crate) audit: Arc<MemorySink>,
}

impl Guest {
    pub(crate) fn with(change: impl FnOnce(&mut BrokerConfig)) -> Self {
        let audit = Arc::new(MemorySink::default());
        let mut config = BrokerConfig::new("test");
        config.audit = Arc::<MemorySink>::clone(&audit);
        change(&mut config);
        Self { broker: Broker::new(config).unwrap(), audit }
    }

    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn limited(change: impl FnOnce(&mut Limits)) -> Self {
        Self::with(|config| change(&mut config.limits))
    }

    pub(crate) fn mounted(host: &Path, access: Access) -> Self {
        Self::with(|config| config.mounts.push(HostMount::open("/m", host, access, false).unwrap()))
    }

    pub(crate) fn call(&mut self, call: HostCall<'_>) -> Result<HostAnswer, Errno> {
        match self.broker.dispatch(call) {
            Ok(answer) => Ok(answer),
            Err(Refusal::Errno(errno)) => Err(errno),
            Err(Refusal::Stop(reason)) => panic!("stopped: {reason:?}"),
        }
    }

    fn unit(&mut self, call: HostCall<'_>) -> Result<(), Errno> {
        self.call(call).map(|answer| assert_eq!(answer, HostAnswer::Unit))
    }

    pub(crate) fn open_at(
        &mut self,
        dir: u32,
        path: &str,
        open_flags: u16,
        rights_base: u64,
        follow: bool,
    ) -> Result<u32, Errno> {
        let path = path.as_bytes();
        let call = HostCall::PathOpen {
            dir,
            follow,
            path,
            open_flags,
            rights_base,
            rights_inheriting: 0,
            fd_flags: 0,
        };
        match self.call(call)? {
            HostAnswer::Descriptor(fd) => Ok(fd),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn open(
        &mut self,
        path: &str,
        open_flags: u16,
        rights_base: u64,
    ) -> Result<u32, Errno> {
        self.open_at(ROOT, path, open_flags, rights_base, true)
    }

    pub(crate) fn close(&mut self, fd: u32) -> Result<(), Errno> {
        self.unit(HostCall::FdClose { fd })
    }

    pub(crate) fn size(&mut self, call: HostCall<'_>) -> Result<usize, Errno> {
        match self.call(call)? {
            HostAnswer::Size(size) => Ok(size as usize),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn write(&mut self, fd: u32, data: &[u8]) -> Result<usize, Errno> {
        self.size(HostCall::FdWrite { fd, data })
    }

    pub(crate) fn read(&mut self, fd: u32, length: usize) -> Result<Vec<u8>, Errno> {
        let mut buffer = vec![0; length];
        let size = self.size(HostCall::FdRead { fd, into: &mut buffer })?;
        buffer.truncate(size);
        Ok(buffer)
    }

    pub(crate) fn seek(&mut self, fd: u32, delta: i64, whence: u8) -> Result<u64, Errno> {
        match self.call(HostCall::FdSeek { fd, delta, whence })? {
            HostAnswer::Offset(offset) => Ok(offset),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn put(&mut self, path: &str, data: &[u8]) -> Result<(), Errno> {
        let fd = self.open(path, CREATE | TRUNCATE, W)?;
        let written = self.write(fd, data);
        self.close(fd)?;
        assert_eq!(written?, data.len());
        Ok(())
    }

    pub(crate) fn get(&mut self, path: &str) -> Result<Vec<u8>, Errno> {
        let fd = self.open(path, 0, R)?;
        let data = self.read(fd, 1 << 16);
        self.close(fd)?;
        data
    }

    pub(crate) fn mkdir(&mut self, path: &str) -> Result<(), Errno> {
        self.unit(HostCall::PathCreateDirectory { dir: ROOT, path: path.as_bytes() })
    }

    pub(crate) fn rmdir(&mut self, path: &str) -> Result<(), Errno> {
        self.unit(HostCall::PathRemoveDirectory { dir: ROOT, path: path.as_bytes() })
    }

    pub(crate) fn unlink(&mut self, path: &str) -> Result<(), Errno> {
        self.unit(HostCall::PathUnlinkFile { dir: ROOT, path: path.as_bytes() })
    }

    pub(crate) fn rename(&mut self, old: &str, new: &str) -> Result<(), Errno> {
        let (old, new) = (old.as_bytes(), new.as_bytes());
        self.unit(HostCall::PathRename { old_dir: ROOT, old, new_dir: ROOT, new })
    }

    pub(crate) fn link(&mut self, old: &str, new: &str) -> Result<(), Errno> {
        let (old, new) = (old.as_bytes(), new.as_bytes());
        self.unit(HostCall::PathLink { old_dir: ROOT, follow: false, old, new_dir: ROOT, new })
    }

    pub(crate) fn symlink(&mut self, target: &str, path: &str) -> Result<(), Errno> {
        self.unit(HostCall::PathSymlink {
            target: target.as_bytes(),
            dir: ROOT,
            path: path.as_bytes(),
        })
    }

    pub(crate) fn readlink(&mut self, path: &str) -> Result<String, Errno> {
        let mut into = [0; 4096];
        let size = self.size(HostCall::PathReadlink {
            dir: ROOT,
            path: path.as_bytes(),
            into: &mut into,
        })?;
        Ok(String::from_utf8_lossy(into.get(..size).unwrap_or_default()).into_owned())
    }

    pub(crate) fn stat(&mut self, path: &str, follow: bool) -> Result<Filestat, Errno> {
        match self.call(HostCall::PathFilestatGet { dir: ROOT, follow, path: path.as_bytes() })? {
            HostAnswer::Filestat(stat) => Ok(stat),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn kind(&mut self, path: &str) -> Result<FileType, Errno> {
        self.stat(path, false).map(|stat| stat.file_type)
    }

    pub(crate) fn utimes(
        &mut self,
        path: &str,
        accessed: SetTime,
        modified: SetTime,
    ) -> Result<(), Errno> {
        let path = path.as_bytes();
        self.unit(HostCall::PathFilestatSetTimes {
            dir: ROOT,
            follow: true,
            path,
            accessed,
            modified,
        })
    }

    /// Names without `.` and `..`, read with a buffer of `length` bytes.
    pub(crate) fn list_with(&mut self, path: &str, length: usize) -> Result<Vec<String>, Errno> {
        let fd = self.open(path, DIRECTORY, R)?;
        let mut names = Vec::new();
        let mut cookie = 0;
        loop {
            let mut into = vec![0; length];
            let size = self.size(HostCall::FdReaddir { fd, into: &mut into, cookie })?;
            let mut rest = into.get(..size).unwrap();
            while rest.len() >= 24 {
                let number = |at: usize, width: usize| {
                    rest.get(at..at + width)
                        .unwrap()
                        .iter()
                        .rev()
                        .fold(0_u64, |value, byte| (value << 8) | u64::from(*byte))
                };
                let (next, name_length) = (number(0, 8), number(16, 4) as usize);
                let Some(name) = rest.get(24..24 + name_length) else { break };
                names.push(String::from_utf8_lossy(name).into_owned());
                cookie = next;
                rest = rest.get(24 + name_length..).unwrap();
            }
            if size < length {
                break;
            }
        }
        self.close(fd)?;
        names.retain(|name| name != "." && name != "..");
        Ok(names)
    }

    pub(crate) fn list(&mut self, path: &str) -> Result<Vec<String>, Errno> {
        self.list_with(path, 4096)
    }
}

/// Whether the long versions run: `FUMEHOOD_TEST_FULL=1`, as `cargo xtask test
/// --full` sets it.
#[allow(clippy::disallowed_methods, reason = "tests are told how long they may take")]
pub(crate) fn is_full() -> bool {
    std::env::var("FUMEHOOD_TEST_FULL").is_ok_and(|value| value == "1")
}

/// Sets a flag when it is dropped, also by a panic.
pub(crate) struct SetAtEnd<'f>(pub(crate) &'f std::sync::atomic::AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}
