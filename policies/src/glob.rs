//! Patterns over paths.
//!
//! What: [`PathGlob`] matches canonical paths. `*` stands for any bytes of one
//! component, `**` (a whole component) for any number of components; a final
//! `**` stands for at least one, so `/a/**` is what lies below `/a` and not
//! `/a` itself. `/**` is every path, the root included.
//! Why: one matcher serves files and URL paths; it also says what a pattern
//! means for a whole subtree, which renaming a directory needs.
//!
//! Invariant: patterns are absolute and already canonical (no `.`, `..` or
//! empty component). A match takes no more than pattern length times path
//! length steps. Names are bytes.
//!
//! `\` before one of `* ? [ ] { } \` makes it a plain character and `\xHH` is
//! one byte. `?`, `[`, `]`, `{` and `}` without it are refused: what other
//! matchers mean by them would never match here, and a rule that never matches
//! is a denial that is not there.

use std::fmt;
use std::sync::Arc;

use crate::path::{GuestPath, MAX_COMPONENT_BYTES, MAX_PATH_BYTES};
use crate::wildcard::Wildcard;

/// Most components of a pattern; one bit of a word each.
pub const MAX_GLOB_COMPONENTS: usize = 60;

/// Why text is not a path pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    /// It does not start with `/`.
    #[error("the path pattern does not start with `/`")]
    NotAbsolute,
    /// It holds `.`, `..`, an empty component or a final slash.
    #[error("the path pattern is not in its shortest form")]
    NotCanonical {
        /// The pattern in its shortest form.
        resolved: String,
    },
    /// `**` stands beside other characters of one component.
    #[error("`**` must be a whole component")]
    MixedAnyDepth,
    /// A character that other matchers give a meaning.
    #[error("`{0}` has no meaning in a path pattern")]
    Reserved(char),
    /// A backslash before something that needs none.
    #[error("the backslash escapes nothing")]
    Escape,
    /// A NUL byte, which no name can hold.
    #[error("the path pattern holds a NUL byte")]
    Nul,
    /// Longer than a path or a component can be.
    #[error("the path pattern is too long")]
    TooLong,
}

impl GlobError {
    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::NotAbsolute => "write it from the root, such as \"/work/**\"".to_owned(),
            Self::NotCanonical { resolved } => {
                format!("it would mean `{resolved}`: write that if it is meant")
            }
            Self::MixedAnyDepth => "write \"/**/*.py\" for a name at any depth".to_owned(),
            Self::Reserved(character) => {
                format!(
                    "use `*` or list the paths, or write `\\{character}` for the character itself"
                )
            }
            Self::Escape => "a backslash goes before one of * ? [ ] { } \\ or as \\xHH".to_owned(),
            Self::Nul => "remove it".to_owned(),
            Self::TooLong => {
                format!("keep it below {MAX_PATH_BYTES} bytes and {MAX_GLOB_COMPONENTS} components")
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Element {
    /// Zero or more components.
    AnyDepth,
    /// One component.
    Component(Wildcard),
}

/// A pattern over paths. Cloning is a reference count.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathGlob {
    elements: Arc<[Element]>,
    text: Arc<str>,
}

/// What a pattern says about a path and what lies below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The path itself matches.
    pub(crate) here: bool,
    /// Something below it can match.
    pub(crate) some_below: bool,
    /// Everything below it matches.
    pub(crate) all_below: bool,
    /// How far the pattern has come: for two paths with the same value, the
    /// same names below them match.
    pub(crate) progress: u64,
}

impl PathGlob {
    /// Parses a pattern over guest paths.
    ///
    /// # Errors
    /// [`GlobError`] says what is wrong and what to write.
    pub fn parse(text: &str) -> Result<Self, GlobError> {
        Self::parse_with(text, false)
    }

    /// Parses a pattern over URL paths, in which a final slash counts.
    ///
    /// # Errors
    /// [`GlobError`] says what is wrong and what to write.
    pub fn parse_url(text: &str) -> Result<Self, GlobError> {
        Self::parse_with(text, true)
    }

