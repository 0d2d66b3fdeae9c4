//! The key, and what careless code answers instead.
//!
//! The key is derived from the bytes on disk by undoing each declared defect, and every undoing is
//! checked against something else in the data (a repaired timestamp must fall on its file's day),
//! so a generator that plants a defect wrongly is found here. The 95th percentile is the nearest
//! rank: the ⌈0.95·n⌉-th smallest of n values, as in `agent.py`.
//!
//! Invariant: this module shares only the declared defects with the generator, none of its tallies.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use serde::Deserialize;

use crate::generate::{
    CHECKOUT, DAYS, HOURS_BEHIND, LOCAL_TIME_FROM, MICROSECONDS_FROM, RENAMED_FROM, REPEATED_DAY,
    TRUNCATED_LINES, file_name,
};
use crate::{BREACH_LIMIT_MS, Error};

/// The three questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// How many distinct valid requests does the month have?
    Requests,
    /// On which day of the month does the 95th percentile of `/checkout` first exceed
    /// [`BREACH_LIMIT_MS`]?
    BreachDay,
    /// Which UTC hour of the day has the most requests over the month?
    BusiestHour,
}

impl Question {
    /// All questions, in the order of the agent's output.
    pub const ALL: [Self; 3] = [Self::Requests, Self::BreachDay, Self::BusiestHour];

    /// The label in front of the answer in the agent's output.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::BreachDay => "breach day",
            Self::BusiestHour => "busiest hour",
        }
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// The true answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerKey {
    /// Distinct valid requests in the month.
    pub requests: u64,
    /// Day of the month, 1 to 30.
    pub breach_day: u64,
    /// UTC hour of the day, 0 to 23.
    pub busiest_hour: u64,
}

impl AnswerKey {
    /// The answer to one question.
    #[must_use]
    pub const fn answer(&self, question: Question) -> u64 {
        match question {
            Question::Requests => self.requests,
            Question::BreachDay => self.breach_day,
            Question::BusiestHour => self.busiest_hour,
        }
    }
}

/// What code that overlooks a defect answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortcut {
    /// The question it answers.
    pub question: Question,
    /// What the code does, as the end of a sentence that begins with "code that".
    pub trap: &'static str,
    /// Its answer; `None` if it finds none.
    pub answer: Option<u64>,
}

/// What a program printed.
///
/// An answer is the last whole number that follows its label and a colon.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AgentReport {
    /// The answer to [`Question::Requests`].
    pub requests: Option<u64>,
    /// The answer to [`Question::BreachDay`].
    pub breach_day: Option<u64>,
    /// The answer to [`Question::BusiestHour`].
    pub busiest_hour: Option<u64>,
    /// Seconds that the program measured for itself, from its `RESULT` line.
    pub seconds: Option<f64>,
}

impl AgentReport {
    /// Finds the answers in a program's standard output. What is not there stays `None`.
    #[must_use]
    pub fn parse(stdout: &str) -> Self {
        let labelled = |question: Question| {
            stdout.lines().rev().find_map(|line| {
                let (label, answer) = line.split_once(':')?;
                (label.trim() == question.label()).then(|| answer.trim().parse().ok()).flatten()
            })
        };
        let seconds = stdout.lines().rev().find_map(|line| {
            let seconds = line.strip_prefix("RESULT ")?.split_whitespace().nth(3)?;
            seconds.parse().ok()
        });
        Self {
            requests: labelled(Question::Requests),
            breach_day: labelled(Question::BreachDay),
            busiest_hour: labelled(Question::BusiestHour),
            seconds,
        }
    }

    /// The answer to one question.
    #[must_use]
    pub const fn answer(&self, question: Question) -> Option<u64> {
        match question {
            Question::Requests => self.requests,
            Question::BreachDay => self.breach_day,
            Question::BusiestHour => self.busiest_hour,
        }
    }

    /// How many of the three answers are those of the key.
    #[must_use]
    pub fn score(&self, key: &AnswerKey) -> usize {
        Question::ALL
            .into_iter()
            .filter(|&question| self.answer(question) == Some(key.answer(question)))
            .count()
    }
}

