//! Which native tier the arguments name.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use fumehood::native::{Guarantee, Missing, NativeTier, Unavailable};
use fumehood::policy::PolicyFile;
use fumehood_native_tiers::{DockerTier, Helper, HelperTier, ImageId, TierError, TierName};

use crate::error::CliError;

/// What names a tier.
#[derive(Debug, Args)]
pub(crate) struct TierArgs {
    /// The boundary: `landlock`, `docker` or `process` (none) [default: landlock]
    #[arg(long, value_name = "NAME", value_parser = parse_tier)]
    pub(crate) tier: Option<TierName>,
    /// The image of --tier docker, by its ID or its digest
    #[arg(long, value_name = "DIGEST|ID", value_parser = parse_image)]
    pub(crate) image: Option<ImageId>,
    /// The file fumehood-helper [default: beside this program]
    #[arg(long, value_name = "FILE")]
    pub(crate) helper: Option<PathBuf>,
}

/// What names the tier of a program.
#[derive(Debug, Args)]
pub(crate) struct ProgramTierArgs {
    /// Run it with this machine's own python3 in `landlock`, `docker` or `process` (no boundary) [default: wasm]
    #[arg(long, value_name = "NAME", value_parser = parse_program_tier)]
    pub(crate) tier: Option<TierName>,
    /// The image of --tier docker, by its ID or its digest; it must have python3
    #[arg(long, value_name = "DIGEST|ID", value_parser = parse_image)]
    pub(crate) image: Option<ImageId>,
    /// The file fumehood-helper [default: beside this program]
    #[arg(long, value_name = "FILE")]
    pub(crate) helper: Option<PathBuf>,
}

impl ProgramTierArgs {
    /// A native tier, if one is named.
    pub(crate) fn native(&self) -> Option<TierArgs> {
        let tier = self.tier.filter(|tier| *tier != TierName::Wasm)?;
        Some(self.as_tier(Some(tier)))
    }

    fn as_tier(&self, tier: Option<TierName>) -> TierArgs {
        TierArgs { tier, image: self.image.clone(), helper: self.helper.clone() }
    }

    /// Where commands of a program run whose policies speak of them: the first
    /// tier of `[native]` that can be used and gives every guarantee that they
    /// require, else `landlock`. None if they do not.
    ///
    /// # Errors
    /// One sentence for everything that is missing.
    pub(crate) fn for_commands(
        &self,
        policies: &[Option<&PolicyFile>],
    ) -> Result<Option<Arc<dyn NativeTier>>, CliError> {
        let policies = || policies.iter().flatten();
        if !policies().any(|policy| policy.has_bash()) {
            return Ok(None);
        }
        let named = policies().filter_map(|policy| policy.native());
        let named = named.map(|native| native.tiers.as_slice()).find(|tiers| !tiers.is_empty());
        let names = match named {
            Some(names) => names.iter().map(|name| parse_tier(name)).collect::<Result<Vec<_>, _>>(),
            None => Ok(vec![TierName::Landlock]),
        };
        let names = names.map_err(CliError::usage)?;
        if names.len() > 1 && names.contains(&TierName::Process) {
            return Err(CliError::usage(
                "`process` is no boundary, so nothing falls back to it; name it alone in [native]",
            ));
        }
        let required = required(policies());
        let mut first = None;
        for name in names {
            match self.as_tier(Some(name)).prepared_with(&required) {
                Ok(tier) => return Ok(Some(tier)),
                Err(error) => first = first.or(Some(error)),
            }
        }
        first.map_or(Ok(None), Err)
    }
}

/// The guarantees that `[native]` of any of the policies requires.
fn required<'a, 'b: 'a>(policies: impl Iterator<Item = &'a &'b PolicyFile>) -> Vec<Guarantee> {
    let named: Vec<&str> = policies
        .filter_map(|policy| policy.native())
        .flat_map(|native| native.guarantees.iter().map(String::as_str))
        .collect();
    Guarantee::ALL.into_iter().filter(|one| named.contains(&one.name())).collect()
}

fn parse_program_tier(text: &str) -> Result<TierName, String> {
    text.parse().map_err(|error: TierError| error.to_string())
}

fn parse_tier(text: &str) -> Result<TierName, String> {
    let tier: TierName = text.parse().map_err(|error: TierError| error.to_string())?;
    match tier {
        TierName::Wasm => Err("no command can run in it; name landlock, docker or process".into()),
        _ => Ok(tier),
    }
}

pub(crate) fn parse_image(text: &str) -> Result<ImageId, String> {
    ImageId::parse(text).map_err(|error| error.to_string())
}

impl TierArgs {
    /// The helper that is named, or found.
    pub(crate) fn helper(&self) -> Result<Arc<Helper>, Missing> {
        let helper = match &self.helper {
            Some(path) => Helper::open(path),
            None => Helper::find(),
        };
        helper.map(Arc::new)
    }

    /// The engine's tier, if there is an engine.
    ///
    /// # Errors
    /// One sentence.
    fn docker(&self) -> Result<DockerTier, CliError> {
        let image = self.image.clone().ok_or_else(|| {
            CliError::usage("--tier docker needs an image; give its ID or digest with --image")
        })?;
        let socket = DockerTier::find_socket().ok_or_else(|| {
            CliError::refused("there is no container engine here; start one or set DOCKER_HOST")
        })?;
        Ok(DockerTier::new(&socket, image))
    }

    /// The tier, ready to run.
    ///
    /// # Errors
    /// One sentence for everything that is missing.
    pub(crate) fn prepared(&self) -> Result<Arc<dyn NativeTier>, CliError> {
        self.prepared_with(&[])
    }

    /// The same, with guarantees beside its own.
    ///
    /// # Errors
    /// One sentence for everything that is missing.
    fn prepared_with(&self, required: &[Guarantee]) -> Result<Arc<dyn NativeTier>, CliError> {
        let tier: Arc<dyn NativeTier> = match self.tier.unwrap_or(TierName::Landlock) {
            TierName::Docker => Arc::new(self.docker()?),
            TierName::Process => Arc::new(HelperTier::process(self.helper())),
            TierName::Wasm | TierName::Landlock => Arc::new(HelperTier::landlock(self.helper())),
            name @ TierName::Seatbelt => {
                return Err(CliError::refused(TierError::Missing(name).to_string()));
            }
        };
        tier.prepare(required).map_err(|unavailable| refused(&unavailable))?;
        Ok(tier)
    }
}

/// The policy of who types a command or a program: that allows it.
///
/// # Errors
/// Never; the text is this program's own.
pub(crate) fn allowed() -> Result<PolicyFile, CliError> {
    let text = "version = 1\nflags = \"extend\"\n[bash]\naction = \"allow\"\n";
    Ok(PolicyFile::parse(text, "the command line")?)
}

/// One line for the tier and one for each thing that is missing.
pub(crate) fn refused(unavailable: &Unavailable) -> CliError {
    let line = |missing: &Missing| {
        format!("missing: {} ({}); {}", missing.name, missing.reason, missing.remedy)
    };
    let message = format!(
        "the {} tier cannot be used here and nothing was run; `fumehood doctor` says more",
        unavailable.tier
    );
    let mut error = CliError::refused(message);
    error.more = unavailable.missing.iter().map(line).collect();
    error
}