    fn parse_with(text: &str, final_slash: bool) -> Result<Self, GlobError> {
        if text.len() > MAX_PATH_BYTES {
            return Err(GlobError::TooLong);
        }
        let Some(rest) = text.strip_prefix('/') else { return Err(GlobError::NotAbsolute) };
        let components: Vec<&str> =
            if rest.is_empty() && !final_slash { Vec::new() } else { rest.split('/').collect() };
        let last = components.len().saturating_sub(1);
        let odd = |(index, component): (usize, &&str)| {
            matches!(*component, "." | "..")
                || (component.is_empty() && !(final_slash && index == last))
        };
        if components.iter().enumerate().any(odd) {
            return Err(GlobError::NotCanonical { resolved: resolve(&components, final_slash) });
        }
        let mut elements = Vec::with_capacity(components.len().saturating_add(1));
        for component in &components {
            if *component == "**" {
                if elements.last() != Some(&Element::AnyDepth) {
                    elements.push(Element::AnyDepth);
                }
            } else {
                elements.push(Element::Component(component_pattern(component)?));
            }
        }
        if elements.len() > 1 && elements.last() == Some(&Element::AnyDepth) {
            elements.push(Element::Component(Wildcard::new("*")));
        }
        if elements.len() > MAX_GLOB_COMPONENTS {
            return Err(GlobError::TooLong);
        }
        Ok(Self { elements: elements.into(), text: Arc::from(text) })
    }

    /// Whether a guest path matches.
    #[must_use]
    pub fn matches(&self, path: &GuestPath) -> bool {
        self.extent(path.components()).here
    }

    /// Whether a canonical URL path, which starts with `/`, matches.
    #[must_use]
    pub fn matches_url(&self, path: &str) -> bool {
        path.strip_prefix('/')
            .is_some_and(|rest| self.extent(rest.split('/').map(str::as_bytes)).here)
    }

    pub(crate) fn extent<'p>(&self, components: impl Iterator<Item = &'p [u8]>) -> Extent {
        let mut states = self.skip_any_depth(1);
        for component in components {
            let mut next = 0;
            for (index, element) in self.elements.iter().enumerate() {
                if states & bit(index) == 0 {
                    continue;
                }
                match element {
                    Element::AnyDepth => next |= bit(index),
                    Element::Component(pattern) if pattern.matches(component) => {
                        next |= bit(index.saturating_add(1))
                    }
                    Element::Component(_) => {}
                }
            }
            if next == 0 {
                return Extent::default();
            }
            states = self.skip_any_depth(next);
        }
        let end = bit(self.elements.len());
        Extent {
            here: states & end != 0,
            some_below: states & !end != 0,
            progress: states & !end,
            all_below: (0..self.elements.len())
                .any(|index| states & bit(index) != 0 && self.is_everything_from(index)),
        }
    }

    /// Adds the states reached when `**` stands for nothing.
    fn skip_any_depth(&self, mut states: u64) -> u64 {
        for (index, element) in self.elements.iter().enumerate() {
            if states & bit(index) != 0 && *element == Element::AnyDepth {
                states |= bit(index.saturating_add(1));
            }
        }
        states
    }

    fn is_everything_from(&self, index: usize) -> bool {
        match self.elements.get(index..) {
            Some([Element::AnyDepth]) => true,
            Some([Element::AnyDepth, Element::Component(last)]) => last.matches_everything(),
            _ => false,
        }
    }

    /// Whether every path that `other` matches is matched here. `true` is
    /// certain; `false` can also mean that it is not obvious.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.relate(other, false)
    }

    /// Whether some path can match both.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.relate(other, true)
    }

    /// Fills the table `relation(self[i..], other[j..])` from its end.
    fn relate(&self, other: &Self, overlap: bool) -> bool {
        let (height, width) = (self.elements.len(), other.elements.len());
        let columns = width.saturating_add(1);
        let mut table = vec![false; columns.saturating_mul(height.saturating_add(1))];
        for i in (0..=height).rev() {
            for j in (0..=width).rev() {
                let at = |i: usize, j: usize| {
                    table.get(i.saturating_mul(columns).saturating_add(j)).copied() == Some(true)
                };
                let (below, right) = (i.saturating_add(1), j.saturating_add(1));
                let holds = match (self.elements.get(i), other.elements.get(j)) {
                    (None, None) => true,
                    (Some(Element::AnyDepth), None) => at(below, j),
                    (Some(Element::AnyDepth), Some(_)) => at(below, j) || at(i, right),
                    (None, Some(Element::AnyDepth)) => overlap && at(i, right),
                    (Some(_), Some(Element::AnyDepth)) => overlap && (at(i, right) || at(below, j)),
                    (Some(Element::Component(left)), Some(Element::Component(component))) => {
                        let related =
                            if overlap { left.overlaps(component) } else { left.covers(component) };
                        related && at(below, right)
                    }
                    _ => false,
                };
                if let Some(slot) = table.get_mut(i.saturating_mul(columns).saturating_add(j)) {
                    *slot = holds;
                }
            }
        }
        table.first() == Some(&true)
    }

    /// The patterns of a path and of everything below it.
    pub(crate) fn subtree(path: &GuestPath) -> [Self; 2] {
        let own: Vec<Element> = path
            .components()
            .map(|component| Element::Component(Wildcard::from_pieces(vec![component.to_vec()])))
            .collect();
        let mut below = own.clone();
        below.push(Element::AnyDepth);
        if !own.is_empty() {
            below.push(Element::Component(Wildcard::new("*")));
        }
        let slash = if own.is_empty() { "" } else { "/" };
        [
            Self { elements: own.into(), text: path.to_string().into() },
            Self { elements: below.into(), text: format!("{path}{slash}**").into() },
        ]
    }

    /// The pattern as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for PathGlob {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl fmt::Debug for PathGlob {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

