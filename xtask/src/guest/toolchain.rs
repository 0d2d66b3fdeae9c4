//! Finds a compiler for wasm32-wasip1 and says how to call it.
//!
//! Two are known to work: the target of an active rustup toolchain, and the
//! compiler of Debian's `rustc-web` with the C library of a newer Debian suite.
//! Invariant: the flags that end up in the artefact are the same for both but
//! for paths, and paths are mapped away.

use anyhow::{Context as _, Result, bail};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The target of the guest.
pub(crate) const TARGET: &str = "wasm32-wasip1";
/// Oldest compiler that knows the language the interpreter is written in.
const OLDEST: (u32, u32) = (1, 96);
/// Code generation, the same for every compiler. A choice of a few becomes
/// branches, which are foretold, and no table, whose jump is not.
const FLAGS: &[&str] = &[
    "-C",
    "target-feature=+simd128,+bulk-memory,+sign-ext,+nontrapping-fptoint,+mutable-globals",
    "-C",
    "llvm-args=-min-jump-table-entries=10",
];
/// The linker that comes with Debian's compiler, which does not find it itself.
const LINKER: &str = "/usr/bin/rust-lld";
/// The command that sets the Debian route up.
const SETUP: &str = "cargo xtask guest --setup";

/// A compiler and how to call it.
pub(crate) struct Toolchain {
    /// What to tell the user.
    pub(crate) name: &'static str,
    cargo: PathBuf,
    rustc: PathBuf,
    /// Directory of the C library, unless the compiler brings its own.
    library: Option<PathBuf>,
}

impl Toolchain {
    /// Finds the first toolchain that is there.
    ///
    /// # Errors
    /// There is none; the text says what to run.
    pub(crate) fn find(root: &Path) -> Result<Self> {
        let rustc = PathBuf::from("rustc");
        if let Ok(sysroot) = output(Command::new(&rustc).args(["--print", "sysroot"])) {
            let installed = Path::new(sysroot.trim()).join("lib/rustlib").join(TARGET);
            if installed.is_dir() && is_recent(&rustc)? {
                let cargo = PathBuf::from("cargo");
                return Ok(Self { name: "rustup", cargo, rustc, library: None });
            }
        }
        let rustc = PathBuf::from("/usr/bin/rustc");
        let library = private_root(root).join("usr/lib").join(TARGET);
        if !rustc.is_file() || !library.is_dir() || !is_recent(&rustc)? {
            bail!(
                "no compiler for {TARGET} was found. Run `rustup target add {TARGET}` \
                 (Rust {}.{} or newer), or on Debian `{SETUP}`",
                OLDEST.0,
                OLDEST.1
            );
        }
        let cargo = PathBuf::from("/usr/bin/cargo");
        Ok(Self { name: "Debian rustc-web", cargo, rustc, library: Some(library) })
    }

    /// What the compiler says it is.
    ///
    /// # Errors
    /// The compiler cannot be run.
    pub(crate) fn version(&self) -> Result<String> {
        Ok(output(Command::new(&self.rustc).arg("-vV"))?.trim().to_owned())
    }

    /// The C library's package version, where it is not the compiler's own.
    ///
    /// # Errors
    /// The directory of the package cannot be read.
    pub(crate) fn library_version(&self, root: &Path) -> Result<Option<String>> {
        if self.library.is_none() {
            return Ok(None);
        }
        for entry in fs::read_dir(apt_root(root))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.starts_with("wasi-libc_") && name.ends_with(".deb") {
                return Ok(Some(name.trim_end_matches(".deb").to_owned()));
            }
        }
        Ok(None)
    }

    /// The flags as the provenance states them: without paths.
    #[must_use]
    pub(crate) fn stated_flags(&self) -> Vec<String> {
        let mut flags: Vec<_> = FLAGS.iter().map(|flag| (*flag).to_owned()).collect();
        if self.library.is_some() {
            flags.extend(["-C", "link-self-contained=no"].map(str::to_owned));
            flags.push("-Zbuild-std=std,panic_abort".to_owned());
        }
        flags
    }

    /// Builds the guest into `target` and returns the module.
    ///
    /// # Errors
    /// The compiler cannot be run or reports an error.
    pub(crate) fn build(&self, root: &Path, target: &Path, profile: &str) -> Result<PathBuf> {
        let mut command = Command::new(&self.cargo);
        command
            .current_dir(root.join("guest"))
            .args(["build", "--locked", "--target", TARGET, "--profile", profile])
            .arg("--target-dir")
            .arg(target)
            .env("RUSTC", &self.rustc)
            .env("SOURCE_DATE_EPOCH", "0")
            .env("CARGO_ENCODED_RUSTFLAGS", self.encoded_flags(root)?)
            // Set by the cargo that runs this program; they are not for the guest.
            .env_remove("RUSTUP_TOOLCHAIN")
            .env_remove("CARGO")
            .env_remove("RUSTFLAGS");
        if self.library.is_some() {
            command
                .arg("-Zbuild-std=std,panic_abort")
                .env("RUSTC_BOOTSTRAP", "1")
                .env("CARGO_TARGET_WASM32_WASIP1_LINKER", LINKER);
        }
        command.env("PATH", path_with_clock(target)?).env("TZ", "UTC");
        let status = command.status().context("cargo could not be started")?;
        if !status.success() {
            bail!("the guest does not build");
        }
        Ok(target.join(TARGET).join(profile).join("fumehood_guest.wasm"))
    }

    fn encoded_flags(&self, root: &Path) -> Result<OsString> {
        let mut flags: Vec<OsString> = FLAGS.iter().map(OsString::from).collect();
        if let Some(library) = &self.library {
            flags.extend(["-C", "link-self-contained=no", "-L"].map(OsString::from));
            flags.push(joined(&["native=".as_ref(), library.as_os_str()]));
        }
        let sysroot = output(Command::new(&self.rustc).args(["--print", "sysroot"]))?;
        let sources = Path::new(sysroot.trim()).join("lib/rustlib/src/rust");
        let mut mapped = vec![(root.to_owned(), "/fumehood")];
        for registry in registries()? {
            mapped.push((registry, "/registry"));
        }
        if let Ok(real) = sources.canonicalize() {
            mapped.push((real, "/rust"));
        }
        mapped.push((sources, "/rust"));
        for (from, to) in mapped {
            let from = from.as_os_str();
            flags.push(joined(&["--remap-path-prefix=".as_ref(), from, "=".as_ref(), to.as_ref()]));
        }
        Ok(flags.join("\u{1f}".as_ref()))
    }
}

