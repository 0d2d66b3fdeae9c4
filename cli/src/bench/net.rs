//! `bench net`: small requests, a download and many requests at once, inside
//! and with a native Python, against one server on the loopback interface.
#![allow(clippy::disallowed_methods, reason = "the bench serves what it measures")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use fumehood::policy::{BudgetPreset, BudgetSettings};
use fumehood::{Engine, Sandbox, Script};
use serde_json::json;

use super::{check, median, native, show};
use crate::args::BenchCommon;
use crate::error::CliError;
use crate::progress;

/// Longest that one program may run.
const PATIENCE: Duration = Duration::from_secs(600);
/// Bytes of a small response.
const SMALL: &[u8] = b"a small response of no great interest";
/// Pieces that the server sends a download in.
const PIECE: usize = 256 << 10;

/// Ends with the seconds that it took; `URL` and `N` are put in front of it.
const REQUESTS: &str = "
start = time.perf_counter()
for _ in range(N):
    with urllib.request.urlopen(URL + '/small') as response:
        assert len(response.read()) > 9
print(time.perf_counter() - start)
";
const DOWNLOAD: &str = "
start, total = time.perf_counter(), 0
with urllib.request.urlopen(URL + '/large') as response:
    while piece := response.read(1 << 18):
        total += len(piece)
assert total == N << 20
print(time.perf_counter() - start)
";
const AT_ONCE_INSIDE: &str = "
import asyncio
async def one():
    response = await fetch(URL + '/small')
    assert len(await response.bytes()) > 9
async def main():
    await asyncio.gather(*(one() for _ in range(N)))
start = time.perf_counter()
asyncio.run(main())
print(time.perf_counter() - start)
";
const AT_ONCE_NATIVE: &str = "
from concurrent.futures import ThreadPoolExecutor
def one(_):
    with urllib.request.urlopen(URL + '/small') as response:
        assert len(response.read()) > 9
start = time.perf_counter()
with ThreadPoolExecutor(N) as pool:
    list(pool.map(one, range(N)))
print(time.perf_counter() - start)
";
/// What both sides begin with; native Python would look for proxies.
const HEAD: &str = "import time, urllib.request\n";
const DIRECT: &str =
    "urllib.request.install_opener(urllib.request.build_opener(urllib.request.ProxyHandler({})))\n";