fn bit(index: usize) -> u64 {
    u32::try_from(index).ok().and_then(|index| 1_u64.checked_shl(index)).unwrap_or(0)
}

fn resolve(components: &[&str], final_slash: bool) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for component in components {
        match *component {
            "" | "." => {}
            ".." => {
                kept.pop();
            }
            name => kept.push(name),
        }
    }
    let slash =
        final_slash && !kept.is_empty() && components.last().is_some_and(|last| last.is_empty());
    format!("/{}{}", kept.join("/"), if slash { "/" } else { "" })
}

fn component_pattern(component: &str) -> Result<Wildcard, GlobError> {
    if component.contains("**") {
        return Err(GlobError::MixedAnyDepth);
    }
    let mut pieces = vec![Vec::new()];
    let mut characters = component.chars();
    while let Some(character) = characters.next() {
        let bytes = match character {
            '*' => {
                pieces.push(Vec::new());
                continue;
            }
            '?' | '[' | ']' | '{' | '}' => return Err(GlobError::Reserved(character)),
            '\0' => return Err(GlobError::Nul),
            '\\' => match characters.next() {
                Some(plain @ ('*' | '?' | '[' | ']' | '{' | '}' | '\\')) => vec![plain as u8],
                Some('x') => vec![hexadecimal_byte(&mut characters)?],
                _ => return Err(GlobError::Escape),
            },
            plain => plain.encode_utf8(&mut [0; 4]).as_bytes().to_vec(),
        };
        if let Some(piece) = pieces.last_mut() {
            piece.extend_from_slice(&bytes);
        }
    }
    if pieces.iter().map(Vec::len).sum::<usize>() > MAX_COMPONENT_BYTES {
        return Err(GlobError::TooLong);
    }
    Ok(Wildcard::from_pieces(pieces))
}

