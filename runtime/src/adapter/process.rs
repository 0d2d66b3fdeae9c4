//! Clocks, randomness, waiting, exit, and `fumehood.call`.

use fumehood_guest_abi::{CallError, IMPORT_CALL, IMPORT_MODULE};
use fumehood_host_fns::{
    Errno, Event, HostAnswer, HostCall, MAX_SUBSCRIPTIONS, Refusal, Subscription,
};
use wasmtime::{Caller, Linker};

use super::descriptors::unit;
use super::memory::{slice, slice_mut, unsigned, writable, write, write_u32, write_u64};
use super::{Answer, WASI, dispatch, errno, stop, unexpected, with_memory};
use crate::host::{GuestStop, Host};

/// Size of a WASI `subscription`.
const SUBSCRIPTION_BYTES: u32 = 48;
/// Size of a WASI `event`.
const EVENT_BYTES: u32 = 32;

pub(super) fn add(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    add_clock_and_random(linker)?;
    add_process(linker)?;
    add_brokered(linker)
}

fn add_clock_and_random(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    import!(linker, "clock_res_get", |memory, host, clock: i32, out: i32| {
        let call = HostCall::ClockResolution { clock: unsigned(clock) };
        write_time(memory, out, dispatch(host, call)?)
    });
    import!(linker, "clock_time_get", |memory, host, clock: i32, _precision: i64, out: i32| {
        let call = HostCall::ClockTime { clock: unsigned(clock) };
        write_time(memory, out, dispatch(host, call)?)
    });
    import!(linker, "random_get", |memory, host, at: i32, len: i32| {
        let into = slice_mut(memory, at, unsigned(len))?;
        unit(dispatch(host, HostCall::Random { into })?)
    });
    import!(linker, "poll_oneoff", |memory,
                                    host,
                                    input: i32,
                                    output: i32,
                                    count: i32,
                                    out: i32| {
        poll(memory, host, input, output, count, out)
    });
    Ok(())
}

fn add_process(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    import!(linker, "sched_yield", |_, host| { unit(dispatch(host, HostCall::Yield)?) });
    linker.func_wrap(WASI, "proc_exit", |code: i32| -> wasmtime::Result<()> {
        Err(GuestStop::Exit(code).into())
    })?;
    // Arguments and environment reach the guest in `fh_resume`, not here.
    for name in ["args_sizes_get", "environ_sizes_get"] {
        import!(linker, name, |memory, _, count: i32, bytes: i32| {
            write_u32(memory, count, 0)?;
            write_u32(memory, bytes, 0)
        });
    }
    for name in ["args_get", "environ_get"] {
        import!(linker, name, |_, _, _list: i32, _bytes: i32| { Ok(()) });
    }
    Ok(())
}

fn add_brokered(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    linker.func_wrap(
        IMPORT_MODULE,
        IMPORT_CALL,
        |mut caller: Caller<'_, Host>,
         op: i32,
         request: i32,
         len: i32,
         response: i32,
         capacity: i32| {
            let result = with_memory(&mut caller, |memory, host| {
                if unsigned(len) > host.max_request {
                    return Ok(CallError::TooLarge as i64);
                }
                // Copied, since the guest may let the two buffers overlap.
                let request = slice(memory, request, unsigned(len))?.to_vec();
                let response = slice_mut(memory, response, unsigned(capacity))?;
                let call = HostCall::Brokered { op: unsigned(op), request: &request, response };
                match dispatch(host, call)? {
                    HostAnswer::Brokered(result) => Ok(result),
                    _ => Err(unexpected()),
                }
            });
            match result {
                Ok(result) => Ok(result),
                Err(Refusal::Errno(_)) => Ok(CallError::Malformed as i64),
                Err(Refusal::Stop(reason)) => Err(stop(caller.data(), reason)),
            }
        },
    )?;
    Ok(())
}

fn write_time(memory: &mut [u8], out: i32, answer: HostAnswer) -> Answer {
    match answer {
        HostAnswer::Time(nanoseconds) => write_u64(memory, out, nanoseconds),
        _ => Err(unexpected()),
    }
}

fn poll(
    memory: &mut [u8],
    host: &mut Host,
    input: i32,
    output: i32,
    count: i32,
    out: i32,
) -> Answer {
    let count = unsigned(count);
    if count == 0 || usize::try_from(count).map_or(true, |count| count > MAX_SUBSCRIPTIONS) {
        return Err(errno(Errno::Inval));
    }
    writable(memory, out, 4)?;
    writable(memory, output, count.saturating_mul(EVENT_BYTES))?;
    let bytes = slice(memory, input, count.saturating_mul(SUBSCRIPTION_BYTES))?;
    let subscriptions = bytes
        .chunks_exact(SUBSCRIPTION_BYTES as usize)
        .map(subscription)
        .collect::<Option<Vec<_>>>()
        .ok_or(errno(Errno::Inval))?;
    let HostAnswer::Events(events) = dispatch(host, HostCall::Poll { subscriptions })? else {
        return Err(unexpected());
    };
    let mut records = Vec::with_capacity(events.len().saturating_mul(EVENT_BYTES as usize));
    for event in &events {
        records.extend_from_slice(&event_record(event)?);
    }
    write(memory, output, &records)?;
    write_u32(memory, out, u32::try_from(events.len()).map_err(|_| errno(Errno::Overflow))?)
}

/// Decodes WASI `subscription`: userdata at 0, tag at 8; for a clock id at 16,
/// timeout at 24, flags at 40; for a descriptor its number at 16.
fn subscription(record: &[u8]) -> Option<Subscription> {
    let u64_at =
        |at: usize| record.get(at..at.checked_add(8)?)?.try_into().ok().map(u64::from_le_bytes);
    let u32_at =
        |at: usize| record.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_le_bytes);
    let userdata = u64_at(0)?;
    match record.get(8)? {
        0 => Some(Subscription::Clock {
            userdata,
            clock: u32_at(16)?,
            timeout_ns: u64_at(24)?,
            absolute: record.get(40)? & 1 != 0,
        }),
        1 => Some(Subscription::Read { userdata, fd: u32_at(16)? }),
        2 => Some(Subscription::Write { userdata, fd: u32_at(16)? }),
        _ => None,
    }
}

/// Encodes WASI `event`: userdata at 0, error at 8, type at 10, bytes at 16.
fn event_record(event: &Event) -> Answer<[u8; EVENT_BYTES as usize]> {
    let mut record = [0; EVENT_BYTES as usize];
    let (error, available) = match event.result {
        Ok(available) => (0, available),
        Err(errno) => (errno.raw(), 0),
    };
    write(&mut record, 0, &event.userdata.to_le_bytes())?;
    write(&mut record, 8, &error.to_le_bytes())?;
    write(&mut record, 10, &[event.kind])?;
    write(&mut record, 16, &available.to_le_bytes())?;
    Ok(record)
}
