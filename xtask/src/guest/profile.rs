//! Measures which parts of the guest agent programs use.
//!
//! What: runs the programs of [`PROGRAMS`] in a guest whose branches count, and
//! keeps the counts in [`PROFILE`]; every later build is optimised by them.
//! Invariant: only this command changes the profile, so that a build is a
//! function of the repository.

use super::snapshot;
use super::toolchain::{Purpose, Toolchain};
use anyhow::{Context as _, Result, anyhow, bail};
use fumehood_guest_abi::{ABI_VERSION, Exec, FIXED_ENVIRONMENT, Mode, Resume, encode};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use wasmtime::{Config, Engine, Linker, Memory, Module, Store, TypedFunc};
use wasmtime_wasi::p1::{self, WasiP1Ctx};
use wasmtime_wasi::{DirPerms, FilePerms, WasiCtxBuilder};

/// The counts, as `llvm-profdata` merges them, compressed.
pub(crate) const PROFILE: &str = "guest/profile/python.profdata.zst";
/// Directories of programs of the usual kind.
const PROGRAMS: &[&str] = &["tests/cpu", "tests/programs", "tests/snippets"];
/// The build whose branches count, a profile of `guest/Cargo.toml`.
const INSTRUMENTED: &str = "instrumented";
/// The programs are run once: good code is not worth its compilation, but the
/// interpreter needs deep recursion.
const STACK_BYTES: usize = 16 << 20;
/// Highest zstd level that needs no special decoder.
const LEVEL: i32 = 19;

/// Builds, runs and writes [`PROFILE`].
///
/// # Errors
/// A step failed; the profile is as it was.
pub(crate) fn measure(root: &Path) -> Result<()> {
    let toolchain = Toolchain::find(root)?;
    println!("toolchain: {}", toolchain.name);
    let target = root.join("guest/target");
    let plain = toolchain.build(root, &target, INSTRUMENTED, &Purpose::Measure)?;
    let module = snapshot::initialise(&fs::read(plain)?)
        .map_err(|error| anyhow!("the guest could not be initialised: {error:?}"))?;
    let counts = target.join("profile/counts");
    if counts.exists() {
        fs::remove_dir_all(&counts)?;
    }
    fs::create_dir_all(&counts)?;
    let programs = programs(root)?;
    run_all(&module, &programs, &counts)
        .map_err(|error| anyhow!("a program could not be run: {error:?}"))?;
    let merged = target.join("profile/merged.profdata");
    let status = Command::new(toolchain.tool("llvm-profdata")?)
        .args(["merge", "-sparse", "-o"])
        .arg(&merged)
        .args(programs.iter().enumerate().map(|(number, _)| counts.join(number.to_string())))
        .status()
        .context("llvm-profdata could not be started")?;
    if !status.success() {
        bail!("the counts could not be merged");
    }
    let merged = fs::read(merged)?;
    let compressed = zstd::encode_all(merged.as_slice(), LEVEL)?;
    let kept = root.join(PROFILE);
    fs::create_dir_all(kept.parent().context("the profile has no directory")?)?;
    fs::write(&kept, &compressed)?;
    println!("{PROFILE}: {} bytes, of {} programs", compressed.len(), programs.len());
    Ok(())
}

/// Unpacks [`PROFILE`] for the compiler.
///
/// # Errors
/// It is not there or damaged.
pub(crate) fn unpack(root: &Path, target: &Path) -> Result<PathBuf> {
    let packed = fs::read(root.join(PROFILE)).context("the profile of the guest is missing")?;
    let plain = zstd::decode_all(packed.as_slice()).context("the profile of the guest")?;
    let at = target.join("profile/python.profdata");
    // Cargo builds anew when the file is newer.
    if fs::read(&at).ok().as_ref() != Some(&plain) {
        fs::create_dir_all(target.join("profile"))?;
        fs::write(&at, plain)?;
    }
    Ok(at)
}

