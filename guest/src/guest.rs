//! Owns the interpreter: built once before the snapshot, told who it is once
//! per instance, then asked to run cells.
//!
//! Invariant: the interpreter exists from [`initialise`] on and is never
//! rebuilt; every call finds it idle (no cell is running).

use crate::{cell, errors, files, host, native};
use fumehood_guest_abi::{Exec, ExecResult, FIXED_ENVIRONMENT, Mode, Resume, WORKING_DIRECTORY};
use malachite_bigint::{BigInt, Sign};
use rustpython_vm::builtins::{PyDictRef, PyListRef, PyModule};
use rustpython_vm::frozen::FrozenLib;
use rustpython_vm::function::IntoFuncArgs;
use rustpython_vm::scope::Scope;
use rustpython_vm::vm::Settings;
use rustpython_vm::{AsObject, Interpreter, PyObjectRef, PyRef, PyResult, VirtualMachine};
use std::cell::OnceCell;

/// The frozen standard library and overlay, made by the build script.
const LIBRARY: &FrozenLib =
    FrozenLib::from_ref(include_bytes!(concat!(env!("OUT_DIR"), "/library.frozen")));

/// The Python half of this program; see `python/_fumehood_kernel.py`.
const KERNEL: &str = "_fumehood_kernel";

/// A cell that leaves nothing behind but the state that is built on first use.
const THROW_AWAY: &[u8] = b"print(end='')\n1 + 1\n";
/// The same for the path of an exception.
const THROW_AWAY_ERROR: &[u8] = b"raise SystemExit\n";

thread_local! {
    static GUEST: OnceCell<Guest> = const { OnceCell::new() };
}

pub(crate) struct Guest {
    interpreter: Interpreter,
    kernel: Kernel,
}

/// What a cell needs at hand, looked up once.
pub(crate) struct Kernel {
    module: PyRef<PyModule>,
    /// The persistent `__main__` namespace.
    pub(crate) scope: Scope,
    /// `linecache.cache`: lines by file name.
    pub(crate) file_lines: PyDictRef,
    /// `linecache._interactive_cache`: lines by code object.
    pub(crate) code_lines: PyDictRef,
    /// `sys.argv`.
    arguments: PyListRef,
    /// `sys.path`.
    import_path: PyListRef,
    /// What `os.environ` keeps, as bytes.
    environment: PyDictRef,
    /// The generator of the module `random`, and its `seed` that takes an `int`.
    random: PyObjectRef,
    seed: PyObjectRef,
}

impl Kernel {
    fn resume(&self, record: Resume, vm: &VirtualMachine) -> PyResult<()> {
        let texts = |list: Vec<String>| -> Vec<PyObjectRef> {
            list.into_iter().map(|text| vm.ctx.new_str(text).into()).collect()
        };
        *self.arguments.borrow_vec_mut() = texts(record.argv);
        if !record.import_path.is_empty() {
            *self.import_path.borrow_vec_mut() = texts(record.import_path);
        }
        self.set_environment(&record.env, vm)?;
        if record.cwd != WORKING_DIRECTORY {
            host::set_directory(&record.cwd);
        }
        let seed = vm.ctx.new_bigint(&BigInt::from_bytes_be(Sign::Plus, &record.seed));
        self.seed.call((self.random.clone(), seed), vm)?;
        if record.tools {
            native::bind_tools(vm)?;
            self.call("offer_tools", (), vm)?;
        }
        Ok(())
    }

    fn set_environment(&self, given: &[(String, String)], vm: &VirtualMachine) -> PyResult<()> {
        let fixed = |pair: &(&(String, String), &(&str, &str))| {
            let ((name, value), (fixed_name, fixed_value)) = pair;
            name == fixed_name && value == fixed_value
        };
        let same = given.iter().zip(FIXED_ENVIRONMENT).take_while(fixed).count();
        let rest = if same == FIXED_ENVIRONMENT.len() {
            &given[same..]
        } else {
            self.environment.clear();
            given
        };
        for (name, value) in rest {
            self.set_variable(name, value, vm)?;
        }
        Ok(())
    }

    fn set_variable(&self, name: &str, value: &str, vm: &VirtualMachine) -> PyResult<()> {
        let name = vm.ctx.new_bytes(name.as_bytes().to_vec());
        let value = vm.ctx.new_bytes(value.as_bytes().to_vec());
        self.environment.set_item(name.as_object(), value.into(), vm)
    }

    /// Calls a function of the kernel module.
    pub(crate) fn call(
        &self,
        name: &'static str,
        arguments: impl IntoFuncArgs,
        vm: &VirtualMachine,
    ) -> PyResult<PyObjectRef> {
        self.module.as_object().get_attr(name, vm)?.call(arguments, vm)
    }
}

