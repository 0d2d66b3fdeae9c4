//! Times as people write them: UTC, `2026-01-31T12:00:00Z`.

use std::str::FromStr as _;

const US: u64 = 1_000_000;

/// Microseconds since the Unix epoch as text, to the millisecond.
pub(crate) fn shown(us: u64) -> String {
    let time = i64::try_from(us).ok().and_then(|us| jiff::Timestamp::from_microsecond(us).ok());
    time.map_or_else(|| format!("{us} us"), |time| format!("{time:.3}"))
}

/// Microseconds since the Unix epoch of a time, or of seconds since then.
///
/// # Errors
/// What is wrong, as one sentence.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    if let Ok(seconds) = text.parse::<u64>() {
        return Ok(seconds.saturating_mul(US));
    }
    jiff::Timestamp::from_str(text)
        .ok()
        .and_then(|time| u64::try_from(time.as_microsecond()).ok())
        .ok_or_else(|| {
            "it is no time; write it as 2026-01-31T12:00:00Z, or in seconds since 1970".to_owned()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_written() {
        assert_eq!(shown(1_700_000_000_123_456), "2023-11-14T22:13:20.123Z");
        assert_eq!(parse("2023-11-14T22:13:20Z"), Ok(1_700_000_000 * US));
        assert_eq!(parse("1700000000"), Ok(1_700_000_000 * US));
        assert!(parse("yesterday").is_err() && parse("").is_err() && parse("-1").is_err());
        assert_eq!(shown(u64::MAX), format!("{} us", u64::MAX));
    }
}
