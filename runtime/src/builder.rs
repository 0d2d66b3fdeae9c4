//! What a sandbox is made of.
//!
//! Invariant: nothing has run, been opened or been read before
//! [`SandboxBuilder::build`], and what is wrong is an error of it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fumehood_host_fns::{
    AuditNumbers, AuditSink, Clock, Executor, MemorySink, OsRandom, RandomSource, SharedMeter,
    Tool, ToolError, ToolSet, ToolSetupError,
};
use fumehood_policies::{Access, BudgetSettings, Wildcard};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::engine::{Engine, EngineBuilder};
use crate::error::BuildError;
use crate::executor::TokioExecutor;
use crate::grants::{Asked, Granted, MountRequest, PolicySource, guest_path};
use crate::limits::Limits;
use crate::sandbox::{Inner, Sandbox};
use crate::tool;

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
    clock: Option<Arc<dyn Clock>>,
    random: Option<Arc<dyn RandomSource>>,
}

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
        self.asked.mounts.push(MountRequest { at: at.into(), host, access, force });
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

    /// Opens the mounts and checks everything; nothing has run yet.
    ///
    /// # Errors
    /// [`BuildError`] names what is wrong.
    pub fn build(self) -> Result<Sandbox, BuildError> {
        if let Some(error) = self.tool_error {
            return Err(error.into());
        }
        let Granted { policy, mounts, env, limits, limited } = self.asked.grant()?;
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
        let engine = match self.engine {
            Some(EngineChoice::Ready(engine)) => engine,
            Some(EngineChoice::Settings(settings)) => settings.build()?,
            None => Engine::shared()?,
        };
        let meter = SharedMeter::new(&limits.broker);
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
            audit: self.audit.unwrap_or_else(|| Arc::new(MemorySink::default())),
            audit_numbers: AuditNumbers::default(),
            clock: self.clock,
            session: session_id()?,
            random: self.random.unwrap_or_else(|| Arc::new(OsRandom)),
            meter,
        }))
    }
}

fn session_id() -> Result<String, BuildError> {
    let mut id = [0; 12];
    OsRandom.fill(&mut id).map_err(|_| BuildError::Random)?;
    Ok(format!("fh-{}", crate::cache::hex(&id)))
}