/// Builds the interpreter and brings it to the state the snapshot keeps.
pub(crate) fn initialise() {
    let interpreter = build();
    let kernel = interpreter.enter(|vm| match load_kernel(vm) {
        Ok(kernel) => Some(kernel),
        Err(exception) => {
            vm.print_exception(&exception);
            None
        }
    });
    // A snapshot without a kernel must not be made: stop the build here.
    let Some(kernel) = kernel else { std::process::abort() };
    GUEST.with(|slot| {
        let _ = slot.set(Guest { interpreter, kernel });
    });
    for (mode, source) in [(Mode::Cell, THROW_AWAY), (Mode::Cell, THROW_AWAY_ERROR)] {
        let _ = execute(&Exec {
            mode,
            filename: "<cell>".to_owned(),
            source: source.to_vec(),
            inputs_json: None,
            max_value_bytes: 1024,
        });
    }
    with_guest(|guest, vm| guest.kernel.call("settle", (), vm).is_ok());
}

/// Tells the instance who it is. False when the interpreter could not.
///
/// Every page this touches is a page that each instance keeps for itself, so it
/// runs no Python and changes only what differs from the snapshot.
pub(crate) fn resume(record: Resume) -> bool {
    with_guest(|guest, vm| told(guest.kernel.resume(record, vm), vm))
}

/// Reseeds the generators that the program never seeded.
pub(crate) fn reseed(seed: &[u8; 32]) -> bool {
    with_guest(|guest, vm| {
        let seed = vm.ctx.new_bytes(seed.to_vec());
        told(guest.kernel.call("reseed", (seed,), vm), vm)
    })
}

/// Runs one cell or script; `None` only when [`initialise`] never ran.
pub(crate) fn execute(exec: &Exec) -> Option<ExecResult> {
    GUEST.with(|slot| {
        let guest = slot.get()?;
        Some(guest.interpreter.enter(|vm| cell::run(exec, &guest.kernel, vm)))
    })
}

fn with_guest(action: impl FnOnce(&Guest, &VirtualMachine) -> bool) -> bool {
    GUEST.with(|slot| match slot.get() {
        Some(guest) => guest.interpreter.enter(|vm| action(guest, vm)),
        None => false,
    })
}

fn told<T>(result: PyResult<T>, vm: &VirtualMachine) -> bool {
    match result {
        Ok(_) => true,
        Err(exception) => {
            vm.print_exception(&exception);
            false
        }
    }
}

fn build() -> Interpreter {
    let mut settings = Settings::default();
    // A hash is the same in every instance: same input, same output.
    settings.hash_seed = Some(0);
    settings.ignore_environment = true;
    settings.import_site = false;
    settings.install_signal_handlers = false;
    settings.user_site_directory = false;
    settings.utf8_mode = 1;
    settings.write_bytecode = false;
    let builder = Interpreter::builder(settings);
    let definitions = rustpython_stdlib::stdlib_module_defs(&builder.ctx);
    let native = native::module_def(&builder.ctx);
    builder
        .add_native_modules(&definitions)
        .add_native_module(native)
        .add_frozen_modules(LIBRARY)
        .build()
}

fn load_kernel(vm: &VirtualMachine) -> PyResult<Kernel> {
    errors::install(vm);
    files::install(vm)?;
    host::set_directory(WORKING_DIRECTORY);
    let scope = vm.new_scope_with_main()?;
    let module = vm.import(KERNEL, 0)?;
    let linecache = vm.import("linecache", 0)?;
    let sys = vm.import("sys", 0)?;
    let environment = vm.import("os", 0)?.get_attr("environ", vm)?.get_attr("_data", vm)?;
    let kernel = Kernel {
        file_lines: linecache.get_attr("cache", vm)?.try_into_value(vm)?,
        code_lines: linecache.get_attr("_interactive_cache", vm)?.try_into_value(vm)?,
        arguments: sys.get_attr("argv", vm)?.try_into_value(vm)?,
        import_path: sys.get_attr("path", vm)?.try_into_value(vm)?,
        environment: environment.try_into_value(vm)?,
        random: vm.import("random", 0)?.get_attr("_inst", vm)?,
        seed: vm.import("_random", 0)?.get_attr("Random", vm)?.get_attr("seed", vm)?,
        module: module
            .downcast::<PyModule>()
            .map_err(|_| vm.new_system_error("the kernel is not a module"))?,
        scope,
    };
    kernel.environment.clear();
    for (name, value) in FIXED_ENVIRONMENT {
        kernel.set_variable(name, value, vm)?;
    }
    Ok(kernel)
}
