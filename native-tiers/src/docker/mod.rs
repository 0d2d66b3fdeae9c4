//! The tier `docker`: a container of a Docker-compatible engine.
//!
//! What: [`DockerTier`] runs a command in a container of its own that is removed
//! afterwards, by the engine's own interface on a Unix socket; Podman's service
//! speaks the same.
//!
//! Invariant: the image is one that the engine has and that its name means for
//! ever; nothing is pulled. A container is removed on every path; one whose
//! maker died first is found by its label ([`DockerTier::clean`]).

mod body;
mod image;
mod run;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use bollard::{API_DEFAULT_VERSION, Docker};
use fumehood_host_fns::{
    CancelToken, Guarantee, GuaranteeReport, GuaranteeState, Missing, NativeCommand, NativeError,
    NativeResult, NativeTier, OutputSink, Probe, Unavailable,
};

pub use image::{ImageError, ImageId};

/// Where engines listen, the first that is there.
const SOCKETS: [&str; 3] = ["/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock"];

/// How long the engine may take to answer a question, in seconds.
const ANSWER_S: u64 = 60;

/// The tier `docker`.
#[derive(Debug)]
pub struct DockerTier {
    socket: PathBuf,
    image: ImageId,
    found: OnceLock<Found>,
}

/// What was found out about the engine.
#[derive(Clone, Debug)]
struct Found {
    memory: bool,
    processors: usize,
}

fn missing(name: &str, reason: impl Into<String>, remedy: &str) -> Missing {
    Missing { name: name.to_owned(), reason: reason.into(), remedy: remedy.to_owned() }
}

fn failed(what: &str, error: &impl std::fmt::Display) -> NativeError {
    NativeError::Failed(format!("{what}: {error}"))
}

/// Runs a future to its end on a thread of its own, so that it can be called
/// from within another runtime.
fn block_on<T: Send>(
    future: impl Future<Output = Result<T, NativeError>> + Send,
) -> Result<T, NativeError> {
    let work = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| failed("the runtime", &error))?;
        runtime.block_on(future)
    };
    let ended = std::thread::scope(|scope| scope.spawn(work).join());
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl DockerTier {
    /// A tier over the engine at `socket`, with one image.
    #[must_use]
    pub fn new(socket: &Path, image: ImageId) -> Self {
        Self { socket: socket.to_owned(), image, found: OnceLock::new() }
    }

    /// The socket of an engine: what `DOCKER_HOST` names, if that is a socket,
    /// else the first that is there: Docker's, Podman's, Podman's of this user.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "the adapter that finds the engine")]
    pub fn find_socket() -> Option<PathBuf> {
        if let Some(host) = std::env::var_os("DOCKER_HOST") {
            return host.to_str()?.strip_prefix("unix://").map(PathBuf::from);
        }
        let own = format!("/run/user/{}/podman/podman.sock", rustix::process::geteuid().as_raw());
        let places = SOCKETS.map(PathBuf::from).into_iter().chain([PathBuf::from(own)]);
        places.into_iter().find(|path| path.exists())
    }

    async fn connect(&self) -> Result<Docker, Missing> {
        let remedy = "start the engine, or name its socket";
        let path = self.socket.to_string_lossy();
        let connect = Docker::connect_with_unix(&path, ANSWER_S, API_DEFAULT_VERSION);
        let engine = connect.map_err(|error| missing("engine", error.to_string(), remedy))?;
        let version = engine.negotiate_version().await;
        version.map_err(|error| missing("engine", format!("{path}: {error}"), remedy))
    }

    fn unavailable(&self, missing: Vec<Missing>) -> Unavailable {
        Unavailable { tier: self.name().to_owned(), missing }
    }

    /// What the engine gives; found out once, and again after a failure, which
    /// may have been of that moment.
    fn found(&self) -> Result<&Found, Unavailable> {
        if let Some(found) = self.found.get() {
            return Ok(found);
        }
        let found = block_on(async { Ok(self.find_out().await) })
            .unwrap_or_else(|error| Err(vec![missing("engine", error.to_string(), "see the log")]))
            .map_err(|missing| self.unavailable(missing))?;
        Ok(self.found.get_or_init(|| found))
    }

    async fn find_out(&self) -> Result<Found, Vec<Missing>> {
        let engine = self.connect().await.map_err(|missing| vec![missing])?;
        let info = engine.info().await;
        let info = info.map_err(|e| vec![missing("engine", e.to_string(), "see its log")])?;
        let mut lacking = Vec::new();
        let filters = info.security_options.unwrap_or_default();
        let filtered = filters.iter().any(|option| {
            option.starts_with("name=seccomp") && !option.contains("profile=unconfined")
        });
        if !filtered {
            let reason = "the engine has no seccomp profile of its own on";
            lacking.push(missing(
                "system-calls",
                reason,
                "start the engine with its default profile",
            ));
        }
        if info.pids_limit == Some(false) {
            let reason = "the engine cannot bound processes";
            lacking.push(missing("process-tree", reason, "enable the pids control group"));
        }
        match engine.inspect_image(self.image.as_str()).await {
            Ok(image) => {
                let digests = image.repo_digests.unwrap_or_default();
                if !self.image.is(image.id.as_deref(), &digests) {
                    let reason = format!("the engine's image is not {}", self.image);
                    lacking.push(missing("image", reason, "load the image that is meant"));
                }
            }
            Err(error) => {
                let reason = format!("{}: {error}", self.image);
                lacking.push(missing("image", reason, "pull or load it; this tier never does"));
            }
        }
        let memory = info.memory_limit != Some(false);
        let processors = info.ncpu.and_then(|count| usize::try_from(count).ok()).unwrap_or(1);
        if lacking.is_empty() { Ok(Found { memory, processors }) } else { Err(lacking) }
    }

    fn report(found: &Result<&Found, Unavailable>, guarantee: Guarantee) -> GuaranteeReport {
        let (state, reason, remedy) = match found {
            Err(unavailable) => {
                let first = unavailable.missing.first();
                let reason = first.map_or("", |missing| missing.reason.as_str());
                (GuaranteeState::Missing, reason, first.map_or("", |missing| &missing.remedy))
            }
            Ok(found) if guarantee == Guarantee::TreeMemory && !found.memory => (
                GuaranteeState::Missing,
                "the engine cannot bound memory",
                "enable the memory control group",
            ),
            Ok(_) => (
                GuaranteeState::Enforced,
                match guarantee {
                    Guarantee::Files => "a read-only root of its own and the given directories",
                    Guarantee::SystemCalls => {
                        "the engine's seccomp profile, no capability, no new privileges"
                    }
                    Guarantee::Network => "a network namespace without an interface",
                    Guarantee::ProcessTree => "the container ends with its first process",
                    Guarantee::PidView => "a process namespace",
                    Guarantee::PrivateMounts => "/tmp, /dev/shm, /work and the home are its own",
                    Guarantee::TreeMemory => "a control group",
                },
                "",
            ),
        };
        GuaranteeReport { guarantee, state, reason: reason.to_owned(), remedy: remedy.to_owned() }
    }

    /// Removes containers of this tier whose maker is gone. Gives their IDs.
    ///
    /// # Errors
    /// [`NativeError`] if the engine cannot be asked.
    pub fn clean(socket: &Path) -> Result<Vec<String>, NativeError> {
        let path = socket.to_string_lossy().into_owned();
        block_on(async move {
            let engine = Docker::connect_with_unix(&path, ANSWER_S, API_DEFAULT_VERSION);
            let engine = engine.map_err(|error| failed("the engine", &error))?;
            let engine = engine.negotiate_version().await;
            run::clean(&engine.map_err(|error| failed("the engine", &error))?).await
        })
    }
}

