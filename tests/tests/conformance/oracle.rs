//! The same guest module on another host: `wasmtime-wasi`, which shares no
//! code with our adapter and broker.
//!
//! Invariant: nothing here uses the engine, the adapter or the broker of this
//! project; only the guest's records are shared.

use std::path::Path;
use std::sync::OnceLock;

use fumehood_guest_abi::{
    ABI_VERSION, CallError, Exec, ExecResult, IMPORT_CALL, IMPORT_MODULE, Mode, Resume, decode,
    encode,
};
use wasmtime::{Config, Engine, InstancePre, Linker, Memory, Module, OptLevel, Store, TypedFunc};
use wasmtime_wasi::p1::{self, WasiP1Ctx};
use wasmtime_wasi::p2::pipe::MemoryOutputPipe;
use wasmtime_wasi::{FsPerms, WasiCtxBuilder};

const STACK_BYTES: usize = 4 << 20;
const OUTPUT_BYTES: usize = 16 << 20;

/// What a run on the other host showed.
#[derive(Debug)]
pub struct Shown {
    pub stdout: String,
    pub stderr: String,
    pub result: ExecResult,
}

fn guest() -> &'static InstancePre<WasiP1Ctx> {
    static GUEST: OnceLock<InstancePre<WasiP1Ctx>> = OnceLock::new();
    GUEST.get_or_init(|| {
        let mut config = Config::new();
        // Compiled once for every test run, so compile fast.
        config
            .cranelift_opt_level(OptLevel::None)
            .async_stack_size(2 * STACK_BYTES)
            .max_wasm_stack(STACK_BYTES);
        let engine = Engine::new(&config).expect("an engine");
        let wasm = fumehood::guest_module().expect("the artefact");
        let module = Module::new(&engine, wasm).expect("the guest compiles");
        let mut linker: Linker<WasiP1Ctx> = Linker::new(&engine);
        p1::add_to_linker_sync(&mut linker, |context| context).expect("WASI");
        let no_such_call =
            |_: u32, _: u32, _: u32, _: u32, _: u32| -> i64 { CallError::UnknownOperation as i64 };
        linker.func_wrap(IMPORT_MODULE, IMPORT_CALL, no_such_call).expect("the one import of ours");
        linker.instantiate_pre(&module).expect("every import is there")
    })
}

/// Runs a program; `root` is the guest's whole file system.
pub fn run(
    root: &Path,
    environment: Vec<(String, String)>,
    file: &str,
    source: &str,
) -> wasmtime::Result<Shown> {
    std::thread::scope(|scope| {
        let work = || run_here(root, environment, file, source);
        // The guest's stack is the thread's, with room for the host functions.
        let thread = std::thread::Builder::new().stack_size(4 * STACK_BYTES);
        thread.spawn_scoped(scope, work)?.join().expect("the other host does not panic")
    })
}

fn run_here(
    root: &Path,
    env: Vec<(String, String)>,
    file: &str,
    source: &str,
) -> wasmtime::Result<Shown> {
    let (stdout, stderr) =
        (MemoryOutputPipe::new(OUTPUT_BYTES), MemoryOutputPipe::new(OUTPUT_BYTES));
    let wasi = WasiCtxBuilder::new()
        .stdout(stdout.clone())
        .stderr(stderr.clone())
        .preopened_dir(root, "/", FsPerms::ReadWrite)?
        .build_p1();
    let pre = guest();
    let mut store = Store::new(pre.module().engine(), wasi);
    let instance = pre.instantiate(&mut store)?;
    let memory = instance
        .get_memory(&mut store, "memory")
        .ok_or_else(|| wasmtime::Error::msg("the guest exports no memory"))?;
    let alloc: TypedFunc<u32, u32> = instance.get_typed_func(&mut store, "fh_alloc")?;
    let resume: TypedFunc<(u32, u32), i32> = instance.get_typed_func(&mut store, "fh_resume")?;
    let exec: TypedFunc<(u32, u32), i64> = instance.get_typed_func(&mut store, "fh_exec")?;

    let record = encode(&Resume {
        abi: ABI_VERSION,
        argv: vec![file.to_owned()],
        env,
        cwd: fumehood::WORKING_DIRECTORY.to_owned(),
        import_path: Vec::new(),
        seed: [7; 32],
        tools: false,
    });
    let given =
        give(&mut store, &memory, &alloc, &record.map_err(|_| wasmtime::Error::msg("resume"))?)?;
    let accepted = resume.call(&mut store, given)?;
    if accepted != 0 {
        return Err(wasmtime::Error::msg(format!("the guest refused to resume ({accepted})")));
    }
    let record = encode(&Exec {
        mode: Mode::Script,
        filename: file.to_owned(),
        source: source.as_bytes().to_vec(),
        inputs_json: None,
        max_value_bytes: 64 << 10,
    });
    let given =
        give(&mut store, &memory, &alloc, &record.map_err(|_| wasmtime::Error::msg("exec"))?)?;
    let packed = exec.call(&mut store, given)?.cast_unsigned();
    let (at, length) = ((packed >> 32) as usize, (packed & u64::from(u32::MAX)) as usize);
    let result = decode(&memory.data(&store)[at..at + length])
        .map_err(|_| wasmtime::Error::msg("the guest's result is not a record"))?;
    drop(store);
    let text = |pipe: MemoryOutputPipe| String::from_utf8_lossy(&pipe.contents()).into_owned();
    Ok(Shown { stdout: text(stdout), stderr: text(stderr), result })
}

fn give(
    store: &mut Store<WasiP1Ctx>,
    memory: &Memory,
    alloc: &TypedFunc<u32, u32>,
    record: &[u8],
) -> wasmtime::Result<(u32, u32)> {
    let length = u32::try_from(record.len())?;
    let at = alloc.call(&mut *store, length)?;
    memory.write(&mut *store, usize::try_from(at)?, record)?;
    Ok((at, length))
}
