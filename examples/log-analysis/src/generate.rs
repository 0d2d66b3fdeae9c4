//! The generator: June 2026, one file a day, and the five defects.
//!
//! The defects, each of which spoils the answer to at least one question:
//! 1. From day 8 on, timestamps are local time (UTC−4) but still end in `Z`. A file holds one UTC
//!    day throughout, so from then on its first line is stamped 20:00 of the day before.
//! 2. From day 10 on, the field `route` is called `path`.
//! 3. Day 14's lines are appended to its file a second time, request ids included.
//! 4. From day 19 on, the field `latency_ms` holds microseconds.
//! 5. 50 lines stop somewhere in the middle. They are not on day 14, and at most two are on one day.
//!
//! Why the key holds at every size: nothing that decides an answer is left to sampling. A day's
//! arrival times, routes and latencies are drawn by strata (row *i* of *n* falls into the *i*-th
//! *n*-th of the distribution), so every hour of every file has rows, hour 15 leads its neighbours
//! by 7 %, and the 95th percentile of `/checkout` on a day stays within a few per cent of 300 ms,
//! or of 780 ms from day 25 on. The limit of 500 ms lies far from both. Traffic at night is so thin
//! that the wrong clock alone does not move the breach to another day: each defect is felt in the
//! question it belongs to.
//!
//! Invariant: integer arithmetic and a fixed stream cipher only, so that the uncompressed bytes are
//! the same on every machine. The compressed bytes are also fixed for one version of `flate2`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng as _, SeedableRng as _};
use flate2::{Compression, GzBuilder};

use crate::{Error, Size};

/// Days of June 2026, the first being 1.
pub const DAYS: u32 = 30;
/// First day whose timestamps are local time.
pub const LOCAL_TIME_FROM: u32 = 8;
/// Hours the local clock is behind UTC.
pub const HOURS_BEHIND: u32 = 4;
/// First day on which the route's field is called `path`.
pub const RENAMED_FROM: u32 = 10;
/// The day whose lines are in its file twice.
pub const REPEATED_DAY: u32 = 14;
/// First day whose latencies are in microseconds.
pub const MICROSECONDS_FROM: u32 = 19;
/// Number of lines that stop in the middle.
pub const TRUNCATED_LINES: u32 = 50;
/// First day on which `/checkout` is slow.
pub const SLOW_FROM: u32 = 25;

/// Fixed seed of everything that is drawn.
const SEED: [u8; 32] = *b"fumehood log-analysis, June 2026";
/// How much slower `/checkout` is from [`SLOW_FROM`] on, in thousandths.
const SLOW_FACTOR: u64 = 2_600;
/// Most truncated lines in one file, so that losing them cannot move that day's 95th percentile far.
const MOST_TRUNCATED_A_DAY: u64 = 2;

const HOUR_MS: u64 = 3_600_000;
const MILLION: u64 = 1_000_000;

/// Relative traffic of each UTC hour: 4:1 between 15:00 and 03:00.
const TRAFFIC: [u64; 24] = [
    38, 31, 27, 25, 26, 30, 36, 44, 53, 62, 71, 79, 86, 90, 93, 100, 93, 88, 81, 73, 65, 57, 50, 44,
];

struct Route {
    path: &'static str,
    service: &'static str,
    upstream: &'static str,
    /// Share of a day's rows, in thousandths.
    share: u64,
    /// Latency relative to [`LATENCY`], in thousandths.
    pace: u64,
    /// Typical response body, in bytes.
    bytes: u64,
}

const ROUTES: [Route; 6] = [
    route("/", "web", "cache", 240, 210, 18_400),
    route("/search", "search", "index", 200, 640, 9_300),
    route("/products", "catalog", "goods", 220, 430, 12_700),
    route("/cart", "cart", "store", 120, 520, 2_900),
    route(CHECKOUT, "payments", "pay", 140, 1_000, 1_450),
    route("/login", "identity", "users", 80, 380, 880),
];

