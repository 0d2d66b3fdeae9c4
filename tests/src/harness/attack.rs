//! What an attack is made of.
//!
//! Invariant: an attack is data. Its property is stated without the
//! implementation, so that it still means something when the implementation
//! changes.

use std::sync::Arc;
use std::time::Duration;

use fumehood::Limits;
use fumehood_host_fns::Errno;

use super::observed::Observed;
use super::wat::Program;
use super::world::World;

/// Where code runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Python or a module in WebAssembly.
    Wasm,
    /// A process inside Landlock, seccomp and what else the kernel gives.
    Landlock,
    /// A process with limits and no boundary.
    Process,
    /// A container.
    Docker,
    /// macOS Seatbelt.
    Seatbelt,
}

impl Tier {
    /// Every tier, in the order of tables.
    pub const ALL: [Self; 5] =
        [Self::Wasm, Self::Landlock, Self::Process, Self::Docker, Self::Seatbelt];

    /// The name in tables and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Wasm => "wasm",
            Self::Landlock => "landlock",
            Self::Process => "process",
            Self::Docker => "docker",
            Self::Seatbelt => "seatbelt",
        }
    }
}

/// What a waiting attack waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Capability {
    /// Requests to other hosts.
    Network,
    /// Placeholders and their substitution.
    Secrets,
    /// Processes behind the broker, in what is not a native tier's own part.
    NativeTier,
    /// Requests of native tiers.
    NativeNetwork,
    /// A container engine, and attacks in it.
    DockerEngine,
    /// macOS.
    MacOs,
    /// The file `fumehood-helper`.
    Helper,
    /// A kernel that gives what the tier `landlock` requires.
    Landlock,
    /// Being root, without which the control of an attack cannot be shown.
    Root,
    /// A program or device that this machine does not have.
    Equipment,
    /// Sub-agents.
    SubAgents,
    /// Tool servers of others (MCP).
    ToolServers,
    /// A browser.
    Browser,
    /// Skills: programs that are kept and used again.
    Skills,
    /// Kernels that live longer than one run, snapshots, replay.
    Sessions,
    /// HTTP, MCP and the viewer.
    Server,
    /// Policy files.
    PolicyFiles,
    /// The adapter for Windows file names.
    WindowsFiles,
    /// Client libraries for other languages.
    Sdk,
    /// The right to make files of another user.
    OtherUsers,
    /// The sources of this project, which an installed copy does not have.
    SourceTree,
}

impl Capability {
    /// The name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::Secrets => "secrets",
            Self::NativeTier => "native tier",
            Self::NativeNetwork => "network in native tiers",
            Self::DockerEngine => "docker engine",
            Self::MacOs => "macOS",
            Self::Helper => "fumehood-helper",
            Self::Landlock => "landlock",
            Self::Root => "being root",
            Self::Equipment => "a program or device",
            Self::SubAgents => "sub-agents",
            Self::ToolServers => "tool servers",
            Self::Browser => "browser",
            Self::Skills => "skills",
            Self::Sessions => "sessions and snapshots",
            Self::Server => "server",
            Self::PolicyFiles => "policy files",
            Self::WindowsFiles => "windows files",
            Self::Sdk => "client libraries",
            Self::OtherUsers => "the right to make files of another user",
            Self::SourceTree => "source tree",
        }
    }

    /// Whether it is this machine that lacks it, and not this project.
    #[must_use]
    pub fn is_of_machine(self) -> bool {
        matches!(
            self,
            Self::OtherUsers
                | Self::SourceTree
                | Self::DockerEngine
                | Self::MacOs
                | Self::Helper
                | Self::Landlock
                | Self::Root
                | Self::Equipment
        )
    }
}

/// A function of the host that carries out an attempt or a control.
pub type HostAttempt = Arc<dyn Fn(&World<'_>, &Setting) -> Observed + Send + Sync>;

/// What is tried.
#[derive(Clone)]
pub enum Attempt {
    /// A cell of agent Python.
    Cell(String),
    /// A WebAssembly module in text form.
    Module(Program),
    /// A fault or an act of the host itself.
    Host(HostAttempt),
}

impl std::fmt::Debug for Attempt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Cell(_) => "Cell",
            Self::Module(_) => "Module",
            Self::Host(_) => "Host",
        })
    }
}

/// The fact of an attempt that ended with the error it is known to end with.
pub const STOPPED: &str = "stopped";
/// The fact of an attempt that got what it wanted.
pub const REACHED: &str = "reached";

/// What must be seen.
#[derive(Clone, Debug)]
pub enum Expected {
    /// A denial by this rule, and the code went on.
    Denied {
        /// Id of the rule.
        rule: &'static str,
    },
    /// The module's call gave one of these error numbers.
    Errno(&'static [Errno]),
    /// One of these exceptions ended the cell.
    Exception(&'static [&'static str]),
    /// The run ended with one of these kinds of outcome.
    Ends(&'static [&'static str]),
    /// Nothing was started, and all of these texts are in the reason.
    Refused(&'static [&'static str]),
    /// It ran to its end and this is all that came of it.
    Harmless(&'static str),
    /// A real program or system call ended with the error that it is known to
    /// end with: the attempt tells so by the fact [`STOPPED`].
    Stopped,
    /// One of these.
    AnyOf(Vec<Expected>),
}