fn hexadecimal_byte(characters: &mut std::str::Chars<'_>) -> Result<u8, GlobError> {
    let mut digit =
        || characters.next().and_then(|digit| digit.to_digit(16)).ok_or(GlobError::Escape);
    let value = digit()?.saturating_mul(16).saturating_add(digit()?);
    match u8::try_from(value) {
        Ok(0) => Err(GlobError::Nul),
        // A slash would hide a second component in this one.
        Ok(b'/') | Err(_) => Err(GlobError::Escape),
        Ok(byte) => Ok(byte),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(raw: &[u8]) -> GuestPath {
        GuestPath::parse(&GuestPath::root(), raw).unwrap().path
    }

    fn matches(pattern: &str, at: &str) -> bool {
        PathGlob::parse(pattern).unwrap().matches(&path(at.as_bytes()))
    }

    #[test]
    fn stars_stop_at_slashes_and_double_stars_cross() {
        for (pattern, at, want) in [
            ("/repos/*/issues", "/repos/acme/issues", true),
            ("/repos/*/issues", "/repos/acme/x/issues", false),
            ("/repos/*", "/repos/a/b", false),
            ("/repos/**", "/repos/a/b", true),
            ("/repos/**", "/repos", false),
            ("/**", "/", true),
            ("/**", "/a/b", true),
            ("/*", "/", false),
            ("/", "/", true),
            ("/a/**/b", "/a/b", true),
            ("/a/**/b", "/a/x/y/b", true),
            ("/a/**/b", "/a/x/y/b/c", false),
            ("/**/.env", "/.env", true),
            ("/**/.env*", "/x/.env.local", true),
            ("/**/.git/**", "/x/.git", false),
            ("/**/.git/**", "/x/.git/hooks/a", true),
            (r"/a/\[id\]", "/a/[id]", true),
        ] {
            assert_eq!(matches(pattern, at), want, "{pattern} {at}");
        }
        assert!(PathGlob::parse(r"/\xff").unwrap().matches(&path(b"/\xff")));
    }

    #[test]
    fn url_paths_have_final_slashes() {
        for (pattern, at, want) in [
            ("/repos/**", "/repos/", true),
            ("/repos/**", "/repos", false),
            ("/**", "/", true),
            ("/v1/", "/v1/", true),
            ("/v1/", "/v1", false),
        ] {
            assert_eq!(
                PathGlob::parse_url(pattern).unwrap().matches_url(at),
                want,
                "{pattern} {at}"
            );
        }
    }

    #[test]
    fn odd_patterns_are_refused_with_what_they_mean() {
        let resolved = |text: &str| match PathGlob::parse(text) {
            Err(GlobError::NotCanonical { resolved }) => resolved,
            other => format!("{other:?}"),
        };
        assert_eq!(resolved("/work/../etc/**"), "/etc/**");
        assert_eq!(resolved("/work//x/"), "/work/x");
        assert_eq!(PathGlob::parse("work"), Err(GlobError::NotAbsolute));
        assert_eq!(PathGlob::parse("/a**"), Err(GlobError::MixedAnyDepth));
        assert_eq!(PathGlob::parse("/a?"), Err(GlobError::Reserved('?')));
        assert_eq!(PathGlob::parse(r"/a\x2fb"), Err(GlobError::Escape));
        assert_eq!(PathGlob::parse("/a\\"), Err(GlobError::Escape));
        assert_eq!(PathGlob::parse(&"/a".repeat(61)), Err(GlobError::TooLong));
    }

    proptest! {
        #[test]
        fn relations_agree_with_matching(
            left in "(/(a|b|\\*|\\*\\*|a\\*)){1,4}",
            right in "(/(a|b|\\*|\\*\\*|a\\*)){1,4}",
            at in "(/(a|b|ab)){0,5}",
        ) {
            let (left, right) = (PathGlob::parse(&left).unwrap(), PathGlob::parse(&right).unwrap());
            let at = path(format!("/{at}").as_bytes());
            let (in_left, in_right) = (left.matches(&at), right.matches(&at));
            prop_assert!(!(in_left && in_right) || left.overlaps(&right));
            prop_assert!(!left.covers(&right) || !in_right || in_left);
            prop_assert!(left.covers(&left));
        }

        #[test]
        fn extents_agree_with_matching(
            pattern in "(/(a|b|\\*|\\*\\*)){1,4}",
            at in "(/[ab]){0,3}",
            rest in "(/[ab]){1,3}",
            other in "(/[ab]){0,3}",
        ) {
            let pattern = PathGlob::parse(&pattern).unwrap();
            let here = path(format!("/{at}").as_bytes());
            let below = path(format!("/{at}{rest}").as_bytes());
            let extent = pattern.extent(here.components());
            prop_assert!(!pattern.matches(&below) || extent.some_below);
            prop_assert!(!extent.all_below || pattern.matches(&below));
            let other = path(format!("/{other}").as_bytes());
            if pattern.extent(other.components()).progress == extent.progress {
                let moved = path(format!("{other}{rest}").replace("//", "/").as_bytes());
                prop_assert_eq!(pattern.matches(&below), pattern.matches(&moved));
            }
        }

        #[test]
        fn parsing_never_panics(text in "\\PC{0,40}") {
            let _ = PathGlob::parse(&text);
            let _ = PathGlob::parse_url(&text);
        }
    }
}