/// The fields of a row that matter here.
#[derive(Deserialize)]
struct Row<'a> {
    ts: &'a str,
    route: Option<&'a str>,
    path: Option<&'a str>,
    latency_ms: u64,
    request_id: &'a str,
}

/// The tallies from one pass over the written files.
#[derive(Default)]
pub(crate) struct Reading {
    pub(crate) lines: u64,
    pub(crate) raw_bytes: u64,
    pub(crate) gzip_bytes: u64,
    seen: HashSet<String>,
    truncated: u64,
    repeated: u64,
    /// Distinct requests by true hour.
    by_hour: BTreeMap<u64, u64>,
    /// Parseable lines by the hour they show.
    by_shown_hour: BTreeMap<u64, u64>,
    /// By day: `/checkout` latencies of distinct requests.
    checkout: BTreeMap<u32, Latencies>,
}

#[derive(Default)]
struct Latencies {
    /// True values, microseconds.
    true_us: Vec<u64>,
    /// The numbers of the field `latency_ms` as they stand.
    as_written: Vec<u64>,
    /// The same, of lines that call the field `route`.
    of_route: Vec<u64>,
}

/// Reads the 30 files of a corpus.
pub(crate) fn read_back(dir: &Path) -> Result<Reading, Error> {
    let mut reading = Reading::default();
    for day in 1..=DAYS {
        let path = dir.join(file_name(day));
        reading.read_day(day, &path)?;
    }
    if reading.truncated != u64::from(TRUNCATED_LINES) {
        return Err(inconsistent(format!(
            "{} truncated lines instead of {TRUNCATED_LINES}",
            reading.truncated
        )));
    }
    Ok(reading)
}

/// Fails if a shortcut leads to a true answer.
pub(crate) fn require_discrimination(key: &AnswerKey, shortcuts: &[Shortcut]) -> Result<(), Error> {
    for shortcut in shortcuts {
        let answer = key.answer(shortcut.question);
        if shortcut.answer == Some(answer) {
            return Err(Error::NotDiscriminating {
                question: shortcut.question,
                trap: shortcut.trap,
                answer,
            });
        }
    }
    Ok(())
}

impl Reading {
    fn read_day(&mut self, day: u32, path: &Path) -> Result<(), Error> {
        let io_error = |source| Error::Io { path: path.to_path_buf(), source };
        let file = File::open(path).map_err(io_error)?;
        self.gzip_bytes += file.metadata().map_err(io_error)?.len();
        let lines_before = self.lines;
        let repeated_before = self.repeated;
        for line in BufReader::new(MultiGzDecoder::new(file)).lines() {
            self.read_line(day, &line.map_err(io_error)?)?;
        }
        let (lines, repeated) = (self.lines - lines_before, self.repeated - repeated_before);
        let expected = if day == REPEATED_DAY { lines / 2 } else { 0 };
        if repeated != expected {
            return Err(inconsistent(format!(
                "day {day} has {repeated} repeated lines instead of {expected}"
            )));
        }
        Ok(())
    }

    fn read_line(&mut self, day: u32, line: &str) -> Result<(), Error> {
        self.lines += 1;
        self.raw_bytes += line.len() as u64 + 1;
        let Ok(row) = serde_json::from_str::<Row<'_>>(line) else {
            self.truncated += 1;
            return Ok(());
        };
        let wrong = |what: &str| inconsistent(format!("day {day} has {what}: {line}"));

        let (shown_day, shown_hour) =
            day_and_hour(row.ts).ok_or_else(|| wrong("an unreadable timestamp"))?;
        *self.by_shown_hour.entry(shown_hour).or_default() += 1;
        if !self.seen.insert(row.request_id.to_owned()) {
            self.repeated += 1;
            return Ok(());
        }

        let behind = if day >= LOCAL_TIME_FROM { HOURS_BEHIND } else { 0 };
        let hour_of_month = shown_day * 24 + shown_hour + u64::from(behind);
        if hour_of_month / 24 != u64::from(day) {
            return Err(wrong("a timestamp of another day"));
        }
        *self.by_hour.entry(hour_of_month % 24).or_default() += 1;

