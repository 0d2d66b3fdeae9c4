//! The arguments about what code may reach.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser as _};
use fumehood::Access;

use super::ProjectArgs;
use crate::net::NetArgs;

/// What code may reach.
#[derive(Debug, Args)]
pub(crate) struct ReachArgs {
    /// Let the guest see a host directory; read only unless `:rw` is added
    #[arg(long, value_name = "GUEST=HOST[:ro|rw]",
        value_parser = OsStringValueParser::new().try_map(|text| parse_mount(text, false)))]
    pub(crate) mount: Vec<MountArg>,
    /// Like --mount, for directories that are refused otherwise, such as your home directory
    #[arg(long, value_name = "GUEST=HOST[:ro|rw]",
        value_parser = OsStringValueParser::new().try_map(|text| parse_mount(text, true)))]
    pub(crate) force_mount: Vec<MountArg>,
    #[command(flatten)]
    pub(crate) project: ProjectArgs,
    /// Give the code tools for files: read_file, write_file, edit_file, delete, glob, grep, list_directory
    #[arg(long)]
    pub(crate) file_tools: bool,
    /// Set an environment variable of the guest
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_env, allow_hyphen_values = true)]
    pub(crate) env: Vec<(String, String)>,
    /// What the code may reach: a policy file, or `strict`, `open-read` or `workspace`
    #[arg(long, value_name = "FILE|PRESET")]
    pub(crate) policy: Option<OsString>,
    #[command(flatten)]
    pub(crate) net: NetArgs,
}

/// One `--mount`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountArg {
    /// Where the guest sees it.
    pub(crate) guest: String,
    /// The host directory.
    pub(crate) host: PathBuf,
    /// How it may be used.
    pub(crate) access: Access,
    /// Whether it was given with `--force-mount`.
    pub(crate) force: bool,
}

pub(crate) fn parse_env(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("it is not a variable; write NAME=VALUE".to_owned()),
    }
}

pub(crate) fn parse_mount(text: OsString, force: bool) -> Result<MountArg, String> {
    let malformed =
        || "it is not a mount; write GUEST=HOST or GUEST=HOST:rw, such as /data=./logs".to_owned();
    let bytes = text.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=').ok_or_else(malformed)?;
    let (guest, host) = bytes.split_at(at);
    let host = host.get(1..).unwrap_or_default();
    let (host, access) = match (host.strip_suffix(b":rw"), host.strip_suffix(b":ro")) {
        (Some(host), _) => (host, Access::ReadWrite),
        (None, Some(host)) => (host, Access::ReadOnly),
        (None, None) => (host, Access::ReadOnly),
    };
    let guest = std::str::from_utf8(guest).map_err(|_| malformed())?;
    if host.is_empty() || guest.is_empty() {
        return Err(malformed());
    }
    if !guest.starts_with('/') {
        return Err("the guest's side of a mount is an absolute path; write /NAME=HOST".to_owned());
    }
    let host = PathBuf::from(OsString::from_vec(host.to_vec()));
    Ok(MountArg { guest: guest.to_owned(), host, access, force })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_split_at_the_first_equals_sign() {
        let mount = |text: &str| parse_mount(text.into(), false);
        let read_only = mount("/data=a=b").unwrap();
        assert_eq!((read_only.guest.as_str(), read_only.host.to_str()), ("/data", Some("a=b")));
        assert_eq!(read_only.access, Access::ReadOnly);
        assert_eq!(mount("/data=a:rw").unwrap().access, Access::ReadWrite);
        assert_eq!(mount("/data=a:b:ro").unwrap().host.to_str(), Some("a:b"));
        for bad in ["", "/data", "=x", "/data=", "/data=:rw", "data=x"] {
            assert!(mount(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn variables_need_a_name() {
        assert_eq!(parse_env("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert!(parse_env("A").is_err());
        assert!(parse_env("=b").is_err());
    }
}
