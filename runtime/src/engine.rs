//! The engine: the compiled guest, its settings, and where its code comes from.
//!
//! Invariant: only the WebAssembly features that the guest validates with are
//! on, and the guest can import nothing but the functions of
//! [`crate::adapter`]; a module that asks for more is refused by name.

use std::fs::File;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use sha2::{Digest, Sha256};
use wasmtime::{Config, InstancePre, Linker, Module, OptLevel};

use crate::adapter;
use crate::cache::{self, Build, CacheDirectory, Code, CodeFile};
use crate::clock;
use crate::error::EngineError;
use crate::host::Host;
use crate::instance::Instance;
use crate::memory::{Image, MemoryPath, SlotCreator, Slots};
use crate::session::Awake;
use crate::strip::strip;
use crate::threads::GuestThreads;
use crate::ticker::Ticker;

/// Native stack that guest code may use, in bytes. Python recursion reaches its
/// own limit of 1000 well before.
pub(crate) const WASM_STACK_BYTES: usize = 4 << 20;
/// Stack of a guest thread: the guest's part and room for host functions.
pub(crate) const THREAD_STACK_BYTES: usize = WASM_STACK_BYTES + (2 << 20);
/// The artefact's decompressed size is well below this.
pub(crate) const MAX_GUEST_BYTES: usize = 256 << 20;

static GUEST: &[u8] = include_bytes!("../../guest/dist/guest.wasm.zst");
/// SHA-256 of the committed guest artefact, in hexadecimal.
pub const GUEST_DIGEST: &str = env!("FUMEHOOD_GUEST_DIGEST");

/// What an engine does that takes a while.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// The guest is being compiled; this takes seconds, once.
    Compiling,
    /// It is compiled.
    Compiled {
        /// How long it took.
        took: Duration,
        /// Where the code was kept for the next time.
        kept: Option<PathBuf>,
    },
    /// Compiled code is not kept or not used, and why.
    CacheUnusable {
        /// The directory or file.
        path: Option<PathBuf>,
        /// One sentence.
        reason: String,
    },
}

/// Where compiled code comes from.
#[derive(Clone, Debug)]
enum CodeSource {
    UserCache,
    Directory(PathBuf),
    Compiled(PathBuf),
    Afresh,
}

type OnProgress = Arc<dyn Fn(Progress) + Send + Sync>;

/// Settings of an [`Engine`].
#[derive(Clone)]
pub struct EngineBuilder {
    source: CodeSource,
    module: Option<Arc<[u8]>>,
    one_shot: bool,
    build: Build,
    memory: MemoryPath,
    on_progress: OnProgress,
}

impl std::fmt::Debug for EngineBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineBuilder").field("source", &self.source).finish_non_exhaustive()
    }
}

impl EngineBuilder {
    /// Uses the code of a file that `fumehood cache build` made, and nothing
    /// else: no directory is written, no code is compiled.
    #[must_use]
    pub fn compiled(mut self, file: impl Into<PathBuf>) -> Self {
        self.source = CodeSource::Compiled(file.into());
        self
    }

