//! What a sandbox is made of.
//!
//! Invariant: nothing has run, been opened or been read before
//! [`SandboxBuilder::build`], and what is wrong is an error of it.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use fumehood_host_fns::audit::{Hash, LogHeader};
use fumehood_host_fns::{
    AuditNumbers, AuditSink, Clock, Executor, HostMount, MemorySink, NativeSession, OsRandom,
    RandomSource, SharedMeter, Tool, ToolError, ToolSet, ToolSetupError,
};
use fumehood_policies::{Access, BudgetSettings, GuestPath, Policy, Wildcard};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cache::Build;
use crate::determinism::Determinism;
use crate::engine::{Engine, EngineBuilder};
use crate::error::BuildError;
use crate::executor::TokioExecutor;
use crate::grants::{
    Asked, Granted, MountRequest, Mounting, PolicySource, check_reach, guest_path,
};
use crate::host_env;
use crate::limits::Limits;
use crate::natively;
use crate::net::{Connected, Network};
use crate::observer::Observer;
use crate::sandbox::{Inner, Sandbox, WORKING_DIRECTORY};
use crate::tool;
use crate::workspaces::{INPUTS_AT, Project};

/// Settings of a [`Sandbox`].
#[derive(Clone, Default)]
pub struct SandboxBuilder {
    engine: Option<EngineChoice>,
    asked: Asked,
    files: Vec<(String, Vec<u8>)>,
    tools: ToolSet,
    /// Why a tool could not be added.
    tool_error: Option<ToolSetupError>,
    audit: Option<Arc<dyn AuditSink>>,
    audit_for: Option<Arc<AuditFor>>,
    observer: Option<Arc<dyn Observer>>,
    clock: Option<Arc<dyn Clock>>,
    random: Option<Arc<dyn RandomSource>>,
    determinism: Option<Determinism>,
    native: Option<NativeSession>,
    native_only: bool,
    out_of_reach: Vec<PathBuf>,
    network: Network,
    project: Option<Project>,
    inputs: Vec<PathBuf>,
}

/// Makes the sink of a session whose header is known.
pub(crate) type AuditFor = dyn Fn(&LogHeader) -> Result<Arc<dyn AuditSink>, Box<dyn std::error::Error + Send + Sync>>
    + Send
    + Sync;

#[derive(Clone)]
enum EngineChoice {
    Ready(Engine),
    Settings(Box<EngineBuilder>),
}

impl std::fmt::Debug for SandboxBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SandboxBuilder")
            .field("asked", &self.asked)
            .field("tools", &self.tools.len())
            .finish_non_exhaustive()
    }
}

