//! The canonical absolute guest path and its only parser.
//!
//! What: bytes a guest gave become a [`GuestPath`] or an error.
//! Why: policy, audit and execution must name the same object.
//!
//! Invariant: a [`GuestPath`] starts with `/`; no component is empty, `.` or
//! `..`, holds NUL or `/`, or is longer than [`MAX_COMPONENT_BYTES`]; the whole
//! is at most [`MAX_PATH_BYTES`]. Names are bytes: only NUL is refused.
//! `..` is collapsed lexically, before any symbolic link is looked at, and
//! stays at the root.

use std::fmt;
use std::sync::Arc;

/// Longest path in bytes, checked on the raw input before it is collapsed and
/// again on the result.
pub const MAX_PATH_BYTES: usize = 4096;
/// Longest path component in bytes.
pub const MAX_COMPONENT_BYTES: usize = 255;

/// Why bytes are not a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The path has no bytes; POSIX answers `ENOENT`.
    #[error("the path is empty")]
    Empty,
    /// The path holds a NUL byte.
    #[error("the path holds a NUL byte")]
    Nul,
    /// The path is longer than [`MAX_PATH_BYTES`].
    #[error("the path is longer than 4096 bytes")]
    TooLong,
    /// A component is longer than [`MAX_COMPONENT_BYTES`].
    #[error("a path component is longer than 255 bytes")]
    ComponentTooLong,
    /// A name for [`GuestPath::join`] is empty, `.`, `..` or holds `/`.
    #[error("the name is not a single path component")]
    NotAName,
}

impl PathError {
    /// A stable identifier.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Empty => "path_empty",
            Self::Nul => "path_nul",
            Self::TooLong => "path_too_long",
            Self::ComponentTooLong => "path_component_too_long",
            Self::NotAName => "path_not_a_name",
        }
    }
}

/// Why the target of a symbolic link leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The target is absolute or climbs out of the mount.
    #[error("the symbolic link leads out of its mount")]
    Escapes,
    /// The target is not a path.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// A canonical absolute guest path. Cloning is a reference count.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GuestPath {
    bytes: Arc<[u8]>,
}

/// What a guest asked for: the path, and whether its spelling insists on a
/// directory (a trailing slash, or a last component `.` or `..`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedPath {
    /// The canonical path.
    pub path: GuestPath,
    /// Whether anything but a directory is `ENOTDIR`.
    pub must_be_dir: bool,
}

impl GuestPath {
    /// The path `/`.
    #[must_use]
    pub fn root() -> Self {
        Self { bytes: Arc::from(b"/".as_slice()) }
    }

    /// Parses guest bytes; the only way from bytes to a path.
    ///
    /// A relative path is joined to `base`, an absolute one starts at the root.
    ///
    /// # Errors
    /// [`PathError`] if the bytes are not a path.
    pub fn parse(base: &Self, raw: &[u8]) -> Result<RequestedPath, PathError> {
        check_raw(raw)?;
        let mut bytes =
            Vec::with_capacity(base.bytes.len().saturating_add(raw.len()).saturating_add(1));
        if raw.first() != Some(&b'/') && !base.is_root() {
            bytes.extend_from_slice(&base.bytes);
        }
        for component in raw.split(|byte| *byte == b'/') {
            append(&mut bytes, component)?;
        }
        Ok(RequestedPath { path: Self::finish(bytes)?, must_be_dir: insists_on_directory(raw) })
    }

    /// Resolves the target of the symbolic link at `self`, found in the mount
    /// at `mount`, and appends the components `rest` that were still to walk.
    ///
    /// With `absolute_inside`, an absolute target starts at the mount's root;
    /// otherwise it is refused.
    ///
    /// # Errors
    /// [`LinkError::Escapes`] if the target is absolute and may not be, or
    /// climbs above `mount` at any point; [`LinkError::Path`] if it is no path.
    pub fn redirect(
        &self,
        mount: &Self,
        target: &[u8],
        rest: &[u8],
        absolute_inside: bool,
    ) -> Result<RequestedPath, LinkError> {
        check_raw(target)?;
        let absolute = target.first() == Some(&b'/');
        if absolute && !absolute_inside {
            return Err(LinkError::Escapes);
        }
        let start = if absolute { Some(mount.clone()) } else { self.parent() };
        let mut bytes =
            start.filter(|path| !path.is_root()).map_or_else(Vec::new, |path| path.bytes.to_vec());
        let floor = if mount.is_root() { 0 } else { mount.bytes.len() };
        for component in target.split(|byte| *byte == b'/') {
            if component == b".." && bytes.len() <= floor {
                return Err(LinkError::Escapes);
            }
            append(&mut bytes, component)?;
        }
        for component in rest.split(|byte| *byte == b'/') {
            append(&mut bytes, component)?;
        }
        let must_be_dir = rest.is_empty() && insists_on_directory(target);
        Ok(RequestedPath { path: Self::finish(bytes)?, must_be_dir })
    }