    /// Keeps compiled code in `directory` instead of the user's cache.
    #[must_use]
    pub fn cache_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.source = CodeSource::Directory(directory.into());
        self
    }

    /// Compiles in memory and keeps nothing.
    #[must_use]
    pub fn no_cache(mut self) -> Self {
        self.source = CodeSource::Afresh;
        self
    }

    /// Runs another core module instead of the Python guest: a program that
    /// exports `memory` and `_start`. It meets the same boundary, which is how
    /// the boundary is tested without Python.
    #[must_use]
    pub fn module(mut self, wasm: impl Into<Arc<[u8]>>) -> Self {
        self.module = Some(wasm.into());
        self.source = CodeSource::Afresh;
        self
    }

    /// For a process that ends after its one run: the run's memory is left to
    /// the system, which takes it back with the process, instead of being put
    /// in order for a next run. Further runs work and are not given back.
    #[must_use]
    pub fn one_shot(mut self) -> Self {
        self.one_shot = true;
        self
    }

    /// Manages guest memory as if the kernel did not say which pages a guest
    /// changed: slower, with the same results. Without it the engine looks at
    /// what the system offers.
    #[must_use]
    pub fn plain_memory(mut self) -> Self {
        self.memory = MemoryPath::Plain;
        self
    }

    /// The same settings for another build.
    pub(crate) fn of(mut self, build: Build) -> Self {
        self.build = build;
        self
    }

    /// Calls `report` when something takes a while. Without it, progress goes
    /// to `tracing`.
    #[must_use]
    pub fn on_progress(mut self, report: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.on_progress = Arc::new(report);
        self
    }

    /// Makes the engine: maps compiled code, or compiles, which takes seconds.
    ///
    /// # Errors
    /// [`EngineError`] says what is missing or refused.
    pub fn build(self) -> Result<Engine, EngineError> {
        let (engine, guest) = match &self.module {
            Some(wasm) => {
                let engine = wasmtime_engine(&config(self.build))?;
                let module = Module::new(&engine, wasm).map_err(guest_error)?;
                (engine, Guest { module, slots: None })
            }
            None => self.python()?,
        };
        let mut linker = Linker::new(&engine);
        adapter::add_to_linker(&mut linker).map_err(guest_error)?;
        let instance = linker.instantiate_pre(&guest.module).map_err(guest_error)?;
        let ticker = Ticker::start(engine.weak()).map_err(EngineError::Thread)?;
        Ok(Engine(Arc::new(Inner {
            instance,
            slots: guest.slots,
            threads: GuestThreads::new(THREAD_STACK_BYTES),
            ticker,
            is_python: self.module.is_none(),
            one_shot: self.one_shot,
            awake: Awake::default(),
            guest: match &self.module {
                Some(wasm) => cache::hex(&Sha256::digest(wasm)).into(),
                None => GUEST_DIGEST.into(),
            },
            settings: self,
            other: OnceLock::new(),
            making_other: Mutex::new(()),
        })))
    }

    fn python(&self) -> Result<(wasmtime::Engine, Guest), EngineError> {
        let expected = Arc::new(OnceLock::new());
        let mut config = config(self.build);
        config.with_host_memory(Arc::new(SlotCreator(Arc::clone(&expected))));
        let engine = wasmtime_engine(&config)?;
        let guest = match &self.source {
            CodeSource::Compiled(path) => compiled_guest(&engine, path, self.build, self.memory)?,
            source => self.cached_guest(&engine, source)?,
        };
        if let Some(slots) = &guest.slots {
            // Set once, here: the engine was made above.
            let _ = expected.set(Arc::clone(slots));
        }
        Ok((engine, guest))
    }

    fn cached_guest(
        &self,
        engine: &wasmtime::Engine,
        source: &CodeSource,
    ) -> Result<Guest, EngineError> {
        let hash = engine_hash(engine);
        let name = cache_file_name(&hash);
        let directory = self.open_cache(source);
        if let Some(directory) = &directory {
            let found = directory.find(&name).and_then(|file| {
                file.map(|file| load(engine, &file, &hash, self.build, self.memory)).transpose()
            });
            match found {
                Ok(Some(guest)) => return Ok(guest),
                Ok(None) => {}
                Err(reason) => self.unusable(Some(directory.path().join(&name)), reason),
            }
        }
        let start = clock::now();
        (self.on_progress)(Progress::Compiling);
        let compiled = compile(engine)?;
        let stored = directory.as_ref().and_then(|directory| {
            match directory.store(&name, &compiled.file(self.build, &hash)) {
                Ok(file) => Some((directory.path().join(&name), file)),
                Err(error) => {
                    self.unusable(Some(directory.path().to_owned()), error.to_string());
                    None
                }
            }
        });
        let took = clock::now().saturating_duration_since(start);
        let (kept, file) = stored.unzip();
        (self.on_progress)(Progress::Compiled { took, kept });
        match file {
            Some(file) => {
                load(engine, &file, &hash, self.build, self.memory).map_err(EngineError::Guest)
            }
            None => {
                let slots = Slots::new(Image::in_memory(&compiled.image), self.memory);
                let module = deserialize(engine, &compiled.code).map_err(EngineError::Guest)?;
                Ok(Guest { module, slots: Some(Arc::new(slots)) })
            }
        }
    }

    fn open_cache(&self, source: &CodeSource) -> Option<CacheDirectory> {
        let wanted = match source {
            CodeSource::Directory(path) => path.clone(),
            CodeSource::Compiled(_) | CodeSource::Afresh => return None,
            CodeSource::UserCache => {
                let user = crate::host_env::cache_directory();
                if user.is_none() {
                    self.unusable(None, "there is no HOME and no FUMEHOOD_CACHE_DIR".to_owned());
                }
                user?
            }
        };
        match CacheDirectory::open(&wanted) {
            Ok(directory) => Some(directory),
            Err(reason) => {
                self.unusable(Some(wanted), reason);
                None
            }
        }
    }

    fn unusable(&self, path: Option<PathBuf>, reason: String) {
        (self.on_progress)(Progress::CacheUnusable { path, reason });
    }
}