/// `PATH` with a `git` in front that knows one commit, of the year 1970.
///
/// The interpreter's build script asks git for a date to show in
/// `sys.version`, and takes the present moment when there is none.
fn path_with_clock(target: &Path) -> Result<OsString> {
    let directory = target.join("clock");
    fs::create_dir_all(&directory)?;
    let git = directory.join("git");
    fs::write(&git, "#!/bin/sh\n[ \"$1\" = log ] && echo 0\n")?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(&git, fs::Permissions::from_mode(0o755))?;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(directory).chain(std::env::split_paths(&path));
    Ok(std::env::join_paths(all)?)
}

fn joined(parts: &[&std::ffi::OsStr]) -> OsString {
    parts.iter().collect::<Vec<_>>().iter().fold(OsString::new(), |mut text, part| {
        text.push(part);
        text
    })
}

/// The directories that cargo unpacks crates into.
fn registries() -> Result<Vec<PathBuf>> {
    let home = match std::env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cargo"),
    };
    let sources = home.join("registry/src");
    let mut found = Vec::new();
    if sources.is_dir() {
        for entry in fs::read_dir(sources)? {
            found.push(entry?.path());
        }
    }
    found.sort();
    Ok(found)
}

fn is_recent(rustc: &Path) -> Result<bool> {
    let text = output(Command::new(rustc).arg("--version"))?;
    let number = text.split_whitespace().nth(1).unwrap_or_default();
    let mut parts = number.split('.').map(|part| part.parse().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    Ok(version >= OLDEST)
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?} could not be started"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn apt_root(root: &Path) -> PathBuf {
    root.join("guest/target/apt")
}

fn private_root(root: &Path) -> PathBuf {
    root.join("guest/target/wasi-libc")
}

/// Installs the Debian route: the compiler from the system's own suites, the C
/// library from the unstable suite into a private directory.
///
/// # Errors
/// This is no Debian, or a package cannot be had.
pub(crate) fn set_up(root: &Path) -> Result<()> {
    let script = r#"
set -e
apt-get update
apt-get install --yes --no-install-recommends \
    rustc-web cargo-web rust-web-src rust-web-llvm lld-22
mkdir -p "$APT/etc/parts" "$APT/lists/partial" "$APT/cache/archives/partial" "$LIBC"
awk 'BEGIN { RS = "" } NR == 1' /etc/apt/sources.list.d/debian.sources | grep -v '^#' \
    | sed 's/^Suites:.*/Suites: unstable/' > "$APT/etc/parts/unstable.sources"
set -- -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$APT/etc/parts" \
    -o "Dir::State::lists=$APT/lists" -o "Dir::Cache=$APT/cache"
apt-get "$@" update
cd "$APT"
rm -f wasi-libc_*.deb
apt-get "$@" download wasi-libc
dpkg -x wasi-libc_*.deb "$LIBC"
"#;
    let status = Command::new("sh")
        .args(["-c", script])
        .env("APT", apt_root(root))
        .env("LIBC", private_root(root))
        .status()
        .context("sh could not be started")?;
    if !status.success() {
        bail!("the packages could not be installed; this needs Debian and root");
    }
    Ok(())
}
