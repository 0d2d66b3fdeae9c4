//! The canonicalisers, one for each resource.
//!
//! Property of each: what it accepts is in its one form, so the same text of
//! that form gives the same value again.

use fumehood_guest_abi::{
    Display, ErrorInfo, Exec, ExecResult, Resume, ToolCall, ToolEnded, ToolReply, ToolSearch,
    ToolStarted, ToolWait, decode, encode,
};
use fumehood_policies::{
    AddressClass, EnvRequest, GuestPath, HostName, HostPattern, LinkError, MAX_COMPONENT_BYTES,
    MAX_PATH_BYTES, NetRequest, PathGlob, ToolRequest, canonical_json, parse_json,
};

/// Most bytes of arguments that the target accepts.
const MAX_ARGUMENTS: usize = 1 << 16;

/// Names of environment variables.
pub fn environment(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(request) = EnvRequest::parse(text) {
        let name = request.get().name();
        assert_eq!(name, text);
        assert!(!name.is_empty() && !name.contains(['=', '\0']));
    }
}

/// Hosts and patterns over hosts: a pattern covers itself and matches what it
/// names, and no host is matched by a pattern that does not overlap its own.
pub fn host(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (first, second) = text.split_once(' ').unwrap_or((text, ""));
    let host = HostName::parse(first).ok();
    if let Some(host) = &host {
        let shown = host.to_string();
        assert_eq!(HostName::parse(&shown).as_ref(), Ok(host), "{shown:?}");
        assert!(shown.is_ascii());
        let own = HostPattern::parse(&shown);
        // No rule is about an address to which nothing ever goes.
        let never = host.address().map(AddressClass::of) == Some(AddressClass::Never);
        assert_eq!(own.is_ok_and(|own| own.matches(host)), !never, "{shown:?}");
    }
    let (Ok(pattern), other) = (HostPattern::parse(second), HostPattern::parse(first)) else {
        return;
    };
    let shown = pattern.to_string();
    assert_eq!(HostPattern::parse(&shown).as_ref(), Ok(&pattern), "{shown:?}");
    assert!(pattern.covers(&pattern) && pattern.overlaps(&pattern));
    if let Ok(other) = other {
        assert_eq!(pattern.overlaps(&other), other.overlaps(&pattern));
        assert!(!pattern.covers(&other) || pattern.overlaps(&other));
        if let Some(host) = &host {
            assert!(!(pattern.matches(host) && other.matches(host)) || pattern.overlaps(&other));
            assert!(!pattern.covers(&other) || !other.matches(host) || pattern.matches(host));
        }
    }
}

/// Guest paths, symbolic links and globs over paths.
pub fn path(data: &[u8]) {
    let mut parts = data.splitn(4, |byte| *byte == b'\n');
    let (base, raw) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let (target, glob) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let base = GuestPath::parse(&GuestPath::root(), base)
        .map_or_else(|_| GuestPath::root(), |base| base.path);
    well_formed(&base);
    let Ok(found) = GuestPath::parse(&base, raw) else { return };
    well_formed(&found.path);
    if let Ok(glob) = std::str::from_utf8(glob)
        && let Ok(glob) = PathGlob::parse(glob)
    {
        assert!(glob.covers(&glob));
        let _ = glob.matches(&found.path);
    }
    for absolute_inside in [false, true] {
        match found.path.redirect(&base, target, b"rest", absolute_inside) {
            // A target that climbs out of the mount is never a path in it.
            Ok(to) if found.path.starts_with(&base) && found.path != base => {
                well_formed(&to.path);
                assert!(to.path.starts_with(&base), "{:?} leaves {base:?}", to.path);
            }
            Ok(to) => well_formed(&to.path),
            Err(LinkError::Escapes | LinkError::Path(_)) => {}
        }
    }
}

fn well_formed(path: &GuestPath) {
    let bytes = path.as_bytes();
    assert!(bytes.first() == Some(&b'/') && bytes.len() <= MAX_PATH_BYTES);
    assert!(!bytes.contains(&0));
    for component in path.components() {
        assert!(component.len() <= MAX_COMPONENT_BYTES && component != b"." && component != b"..");
    }
    let again = GuestPath::parse(&GuestPath::root(), bytes).map(|again| again.path);
    assert_eq!(again.as_ref(), Ok(path));
}

/// Methods and URLs.
pub fn request(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (method, url) = text.split_once(' ').unwrap_or(("GET", text));
    let Ok(request) = NetRequest::parse(method, url) else { return };
    let parsed = request.get();
    assert_eq!(parsed.method, method);
    assert!(parsed.path.starts_with('/') && parsed.port != 0);
    assert!(!parsed.path.split('/').any(|component| component == ".."));
    let url = parsed.url();
    assert!(!url.contains(|c: char| c.is_control() || c.is_whitespace() || c == '\\'));
    assert_eq!(NetRequest::parse(method, &url).as_ref(), Ok(&request), "{url:?}");
    if let Ok(glob) = PathGlob::parse_url("/v1/**") {
        assert!(!glob.matches_url(&parsed.path) || parsed.path.starts_with("/v1"));
    }
}

/// JSON text and calls of tools.
pub fn tool_arguments(data: &[u8]) {
    if let Ok(value) = parse_json(data, MAX_ARGUMENTS) {
        let text = canonical_json(&value);
        let again = parse_json(text.as_bytes(), usize::MAX);
        assert_eq!(again.as_ref(), Ok(&value), "{text:?}");
        assert_eq!(again.map(|value| canonical_json(&value)), Ok(text));
    }
    let (name, arguments) = match data.iter().position(|byte| *byte == b' ') {
        Some(at) => data.split_at(at),
        None => (b"tool".as_slice(), data),
    };
    let Ok(name) = std::str::from_utf8(name) else { return };
    if let Ok(call) = ToolRequest::parse(name, arguments, MAX_ARGUMENTS) {
        let text = call.get().canonical_arguments();
        let again = ToolRequest::parse(name, text.as_bytes(), usize::MAX);
        assert!(
            again.is_ok_and(|again| again.get().arguments() == call.get().arguments()),
            "{text:?}"
        );
    }
}

/// Records of the guest ABI, as a guest could forge them: what is decoded is
/// no longer than what it was decoded from, and is encoded the same again.
pub fn record(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else { return };
    macro_rules! try_each {
        ($($number:literal => $record:ty),* $(,)?) => {
            match kind % 13 {
                $($number => if let Ok(found) = decode::<$record>(bytes) {
                    let Ok(again) = encode(&found) else { panic!("it cannot be encoded") };
                    // Varints have longer spellings than the one that is written.
                    assert!(again.len() <= bytes.len());
                    assert_eq!(decode::<$record>(&again).as_ref(), Ok(&found));
                },)*
                _ => {}
            }
        };
    }
    try_each! {
        0 => Display, 1 => ErrorInfo, 2 => Exec, 3 => ExecResult, 4 => Resume, 5 => ToolCall,
        6 => ToolEnded, 7 => ToolReply, 8 => ToolSearch, 9 => ToolStarted, 10 => ToolWait,
        11 => Vec<ToolEnded>, 12 => u64,
    }
}