fn programs(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for directory in PROGRAMS {
        for entry in fs::read_dir(root.join(directory))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "py") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Writes the counts of each program into a file of its number.
fn run_all(module: &[u8], programs: &[PathBuf], counts: &Path) -> wasmtime::Result<()> {
    let mut config = Config::new();
    config.max_wasm_stack(STACK_BYTES);
    config.async_stack_size(STACK_BYTES * 2);
    let engine = Engine::new(&config)?;
    let module = Module::new(&engine, module)?;
    let mut linker: Linker<WasiP1Ctx> = Linker::new(&engine);
    p1::add_to_linker_sync(&mut linker, |context| context)?;
    linker.func_wrap("fumehood", "call", |_: u32, _: u32, _: u32, _: u32, _: u32| {
        snapshot::NOT_YET
    })?;
    for (number, program) in programs.iter().enumerate() {
        let files = counts.join(format!("{number}.files"));
        fs::create_dir_all(files.join("tmp"))?;
        let context = WasiCtxBuilder::new()
            .preopened_dir(&files, "/", DirPerms::all(), FilePerms::all())?
            .build_p1();
        let mut store = Store::new(&engine, context);
        let instance = linker.instantiate(&mut store, &module)?;
        let mut guest = Guest {
            memory: instance
                .get_memory(&mut store, "memory")
                .ok_or_else(|| wasmtime::format_err!("no memory"))?,
            alloc: instance.get_typed_func(&mut store, "fh_alloc")?,
            resume: instance.get_typed_func(&mut store, "fh_resume")?,
            exec: instance.get_typed_func(&mut store, "fh_exec")?,
            reset: instance.get_typed_func(&mut store, "fh_profile_reset")?,
            profile: instance.get_typed_func(&mut store, "fh_profile")?,
            store,
        };
        let counted = guest.run(program)?;
        fs::write(counts.join(number.to_string()), counted)?;
    }
    Ok(())
}

/// An instance that counts.
struct Guest {
    store: Store<WasiP1Ctx>,
    memory: Memory,
    alloc: TypedFunc<u32, u32>,
    resume: TypedFunc<(u32, u32), i32>,
    exec: TypedFunc<(u32, u32), i64>,
    reset: TypedFunc<(), ()>,
    profile: TypedFunc<(), i64>,
}

impl Guest {
    fn run(&mut self, program: &Path) -> wasmtime::Result<Vec<u8>> {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let resume = Resume {
            abi: ABI_VERSION,
            argv: vec![name.clone()],
            env: FIXED_ENVIRONMENT
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            cwd: "/tmp".to_owned(),
            import_path: Vec::new(),
            seed: [7; 32],
            tools: false,
        };
        let exec = Exec {
            mode: Mode::Script,
            filename: name.clone(),
            source: fs::read(program)?,
            inputs_json: None,
            max_value_bytes: 1 << 16,
        };
        // What the snapshot took is not what programs do.
        self.reset.call(&mut self.store, ())?;
        let at = self.put(&encode(&resume)?)?;
        let resumed = self.resume.call(&mut self.store, at)?;
        if resumed != 0 {
            return Err(wasmtime::format_err!("{name} could not be prepared: {resumed}"));
        }
        let at = self.put(&encode(&exec)?)?;
        // A program that fails has counted until then.
        self.exec.call(&mut self.store, at)?;
        let place = self.profile.call(&mut self.store, ())?.cast_unsigned();
        let (at, len) = ((place >> 32) as usize, (place & 0xffff_ffff) as usize);
        let bytes = self.memory.data(&self.store).get(at..at.saturating_add(len));
        Ok(bytes.ok_or_else(|| wasmtime::format_err!("the counts lie outside"))?.to_vec())
    }

    fn put(&mut self, record: &[u8]) -> wasmtime::Result<(u32, u32)> {
        let len = u32::try_from(record.len())?;
        let at = self.alloc.call(&mut self.store, len)?;
        self.memory.write(&mut self.store, at as usize, record)?;
        Ok((at, len))
    }
}
