//! What all attacks share: the Python engine, the canaries and the turn-taking.
//!
//! Invariant: an attack that measures time or memory has the process to
//! itself; every panic of the process is counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{
    Arc, Mutex, Once, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

use fumehood::Engine;
use fumehood_host_fns::NativeTier as _;
use fumehood_native_tiers::{DockerTier, Helper, HelperTier, ImageId};

use super::attack::{Capability, Setting, Tier};
use super::container;
use super::machine;
use super::wat::Program;

/// Panics of this process since the first stage.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// The surroundings of every attack.
pub struct Stage {
    engine: Mutex<Option<Engine>>,
    host_details: Vec<String>,
    turns: RwLock<()>,
    helper: Option<Arc<Helper>>,
    landlock: OnceLock<Result<Arc<HelperTier>, Capability>>,
    process: OnceLock<Result<Arc<HelperTier>, Capability>>,
    docker: OnceLock<Option<(Arc<DockerTier>, ImageId)>>,
}

/// The right to run an attack.
pub(super) enum Turn<'s> {
    /// Beside others.
    Shared(#[allow(dead_code, reason = "held")] RwLockReadGuard<'s, ()>),
    /// Alone.
    Alone(#[allow(dead_code, reason = "held")] RwLockWriteGuard<'s, ()>),
}

impl Default for Stage {
    fn default() -> Self {
        Self::new()
    }
}

impl Stage {
    /// Counts panics from now on.
    #[must_use]
    pub fn new() -> Self {
        static COUNT: Once = Once::new();
        COUNT.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                PANICS.fetch_add(1, Ordering::SeqCst);
                before(panic);
            }));
        });
        Self {
            engine: Mutex::new(None),
            host_details: machine::host_details(),
            turns: RwLock::new(()),
            helper: machine::helper().and_then(|path| Helper::open(&path).ok()).map(Arc::new),
            landlock: OnceLock::new(),
            process: OnceLock::new(),
            docker: OnceLock::new(),
        }
    }

    /// With this helper for the native tiers.
    #[must_use]
    pub fn helper(mut self, helper: Option<Arc<Helper>>) -> Self {
        self.helper = helper;
        self
    }

    /// The file of the helper.
    ///
    /// # Errors
    /// It is not here.
    pub fn helper_file(&self) -> Result<Arc<Helper>, Capability> {
        self.helper.clone().ok_or(Capability::Helper)
    }

    /// A native tier of the helper, ready to run.
    ///
    /// # Errors
    /// What this machine lacks for it.
    pub fn native(&self, tier: Tier) -> Result<Arc<HelperTier>, Capability> {
        let ready = |tier: HelperTier, lacks| match tier.prepare(&[]) {
            Ok(()) => Ok(Arc::new(tier)),
            Err(_) => Err(lacks),
        };
        let helper = self.helper_file()?;
        match tier {
            Tier::Landlock => self
                .landlock
                .get_or_init(|| ready(HelperTier::landlock(Ok(helper)), Capability::Landlock))
                .clone(),
            Tier::Process => self
                .process
                .get_or_init(|| ready(HelperTier::process(Ok(helper)), Capability::Helper))
                .clone(),
            // Not a tier of the helper.
            Tier::Docker => Err(Capability::DockerEngine),
            Tier::Seatbelt => Err(Capability::MacOs),
            Tier::Wasm => Err(Capability::NativeTier),
        }
    }

    /// The tier `docker` and the image of its attacks; made at the first call.
    ///
    /// # Errors
    /// There is no container engine.
    pub fn docker(&self) -> Result<(Arc<DockerTier>, ImageId), Capability> {
        self.docker.get_or_init(container::find).clone().ok_or(Capability::DockerEngine)
    }

    /// The engine with the Python guest; made at the first call.
    ///
    /// # Errors
    /// Why there is none.
    pub fn engine(&self) -> Result<Engine, String> {
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        if engine.is_none() {
            *engine = Some(Engine::shared().map_err(|error| error.to_string())?);
        }
        engine.clone().ok_or_else(|| "no engine".to_owned())
    }

    pub(super) fn host_details(&self) -> &[String] {
        &self.host_details
    }

    pub(super) fn panics() -> u64 {
        PANICS.load(Ordering::SeqCst)
    }

    pub(super) fn turn(&self, alone: bool) -> Turn<'_> {
        if alone {
            Turn::Alone(self.turns.write().unwrap_or_else(PoisonError::into_inner))
        } else {
            Turn::Shared(self.turns.read().unwrap_or_else(PoisonError::into_inner))
        }
    }
}

/// An engine that runs one program.
///
/// # Errors
/// The text of the program is wrong, or, in the second place, the engine
/// refuses it.
pub(super) fn engine_for(program: &Program) -> Result<Result<Engine, String>, String> {
    let wasm: Arc<[u8]> = program.build()?.into();
    Ok(Engine::builder().module(wasm).build().map_err(|error| error.to_string()))
}

impl Setting {
    pub(super) fn plain() -> Self {
        Self::default().wall_ms(10_000)
    }
}
