//! Files of compiled code: the user's cache and the files of `cache build`.
//!
//! Invariant: compiled code is mapped only from a regular file that was opened
//! once, without following a link, whose owner and mode were checked on that
//! open descriptor, and whose footer names this guest and this engine. Anything
//! else is refused, and the caller compiles afresh.
//!
//! Layout: the serialized modules one after the other, the first at offset 0
//! so that it can be mapped, then a JSON footer, its length as four bytes
//! (little endian) and eight bytes of magic.
#![allow(clippy::disallowed_methods, reason = "this module is the adapter for compiled-code files")]

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use fumehood_host_fns::{OsRandom, RandomSource as _};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::EngineError;
use fumehood_policies::weaken;

const MAGIC: &[u8; 8] = b"fumecode";
const FORMAT: u32 = 1;
/// The memory that the modules start with.
pub(crate) const IMAGE: &str = "image";
/// The image can be mapped on systems with pages of up to 64 KiB.
const IMAGE_ALIGNMENT: u64 = 64 << 10;
/// The footer is a few hundred bytes; more is not one of ours.
const MAX_FOOTER_BYTES: u64 = 64 << 10;

/// The two ways in which the guest is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Build {
    /// Interrupted by time; for every run that is not deterministic.
    Epoch,
    /// Counts fuel, gives every NaN the same bits, and is interrupted by time
    /// too; for deterministic mode.
    Fuel,
}

impl Build {
    /// Both, in the order in which they lie in a file.
    pub(crate) const ALL: [Self; 2] = [Self::Epoch, Self::Fuel];

    /// The name of its entry.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Epoch => "epoch",
            Self::Fuel => "fuel",
        }
    }

    fn of(entry: &Entry) -> Option<Self> {
        Self::ALL.into_iter().find(|build| build.name() == entry.build)
    }
}

/// One serialized module in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// `epoch`, the module that is interrupted by time; `fuel`, the one that
    /// counts fuel; or `image`, the memory of both.
    pub build: String,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// SHA-256 of those bytes, in hexadecimal.
    pub sha256: String,
    /// Hash of its engine, for a module that is not the file's first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
}

/// What a file of compiled code says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Footer {
    /// Layout version.
    pub format: u32,
    /// SHA-256 of the guest artefact.
    pub guest: String,
    /// Hash of everything in the engine that the first module depends on.
    pub engine: String,
    /// The modules and their memory.
    pub entries: Vec<Entry>,
}

/// Whom a file of compiled code may belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// This user alone: the cache.
    User,
    /// This user or root: a file prepared for a deployment.
    UserOrRoot,
}

/// The user's cache directory, checked.
#[derive(Debug)]
pub(crate) struct CacheDirectory {
    handle: rustix::fd::OwnedFd,
    path: PathBuf,
}