/// What shows that the attempt would work, or that its honest equivalent does.
#[derive(Clone, Debug)]
pub enum Control {
    /// This must be seen in this setting.
    Shown {
        /// Differs from the attempt's where the defence is taken away.
        setting: Box<Setting>,
        /// What is done.
        attempt: Attempt,
        /// What must be seen.
        expected: Expected,
    },
    /// There is none, and why.
    Absent(&'static str),
}

/// What code may use and how much.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Limits of the run.
    pub limits: Limits,
    /// Whether the world's directories are at `/ro` and `/rw`.
    pub mounts: bool,
}

impl Default for Setting {
    fn default() -> Self {
        let limits = Limits {
            wall: Duration::from_secs(20),
            cpu: Duration::from_secs(20),
            memory_bytes: 256 << 20,
            ..Limits::default()
        };
        Self { limits, mounts: false }
    }
}

impl Setting {
    /// With the world's directories mounted.
    #[must_use]
    pub fn mounted() -> Self {
        Self { mounts: true, ..Self::default() }
    }

    /// With this wall-clock limit.
    #[must_use]
    pub fn wall_ms(mut self, milliseconds: u64) -> Self {
        self.limits.wall = Duration::from_millis(milliseconds);
        self
    }

    /// With changed limits.
    #[must_use]
    pub fn limit(mut self, change: impl FnOnce(&mut Limits)) -> Self {
        change(&mut self.limits);
        self
    }
}

/// One attack.
#[derive(Clone, Debug)]
pub struct Attack {
    /// As in the catalogue; own ones of the same kind have a letter after it.
    pub id: &'static str,
    /// What holds, whatever the implementation.
    pub property: &'static str,
    /// What code may use.
    pub setting: Setting,
    /// What is tried.
    pub attempt: Attempt,
    /// What shows that it matters.
    pub control: Control,
    /// Where it is tried.
    pub tier: Tier,
    /// What must be seen.
    pub expected: Expected,
    /// Why it holds.
    pub reason: &'static str,
    /// The attack gets through today, and why that is where the boundary is.
    pub known_gap: Option<&'static str>,
    /// Runs while no other attack does: it measures time or memory.
    pub alone: bool,
    /// Memory of the host must be back after it.
    pub about_memory: bool,
    /// The attack injects a panic.
    pub panics: bool,
}

/// A control that is not there yet; the harness reports it as an error.
const NO_CONTROL: Control = Control::Absent("");

impl Attack {
    /// An attack by agent Python.
    pub fn cell(id: &'static str, property: &'static str, code: impl Into<String>) -> Self {
        Self::new(id, property, Attempt::Cell(code.into()))
    }

    /// An attack by a module.
    #[must_use]
    pub fn module(id: &'static str, property: &'static str, program: Program) -> Self {
        Self::new(id, property, Attempt::Module(program))
    }

    /// An attack that needs the host's part too.
    pub fn host(
        id: &'static str,
        property: &'static str,
        attempt: impl Fn(&World<'_>, &Setting) -> Observed + Send + Sync + 'static,
    ) -> Self {
        Self::new(id, property, Attempt::Host(Arc::new(attempt)))
    }

    fn new(id: &'static str, property: &'static str, attempt: Attempt) -> Self {
        Self {
            id,
            property,
            setting: Setting::default(),
            attempt,
            control: NO_CONTROL,
            tier: Tier::Wasm,
            expected: Expected::AnyOf(Vec::new()),
            reason: "",
            known_gap: None,
            alone: false,
            about_memory: false,
            panics: false,
        }
    }

    /// In this tier.
    #[must_use]
    pub fn tier(mut self, tier: Tier) -> Self {
        self.tier = tier;
        self
    }

    /// In this setting.
    #[must_use]
    pub fn with(mut self, setting: Setting) -> Self {
        self.setting = setting;
        self
    }

    /// Expects this, because of that.
    #[must_use]
    pub fn expect(mut self, expected: Expected, reason: &'static str) -> Self {
        self.expected = expected;
        self.reason = reason;
        self
    }

    /// A control in the same setting.
    #[must_use]
    pub fn control(self, attempt: Attempt, expected: Expected) -> Self {
        let setting = self.setting.clone();
        self.control_with(setting, attempt, expected)
    }

    /// A control in another setting.
    #[must_use]
    pub fn control_with(mut self, setting: Setting, attempt: Attempt, expected: Expected) -> Self {
        self.control = Control::Shown { setting: Box::new(setting), attempt, expected };
        self
    }

    /// A control that is a cell.
    #[must_use]
    pub fn control_cell(self, code: impl Into<String>, stdout: &'static str) -> Self {
        self.control(Attempt::Cell(code.into()), Expected::Harmless(stdout))
    }

    /// A control that is a module and must exit with 0.
    #[must_use]
    pub fn control_module(self, program: Program) -> Self {
        self.control(Attempt::Module(program), Expected::Harmless(""))
    }

    /// Says why there is no control.
    #[must_use]
    pub fn no_control(mut self, why: &'static str) -> Self {
        self.control = Control::Absent(why);
        self
    }

    /// Runs while no other attack does.
    #[must_use]
    pub fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    /// Memory of the host must be back after it.
    #[must_use]
    pub fn about_memory(mut self) -> Self {
        self.about_memory = true;
        self.alone()
    }

    /// The attack injects a panic into a host function.
    #[must_use]
    pub fn panics(mut self) -> Self {
        self.panics = true;
        self.alone()
    }

    /// The attack gets through today.
    #[must_use]
    pub fn known_gap(mut self, why: &'static str) -> Self {
        self.known_gap = Some(why);
        self
    }
}
