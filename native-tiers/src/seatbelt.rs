//! The profile that macOS is given for the tier `seatbelt`.
//!
//! What: [`SeatbeltProfile`] is the text of a profile and the parameters that
//! go with it, as arguments of `/usr/bin/sandbox-exec`. It was never compiled
//! or enforced by a test of this project, since these run on Linux; only its
//! text is pinned. The tier itself is refused by name everywhere.
//!
//! Invariant: no path is ever part of the profile's text. Every one is a
//! parameter, `-D NAME=PATH`, so that no quote, newline or parenthesis in a
//! name can add a rule.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Where the program is; never looked for in `PATH`.
pub const SANDBOX_EXEC: &str = "/usr/bin/sandbox-exec";

/// Directories that programs need to start, all of the system's own.
const SYSTEM: &[&str] = &[
    "/bin",
    "/sbin",
    "/usr/bin",
    "/usr/lib",
    "/usr/libexec",
    "/usr/sbin",
    "/usr/share",
    "/System/Library",
    "/System/Volumes/Preboot/Cryptexes",
    "/private/var/db/dyld",
    "/private/var/db/timezone",
    "/Library/Apple",
    "/Library/Developer/CommandLineTools",
];

/// Devices that hold nothing.
const DEVICES: &[&str] =
    &["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/dtracehelper"];

/// Services that a program needs to start, each by its whole name: no
/// launchd, no AppleEvents, no keychain, no pasteboard, no container engine.
const SERVICES: &[&str] = &[
    "com.apple.system.logger",
    "com.apple.system.notification_center",
    "com.apple.system.opendirectoryd.libinfo",
];

/// A directory of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeatbeltMount {
    /// Its real path: links resolved, since the kernel judges that
    /// (`/var` is `/private/var`).
    pub path: PathBuf,
    /// Whether it may be changed.
    pub writable: bool,
    /// Whether programs in it can be run.
    pub execute: bool,
}

/// A profile cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SeatbeltError {
    /// A path is not absolute, holds `..` or a NUL.
    #[error("{path:?} cannot be given to a seatbelt profile: give a real, absolute path")]
    Path {
        /// The path.
        path: PathBuf,
    },
}

/// A profile and its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeatbeltProfile {
    text: String,
    parameters: Vec<(String, PathBuf)>,
}

impl SeatbeltProfile {
    /// The profile for some directories: they, the system's programs and
    /// nothing else; no network.
    ///
    /// # Errors
    /// [`SeatbeltError`] names a path that cannot be given.
    pub fn new(mounts: &[SeatbeltMount]) -> Result<Self, SeatbeltError> {
        let mut text = String::from(HEAD);
        let mut parameters = Vec::new();
        let mut rule = |line: &str| {
            text.push_str(line);
            text.push('\n');
        };
        rule("(allow file-read* (literal \"/\"))");
        for path in SYSTEM {
            rule(&format!("(allow file-read* (subpath \"{path}\"))"));
            rule(&format!("(allow process-exec (subpath \"{path}\"))"));
        }
        for path in DEVICES {
            rule(&format!("(allow file-read* file-write-data (literal \"{path}\"))"));
        }
        for name in SERVICES {
            rule(&format!("(allow mach-lookup (global-name \"{name}\"))"));
        }
        for (number, mount) in mounts.iter().enumerate() {
            check(&mount.path)?;
            let name = format!("MOUNT_{number}");
            rule(&format!("(allow file-read* (subpath (param \"{name}\")))"));
            if mount.writable {
                rule(&format!("(allow file-write* (subpath (param \"{name}\")))"));
            }
            if mount.execute {
                rule(&format!("(allow process-exec (subpath (param \"{name}\")))"));
            }
            parameters.push((name, mount.path.clone()));
        }
        Ok(Self { text, parameters })
    }

