//! The exported functions: raw pointers in, records out, nothing else.
//!
//! Invariant: a pointer given to the host was made by [`fh_alloc`] or by
//! [`hand_out`] with exactly the length that comes with it, so that
//! [`fh_free`] can take it back.

use crate::{guest, heap, host};
use fumehood_guest_abi::{Exec, Resume, decode, encode};
use std::alloc::{Layout, alloc, dealloc};

/// A record was accepted.
const ACCEPTED: i32 = 0;
/// A record could not be decoded or is of another ABI version.
const BAD_RECORD: i32 = 1;
/// The interpreter could not do what the record asks.
const FAILED: i32 = 2;

/// Builds the interpreter. Runs once, before the snapshot is taken.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fh_init() {
    host::start();
    guest::initialise();
    heap::close_holes();
}

/// Gives the host `length` bytes, or null when there are none left.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fh_alloc(length: usize) -> *mut u8 {
    match Layout::array::<u8>(length.max(1)) {
        // SAFETY: the layout has a size above zero.
        Ok(layout) => unsafe { alloc(layout) },
        Err(_) => std::ptr::null_mut(),
    }
}

/// Takes back what [`fh_alloc`] or [`fh_exec`] gave.
///
/// # Safety
/// `pointer` and `length` must be a pair that came from this module and was
/// not freed yet.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fh_free(pointer: *mut u8, length: usize) {
    if let (false, Ok(layout)) = (pointer.is_null(), Layout::array::<u8>(length.max(1))) {
        // SAFETY: the caller's promise; the layout is the one it was made with.
        unsafe { dealloc(pointer, layout) }
    }
}

/// Tells an instance its arguments, environment, directories and seed.
///
/// # Safety
/// `pointer` must be valid for reading `length` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fh_resume(pointer: *const u8, length: usize) -> i32 {
    // SAFETY: the caller's promise.
    let record = unsafe { borrow(pointer, length) };
    match decode::<Resume>(record) {
        Ok(resume) if resume.abi == fumehood_guest_abi::ABI_VERSION => {
            host::forget_directories();
            if guest::resume(resume) { ACCEPTED } else { FAILED }
        }
        _ => BAD_RECORD,
    }
}

/// Reseeds the generators that the program never seeded.
///
/// # Safety
/// `pointer` must be valid for reading `length` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fh_reseed(pointer: *const u8, length: usize) -> i32 {
    // SAFETY: the caller's promise.
    let seed = unsafe { borrow(pointer, length) };
    match <&[u8; 32]>::try_from(seed) {
        Ok(seed) if guest::reseed(seed) => ACCEPTED,
        Ok(_) => FAILED,
        Err(_) => BAD_RECORD,
    }
}

/// Runs one `Exec` record and returns the place of an `ExecResult` as
/// `pointer << 32 | length`, or 0 when the record is bad.
///
/// # Safety
/// `pointer` must be valid for reading `length` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fh_exec(pointer: *const u8, length: usize) -> i64 {
    // SAFETY: the caller's promise.
    let record = unsafe { borrow(pointer, length) };
    let Ok(exec) = decode::<Exec>(record) else {
        return 0;
    };
    guest::execute(&exec)
        .and_then(|result| encode(&result).ok())
        .map_or(0, |bytes| hand_out(&bytes))
}

/// # Safety
/// `pointer` must be valid for reading `length` bytes until the caller ends.
unsafe fn borrow<'a>(pointer: *const u8, length: usize) -> &'a [u8] {
    if pointer.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(pointer, length) }
}

fn hand_out(bytes: &[u8]) -> i64 {
    let pointer = fh_alloc(bytes.len());
    if pointer.is_null() {
        return 0;
    }
    // SAFETY: `pointer` was just made for this many bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pointer, bytes.len()) };
    ((pointer as usize as i64) << 32) | bytes.len() as i64
}