/// The compiled module and the memory its instances start with.
struct Guest {
    module: Module,
    slots: Option<Arc<Slots>>,
}

/// What [`compile`] makes.
struct Compiled {
    code: Vec<u8>,
    image: Vec<u8>,
}

impl Compiled {
    fn file<'a>(&'a self, build: Build, engine: &'a str) -> CodeFile<'a> {
        let first = Code { build, engine, bytes: &self.code };
        CodeFile { guest: GUEST_DIGEST, first, second: None, image: &self.image }
    }
}

/// A compiled guest that any number of sandboxes share. Cloning shares it.
///
/// It belongs to the process that made it: the thread that ends runs at their
/// deadlines does not survive `fork(2)`. A server that forks its workers makes
/// the engine in each worker.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) instance: InstancePre<Host>,
    /// `None` for a module that is not the Python guest.
    pub(crate) slots: Option<Arc<Slots>>,
    pub(crate) threads: GuestThreads,
    pub(crate) ticker: Ticker,
    pub(crate) is_python: bool,
    one_shot: bool,
    /// The sessions that wait.
    pub(crate) awake: Awake,
    /// SHA-256 of the module that is run, in hexadecimal.
    pub(crate) guest: Arc<str>,
    settings: EngineBuilder,
    /// The engine of the other build, once a sandbox needed it.
    other: OnceLock<Engine>,
    making_other: Mutex<()>,
}

impl Inner {
    /// Takes an instance that has run out of the way.
    pub(crate) fn give_back(&self, spent: Instance) {
        if self.one_shot {
            std::mem::forget(spent);
        }
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("guest", &GUEST_DIGEST).finish_non_exhaustive()
    }
}

impl Engine {
    /// Settings for an engine of its own.
    #[must_use]
    pub fn builder() -> EngineBuilder {
        EngineBuilder {
            source: CodeSource::UserCache,
            module: None,
            one_shot: false,
            build: Build::Epoch,
            memory: MemoryPath::available(),
            on_progress: Arc::new(|progress| tracing::info!(?progress, "engine")),
        }
    }

    /// The engine that sandboxes share unless they are given another. Made at
    /// the first call, from the user's cache.
    ///
    /// # Errors
    /// [`EngineError`]; a failed call is tried again by the next.
    pub fn shared() -> Result<Self, EngineError> {
        Self::shared_of(Build::Epoch)
    }

    /// The shared engine of a build.
    pub(crate) fn shared_of(build: Build) -> Result<Self, EngineError> {
        static EPOCH: (OnceLock<Engine>, Mutex<()>) = (OnceLock::new(), Mutex::new(()));
        static FUEL: (OnceLock<Engine>, Mutex<()>) = (OnceLock::new(), Mutex::new(()));
        let (shared, making) = match build {
            Build::Epoch => (&EPOCH.0, &EPOCH.1),
            Build::Fuel => (&FUEL.0, &FUEL.1),
        };
        once(shared, making, Self::builder().of(build))
    }

    /// The engine of a build with the same settings: this one, or one that is
    /// made when it is first asked for.
    pub(crate) fn of(&self, build: Build) -> Result<Self, EngineError> {
        let Inner { settings, other, making_other, .. } = &*self.0;
        if settings.build == build {
            return Ok(self.clone());
        }
        once(other, making_other, settings.clone().of(build))
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }
}

/// Makes an engine where there is none yet; a failed attempt leaves none.
fn once(
    cell: &OnceLock<Engine>,
    making: &Mutex<()>,
    settings: EngineBuilder,
) -> Result<Engine, EngineError> {
    if let Some(engine) = cell.get() {
        return Ok(engine.clone());
    }
    let _making = making.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(engine) = cell.get() {
        return Ok(engine.clone());
    }
    let engine = settings.build()?;
    Ok(cell.get_or_init(|| engine).clone())
}