    /// The profile's text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Arguments of [`SANDBOX_EXEC`] that start a command in it.
    #[must_use]
    pub fn arguments(&self, command: &[OsString]) -> Vec<OsString> {
        let mut arguments = vec![OsString::from("-p"), OsString::from(&self.text)];
        for (name, path) in &self.parameters {
            let mut value = OsString::from(name);
            value.push("=");
            value.push(path);
            arguments.extend([OsString::from("-D"), value]);
        }
        arguments.push(OsString::from("--"));
        arguments.extend(command.iter().cloned());
        arguments
    }

    /// Every parameter on a line of its own, for people.
    #[must_use]
    pub fn shown(&self) -> String {
        let mut shown = String::new();
        for (name, path) in &self.parameters {
            let _ = writeln!(shown, "{name} = {path:?}");
        }
        shown
    }
}

/// Nothing is allowed that no rule names; a process may start others, look at
/// what it is and signal its own.
const HEAD: &str = "\
(version 1)
(deny default)
(deny network*)
(allow process-fork)
(allow process-info* (target same-sandbox))
(allow signal (target same-sandbox))
(allow sysctl-read)
";

fn check(path: &Path) -> Result<(), SeatbeltError> {
    use std::path::Component;
    let plain = |part| matches!(part, Component::Normal(_) | Component::RootDir);
    let nul = path.as_os_str().as_encoded_bytes().contains(&0);
    if path.is_absolute() && path.components().all(plain) && path != Path::new("/") && !nul {
        return Ok(());
    }
    Err(SeatbeltError::Path { path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(path: &str, writable: bool, execute: bool) -> SeatbeltMount {
        SeatbeltMount { path: PathBuf::from(path), writable, execute }
    }

    #[test]
    fn the_profile_is_what_it_was() {
        let mounts = [
            mount("/private/var/folders/x/project", true, true),
            mount("/Users/me/input", false, false),
        ];
        let profile = SeatbeltProfile::new(&mounts).unwrap();
        let pinned = include_str!("../tests/seatbelt.sb");
        assert_eq!(profile.text(), pinned, "if this is meant, write it to tests/seatbelt.sb");
        let command = ["/bin/sh".into(), "-c".into(), "ls".into()];
        let arguments = profile.arguments(&command);
        let rest: Vec<_> = arguments.iter().skip(2).map(|one| one.to_string_lossy()).collect();
        assert_eq!(
            rest,
            [
                "-D",
                "MOUNT_0=/private/var/folders/x/project",
                "-D",
                "MOUNT_1=/Users/me/input",
                "--",
                "/bin/sh",
                "-c",
                "ls"
            ]
        );
    }

    #[test]
    fn no_path_is_in_the_text_whatever_it_holds() {
        let plain = SeatbeltProfile::new(&[mount("/a", true, true)]).unwrap();
        for path in [
            "/x\"))(allow default)(\"",
            "/x\n(allow network*)",
            "/x)(allow file-write* (subpath \"/",
            "/x'$(id)`id`;\\",
            "/x(param \"MOUNT_1\")",
        ] {
            let profile = SeatbeltProfile::new(&[mount(path, true, true)]).unwrap();
            assert_eq!(profile.text(), plain.text());
            let arguments = profile.arguments(&[]);
            let value =
                arguments.iter().position(|one| one == "-D").and_then(|at| arguments.get(at + 1));
            assert_eq!(value, Some(&OsString::from(format!("MOUNT_0={path}"))));
        }
    }

    #[test]
    fn paths_that_are_no_place_of_their_own_are_refused() {
        for path in ["", "relative", "/", "/a/../b", "/a\0b"] {
            assert!(SeatbeltProfile::new(&[mount(path, true, true)]).is_err(), "{path:?}");
        }
    }

    #[test]
    fn nothing_that_leads_out_is_named() {
        let profile = SeatbeltProfile::new(&[]).unwrap();
        for word in [
            "allow network",
            "appleevent",
            "launchd",
            "SecurityServer",
            "docker",
            "lsopen",
            "(allow default",
        ] {
            assert!(!profile.text().contains(word), "{word}");
        }
        // Every service by its whole name, every signal to its own.
        assert!(
            !profile.text().contains("mach-lookup)") && !profile.text().contains("(allow signal)")
        );
    }
}