impl SandboxBuilder {
    /// Uses this engine instead of [`Engine::shared`].
    #[must_use]
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = Some(EngineChoice::Ready(engine));
        self
    }

    /// Makes an engine with these settings, once everything else was found to
    /// be good: what is wrong is said before the guest is compiled.
    #[must_use]
    pub fn engine_settings(mut self, settings: EngineBuilder) -> Self {
        self.engine = Some(EngineChoice::Settings(Box::new(settings)));
        self
    }

    /// Replaces all limits. A policy, a budget and a ceiling lower them.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.asked.limits = Some(limits);
        self.asked.wall = None;
        self
    }

    /// The wall-clock limit of a run.
    #[must_use]
    pub fn timeout(mut self, wall: Duration) -> Self {
        self.asked.wall = Some(wall);
        self
    }

    /// Names numbers of the session's budget: a preset, or single ones.
    ///
    /// With a policy they only lower its own, unless it says
    /// `flags = "extend"`.
    #[must_use]
    pub fn budget(mut self, budget: impl Into<BudgetSettings>) -> Self {
        self.asked.budget = budget.into();
        self
    }

    /// What code may reach: a [`fumehood_policies::PolicyFile`], one of its
    /// presets, or policy text.
    ///
    /// Mounts, variables and numbers of this builder then only take away from
    /// it, unless it says `flags = "extend"`; and of the tools that are
    /// registered those can be called that it allows.
    ///
    /// ```
    /// use fumehood::policy::preset;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let strict = preset("strict").ok_or("no such preset")?;
    /// let sandbox = fumehood::Sandbox::builder().policy(strict).build()?;
    /// assert_eq!(sandbox.limits().wall.as_secs(), 10);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn policy(mut self, policy: impl Into<PolicySource>) -> Self {
        self.asked.policy = Some(policy.into());
        self
    }

    /// An operator's policy, which only takes away, from the policy and from
    /// this builder alike.
    #[must_use]
    pub fn ceiling(mut self, ceiling: impl Into<PolicySource>) -> Self {
        self.asked.ceiling = Some(ceiling.into());
        self
    }

    /// Adds a tool: a function of the host that code calls by its name.
    ///
    /// `schema` is the JSON Schema of its arguments, an object; its member
    /// `description` describes the tool. Arguments that do not fit it are an
    /// exception in the guest before anything is recorded. An error's message
    /// is what the guest sees; a panic ends the run as `sandbox_fault`. See
    /// [`crate::tool`].
    ///
    /// Calls that wait are run by the tokio runtime that is current when the
    /// sandbox is built, if it has several threads; otherwise by one of the
    /// sandbox's own.
    ///
    /// ```
    /// use serde_json::json;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let schema = json!({
    ///     "description": "Adds two whole numbers.",
    ///     "type": "object",
    ///     "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    ///     "required": ["a", "b"],
    /// });
    /// let sandbox = fumehood::Sandbox::builder()
    ///     .tool("add", schema, |arguments| async move {
    ///         let number = |name: &str| arguments[name].as_i64().unwrap_or_default();
    ///         Ok(json!(number("a") + number("b")))
    ///     })
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn tool<F, Fut>(self, name: &str, schema: Value, function: F) -> Self
    where
        F: Fn(Value) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Value, ToolError>> + Send + 'static,
    {
        self.add(tool::plain(name, schema, function))
    }

    /// Adds a tool whose function may block; see [`tool::blocking`].
    #[must_use]
    pub fn tool_blocking<F>(self, name: &str, schema: Value, function: F) -> Self
    where
        F: Fn(Value) -> Result<Value, ToolError> + Send + Sync + 'static,
    {
        self.add(tool::blocking(name, schema, function))
    }

    /// Adds a tool with typed arguments; see [`tool::typed`].
    #[must_use]
    pub fn typed_tool<A, R, F, Fut>(self, name: &str, function: F) -> Self
    where
        A: DeserializeOwned + JsonSchema,
        R: Serialize,
        F: Fn(A) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, ToolError>> + Send + 'static,
    {
        self.add(tool::typed(name, function))
    }

    /// Adds a tool with typed arguments whose function may block; see
    /// [`tool::typed_blocking`].
    #[must_use]
    pub fn typed_tool_blocking<A, R, F>(self, name: &str, function: F) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send + 'static,
        R: Serialize,
        F: Fn(A) -> Result<R, ToolError> + Send + Sync + 'static,
    {
        self.add(tool::typed_blocking(name, function))
    }

    /// Adds a tool as it is. An [`Arc`] of one is shared by several sandboxes.
    #[must_use]
    pub fn with_tool(mut self, tool: impl Into<Arc<Tool>>) -> Self {
        if let Err(error) = self.tools.add(tool) {
            self.tool_error.get_or_insert(error);
        }
        self
    }

    /// Adds the file tools: `read_file`, `write_file`, `edit_file`, `delete`,
    /// `glob`, `grep` and `list_directory`, with the arguments that agents know.
    ///
    /// They act on the files that code sees, and each of their steps is decided
    /// as if code had taken it. Relative paths begin at the first mounted
    /// directory, otherwise at `/work`. Without this there are none.
    #[must_use]
    pub fn file_tools(self) -> Self {
        match fumehood_host_fns::file_tools() {
            Ok(tools) => tools.into_iter().fold(self, |builder, tool| builder.with_tool(tool)),
            Err(error) => self.add(Err(error)),
        }
    }

    fn add(mut self, tool: Result<Tool, ToolSetupError>) -> Self {
        match tool {
            Ok(tool) => self.with_tool(tool),
            Err(error) => {
                self.tool_error.get_or_insert(error);
                self
            }
        }
    }

    /// Leaves only the tools whose names match one of these patterns, in which
    /// `*` is any characters. A policy that says `flags = "extend"` gets them
    /// allowed beside its own.
    #[must_use]
    pub fn only_tools<'p>(mut self, patterns: impl IntoIterator<Item = &'p str>) -> Self {
        self.asked.tools = Some(patterns.into_iter().map(Wildcard::new).collect());
        self
    }

    /// Mounts a host directory that the guest can read.
    #[must_use]
    pub fn mount_read_only(self, at: impl Into<String>, host: impl AsRef<Path>) -> Self {
        self.mount(at, host, Access::ReadOnly, false)
    }

    /// Names a file of this machine that decides about the code, such as the
    /// text of its policy: no sandbox is built whose code could change it.
    #[must_use]
    pub fn out_of_reach(mut self, file: impl Into<PathBuf>) -> Self {
        self.out_of_reach.push(file.into());
        self
    }

    /// Mounts a host directory that the guest can change.
    #[must_use]
    pub fn mount_read_write(self, at: impl Into<String>, host: impl AsRef<Path>) -> Self {
        self.mount(at, host, Access::ReadWrite, false)
    }

    /// Mounts a host directory. `force` permits directories that are refused
    /// otherwise, such as `/` and the home directory.
    #[must_use]
    pub fn mount(
        mut self,
        at: impl Into<String>,
        host: impl AsRef<Path>,
        access: Access,
        force: bool,
    ) -> Self {
        let host = host.as_ref().to_owned();
        let what = Mounting::Directory;
        self.asked.mounts.push(MountRequest { what, at: at.into(), host, access, force });
        self
    }

    /// Lets code work on a project, which becomes its working directory.
    ///
    /// What code changes is kept apart and brought back after every run, as
    /// [`Outcome::project`](crate::Outcome::project) says. With a native tier
    /// the project is copied, so that commands see it too; otherwise nothing
    /// is. Such a copy holds the whole project.
    #[must_use]
    pub fn project(mut self, project: Project) -> Self {
        self.project = Some(project);
        self
    }

    /// Lets code read a file or directory, as `/work/inputs/NAME`. A second one
    /// of the same name is `NAME-2`.
    #[must_use]
    pub fn input(mut self, path: impl Into<PathBuf>) -> Self {
        self.inputs.push(path.into());
        self
    }

    /// Sets an environment variable of the guest.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.asked.env.push((name.into(), value.into()));
        self
    }

    /// Puts a file into the in-memory tree.
    #[must_use]
    pub fn file(mut self, at: impl Into<String>, contents: impl Into<Vec<u8>>) -> Self {
        self.files.push((at.into(), contents.into()));
        self
    }

    /// Receives the audit records; without it a bounded list in memory does.
    #[must_use]
    pub fn audit(mut self, sink: Arc<dyn AuditSink>) -> Self {
        self.audit = Some(sink);
        self
    }

    /// Makes the sink of the audit records when the session's header is known:
    /// its id and the digests of guest and policy. Called once for the sandbox,
    /// whose runs have its id, and once for each session, fork and program of a
    /// pool, which have ids of their own; where it fails nothing of them runs.
    /// Wins over [`SandboxBuilder::audit`].
    #[must_use]
    pub fn audit_for(
        mut self,
        open: impl Fn(
            &LogHeader,
        ) -> Result<Arc<dyn AuditSink>, Box<dyn std::error::Error + Send + Sync>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.audit_for = Some(Arc::new(open));
        self
    }

    /// Hears of every execution.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Replaces the clock that the guest sees.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Replaces the source of randomness that the guest sees.
    #[must_use]
    pub fn random(mut self, random: Arc<dyn RandomSource>) -> Self {
        self.random = Some(random);
        self
    }

    /// Deterministic mode: every run is a function of the code, its inputs, the
    /// files it looks at, the policy, what its tools answer and these settings,
    /// and [`Outcome::digest`](crate::Outcome::digest) proves it.
    ///
    /// The clock and the randomness of this builder are not used. Started calls
    /// of tools end for the guest in the order in which they were started. The
    /// guest is compiled in another build for it, once, which is slower by a
    /// tenth to a quarter.
    ///
    /// ```
    /// use fumehood::Determinism;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let settings = Determinism { seed: 7, ..Determinism::default() };
    /// let run = async || -> Result<_, fumehood::BuildError> {
    ///     let sandbox = fumehood::Sandbox::builder().deterministic(settings).build()?;
    ///     Ok(sandbox.run("import uuid; str(uuid.uuid4())").await)
    /// };
    /// let (first, second) = (run().await?, run().await?);
    /// assert_eq!(first.result.repr, second.result.repr);
    /// assert!(first.digest.is_some() && first.digest == second.digest);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn deterministic(mut self, settings: Determinism) -> Self {
        self.determinism = Some(settings);
        self
    }

    /// Runs commands of the code in a native tier. They are denied unless the
    /// `[bash]` section of the policy allows them; its `[native]` section has to
    /// name the tier, and adds to the guarantees without which nothing runs. They
    /// see the mounts, the inputs and the project where the code does; the mounts
    /// not under a policy with `[[fs.rules]]`, which no process can be held to.
    #[must_use]
    pub fn native(mut self, native: NativeSession) -> Self {
        self.native = Some(native);
        self
    }

    /// Runs real processes only, with [`Sandbox::run_natively`] and
    /// [`Sandbox::run_command`]: they see all mounts, and no guest is compiled.
    /// The policy has to allow it in its `[bash]` section.
    #[must_use]
    pub fn native_only(mut self, native: NativeSession) -> Self {
        self.native = Some(native);
        self.native_only = true;
        self
    }

    /// Asks for the mounts of the project and the inputs, and gives the names
    /// that the host has for them.
    fn add_workplaces(&mut self) -> Result<Vec<(GuestPath, GuestPath)>, BuildError> {
        let mut asked = Vec::new();
        if let Some(project) = &self.project {
            asked.push(MountRequest {
                what: Mounting::Project,
                at: project.guest_path().to_owned(),
                host: project.directory().to_owned(),
                access: Access::ReadWrite,
                force: project.is_forced(),
            });
        }
        let mut taken = std::collections::BTreeSet::new();
        for path in std::mem::take(&mut self.inputs) {
            let what = if host_env::is_file(&path) { Mounting::File } else { Mounting::Directory };
            if what == Mounting::File && self.native.is_some() {
                return Err(BuildError::InputFile { path });
            }
            let at = input_place(&path, &mut taken)?;
            asked.push(MountRequest {
                what,
                at,
                host: path,
                access: Access::ReadOnly,
                force: false,
            });
        }
        let mut named = Vec::new();
        for request in &asked {
            let at = HostMount::point(&request.at)?;
            let absolute = host_env::absolute(&request.host);
            let places = [Some(absolute), host_env::resolved(&request.host)];
            for place in places.into_iter().flatten() {
                let place = GuestPath::parse(&GuestPath::root(), place.as_os_str().as_bytes());
                let pair = place.map(|place| (place.path, at.clone()));
                named.extend(pair.ok().filter(|pair| !named.contains(pair)));
            }
        }
        asked.append(&mut self.asked.mounts);
        self.asked.mounts = asked;
        Ok(named)
    }

    pub(crate) fn network_mut(&mut self) -> &mut Network {
        &mut self.network
    }

    /// Opens the mounts and checks everything; nothing has run yet.
    ///
    /// # Errors
    /// [`BuildError`] names what is wrong.
    pub fn build(mut self) -> Result<Sandbox, BuildError> {
        if let Some(error) = self.tool_error {
            return Err(error.into());
        }
        self.network.check()?;
        if let Some(settings) = &self.determinism {
            settings.check()?;
        }
        let allow = self.network.allow.clone();
        let named = self.add_workplaces()?;
        let Granted {
            policy,
            mut mounts,
            project: granted,
            mut env,
            limits,
            limited,
            together,
            file_rules,
        } = self.asked.grant(allow, self.native.as_mut())?;
        if let Some(native) = &self.native {
            native.tier.prepare(&native.required)?;
        }
        check_reach(&self.out_of_reach, &mounts, granted.as_ref())?;
        let files = self
            .files
            .into_iter()
            .map(|(path, contents)| Ok((guest_path(&path)?, contents)))
            .collect::<Result<Vec<_>, BuildError>>()?;
        let executor = if self.tools.is_empty() {
            None
        } else {
            let executor = TokioExecutor::new().map_err(BuildError::Executor)?;
            Some(Arc::new(executor) as Arc<dyn Executor>)
        };
        let Connected { egress, approvals, live } = self.network.connect(&policy)?;
        let build = if self.determinism.is_some() { Build::Fuel } else { Build::Epoch };
        let engine = match self.engine {
            _ if self.native_only => Engine::builder().module(NO_GUEST).build()?,
            Some(EngineChoice::Ready(engine)) => engine.of(build)?,
            Some(EngineChoice::Settings(settings)) => settings.of(build).build()?,
            None => Engine::shared_of(build)?,
        };
        let meter = SharedMeter::new(&limits.broker);
        let session = session_id()?;
        let mut working_directory = WORKING_DIRECTORY.to_owned();
        if let Some(native) = self.native.as_mut() {
            if self.native_only {
                natively::give(native, &env, &limits)?;
            }
            if self.native_only || !file_rules {
                natively::show(native, &mounts, !self.native_only)?;
            }
        }
        let project = match self.project.zip(granted) {
            Some((project, (directory, access))) => {
                let (attached, mount) =
                    project.attach(&directory, &session, self.native.as_mut(), self.native_only)?;
                working_directory = attached.at().to_string();
                set_directory(&mut env, &working_directory);
                mounts.insert(0, mount.limited_to(access));
                Some(Arc::new(attached))
            }
            None => None,
        };
        let native = self.native.as_ref().filter(|_| self.native_only);
        let tier = native.map_or("wasm", |native| native.tier.name());
        let header = header(&session, &policy, tier);
        let audit = match &self.audit_for {
            Some(open) => open(&header).map_err(BuildError::Audit)?,
            None => self.audit.unwrap_or_else(|| Arc::new(MemorySink::default())),
        };
        Ok(Sandbox::new(Inner {
            engine,
            limits: Arc::new(limits),
            limited,
            policy,
            mounts,
            env,
            files,
            tools: Arc::new(self.tools),
            executor,
            egress,
            approvals,
            live,
            together,
            audit,
            audit_for: self.audit_for.map(|open| (open, header)),
            observer: self.observer,
            audit_numbers: AuditNumbers::default(),
            clock: self.clock,
            session,
            determinism: self.determinism,
            random: self.random.unwrap_or_else(|| Arc::new(OsRandom)),
            meter,
            native: self.native,
            project,
            working_directory,
            host_names: named,
            started: AtomicU64::new(0),
        }))
    }
}