/// What is compared: its name, the two programs and the number in them.
type Case = (&'static str, &'static str, &'static str, u32);

pub(super) fn run(
    counts: [u32; 3],
    rounds: u32,
    python: &Path,
    common: &BenchCommon,
) -> Result<i32, CliError> {
    let [requests, megabytes, at_once] = counts;
    let cases: [Case; 3] = [
        ("small requests", REQUESTS, REQUESTS, requests),
        ("download, MiB", DOWNLOAD, DOWNLOAD, megabytes),
        ("requests at once", AT_ONCE_INSIDE, AT_ONCE_NATIVE, at_once),
    ];
    let server = serve(megabytes).map_err(|error| {
        CliError::cannot_tell(format!(
            "the bench cannot listen on the loopback interface ({error})"
        ))
    })?;
    let engine = progress::engine(common.compiled.as_deref()).build()?;
    let mut rows = Vec::new();
    let mut table =
        format!("{:<20}{:>8}{:>12}{:>12}{:>8}\n", "", "number", "inside s", "native s", "times");
    for (name, inside, outside, number) in cases {
        let (mut of_inside, mut of_native, mut memory) = (Vec::new(), Vec::new(), 0);
        for _ in 0..rounds {
            let given = format!("URL, N = 'http://{server}', {number}\n");
            let (seconds, peak) =
                measure_inside(&engine, server, &format!("{HEAD}{given}{inside}"))?;
            of_inside.push(seconds);
            memory = memory.max(peak);
            of_native.push(measure_native(python, &format!("{HEAD}{DIRECT}{given}{outside}"))?);
        }
        let (inside, native) = (median(of_inside), median(of_native));
        rows.push(json!({
            "name": name, "number": number, "inside_s": inside, "native_s": native,
            "ratio": inside / native, "peak_guest_memory_bytes": memory,
        }));
        table.push_str(&format!(
            "{name:<20}{number:>8}{inside:>12.3}{native:>12.3}{:>8.2}\n",
            inside / native
        ));
    }
    let resident = resident_peak();
    table.push_str(&format!(
        "most memory of this process, server and guest included: {} MiB (medians of {rounds} rounds)\n",
        resident.map_or_else(|| "unknown".to_owned(), |bytes| (bytes >> 20).to_string())
    ));
    let json = json!({
        "bench": "net", "rounds": rounds, "rows": rows, "peak_resident_bytes": resident,
    });
    show(common.json, &json, &table);
    Ok(0)
}

/// The most memory that this process has had.
fn resident_peak() -> Option<u64> {
    let status = crate::files::read_file(Path::new("/proc/self/status"), "the status", 1 << 16);
    let text = String::from_utf8(status.ok()?).ok()?;
    let line = text.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

fn measure_inside(
    engine: &Engine,
    server: SocketAddr,
    program: &str,
) -> Result<(f64, u64), CliError> {
    let patience = u64::try_from(PATIENCE.as_millis()).unwrap_or(u64::MAX);
    let budget = BudgetSettings {
        cpu_ms: Some(patience),
        requests: Some(1_000_000),
        bytes_down: Some(1 << 40),
        bytes_up: Some(1 << 30),
        ..BudgetPreset::Large.into()
    };
    let sandbox = Sandbox::builder()
        .engine(engine.clone())
        .budget(budget)
        .timeout(PATIENCE)
        .allow(&server.to_string())
        .build()?;
    let outcome = sandbox.run(Script::cell(program)).wait();
    check(&outcome)?;
    Ok((seconds(&outcome.stdout_text())?, outcome.usage.peak_memory_bytes))
}

fn measure_native(python: &Path, program: &str) -> Result<f64, CliError> {
    let failed = |error: std::io::Error| {
        CliError::cannot_tell(format!(
            "the bench cannot use a temporary file ({error}); set TMPDIR to a directory of your own"
        ))
    };
    let mut file = tempfile::NamedTempFile::with_suffix(".py").map_err(failed)?;
    file.write_all(program.as_bytes()).map_err(failed)?;
    seconds(&native::run(python, file.path())?)
}

fn seconds(printed: &str) -> Result<f64, CliError> {
    printed.trim().parse().map_err(|_| {
        CliError::cannot_tell("the program of the bench gave no figure; run the bench again")
    })
}

/// A server that ends with the process.
fn serve(megabytes: u32) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let at = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A connection that gets no thread is closed.
            let _ = std::thread::Builder::new()
                .stack_size(256 << 10)
                .spawn(move || connection(&stream, u64::from(megabytes) << 20));
        }
    });
    Ok(at)
}

/// Answers the requests of one connection, which have no bodies.
fn connection(stream: &TcpStream, large: u64) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut lines = BufReader::new(stream);
    loop {
        let mut first = String::new();
        lines.read_line(&mut first).ok().filter(|length| *length > 0)?;
        let mut last = false;
        loop {
            let mut line = String::new();
            lines.read_line(&mut line).ok().filter(|length| *length > 0)?;
            last |= line.eq_ignore_ascii_case("connection: close\r\n");
            if line == "\r\n" {
                break;
            }
        }
        let mut out = stream;
        let is_large = first.contains(" /large ");
        let length = if is_large { large } else { SMALL.len() as u64 };
        let mut answer =
            format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").into_bytes();
        if is_large {
            out.write_all(&answer).ok()?;
            let piece = vec![b'x'; PIECE];
            let mut left = length;
            while left > 0 {
                let now = usize::try_from(left).map_or(PIECE, |left| left.min(PIECE));
                out.write_all(piece.get(..now)?).ok()?;
                left = left.saturating_sub(now as u64);
            }
        } else {
            answer.extend_from_slice(SMALL);
            out.write_all(&answer).ok()?;
        }
        if last {
            return Some(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn the_server_keeps_connections_and_counts_bytes() {
        let at = serve(1).unwrap();
        let mut stream = TcpStream::connect(at).unwrap();
        stream
            .write_all(
                b"GET /small HTTP/1.1\r\n\r\nGET /large HTTP/1.1\r\nConnection: close\r\n\r\n",
            )
            .unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        let text = String::from_utf8(all).unwrap();
        assert_eq!(text.matches("200 OK").count(), 2);
        assert_eq!(text.matches('x').count(), 1 << 20);
        assert_eq!(seconds("0.5\n").unwrap(), 0.5);
        assert!(seconds("nothing").is_err());
    }
}
