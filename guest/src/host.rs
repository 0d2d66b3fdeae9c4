//! What is outside the interpreter: the brokered import `fumehood.call`, wrapped
//! so that the rest of the guest sees bytes in, bytes or an error out, and the
//! few things of the C library that the interpreter does not reach.
//!
//! Invariant: no pointer outlives the call it was made for.

use fumehood_guest_abi::{CallError, frame, op, unframe};
use std::ffi::{CStr, CString, c_char};

/// Responses up to this size need one call, larger ones a second.
const FIRST_CAPACITY: usize = 4096;

/// Why a call gave no response.
#[derive(Clone, Copy)]
pub(crate) enum Failure {
    /// The host said so.
    Refused(CallError),
    /// The host broke the protocol.
    Protocol,
}

#[link(wasm_import_module = "fumehood")]
unsafe extern "C" {
    #[link_name = "call"]
    fn fumehood_call(
        operation: u32,
        request: *const u8,
        request_length: u32,
        response: *mut u8,
        response_capacity: u32,
    ) -> i64;
}

/// Carries out one operation.
pub(crate) fn call(operation: u32, request: &[u8]) -> Result<Vec<u8>, Failure> {
    call_expecting(operation, request, FIRST_CAPACITY)
}

/// The same; a response of at most `capacity` bytes comes at once.
pub(crate) fn call_expecting(
    operation: u32,
    request: &[u8],
    capacity: usize,
) -> Result<Vec<u8>, Failure> {
    let mut response = Vec::with_capacity(capacity);
    let length = call_into(operation, request, &mut response)?;
    if length > response.len() {
        response = Vec::with_capacity(length);
        let taken = call_into(op::TAKE, &[], &mut response)?;
        if taken != length || response.len() != length {
            return Err(Failure::Protocol);
        }
    }
    Ok(response)
}

/// Carries out one operation whose request and response are frames: the text
/// and the bytes of the response.
pub(crate) fn exchange(
    operation: u32,
    text: &[u8],
    bytes: &[u8],
    most: usize,
) -> Result<(Vec<u8>, Vec<u8>), Failure> {
    let request = frame(text, bytes).ok_or(Failure::Refused(CallError::TooLarge))?;
    let capacity = most.saturating_add(FIRST_CAPACITY);
    let mut response = call_expecting(operation, &request, capacity)?;
    let (text, _) = unframe(&response).ok_or(Failure::Protocol)?;
    let text = text.to_vec();
    response.drain(..text.len().saturating_add(4));
    Ok((text, response))
}

/// The length of the whole response, which is in the empty `response` if it has
/// the capacity for it.
fn call_into(operation: u32, request: &[u8], response: &mut Vec<u8>) -> Result<usize, Failure> {
    let too_large = Failure::Refused(CallError::TooLarge);
    let request_length = u32::try_from(request.len()).map_err(|_| too_large)?;
    let capacity = u32::try_from(response.capacity()).unwrap_or(u32::MAX);
    // SAFETY: both pointers are valid for the lengths given with them during
    // the call, and the host keeps neither.
    let result = unsafe {
        fumehood_call(operation, request.as_ptr(), request_length, response.as_mut_ptr(), capacity)
    };
    let length = usize::try_from(result).map_err(|_| from_code(result))?;
    if length <= response.capacity() {
        // SAFETY: the host wrote so many bytes, which the capacity holds.
        unsafe { response.set_len(length) };
    }
    Ok(length)
}

fn from_code(code: i64) -> Failure {
    const KNOWN: [CallError; 6] = [
        CallError::UnknownOperation,
        CallError::Malformed,
        CallError::TooLarge,
        CallError::Denied,
        CallError::NothingPending,
        CallError::Failed,
    ];
    KNOWN
        .into_iter()
        .find(|error| *error as i64 == code)
        .map_or(Failure::Protocol, Failure::Refused)
}

unsafe extern "C" {
    /// Runs the constructors of the C library.
    fn __wasm_call_ctors();
    /// Makes the C library forget the directories it was given before.
    fn __wasilibc_reset_preopens();
    /// The working directory of the C library.
    static mut __wasilibc_cwd: *mut c_char;
}

/// Makes a symbolic link at `path` that says `target`.
pub(crate) fn symlink(target: &CStr, path: &CStr) -> std::io::Result<()> {
    // SAFETY: both are texts with an end, which the C library only reads.
    match unsafe { libc::symlink(target.as_ptr(), path.as_ptr()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Runs constructors; the first thing the module does.
pub(crate) fn start() {
    // SAFETY: called once, before anything else, as a reactor must.
    unsafe { __wasm_call_ctors() }
}

/// Makes `directory` the working directory without asking the host, which chose
/// it. The text stays for ever: once per instance.
pub(crate) fn set_directory(directory: &str) {
    let Ok(directory) = CString::new(directory) else { return };
    // SAFETY: the text is never freed, and nothing else runs.
    unsafe { __wasilibc_cwd = directory.into_raw() }
}

/// Forgets the directories of the host that made the snapshot.
pub(crate) fn forget_directories() {
    // SAFETY: no directory handle of the C library is in use between calls.
    unsafe { __wasilibc_reset_preopens() }
}