/// Where an input is seen; names that were taken get a number.
fn input_place(
    path: &Path,
    taken: &mut std::collections::BTreeSet<String>,
) -> Result<String, BuildError> {
    let absolute = host_env::absolute(path);
    let unnamed = || BuildError::HostName { path: absolute.clone() };
    let name = match absolute.file_name() {
        Some(name) => name.to_str().ok_or_else(unnamed)?,
        // The root; it is refused by name when it is opened.
        None => "root",
    };
    let mut numbers = 2_u64..;
    let mut free = name.to_owned();
    while !taken.insert(free.clone()) {
        free = format!("{name}-{}", numbers.next().unwrap_or_default());
    }
    Ok(format!("{INPUTS_AT}/{free}"))
}

/// The guest's own word for where it is.
fn set_directory(env: &mut [(String, String)], directory: &str) {
    if let Some((_, value)) = env.iter_mut().find(|(name, _)| name == "PWD") {
        directory.clone_into(value);
    }
}

/// A module with nothing in it, for sandboxes without a guest.
const NO_GUEST: &[u8] = b"\0asm\x01\0\0\0";

fn header(session: &str, policy: &Policy, tier: &'static str) -> LogHeader {
    let guest: Result<Hash, _> = crate::engine::GUEST_DIGEST.parse();
    LogHeader {
        session: session.to_owned(),
        tier,
        guest: guest.map_or([0; 32], |digest| digest.0),
        policy: policy.digest(),
        program: None,
    }
}

fn session_id() -> Result<String, BuildError> {
    let mut id = [0; 12];
    OsRandom.fill(&mut id).map_err(|_| BuildError::Random)?;
    Ok(format!("fh-{}", crate::cache::hex(&id)))
}
