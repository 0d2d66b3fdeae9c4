//! The command, a place of its own to run it in, and what it said.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_fumehood");

/// Compiled code that all tests share; compiled at the first use.
pub(crate) fn cache() -> &'static Path {
    static CACHE: OnceLock<PathBuf> = OnceLock::new();
    CACHE.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fumehood-cli-cache");
        let output = Command::new(BINARY)
            .args(["run", "--no-record", "-c", "1"])
            .env("FUMEHOOD_CACHE_DIR", &directory)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        directory
    })
}

/// Makes the helper one that the command starts: files of a checkout may be
/// writable by a group.
fn helper() {
    static READY: OnceLock<()> = OnceLock::new();
    READY.get_or_init(|| {
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let helper = Path::new(BINARY).with_file_name("fumehood-helper");
            let _ = fs::set_permissions(helper, fs::Permissions::from_mode(0o755));
        }
    });
}

/// What a command that has ended said.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }
}

impl Ran {
    /// Standard output as JSON.
    pub(crate) fn value(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {:?} {:?}", self.stdout, self.stderr))
    }

    /// Standard output as a result.
    pub(crate) fn result(&self) -> Value {
        let value = self.value();
        check_result(&value);
        value
    }
}

/// A result has to be as its schema says.
pub(crate) fn check_result(value: &Value) {
    static VALIDATOR: OnceLock<jsonschema::Validator> = OnceLock::new();
    let validator = VALIDATOR.get_or_init(|| {
        let schema = include_str!("../../../docs/result.schema.json");
        jsonschema::validator_for(&serde_json::from_str(schema).unwrap()).unwrap()
    });
    let errors: Vec<_> = validator.iter_errors(value).map(|e| e.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}\n{value:#}");
}

/// A directory that commands run in, with a home of its own, records of its own
/// and an empty directory `project`.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::create_dir(place.path("project")).unwrap();
        place
    }

    /// With files in `project`.
    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        let place = Self::new();
        for (name, text) in files {
            place.put(name, text);
        }
        place
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// A path in `project`.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path("project").join(name)
    }

    /// Writes a file in `project`, and makes the directories it is in.
    pub(crate) fn put(&self, name: &str, text: &str) {
        let path = self.file(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Reads a file in `project`.
    pub(crate) fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.file(name)).ok()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        helper();
        let mut command = Command::new(BINARY);
        command
            .args(args)
            .current_dir(self.root())
            .env("FUMEHOOD_CACHE_DIR", cache())
            .env("FUMEHOOD_HOME", self.path("home"))
            .env("HOME", self.path("user"))
            .env("HOST_VARIABLE", "of the host")
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        self.command(args).output().unwrap().into()
    }
}