/// Compiles the guest into `file`, in both builds, for deployments that cannot
/// write a cache; see [`EngineBuilder::compiled`]. The file is replaced whole.
///
/// # Errors
/// [`EngineError`], the file named.
pub fn build_compiled(file: &Path) -> Result<cache::Footer, EngineError> {
    let failed = |source| EngineError::File { path: file.to_owned(), source };
    let engines = [engine_of(Build::Epoch)?, engine_of(Build::Fuel)?];
    let hashes = engines.each_ref().map(engine_hash);
    let split = strip(&guest_module()?).map_err(EngineError::Guest)?;
    let [epoch, fuel] = engines.each_ref().map(|engine| engine.precompile_module(&split.wasm));
    let (epoch, fuel) = (epoch.map_err(guest_error)?, fuel.map_err(guest_error)?);
    let contents = CodeFile {
        guest: GUEST_DIGEST,
        first: Code { build: Build::Epoch, engine: &hashes[0], bytes: &epoch },
        second: Some(Code { build: Build::Fuel, engine: &hashes[1], bytes: &fuel }),
        image: &split.image,
    };
    let directory = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut written = tempfile::NamedTempFile::new_in(directory).map_err(failed)?;
    contents.write_to(&mut written).map_err(failed)?;
    let handle = written.persist(file).map_err(|error| failed(error.error))?;
    cache::read_footer(&handle)
        .map_err(|reason| EngineError::Compiled { path: file.to_owned(), reason })
}

/// Reads a file of compiled code whole and compares its digests.
///
/// # Errors
/// [`EngineError::Compiled`] says what is wrong with it.
pub fn verify_compiled(path: &Path) -> Result<cache::Footer, EngineError> {
    let mut file = cache::open_compiled(path)?;
    let footer = cache::verify(&mut file)
        .map_err(|reason| EngineError::Compiled { path: path.to_owned(), reason })?;
    let mut checked = Ok(());
    for (build, _) in footer.builds() {
        let hash = engine_hash(&engine_of(build)?);
        checked = checked.and_then(|()| check_footer(&footer, build, &hash));
    }
    checked
        .map(|()| footer)
        .map_err(|reason| EngineError::Compiled { path: path.to_owned(), reason })
}

/// Where the user's cache is and which file of it this build would use, in
/// deterministic mode or else.
///
/// # Errors
/// [`EngineError::Unsupported`] if the engine does not run on this machine.
pub fn cache_location(deterministic: bool) -> Result<Option<(PathBuf, String)>, EngineError> {
    let build = if deterministic { Build::Fuel } else { Build::Epoch };
    let name = cache_file_name(&engine_hash(&engine_of(build)?));
    Ok(crate::host_env::cache_directory().map(|directory| (directory, name)))
}

fn cache_file_name(engine_hash: &str) -> String {
    let short = |digest: &str| digest.get(..16).unwrap_or(digest).to_owned();
    format!("{}-{}.code", short(GUEST_DIGEST), short(engine_hash))
}

fn engine_of(build: Build) -> Result<wasmtime::Engine, EngineError> {
    wasmtime_engine(&config(build))
}

/// The settings that every engine of this project has.
fn config(build: Build) -> Config {
    let mut config = Config::new();
    config
        .consume_fuel(build == Build::Fuel)
        .cranelift_nan_canonicalization(build == Build::Fuel)
        .cranelift_opt_level(OptLevel::Speed)
        .epoch_interruption(true)
        // Calls are synchronous; the engine only checks that this is not smaller.
        .async_stack_size(WASM_STACK_BYTES * 2)
        .max_wasm_stack(WASM_STACK_BYTES)
        .wasm_backtrace_max_frames(None)
        .generate_address_map(false)
        .native_unwind_info(false);
    // What the guest validates with; pinned by a test.
    config.wasm_simd(true).wasm_bulk_memory(true).wasm_reference_types(true);
    // Switched off here, not as Cargo features: see docs/decisions.md.
    config
        .gc_support(false)
        .wasm_multi_value(false)
        .wasm_gc(false)
        .wasm_function_references(false)
        .wasm_threads(false)
        .wasm_relaxed_simd(false)
        .wasm_tail_call(false)
        .wasm_multi_memory(false)
        .wasm_memory64(false)
        .wasm_extended_const(false)
        .wasm_exceptions(false)
        .wasm_wide_arithmetic(false);
    config
}