impl CacheDirectory {
    /// Opens the directory, making it (0700) if it does not exist.
    ///
    /// # Errors
    /// The reason the directory cannot be trusted or made, as one sentence.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let open = || rustix::fs::open(path, flags, Mode::empty());
        let handle = match open() {
            Err(rustix::io::Errno::NOENT) => {
                std::fs::DirBuilder::new()
                    .recursive(true)
                    .mode(0o700)
                    .create(path)
                    .map_err(|error| format!("it cannot be made ({error})"))?;
                open()
            }
            other => other,
        }
        .map_err(|error| match error {
            rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR => {
                "it is a symbolic link or not a directory".to_owned()
            }
            other => format!("it cannot be opened ({other})"),
        })?;
        if weaken::off(weaken::Defence::CacheOwner) {
            return Ok(Self { handle, path: path.to_owned() });
        }
        let stat = rustix::fs::fstat(&handle).map_err(|error| error.to_string())?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err("it belongs to another user".to_owned());
        }
        if stat.st_mode & 0o077 != 0 {
            return Err("other users may open it; set its mode to 0700".to_owned());
        }
        Ok(Self { handle, path: path.to_owned() })
    }

    /// Opens a file of the cache.
    ///
    /// # Errors
    /// `Ok(None)` if there is none, the reason if it cannot be trusted.
    pub(crate) fn find(&self, name: &str) -> Result<Option<File>, String> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        match rustix::fs::openat(&self.handle, name, flags, Mode::empty()) {
            Ok(fd) => {
                let file = File::from(fd);
                check_owner(&file, Trust::User)?;
                Ok(Some(file))
            }
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Writes a file of the cache whole or not at all, whoever else writes it at
    /// the same time; a process that has the old one mapped keeps it.
    ///
    /// # Errors
    /// The system's reason.
    pub(crate) fn store(&self, name: &str, contents: &CodeFile<'_>) -> std::io::Result<File> {
        let temporary = format!("{name}.{}.tmp", hex(&unused()?));
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let mut file = File::from(rustix::fs::openat(&self.handle, &*temporary, flags, mode)?);
        let written = contents.write_to(&mut file).and_then(|()| file.sync_all()).and_then(|()| {
            rustix::fs::renameat(&self.handle, &*temporary, &self.handle, name)
                .map_err(std::io::Error::from)
        });
        if let Err(error) = written {
            let _ = rustix::fs::unlinkat(&self.handle, &*temporary, rustix::fs::AtFlags::empty());
            return Err(error);
        }
        Ok(file)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Random bytes for a name that nobody else uses.
fn unused() -> std::io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let failed = |_| std::io::Error::other("the system's random source failed");
    OsRandom.fill(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Opens a file of `cache build` once, without following a link.
///
/// # Errors
/// [`EngineError::Compiled`] says what is wrong with the file.
pub(crate) fn open_compiled(path: &Path) -> Result<File, EngineError> {
    let refused = |reason: String| EngineError::Compiled { path: path.to_owned(), reason };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| match error {
        rustix::io::Errno::LOOP => {
            refused("it is a symbolic link; name the file itself".to_owned())
        }
        other => refused(other.to_string()),
    })?;
    let file = File::from(fd);
    check_owner(&file, Trust::UserOrRoot).map_err(refused)?;
    Ok(file)
}

fn check_owner(file: &File, trust: Trust) -> Result<(), String> {
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    if weaken::off(weaken::Defence::CacheOwner) {
        return Ok(());
    }
    let owner = metadata.uid();
    let user = rustix::process::geteuid().as_raw();
    if owner != user && !(trust == Trust::UserOrRoot && owner == 0) {
        return Err("it belongs to another user".to_owned());
    }
    if metadata.mode() & 0o022 != 0 {
        return Err("others may write to it; remove their write permission".to_owned());
    }
    Ok(())
}

/// What a file of compiled code holds before it is written.
#[derive(Debug)]
pub(crate) struct CodeFile<'a> {
    pub(crate) guest: &'a str,
    pub(crate) first: Code<'a>,
    pub(crate) second: Option<Code<'a>>,
    pub(crate) image: &'a [u8],
}

/// One module that goes into a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Code<'a> {
    pub(crate) build: Build,
    /// Hash of its engine.
    pub(crate) engine: &'a str,
    pub(crate) bytes: &'a [u8],
}

impl CodeFile<'_> {
    /// Writes modules and footer.
    ///
    /// # Errors
    /// The system's reason.
    pub(crate) fn write_to(&self, file: &mut impl Write) -> std::io::Result<()> {
        let second = self.second.map(|code| (code.build.name(), Some(code.engine), code.bytes));
        let parts = std::iter::once((self.first.build.name(), None, self.first.bytes))
            .chain(second)
            .chain([(IMAGE, None, self.image)]);
        let mut entries = Vec::new();
        let mut end = 0_u64;
        for (build, engine, bytes) in parts {
            let offset = end.next_multiple_of(IMAGE_ALIGNMENT);
            let padding = usize::try_from(offset - end).map_err(std::io::Error::other)?;
            file.write_all(&vec![0; padding])?;
            file.write_all(bytes)?;
            entries.push(Entry {
                build: build.to_owned(),
                offset,
                len: bytes.len() as u64,
                sha256: hex(&Sha256::digest(bytes)),
                engine: engine.map(str::to_owned),
            });
            end = offset + bytes.len() as u64;
        }
        let footer = Footer {
            format: FORMAT,
            guest: self.guest.to_owned(),
            engine: self.first.engine.to_owned(),
            entries,
        };
        let footer = serde_json::to_vec(&footer)?;
        let length = u32::try_from(footer.len()).map_err(std::io::Error::other)?;
        file.write_all(&footer)?;
        file.write_all(&length.to_le_bytes())?;
        file.write_all(MAGIC)?;
        file.flush()
    }
}