        let route = match (row.route, row.path) {
            (Some(route), None) if day < RENAMED_FROM => route,
            (None, Some(path)) if day >= RENAMED_FROM => path,
            _ => return Err(wrong("the wrong name for the route")),
        };
        if route == CHECKOUT {
            let latencies = self.checkout.entry(day).or_default();
            let in_us = if day >= MICROSECONDS_FROM { 1 } else { 1000 };
            latencies.true_us.push(row.latency_ms * in_us);
            latencies.as_written.push(row.latency_ms);
            if row.route.is_some() {
                latencies.of_route.push(row.latency_ms);
            }
        }
        Ok(())
    }

    /// The true answers.
    pub(crate) fn key(&self) -> Result<AnswerKey, Error> {
        let breach_day = self
            .first_breach(|day| &day.true_us, BREACH_LIMIT_MS * 1000)
            .ok_or_else(|| inconsistent("no day exceeds the limit".to_owned()))?;
        Ok(AnswerKey {
            requests: self.seen.len() as u64,
            breach_day,
            busiest_hour: busiest(&self.by_hour)?,
        })
    }

    /// What code that overlooks one or more defects answers.
    pub(crate) fn shortcuts(&self) -> Result<Vec<Shortcut>, Error> {
        let distinct = self.seen.len() as u64;
        let shortcut = |question, trap, answer| Shortcut { question, trap, answer };
        Ok(vec![
            shortcut(
                Question::Requests,
                "skips broken lines but counts repeated ones",
                Some(distinct + self.repeated),
            ),
            shortcut(
                Question::Requests,
                "counts broken lines but not repeated ones",
                Some(distinct + self.truncated),
            ),
            shortcut(Question::Requests, "counts lines", Some(self.lines)),
            shortcut(
                Question::BreachDay,
                "takes the field's name for its unit",
                self.first_breach(|day| &day.as_written, BREACH_LIMIT_MS),
            ),
            shortcut(
                Question::BreachDay,
                "reads only the field `route`",
                self.first_breach(|day| &day.of_route, BREACH_LIMIT_MS),
            ),
            shortcut(
                Question::BusiestHour,
                "takes the Z for UTC",
                Some(busiest(&self.by_shown_hour)?),
            ),
        ])
    }

    /// The true 95th percentile of `/checkout` on a day, in microseconds.
    #[cfg(test)]
    pub(crate) fn checkout_p95_us(&self, day: u32) -> Option<u64> {
        percentile_95(&self.checkout.get(&day)?.true_us)
    }

    /// The first day on which the 95th percentile of some of its latencies exceeds a limit in the
    /// same unit.
    fn first_breach(&self, pick: impl Fn(&Latencies) -> &Vec<u64>, limit: u64) -> Option<u64> {
        self.checkout
            .iter()
            .find(|(_, latencies)| percentile_95(pick(latencies)).is_some_and(|p95| p95 > limit))
            .map(|(&day, _)| u64::from(day))
    }
}

/// Day of the month and hour that a timestamp like `2026-06-08T20:13:45.123Z` shows.
fn day_and_hour(stamp: &str) -> Option<(u64, u64)> {
    let (date, time) = stamp.strip_suffix('Z')?.split_once('T')?;
    let day = date.strip_prefix("2026-06-")?.parse().ok()?;
    let hour = time.split_once(':')?.0.parse().ok()?;
    Some((day, hour))
}

/// The ⌈0.95·n⌉-th smallest of n values.
fn percentile_95(values: &[u64]) -> Option<u64> {
    let mut ordered = values.to_vec();
    ordered.sort_unstable();
    let rank = (95 * ordered.len()).div_ceil(100);
    ordered.get(rank.checked_sub(1)?).copied()
}

/// The hour with the most requests, which must be a single one.
fn busiest(by_hour: &BTreeMap<u64, u64>) -> Result<u64, Error> {
    let most = by_hour.values().max().copied().unwrap_or_default();
    let mut hours = by_hour.iter().filter(|&(_, &count)| count == most);
    match (hours.next(), hours.next()) {
        (Some((&hour, _)), None) => Ok(hour),
        _ => Err(inconsistent("no single hour is the busiest".to_owned())),
    }
}

fn inconsistent(reason: String) -> Error {
    Error::Inconsistent { reason }
}