impl NativeTier for DockerTier {
    fn name(&self) -> &'static str {
        "docker"
    }

    fn probe(&self) -> Probe {
        let found = self.found();
        let report = |guarantee| Self::report(&found, guarantee);
        let guarantees = Guarantee::ALL.into_iter().map(report).collect();
        let first = found.err().and_then(|unavailable| unavailable.missing.into_iter().next());
        Probe {
            tier: self.name().to_owned(),
            available: first.is_none(),
            reason: first.as_ref().map_or_else(String::new, |missing| missing.reason.clone()),
            remedy: first.map_or_else(String::new, |missing| missing.remedy),
            guarantees,
        }
    }

    fn prepare(&self, required: &[Guarantee]) -> Result<(), Unavailable> {
        let found = self.found()?;
        let found = Ok(found);
        let reports = required.iter().map(|guarantee| Self::report(&found, *guarantee));
        let lacking: Vec<Missing> = reports
            .filter(|report| report.state != GuaranteeState::Enforced)
            .map(|report| missing(report.guarantee.name(), report.reason, &report.remedy))
            .collect();
        if lacking.is_empty() { Ok(()) } else { Err(self.unavailable(lacking)) }
    }

    fn run(
        &self,
        command: &NativeCommand,
        cancel: &CancelToken,
        output: &dyn OutputSink,
    ) -> Result<NativeResult, NativeError> {
        let found = self.found()?;
        run::check_mounts(command)?;
        let owner = run::owner();
        let body = body::body(command, &self.image, &owner, found.processors)?;
        let mut result = block_on(async {
            let engine = self.connect().await.map_err(|missing| self.unavailable(vec![missing]))?;
            run::run(&engine, body, command, cancel, output).await
        })?;
        result.controls = self.controls();
        Ok(result)
    }

    fn runs_as(&self) -> Option<(u32, u32)> {
        Some(body::user()).filter(|(user, _)| *user != rustix::process::geteuid().as_raw())
    }

    fn controls(&self) -> Vec<String> {
        let Ok(found) = self.found() else { return Vec::new() };
        let mut controls = [
            "container",
            "limits",
            "network-namespace",
            "no-capabilities",
            "no-new-privileges",
            "not-root",
            "pid-namespace",
            "private-directories",
            "process-tree",
            "read-only-root",
            "seccomp",
        ]
        .map(str::to_owned)
        .to_vec();
        if found.memory {
            controls.push("control-group".to_owned());
        }
        controls.sort_unstable();
        controls
    }
}

/// What is beyond a command's time until its container must be gone.
const GRACE: Duration = Duration::from_secs(10);