/// Reads the footer and checks that it describes the file.
///
/// # Errors
/// What is wrong, as one sentence.
pub(crate) fn read_footer(file: &File) -> Result<Footer, String> {
    let broken = || "it is cut short or not a file of compiled code".to_owned();
    let size = file.metadata().map_err(|error| error.to_string())?.len();
    let tail_at = size.checked_sub(12).ok_or_else(broken)?;
    let mut tail = [0; 12];
    file.read_exact_at(&mut tail, tail_at).map_err(|_| broken())?;
    let (length, magic) = tail.split_first_chunk::<4>().ok_or_else(broken)?;
    let length = u64::from(u32::from_le_bytes(*length));
    if magic != MAGIC || length > MAX_FOOTER_BYTES {
        return Err(broken());
    }
    let footer_at = tail_at.checked_sub(length).ok_or_else(broken)?;
    let mut bytes = vec![0; usize::try_from(length).map_err(|_| broken())?];
    file.read_exact_at(&mut bytes, footer_at).map_err(|_| broken())?;
    let footer: Footer = serde_json::from_slice(&bytes).map_err(|_| broken())?;
    if footer.format != FORMAT {
        return Err("it was written by another version of fumehood".to_owned());
    }
    let mut expected = 0;
    for entry in &footer.entries {
        if entry.offset != expected && entry.offset != expected.next_multiple_of(IMAGE_ALIGNMENT) {
            return Err(broken());
        }
        expected = entry.offset.checked_add(entry.len).ok_or_else(broken)?;
    }
    if expected != footer_at {
        return Err(broken());
    }
    footer.entry(IMAGE)?;
    if footer.builds().next().is_none() {
        return Err(broken());
    }
    Ok(footer)
}

/// Reads the file whole and compares every digest in its footer.
///
/// # Errors
/// What is wrong, as one sentence.
pub(crate) fn verify(file: &mut File) -> Result<Footer, String> {
    let footer = read_footer(file)?;
    for entry in &footer.entries {
        file.seek(SeekFrom::Start(entry.offset)).map_err(|error| error.to_string())?;
        let mut digest = Sha256::new();
        let copied = std::io::copy(&mut Read::by_ref(file).take(entry.len), &mut digest)
            .map_err(|error| error.to_string())?;
        if copied != entry.len || hex(&digest.finalize()) != entry.sha256 {
            return Err(format!(
                "the {} build does not have the digest it was written with",
                entry.build
            ));
        }
    }
    Ok(footer)
}

/// Reads one part of the file.
///
/// # Errors
/// The system's reason, or that the file is shorter.
pub(crate) fn read_entry(file: &File, entry: &Entry) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(entry.len).map_err(std::io::Error::other)?];
    file.read_exact_at(&mut bytes, entry.offset)?;
    Ok(bytes)
}

impl Footer {
    /// The part of that name.
    ///
    /// # Errors
    /// That the file has none, as one sentence.
    pub(crate) fn entry(&self, build: &str) -> Result<&Entry, String> {
        self.entries
            .iter()
            .find(|entry| entry.build == build)
            .ok_or_else(|| format!("it has no {build} build; build it again"))
    }

    /// The modules in it, each with the hash of its engine.
    pub(crate) fn builds(&self) -> impl Iterator<Item = (Build, &str)> {
        self.entries.iter().filter_map(|entry| {
            Some((Build::of(entry)?, entry.engine.as_deref().unwrap_or(&self.engine)))
        })
    }
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const FIRST: Code<'_> = Code { build: Build::Epoch, engine: "e", bytes: b"code" };

