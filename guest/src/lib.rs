//! The Python guest of fumehood: RustPython with a frozen standard library,
//! behind the exports that `fumehood-guest-abi` describes.
//!
//! What is where: [`exports`] is the boundary (the only module with unsafe
//! code besides [`host`], the one import of ours, and [`heap`]), [`guest`] owns
//! the interpreter, [`cell`] runs one source text, [`files`] adds what file
//! functions lack and [`errors`] words theirs, [`tools`] calls those of the embedder with [`json`] for
//! arguments, [`native`] is the Python module `_fumehood`. Everything that can
//! be Python is Python, under `python/`.
//!
//! Invariant: after `fh_init` the whole state of the guest is its linear memory
//! and the stack pointer global. Nothing is kept in tables, in threads or on
//! the host.

mod cell;
mod errors;
#[allow(unsafe_code, reason = "raw pointers come from the host")]
mod exports;
mod files;
mod guest;
#[allow(unsafe_code, reason = "fills holes of the allocator")]
mod heap;
#[allow(unsafe_code, reason = "calls the import")]
mod host;
mod json;
mod native;
mod tools;