fn wasmtime_engine(config: &Config) -> Result<wasmtime::Engine, EngineError> {
    wasmtime::Engine::new(config).map_err(|error| EngineError::Unsupported(format!("{error:#}")))
}

/// The guest module, decompressed.
///
/// # Errors
/// [`EngineError::Guest`] if the artefact is damaged.
pub fn guest_module() -> Result<Vec<u8>, EngineError> {
    zstd::bulk::decompress(GUEST, MAX_GUEST_BYTES)
        .map_err(|error| EngineError::Guest(error.to_string()))
}

fn compile(engine: &wasmtime::Engine) -> Result<Compiled, EngineError> {
    let split = strip(&guest_module()?).map_err(EngineError::Guest)?;
    let code = engine.precompile_module(&split.wasm).map_err(guest_error)?;
    Ok(Compiled { code, image: split.image })
}

fn compiled_guest(
    engine: &wasmtime::Engine,
    path: &Path,
    build: Build,
    memory: MemoryPath,
) -> Result<Guest, EngineError> {
    let file = cache::open_compiled(path)?;
    load(engine, &file, &engine_hash(engine), build, memory)
        .map_err(|reason| EngineError::Compiled { path: path.to_owned(), reason })
}

fn check_footer(footer: &cache::Footer, build: Build, hash: &str) -> Result<(), String> {
    footer.entry(build.name())?;
    if footer.guest != GUEST_DIGEST {
        return Err("it holds another version of the guest; build it again".to_owned());
    }
    if !footer.builds().any(|found| found == (build, hash)) {
        return Err("it was compiled for another engine or processor; build it again".to_owned());
    }
    Ok(())
}

/// Maps module and image of a file whose owner and mode have been checked.
fn load(
    engine: &wasmtime::Engine,
    file: &File,
    hash: &str,
    build: Build,
    memory: MemoryPath,
) -> Result<Guest, String> {
    let footer = cache::read_footer(file)?;
    check_footer(&footer, build, hash)?;
    let copy = || file.try_clone().map_err(|error| error.to_string());
    let image = footer.entry(cache::IMAGE)?;
    let len = usize::try_from(image.len).map_err(|error| error.to_string())?;
    let slots = Slots::new(Image::in_file(copy()?, image.offset, len), memory);
    let code = footer.entry(build.name())?;
    let read = || -> Result<Module, String> {
        let bytes = cache::read_entry(file, code).map_err(|error| error.to_string())?;
        deserialize(engine, &bytes)
    };
    // The system maps a file from its start; what lies behind is read.
    if code.offset != 0 {
        return Ok(Guest { module: read()?, slots: Some(Arc::new(slots)) });
    }
    let mapped = copy()?;
    // SAFETY: the file was written by `Module::serialize` of this very engine
    // (its footer names the engine hash and the guest digest), belongs to this
    // user or root, nobody else may write to it, and it is replaced by rename
    // only, never changed in place.
    #[allow(unsafe_code, reason = "mapping compiled code")]
    let module = unsafe { Module::deserialize_open_file(engine, mapped) };
    let module = match module {
        Ok(module) => module,
        // A file system mounted noexec cannot be mapped; its bytes can be read.
        Err(_) => read()?,
    };
    Ok(Guest { module, slots: Some(Arc::new(slots)) })
}

fn deserialize(engine: &wasmtime::Engine, code: &[u8]) -> Result<Module, String> {
    // SAFETY: as in `load`, or the bytes come straight from `precompile_module`.
    #[allow(unsafe_code, reason = "loading compiled code")]
    let module = unsafe { Module::deserialize(engine, code) };
    module.map_err(|error| format!("{error:#}"))
}

fn guest_error(error: wasmtime::Error) -> EngineError {
    EngineError::Guest(format!("{error:#}"))
}

/// Everything in the engine that compiled code depends on, as one hash.
fn engine_hash(engine: &wasmtime::Engine) -> String {
    struct Sink(Sha256);
    impl Hasher for Sink {
        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }
        fn finish(&self) -> u64 {
            0
        }
    }
    let mut sink = Sink(Sha256::new());
    engine.precompile_compatibility_hash().hash(&mut sink);
    cache::hex(&sink.0.finalize())
}