/// The route that the question about latency is about.
pub(crate) const CHECKOUT: &str = "/checkout";

const fn route(
    path: &'static str,
    service: &'static str,
    upstream: &'static str,
    share: u64,
    pace: u64,
    bytes: u64,
) -> Route {
    Route { path, service, upstream, share, pace, bytes }
}

/// Quantile function of a `/checkout` latency on a good day: (millionths, microseconds), linear
/// between the points. The 95th percentile is 300 ms.
const LATENCY: [(u64, u64); 10] = [
    (0, 38_000),
    (100_000, 62_000),
    (250_000, 88_000),
    (500_000, 128_000),
    (750_000, 186_000),
    (900_000, 250_000),
    (950_000, 300_000),
    (990_000, 410_000),
    (999_000, 520_000),
    (MILLION, 640_000),
];

/// Writes the 30 files into an existing directory.
pub(crate) fn write(dir: &Path, size: Size) -> Result<(), Error> {
    let mut dice = Dice(ChaCha8Rng::from_seed(SEED));
    let truncated = dice.truncated_lines_by_day();
    for (day, cut) in (1..=DAYS).zip(truncated) {
        let path = dir.join(file_name(day));
        let text = day_text(&mut dice, day, size, cut);
        write_gzip(&path, text.as_bytes()).map_err(|source| Error::Io { path, source })?;
    }
    Ok(())
}

/// The name of a day's file.
#[must_use]
pub fn file_name(day: u32) -> String {
    format!("2026-06-{day:02}.ndjson.gz")
}

fn write_gzip(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let file = File::create_new(path)?;
    let mut gzip = GzBuilder::new().mtime(0).write(file, Compression::default());
    gzip.write_all(text)?;
    gzip.finish()?.flush()
}

/// One day's uncompressed lines, `cut` of them truncated.
fn day_text(dice: &mut Dice, day: u32, size: Size, cut: u64) -> String {
    let rows = size.rows_per_day() * (850 + dice.below(301)) / 1000;
    let requests = dice.requests(day, rows);
    let mut cut_rows = BTreeSet::new();
    while (cut_rows.len() as u64) < cut.min(rows) {
        cut_rows.insert(dice.below(rows));
    }

    let mut text = String::new();
    for (row, (route, latency_us)) in (0..rows).zip(requests) {
        let start = text.len();
        let at_ms = dice.arrival_ms(row, rows);
        push_line(&mut text, dice, day, at_ms, route, latency_us);
        if cut_rows.contains(&row) {
            // Anything short of the closing brace is not JSON; the text is ASCII.
            let length = (text.len() - start) as u64;
            let keep = length / 5 + dice.below(length * 3 / 5);
            text.truncate(start + keep as usize);
        }
        text.push('\n');
    }
    if day == REPEATED_DAY {
        text.extend_from_within(..);
    }
    text
}

/// Appends one row, without its line end.
fn push_line(
    text: &mut String,
    dice: &mut Dice,
    day: u32,
    at_ms: u64,
    route: &Route,
    latency_us: u64,
) {
    let stamp = stamp(day, at_ms);
    let field = if day >= RENAMED_FROM { "path" } else { "route" };
    let latency = if day >= MICROSECONDS_FROM { latency_us } else { (latency_us + 500) / 1000 };
    let status = match dice.below(1000) {
        0..=3 => 500,
        4..=6 => 503,
        7..=30 => 404,
        31..=90 => 302,
        _ => 200,
    };
    let bytes = route.bytes / 2 + dice.below(route.bytes);
    let instance = 1 + dice.below(4);
    let request_id = dice.0.next_u64();
    let (path, service, upstream) = (route.path, route.service, route.upstream);
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        r#"{{"ts":"{stamp}","service":"{service}","{field}":"{path}","status":{status},"latency_ms":{latency},"upstream":"{upstream}-{instance}","request_id":"{request_id:016x}","bytes":{bytes}}}"#
    );
}

