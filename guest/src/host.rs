//! The brokered import `fumehood.call`, wrapped so that the rest of the guest
//! sees bytes in, bytes or an error out.
//!
//! Invariant: no pointer outlives the call it was made for.

use fumehood_guest_abi::{CallError, op};

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
    let mut response = vec![0; FIRST_CAPACITY];
    let mut length = call_into(operation, request, &mut response)?;
    if length > response.len() {
        response = vec![0; length];
        let taken = call_into(op::TAKE, &[], &mut response)?;
        if taken != length {
            return Err(Failure::Protocol);
        }
        length = taken;
    }
    response.truncate(length);
    Ok(response)
}

fn call_into(operation: u32, request: &[u8], response: &mut [u8]) -> Result<usize, Failure> {
    let too_large = Failure::Refused(CallError::TooLarge);
    let request_length = u32::try_from(request.len()).map_err(|_| too_large)?;
    let capacity = u32::try_from(response.len()).map_err(|_| too_large)?;
    // SAFETY: both pointers are valid for the lengths given with them during
    // the call, and the host keeps neither.
    let result = unsafe {
        fumehood_call(operation, request.as_ptr(), request_length, response.as_mut_ptr(), capacity)
    };
    match usize::try_from(result) {
        Ok(length) => Ok(length),
        Err(_) => Err(from_code(result)),
    }
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
}

/// Runs constructors; the first thing the module does.
pub(crate) fn start() {
    // SAFETY: called once, before anything else, as a reactor must.
    unsafe { __wasm_call_ctors() }
}

/// Forgets the directories of the host that made the snapshot.
pub(crate) fn forget_directories() {
    // SAFETY: no directory handle of the C library is in use between calls.
    unsafe { __wasilibc_reset_preopens() }
}
