//! The surroundings of one attack: directories of the host with things inside
//! and outside the mounts, and the ways to run code.
//!
//! Invariant: everything of a world is below one directory whose name occurs
//! nowhere else, so that a host path in any output is found by that name.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fumehood::{Engine, Sandbox, SandboxBuilder, Script};

use super::attack::{Attempt, Setting};
use super::machine;
use super::observed::{Observed, Ran};
use super::stage::{Stage, engine_for};
use super::wat::Program;

/// The content of files outside every mount; no attack may read it.
pub const OUTSIDE: &str = "canary-outside-every-mount-7f3a";
/// The content of files inside the mounts.
pub const INSIDE: &str = "inside";

/// One attack's surroundings.
pub struct World<'s> {
    stage: &'s Stage,
    top: tempfile::TempDir,
    outside_before: Vec<(PathBuf, Vec<u8>)>,
}

impl<'s> World<'s> {
    /// Makes the directories: `ro` and `rw` with the same things in them, and
    /// `outside` beside them.
    ///
    /// # Errors
    /// The system's reason.
    pub fn new(stage: &'s Stage) -> std::io::Result<Self> {
        let top = tempfile::Builder::new().prefix("canary-host-directory-").tempdir()?;
        let outside = top.path().join("outside");
        machine::make_directory(&outside)?;
        machine::write(&outside.join("secret.txt"), OUTSIDE)?;
        for name in ["ro", "rw"] {
            let inside = top.path().join(name);
            machine::make_directory(&inside.join("dir"))?;
            machine::make_directory(&inside.join("swap"))?;
            machine::write(&inside.join("file.txt"), INSIDE)?;
            machine::write(&inside.join("dir/secret.txt"), INSIDE)?;
            machine::write(&inside.join("swap/secret.txt"), INSIDE)?;
            let links: [(&Path, &str); 6] = [
                (&outside, "link"),
                (Path::new("/etc"), "etc"),
                (Path::new("/etc/passwd"), "passwd"),
                (Path::new("../outside/secret.txt"), "up"),
                (Path::new("loop"), "loop"),
                (Path::new("dir"), "good"),
            ];
            for (target, link) in links {
                std::os::unix::fs::symlink(target, inside.join(link))?;
            }
        }
        let outside_before = machine::tree(&outside);
        Ok(Self { stage, top, outside_before })
    }

    /// What all attacks share.
    #[must_use]
    pub fn stage(&self) -> &'s Stage {
        self.stage
    }

    /// A path below this world's directory.
    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.top.path().join(relative)
    }

    /// Settings of a sandbox with the Python guest.
    ///
    /// # Errors
    /// There is no engine.
    pub fn builder(&self, setting: &Setting) -> Result<SandboxBuilder, String> {
        Ok(self.builder_in(self.stage.engine()?, setting))
    }

    fn builder_in(&self, engine: Engine, setting: &Setting) -> SandboxBuilder {
        let builder = Sandbox::builder().engine(engine).limits(setting.limits.clone());
        if setting.mounts {
            builder.mount_read_only("/ro", self.path("ro")).mount_read_write("/rw", self.path("rw"))
        } else {
            builder
        }
    }

    /// A sandbox with the Python guest.
    ///
    /// # Errors
    /// Why it could not be built.
    pub fn sandbox(&self, setting: &Setting) -> Result<Sandbox, String> {
        self.builder(setting)?.build().map_err(|error| error.to_string())
    }

    /// A sandbox that runs a program.
    ///
    /// # Errors
    /// Why it could not be built.
    pub fn program_sandbox(&self, program: &Program, setting: &Setting) -> Result<Sandbox, String> {
        self.program_builder(program, setting)?.build().map_err(|error| error.to_string())
    }

    /// Settings of a sandbox that runs a program.
    ///
    /// # Errors
    /// There is no engine for it.
    pub fn program_builder(
        &self,
        program: &Program,
        setting: &Setting,
    ) -> Result<SandboxBuilder, String> {
        Ok(self.builder_in(engine_for(program)??, setting))
    }

    /// Runs a cell of Python.
    #[must_use]
    pub fn cell(&self, setting: &Setting, code: &str) -> Observed {
        match self.sandbox(setting) {
            Ok(sandbox) => Observed::run(run_in(&sandbox, setting.limits.wall, code)),
            Err(error) => Observed::broken(error),
        }
    }

    /// Runs a program and, after it, the same program without its attack.
    #[must_use]
    pub fn program(&self, setting: &Setting, program: &Program) -> Observed {
        let engine = match engine_for(program) {
            Ok(Ok(engine)) => engine,
            Ok(Err(refusal)) => return Observed::refused(refusal),
            Err(error) => return Observed::broken(error),
        };
        let sandbox = match self.builder_in(engine.clone(), setting).build() {
            Ok(sandbox) => sandbox,
            Err(error) => return Observed::broken(error.to_string()),
        };
        let attacked = run_in(&sandbox, setting.limits.wall, Script::new(""));
        let plain = Setting::plain();
        let after = match self.builder_in(engine, &plain).build() {
            Ok(sandbox) => run_in(&sandbox, plain.limits.wall, Script::new("").stdin("p")),
            Err(error) => return Observed::broken(error.to_string()),
        };
        // A start function attacks in every run.
        let starts = program.text().contains("(start ");
        let works = after.outcome.is_success() && after.outcome.stdout_text() == "42";
        if works || starts {
            Observed { ran: vec![attacked], ..Observed::default() }
        } else {
            Observed::broken(format!(
                "the next run in the same engine ended with {:?}",
                after.outcome.kind
            ))
            .seen([attacked])
        }
    }

    /// Carries out an attempt or a control.
    #[must_use]
    pub fn carry_out(&self, setting: &Setting, attempt: &Attempt) -> Observed {
        match attempt {
            Attempt::Cell(code) => self.cell(setting, code),
            Attempt::Module(program) => self.program(setting, program),
            Attempt::Host(attempt) => attempt(self, setting),
        }
    }

    /// What is different outside the mounts since the world was made.
    pub(super) fn changed_outside(&self) -> Option<String> {
        let now = machine::tree(&self.path("outside"));
        (now != self.outside_before).then(|| {
            let names: Vec<_> = now.iter().map(|(path, _)| path.display().to_string()).collect();
            format!("files outside the mounts changed: {names:?}")
        })
    }
}

/// Runs in a sandbox and measures how long its caller waited.
pub fn run_in(sandbox: &Sandbox, wall: Duration, script: impl Into<Script>) -> Ran {
    let start = machine::now();
    let outcome = sandbox.run(script).wait();
    Ran { outcome, took: start.elapsed(), wall }
}