    fn sample() -> CodeFile<'static> {
        CodeFile { guest: "g", first: FIRST, second: None, image: b"pages" }
    }

    #[test]
    fn a_file_holds_both_builds() {
        let second = Code { build: Build::Fuel, engine: "f", bytes: b"counting code" };
        let directory = tempfile::tempdir().unwrap();
        let cache = CacheDirectory::open(&directory.path().join("mine")).unwrap();
        let mut file = cache.store("a", &CodeFile { second: Some(second), ..sample() }).unwrap();
        let footer = verify(&mut file).unwrap();
        let builds: Vec<_> = footer.builds().collect();
        assert_eq!(builds, [(Build::Epoch, "e"), (Build::Fuel, "f")]);
        for (name, bytes) in [("epoch", FIRST.bytes), ("fuel", second.bytes), ("image", b"pages")] {
            assert_eq!(read_entry(&file, footer.entry(name).unwrap()).unwrap(), bytes);
        }
        assert_eq!(footer.entry("epoch").unwrap().offset, 0);
        let only = Code { build: Build::Fuel, ..FIRST };
        let file = cache.store("b", &CodeFile { first: only, ..sample() }).unwrap();
        let footer = read_footer(&file).unwrap();
        assert!(footer.entry("epoch").unwrap_err().contains("no epoch build"));
    }

    #[test]
    fn a_footer_describes_its_file_exactly() {
        let directory = tempfile::tempdir().unwrap();
        let cache = CacheDirectory::open(&directory.path().join("mine")).unwrap();
        let mut file = cache.store("a", &sample()).unwrap();
        assert_eq!(verify(&mut file).unwrap().entries[0].len, 4);
        let whole = std::fs::read(cache.path().join("a")).unwrap();
        for cut in (0..10).chain(65530..whole.len()) {
            let path = directory.path().join("cut");
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert!(read_footer(&File::open(&path).unwrap()).is_err(), "cut at {cut}");
        }
        // Nothing reads the padding between the two.
        for at in (0..4).chain(65536..whole.len()) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            let path = directory.path().join("flipped");
            std::fs::write(&path, &bytes).unwrap();
            let verified = verify(&mut File::open(&path).unwrap());
            assert!(
                verified.as_ref().map_or(true, |f| f.guest != "g"
                    || f.engine != "e"
                    || f.entries[0].build != "epoch"),
                "flip at {at} unnoticed: {verified:?}"
            );
        }
    }

    #[test]
    fn a_cache_that_others_can_reach_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let shared = directory.path().join("shared");
        std::fs::create_dir(&shared).unwrap();
        std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(CacheDirectory::open(&shared).unwrap_err().contains("0700"));
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(directory.path(), &link).unwrap();
        assert!(CacheDirectory::open(&link).unwrap_err().contains("symbolic link"));

        let cache = CacheDirectory::open(&directory.path().join("mine")).unwrap();
        drop(cache.store("a", &sample()).unwrap());
        let file = cache.path().join("a");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(cache.find("a").unwrap_err().contains("write"));
        assert!(open_compiled(&file).is_err());
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/etc/hosts", &file).unwrap();
        assert!(cache.find("a").is_err());
        assert!(open_compiled(&file).unwrap_err().to_string().contains("symbolic link"));
    }

    #[test]
    fn a_file_that_several_write_at_once_is_always_whole() {
        let directory = tempfile::tempdir().unwrap();
        let cache = CacheDirectory::open(&directory.path().join("mine")).unwrap();
        let bytes: Vec<Vec<u8>> = (0..4_u8).map(|number| vec![number; 100_000]).collect();
        std::thread::scope(|scope| {
            for bytes in &bytes {
                let cache = &cache;
                scope.spawn(move || {
                    let first = Code { bytes, ..FIRST };
                    for _ in 0..8 {
                        let mut file = cache.store("a", &CodeFile { first, ..sample() }).unwrap();
                        let footer = verify(&mut file).unwrap();
                        let epoch = footer.entry("epoch").unwrap();
                        assert_eq!(read_entry(&file, epoch).unwrap(), *bytes);
                        verify(&mut cache.find("a").unwrap().unwrap()).unwrap();
                    }
                });
            }
        });
        let names: Vec<_> = std::fs::read_dir(cache.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["a"], "nothing is left of a write");
    }

    #[test]
    fn a_write_that_fails_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let cache = CacheDirectory::open(&directory.path().join("mine")).unwrap();
        // No file takes the place of a directory.
        std::fs::create_dir(cache.path().join("a")).unwrap();
        assert!(cache.store("a", &sample()).is_err());
        assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), 1);
    }

    #[test]
    fn replacing_a_cached_file_leaves_the_open_one_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let cache = CacheDirectory::open(&directory.path().join("mine")).unwrap();
        let old = cache.store("a", &sample()).unwrap();
        let other = Code { bytes: b"other code", ..FIRST };
        cache.store("a", &CodeFile { first: other, ..sample() }).unwrap();
        assert_eq!(read_footer(&old).unwrap().entries[0].len, 4);
    }
}
