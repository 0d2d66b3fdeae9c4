//! Data: modules that the engine must refuse, and names to ask it for.

/// Flags of the parser that are not proposals a core module can use: what the
/// format always had, and parts of the component model, which is refused whole.
pub const BASE: &[&str] = &[
    "FLOATS",
    "GC_TYPES",
    "CM_VALUES",
    "CM_NESTED_NAMES",
    "CM_ASYNC",
    "CM_ASYNC_STACKFUL",
    "CM_MORE_ASYNC_BUILTINS",
    "CM_THREADING",
    "CM_ERROR_CONTEXT",
    "CM_FIXED_LENGTH_LISTS",
    "CM_GC",
    "CM_MAP",
    "CM_IMPLEMENTS",
    "CM64",
    "CM_CANON_NAMES",
];

/// `(case, what the refusal must name, module)`: imports that no host of this
/// project offers.
pub const FOREIGN: &[(&str, &str, &str)] = &[
    (
        "env_function",
        "env::host_exec",
        r#"(module (import "env" "host_exec" (func (param i32))) (memory (export "memory") 1) (func (export "_start")))"#,
    ),
    (
        "socket_accept",
        "wasi_snapshot_preview1::sock_accept",
        r#"(module (import "wasi_snapshot_preview1" "sock_accept" (func (param i32 i32 i32) (result i32))) (memory (export "memory") 1) (func (export "_start")))"#,
    ),
    (
        "socket_send",
        "wasi_snapshot_preview1::sock_send",
        r#"(module (import "wasi_snapshot_preview1" "sock_send" (func (param i32 i32 i32 i32 i32) (result i32))) (memory (export "memory") 1) (func (export "_start")))"#,
    ),
    (
        "older_wasi",
        "wasi_unstable::fd_write",
        r#"(module (import "wasi_unstable" "fd_write" (func (param i32 i32 i32 i32) (result i32))) (memory (export "memory") 1) (func (export "_start")))"#,
    ),
    (
        "threads_of_wasi",
        "wasi::thread-spawn",
        r#"(module (import "wasi" "thread-spawn" (func (param i32) (result i32))) (memory (export "memory") 1) (func (export "_start")))"#,
    ),
    (
        "another_call_of_ours",
        "fumehood::exec",
        r#"(module (import "fumehood" "exec" (func)) (memory (export "memory") 1) (func (export "_start")))"#,
    ),
    (
        "our_call_with_another_type",
        "fumehood::call",
        r#"(module (import "fumehood" "call" (func (param i32) (result i64))) (memory (export "memory") 1) (func (export "_start")))"#,
    ),
    (
        "memory",
        "env::memory",
        r#"(module (import "env" "memory" (memory 1)) (func (export "_start")))"#,
    ),
    (
        "global",
        "env::secret",
        r#"(module (import "env" "secret" (global i32)) (memory (export "memory") 1) (func (export "_start")))"#,
    ),
    (
        "table",
        "env::table",
        r#"(module (import "env" "table" (table 1 funcref)) (memory (export "memory") 1) (func (export "_start")))"#,
    ),
    (
        "unnamed",
        "::",
        r#"(module (import "" "" (func)) (memory (export "memory") 1) (func (export "_start")))"#,
    ),
];

/// `(feature, module)`: one module that needs the feature, for every feature
/// that the guest does not use.
pub const FEATURES: &[(&str, &str)] = &[
    ("threads", "(module (memory 1 1 shared))"),
    ("shared_everything_threads", "(module (type (shared (func))))"),
    ("memory64", "(module (memory i64 1))"),
    ("multi_memory", "(module (memory 1) (memory 1))"),
    ("custom_page_sizes", "(module (memory 1 (pagesize 1)))"),
    ("memory_control", "(module (memory 1) (func i32.const 0 i32.const 0 memory.discard))"),
    ("gc", "(module (type (struct (field i32))))"),
    ("function_references", "(module (type $f (func)) (func (param (ref $f))))"),
    ("stack_switching", "(module (type $f (func)) (type $c (cont $f)))"),
    ("exceptions", "(module (tag $t) (func (throw $t)))"),
    // `try` and `catch_all`, which the text format no longer knows.
    (
        "legacy_exceptions",
        r#"(module binary "\00asm\01\00\00\00" "\01\04\01\60\00\00" "\03\02\01\00" "\0a\08\01\06\00\06\40\19\0b\0b")"#,
    ),
    ("tail_call", "(module (func $f (return_call $f)))"),
    (
        "relaxed_simd",
        "(module (func (param v128) (result v128) (i8x16.relaxed_swizzle (local.get 0) (local.get 0))))",
    ),
    ("extended_const", "(module (global i32 (i32.add (i32.const 1) (i32.const 2))))"),
    (
        "wide_arithmetic",
        "(module (func (param i64 i64 i64 i64) (result i64 i64) (i64.add128 (local.get 0) (local.get 1) (local.get 2) (local.get 3))))",
    ),
    ("multi_value", "(module (func (result i32 i32) (i32.const 1) (i32.const 2)))"),
    (
        "custom_descriptors",
        "(module (rec (type $a (descriptor $b) (struct)) (type $b (describes $a) (struct))))",
    ),
    (
        "compact_imports",
        r#"(module (import "fumehood" (item "call" (func (param i32 i32 i32 i32 i32) (result i64)))))"#,
    ),
    ("component_model", "(component)"),
];

/// Every function of WASI preview 1.
pub const WASI_FUNCTIONS: &[&str] = &[
    "args_get",
    "args_sizes_get",
    "clock_res_get",
    "clock_time_get",
    "environ_get",
    "environ_sizes_get",
    "fd_advise",
    "fd_allocate",
    "fd_close",
    "fd_datasync",
    "fd_fdstat_get",
    "fd_fdstat_set_flags",
    "fd_fdstat_set_rights",
    "fd_filestat_get",
    "fd_filestat_set_size",
    "fd_filestat_set_times",
    "fd_pread",
    "fd_prestat_dir_name",
    "fd_prestat_get",
    "fd_pwrite",
    "fd_read",
    "fd_readdir",
    "fd_renumber",
    "fd_seek",
    "fd_sync",
    "fd_tell",
    "fd_write",
    "path_create_directory",
    "path_filestat_get",
    "path_filestat_set_times",
    "path_link",
    "path_open",
    "path_readlink",
    "path_remove_directory",
    "path_rename",
    "path_symlink",
    "path_unlink_file",
    "poll_oneoff",
    "proc_exit",
    "proc_raise",
    "random_get",
    "sched_yield",
    "sock_accept",
    "sock_recv",
    "sock_send",
    "sock_shutdown",
];