    fn finish(bytes: Vec<u8>) -> Result<Self, PathError> {
        if bytes.len() > MAX_PATH_BYTES {
            return Err(PathError::TooLong);
        }
        if bytes.is_empty() {
            return Ok(Self::root());
        }
        Ok(Self { bytes: bytes.into() })
    }

    /// Whether this is `/`.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.bytes.len() <= 1
    }

    /// The components, outermost first; none for the root.
    pub fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.relative().split(|byte| *byte == b'/').filter(|component| !component.is_empty())
    }

    /// How many components there are.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.components().count()
    }

    /// The path without its leading slash; empty for the root.
    #[must_use]
    pub fn relative(&self) -> &[u8] {
        self.bytes.get(1..).unwrap_or_default()
    }

    /// The path of `name` in this directory.
    ///
    /// # Errors
    /// [`PathError`] if `name` is not a single component or the result is too
    /// long.
    pub fn join(&self, name: &[u8]) -> Result<Self, PathError> {
        check_raw(name)?;
        if name.contains(&b'/') || name == b"." || name == b".." {
            return Err(PathError::NotAName);
        }
        let mut bytes = if self.is_root() { Vec::new() } else { self.bytes.to_vec() };
        append(&mut bytes, name)?;
        Self::finish(bytes)
    }

    /// The directory that holds this; `None` for the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        let end = self.bytes.iter().rposition(|byte| *byte == b'/')?;
        match self.bytes.get(..end) {
            Some(head) if !head.is_empty() => Some(Self { bytes: head.into() }),
            _ => Some(Self::root()),
        }
    }

    /// The last component; `None` for the root.
    #[must_use]
    pub fn file_name(&self) -> Option<&[u8]> {
        self.bytes.rsplit(|byte| *byte == b'/').next().filter(|name| !name.is_empty())
    }

    /// Whether this is `prefix` or lies below it.
    #[must_use]
    pub fn starts_with(&self, prefix: &Self) -> bool {
        self.strip_prefix(prefix).is_some()
    }

    /// The rest below `prefix`, without a leading slash; empty if equal.
    #[must_use]
    pub fn strip_prefix(&self, prefix: &Self) -> Option<&[u8]> {
        if prefix.is_root() {
            return Some(self.relative());
        }
        match self.bytes.strip_prefix(prefix.bytes.as_ref())? {
            [] => Some(&[]),
            [b'/', rest @ ..] => Some(rest),
            _ => None,
        }
    }

    /// This path with its prefix `from` replaced by `to`; `None` if `from` is
    /// no prefix or the result would be too long.
    #[must_use]
    pub fn rebase(&self, from: &Self, to: &Self) -> Option<Self> {
        let rest = self.strip_prefix(from)?;
        let mut bytes = if to.is_root() { Vec::new() } else { to.bytes.to_vec() };
        for component in rest.split(|byte| *byte == b'/') {
            append(&mut bytes, component).ok()?;
        }
        Self::finish(bytes).ok()
    }

    /// The bytes, beginning with `/`.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

fn check_raw(raw: &[u8]) -> Result<(), PathError> {
    if raw.is_empty() {
        return Err(PathError::Empty);
    }
    if raw.len() > MAX_PATH_BYTES {
        return Err(PathError::TooLong);
    }
    if raw.contains(&0) {
        return Err(PathError::Nul);
    }
    Ok(())
}

fn insists_on_directory(raw: &[u8]) -> bool {
    matches!(raw.rsplit(|byte| *byte == b'/').next(), Some(b"" | b"." | b".."))
}

/// Applies one component to a canonical prefix (empty stands for the root).
fn append(bytes: &mut Vec<u8>, component: &[u8]) -> Result<(), PathError> {
    match component {
        b"" | b"." => {}
        b".." => {
            let end = bytes.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
            bytes.truncate(end);
        }
        name if name.len() > MAX_COMPONENT_BYTES => return Err(PathError::ComponentTooLong),
        name => {
            bytes.push(b'/');
            bytes.extend_from_slice(name);
        }
    }
    Ok(())
}

/// Writes bytes so that they are safe to show on one line: control characters,
/// bidirectional and invisible format characters, backslashes and bytes that
/// are not UTF-8 are escaped.
///
/// # Errors
/// Those of the formatter.
pub fn escape(bytes: &[u8], to: &mut impl fmt::Write) -> fmt::Result {
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' => to.write_str("\\\\")?,
                _ if is_deceptive(character) => write!(to, "{}", character.escape_unicode())?,
                _ => to.write_char(character)?,
            }
        }
        for byte in chunk.invalid() {
            write!(to, "\\x{byte:02x}")?;
        }
    }
    Ok(())
}

