//! The options of deterministic mode.

use std::time::SystemTime;

use clap::Args;
use fumehood::{DEFAULT_FUEL, Determinism};

/// `--deterministic` and what belongs to it.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct DeterminismArgs {
    /// Same code and inputs, same result: virtual clock, seeded randomness, fuel, a digest in --json
    #[arg(long)]
    deterministic: bool,
    /// Decides every random value [default: 0]
    #[arg(long, value_name = "N", requires = "deterministic", value_parser = parse_number,
        allow_hyphen_values = true)]
    seed: Option<u64>,
    /// What the clock shows at the start, as in 2025-06-30T12:00:00Z [default: 2025-01-01T00:00:00Z]
    #[arg(long, value_name = "RFC3339", requires = "deterministic", value_parser = parse_time,
        allow_hyphen_values = true)]
    time: Option<SystemTime>,
    /// Most that the run may do, in about WebAssembly instructions [default: 200000000000]
    #[arg(long, value_name = "N", requires = "deterministic", value_parser = parse_fuel,
        allow_hyphen_values = true)]
    fuel: Option<u64>,
}

impl DeterminismArgs {
    /// The settings, if the mode was asked for.
    pub(crate) fn settings(self) -> Option<Determinism> {
        let settings = Determinism::default();
        self.deterministic.then(|| Determinism {
            seed: self.seed.unwrap_or(settings.seed),
            time: self.time.unwrap_or(settings.time),
            fuel: self.fuel.unwrap_or(settings.fuel),
        })
    }
}

fn parse_number(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("it is not a seed; give a whole number from 0 to {}", u64::MAX))
}

fn parse_fuel(text: &str) -> Result<u64, String> {
    let fuel = text.parse().ok().filter(|fuel| *fuel > 0);
    fuel.ok_or_else(|| {
        format!("it is not an amount of fuel; give a whole number above 0, such as {DEFAULT_FUEL}")
    })
}

fn parse_time(text: &str) -> Result<SystemTime, String> {
    let time =
        text.parse::<jiff::Timestamp>().ok().and_then(|time| SystemTime::try_from(time).ok());
    match time.map(|time| Determinism { time, ..Determinism::default() }) {
        Some(settings) if settings.time_is_in_range() => Ok(settings.time),
        _ => Err("it is not a time from 1970 to 2199; write it with its offset, such as \
                  2025-06-30T12:00:00Z"
            .to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn times_have_an_offset_and_a_range() {
        let seconds = |text: &str| {
            parse_time(text).unwrap().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
        };
        assert_eq!(seconds("1970-01-01T00:00:00Z"), 0.0);
        assert_eq!(seconds("2025-01-01T02:00:00.5+02:00"), 1_735_689_600.5);
        let default = Determinism::default().time;
        assert_eq!(parse_time("2025-01-01T00:00:00Z"), Ok(default));
        for bad in [
            "",
            "now",
            "2025-01-01",
            "2025-01-01T00:00:00",
            "1969-12-31T23:59:59Z",
            "2200-01-01T00:00:00Z",
            "2025-02-30T00:00:00Z",
            "1735689600",
        ] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
        let latest = parse_time("2199-12-31T23:59:59Z").unwrap();
        assert_eq!(latest, UNIX_EPOCH + Duration::from_secs(7_258_118_399));
    }

    #[test]
    fn numbers_are_whole_and_fuel_is_some() {
        assert_eq!(parse_number("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(parse_fuel("1"), Ok(1));
        for bad in ["", "-1", "1.5", "1e9", "18446744073709551616"] {
            assert!(parse_number(bad).is_err() && parse_fuel(bad).is_err(), "{bad}");
        }
        assert!(parse_fuel("0").is_err());
    }

    #[test]
    fn the_help_names_the_defaults() {
        use clap::CommandFactory as _;
        let mut command = crate::args::Cli::command();
        let run = command.find_subcommand_mut("run").unwrap();
        let help = run.render_help().to_string();
        assert!(help.contains(&format!("[default: {DEFAULT_FUEL}]")), "{help}");
    }
}