/// The timestamp that the log of `day` shows for the given milliseconds after its midnight (UTC).
fn stamp(day: u32, at_ms: u64) -> String {
    let behind_ms = if day >= LOCAL_TIME_FROM { u64::from(HOURS_BEHIND) * HOUR_MS } else { 0 };
    // The local clock is ahead of the month's first midnight on every day that has it.
    let shown = u64::from(day - 1) * 24 * HOUR_MS + at_ms - behind_ms;
    let (day, in_day) = (shown / (24 * HOUR_MS) + 1, shown % (24 * HOUR_MS));
    let (hour, in_hour) = (in_day / HOUR_MS, in_day % HOUR_MS);
    let (minute, in_minute) = (in_hour / 60_000, in_hour % 60_000);
    let (second, milli) = (in_minute / 1000, in_minute % 1000);
    format!("2026-06-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// [`LATENCY`] at a quantile given in millionths, in microseconds.
fn latency_at(quantile: u64) -> u64 {
    let mut last = (0, 0);
    for point in LATENCY {
        if quantile <= point.0 {
            let (width, rise) = (point.0 - last.0, point.1 - last.1);
            return match width {
                0 => point.1,
                _ => last.1 + rise * (quantile - last.0) / width,
            };
        }
        last = point;
    }
    last.1
}

/// Where every random decision comes from.
struct Dice(ChaCha8Rng);

impl Dice {
    /// A number below `bound`, or 0 if that is 0. No bound here exceeds 2³¹, so the bias of the
    /// remainder is below 2⁻³².
    fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64().checked_rem(bound).unwrap_or(0)
    }

    /// Fisher–Yates.
    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            items.swap(last, other);
        }
    }

    /// How many lines of each day are truncated: one on each day but 14, a second on some.
    fn truncated_lines_by_day(&mut self) -> Vec<u64> {
        let mut left = u64::from(TRUNCATED_LINES);
        let mut days: Vec<u32> = (1..=DAYS).filter(|&day| day != REPEATED_DAY).collect();
        let mut counts = vec![0; DAYS as usize];
        for _ in 0..MOST_TRUNCATED_A_DAY {
            self.shuffle(&mut days);
            for &day in &days {
                if let Some(count) = counts.get_mut(day as usize - 1)
                    && left > 0
                {
                    *count += 1;
                    left -= 1;
                }
            }
        }
        counts
    }

    /// The routes and latencies (microseconds) of a day's rows, by strata, in random order.
    fn requests(&mut self, day: u32, rows: u64) -> Vec<(&'static Route, u64)> {
        // A day is up to 4 % slower or faster than another.
        let mood = 960 + self.below(81);
        let mut requests = Vec::new();
        let mut share = 0;
        for route in &ROUTES {
            let first = rows * share / 1000;
            share += route.share;
            let count = rows * share / 1000 - first;
            let slow = if route.path == CHECKOUT && day >= SLOW_FROM { SLOW_FACTOR } else { 1000 };
            for stratum in 0..count {
                let quantile = (stratum * MILLION + self.below(MILLION)) / count;
                let latency = latency_at(quantile) * route.pace / 1000 * mood / 1000 * slow / 1000;
                requests.push((route, latency));
            }
        }
        self.shuffle(&mut requests);
        requests
    }

    /// When row `row` of `rows` arrives, in milliseconds after midnight (UTC). Never falls with `row`.
    fn arrival_ms(&mut self, row: u64, rows: u64) -> u64 {
        let total = TRAFFIC.iter().sum::<u64>() * MILLION;
        let mut at = (row * total + self.below(total)) / rows.max(1);
        for (hour, weight) in (0..).zip(TRAFFIC) {
            let width = weight * MILLION;
            if at < width {
                return hour * HOUR_MS + at * HOUR_MS / width;
            }
            at -= width;
        }
        24 * HOUR_MS - 1
    }
}