fn is_deceptive(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

impl fmt::Display for GuestPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        escape(&self.bytes, formatter)
    }
}

impl fmt::Debug for GuestPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(raw: &[u8]) -> GuestPath {
        GuestPath::parse(&GuestPath::root(), raw)
            .unwrap_or_else(|error| unreachable!("{error}"))
            .path
    }

    #[test]
    fn parses_as_documented() {
        let base = path(b"/a/b");
        for (raw, want, dir) in [
            ("c", "/a/b/c", false),
            ("../c/", "/a/c", true),
            ("../../../..", "/", true),
            ("/x//y/./z", "/x/y/z", false),
            (".", "/a/b", true),
            ("/", "/", true),
            ("...", "/a/b/...", false),
        ] {
            let got = GuestPath::parse(&base, raw.as_bytes());
            assert_eq!(
                got,
                Ok(RequestedPath { path: path(want.as_bytes()), must_be_dir: dir }),
                "{raw}"
            );
        }
    }

    #[test]
    fn limits_apply_before_collapse() {
        let root = GuestPath::root();
        assert_eq!(GuestPath::parse(&root, b""), Err(PathError::Empty));
        assert_eq!(GuestPath::parse(&root, b"a\0b"), Err(PathError::Nul));
        assert_eq!(GuestPath::parse(&root, &b"a/../".repeat(820)), Err(PathError::TooLong));
        assert_eq!(GuestPath::parse(&root, &[b'x'; 256]), Err(PathError::ComponentTooLong));
        assert!(GuestPath::parse(&root, &[b'x'; 255]).is_ok());
        assert_eq!(
            GuestPath::parse(&path(&b"/aaa".repeat(1000)), &b"/aaa".repeat(100)[1..]),
            Err(PathError::TooLong)
        );
    }

    #[test]
    fn redirects_stay_in_the_mount() {
        let (root, mount, link) = (GuestPath::root(), path(b"/m"), path(b"/m/d/l"));
        let go = |target: &[u8], rest: &[u8]| {
            link.redirect(&mount, target, rest, false).map(|found| found.path)
        };
        assert_eq!(go(b"../x", b"y"), Ok(path(b"/m/x/y")));
        assert_eq!(go(b"..", b""), Ok(path(b"/m")));
        assert_eq!(go(b"../..", b""), Err(LinkError::Escapes));
        assert_eq!(go(b"../../m/x", b""), Err(LinkError::Escapes));
        assert_eq!(go(b"/etc/passwd", b""), Err(LinkError::Escapes));
        assert_eq!(
            path(b"/l").redirect(&root, b"/etc/x", b"", true).map(|f| f.path),
            Ok(path(b"/etc/x"))
        );
        assert_eq!(path(b"/l").redirect(&root, b"..", b"", true), Err(LinkError::Escapes));
    }

    #[test]
    fn display_escapes() {
        assert_eq!(
            path("/a\n\u{1b}\u{202e}\\".as_bytes()).to_string(),
            "/a\\u{a}\\u{1b}\\u{202e}\\\\"
        );
        assert_eq!(path(b"/\xff").to_string(), "/\\xff");
    }

    proptest! {
        #[test]
        fn canonical_and_idempotent(base in "(/[a-c.]{1,3}){0,4}", raw in proptest::collection::vec(prop_oneof![Just(b'/'), Just(b'.'), any::<u8>()], 1..60)) {
            let base = if base.is_empty() { GuestPath::root() } else { path(base.as_bytes()) };
            if let Ok(found) = GuestPath::parse(&base, &raw) {
                prop_assert!(found.path.as_bytes().starts_with(b"/"));
                for component in found.path.components() {
                    prop_assert!(!component.is_empty() && component != b"." && component != b".." && !component.contains(&0));
                }
                let again = GuestPath::parse(&base, found.path.as_bytes());
                prop_assert_eq!(again.map(|again| again.path), Ok(found.path.clone()));
                let rebuilt = found.path.components().try_fold(GuestPath::root(), |path, name| path.join(name));
                prop_assert_eq!(rebuilt, Ok(found.path.clone()));
                if let (Some(parent), Some(name)) = (found.path.parent(), found.path.file_name()) {
                    prop_assert_eq!(parent.join(name), Ok(found.path));
                }
            }
        }

        #[test]
        fn redirect_never_escapes(target in "(/?)(\\.\\./|\\./|[ab]/){0,6}[ab]?", rest in "([ab]/){0,2}[ab]?") {
            let mount = path(b"/m/n");
            if let Ok(found) = path(b"/m/n/d/l").redirect(&mount, target.as_bytes(), rest.as_bytes(), true) {
                prop_assert!(found.path.starts_with(&mount));
            }
        }
    }
}
