//! From what an embedder asks for to what its sandbox is granted.
//!
//! What: policy, ceiling, mounts, variables and numbers are put together by
//! `Policy::combine`, and what was granted is opened.
//! Why: what code may reach is decided once, before anything runs, in a place
//! that cannot be gone around.
//!
//! Invariant: a host directory is opened only if the combined policy has it,
//! and under a ceiling only if the directory that its name leads to lies in one
//! of the ceiling's; a variable of the host is read only if the policy passes
//! it on.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fumehood_host_fns::{Guarantee, HostMount, NativeSession, NotReplaced, lies_in};
use fumehood_policies::{
    Access, BudgetSettings, CombineErrors, EnvRequest, Flags, GuestPath, HostGrant, Limited,
    MountDeclaration, Policy, PolicyErrors, PolicyFile, Preset, Refused, Verdict, Wildcard,
};

use rustix::fs::{Mode, OFlags};

use crate::error::BuildError;
use crate::host_env;
use crate::limits::{Limits, check_limits};
use crate::sandbox::FIXED_ENVIRONMENT;

/// Most bytes that the environment of a sandbox may have.
pub(crate) const MAX_ENVIRONMENT_BYTES: usize = 1 << 20;

/// A policy: one that was read, or text that [`crate::SandboxBuilder::build`]
/// reads.
#[derive(Clone, Debug)]
pub struct PolicySource(Source);

#[derive(Clone, Debug)]
enum Source {
    File(Box<PolicyFile>),
    Text(String),
}

impl From<PolicyFile> for PolicySource {
    fn from(file: PolicyFile) -> Self {
        Self(Source::File(Box::new(file)))
    }
}

impl From<String> for PolicySource {
    fn from(text: String) -> Self {
        Self(Source::Text(text))
    }
}

impl From<&str> for PolicySource {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<&Preset> for PolicySource {
    fn from(preset: &Preset) -> Self {
        preset.text.into()
    }
}

impl PolicySource {
    fn read(self, name: &str) -> Result<PolicyFile, PolicyErrors> {
        match self.0 {
            Source::File(file) => Ok(*file),
            Source::Text(text) => PolicyFile::parse(&text, name),
        }
    }
}

/// What is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mounting {
    Directory,
    /// A single file, read only.
    File,
    /// A directory whose changes a workspace keeps; it is opened with that.
    Project,
}

/// One mount as it was asked for.
#[derive(Clone, Debug)]
pub(crate) struct MountRequest {
    pub(crate) what: Mounting,
    pub(crate) at: String,
    pub(crate) host: PathBuf,
    pub(crate) access: Access,
    pub(crate) force: bool,
}

/// Everything that was asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) policy: Option<PolicySource>,
    pub(crate) ceiling: Option<PolicySource>,
    pub(crate) mounts: Vec<MountRequest>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) tools: Option<Vec<Wildcard>>,
    pub(crate) budget: BudgetSettings,
    pub(crate) limits: Option<Limits>,
    pub(crate) wall: Option<Duration>,
}

/// The sections that a native tier carries out. What `[native]` requires is
/// added to what the tier has to give; a tier that it does not name carries
/// nothing out.
fn supported<'f>(
    native: Option<&mut NativeSession>,
    files: impl Iterator<Item = &'f PolicyFile>,
) -> &'static [&'static str] {
    let Some(native) = native else { return &[] };
    for section in files.filter_map(PolicyFile::native) {
        let name = native.tier.name();
        if !section.tiers.is_empty() && !section.tiers.iter().any(|tier| tier == name) {
            return &["bash"];
        }
        let wanted =
            |guarantee: &Guarantee| section.guarantees.contains(&guarantee.name().to_owned());
        native.required.extend(Guarantee::ALL.into_iter().filter(wanted));
    }
    &["bash", "native"]
}

/// What is granted, and opened.
pub(crate) struct Granted {
    pub(crate) policy: Policy,
    pub(crate) mounts: Vec<HostMount>,
    /// The project's directory as it was granted, with the right to it.
    pub(crate) project: Option<(PathBuf, Access)>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) limits: Limits,
    pub(crate) limited: Vec<Limited>,
    pub(crate) together: Together,
    /// Rules decide about single files, of the policy or of the ceiling.
    pub(crate) file_rules: bool,
}

/// What a policy file was put together with, so that another one can be.
#[derive(Debug)]
pub(crate) struct Together {
    flags: Flags,
    ceiling: Option<PolicyFile>,
    supported: &'static [&'static str],
}

impl Together {
    /// Another file with the same flags, under the same ceiling.
    pub(crate) fn with(&self, file: &PolicyFile) -> Result<Policy, ReplaceError> {
        let combined = Policy::combine(Some(file), &self.flags, self.ceiling.as_ref())?;
        let missing = combined.unsupported.iter().filter(|name| !self.supported.contains(name));
        let sections: Vec<&'static str> = missing.copied().collect();
        if sections.is_empty() {
            Ok(combined.policy)
        } else {
            Err(ReplaceError::Unsupported { sections })
        }
    }
}

/// Why a policy does not replace the one that holds; that one holds on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplaceError {
    /// It does not allow what the sandbox was built with.
    #[error(transparent)]
    Combine(#[from] CombineErrors),
    /// It has other mounts, numbers or variables than a session began with.
    #[error(transparent)]
    Fixed(#[from] NotReplaced),
    /// It has sections that this sandbox cannot carry out.
    #[error("this sandbox cannot carry out {}; take it out of the policy", .sections.join(", "))]
    Unsupported {
        /// Their names.
        sections: Vec<&'static str>,
    },
}

impl ReplaceError {
    /// A stable identifier.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Combine(error) => error.code(),
            Self::Fixed(error) => error.code(),
            Self::Unsupported { .. } => "policy_unsupported",
        }
    }
}

impl Asked {
    /// Puts everything together and opens it.
    ///
    /// # Errors
    /// [`BuildError`] names what cannot be granted.
    pub(crate) fn grant(
        self,
        allow: Vec<HostGrant>,
        native: Option<&mut NativeSession>,
    ) -> Result<Granted, BuildError> {
        let policy = self.policy.clone().map(|source| source.read("policy")).transpose()?;
        let ceiling = self.ceiling.clone().map(|source| source.read("ceiling")).transpose()?;
        // Checks them as they were asked for, so that the error is about that.
        environment(self.env.iter().cloned())?;
        let wanted = self.declare(policy.is_some() || ceiling.is_some())?;
        let flags = Flags {
            memory: None,
            mounts: wanted.iter().map(|(declared, _)| declared.clone()).collect(),
            environment: self.env.iter().cloned().collect(),
            pass_environment: [].into(),
            tools: self.tools.clone(),
            allow,
            budget: self.asked_budget(),
        };
        let combined = Policy::combine(policy.as_ref(), &flags, ceiling.as_ref())?;
        let files = [policy.as_ref(), ceiling.as_ref()];
        let supported = supported(native, files.into_iter().flatten());
        let file_rules = {
            let mut sections = files.into_iter().flatten().flat_map(PolicyFile::brokered_sections);
            sections.any(|section| section == "fs.rules")
        };
        let missing = combined.unsupported.iter().filter(|name| !supported.contains(name));
        let sections: Vec<&'static str> = missing.copied().collect();
        if !sections.is_empty() {
            return Err(BuildError::Unsupported { sections });
        }
        let limits = self.limits.clone().unwrap_or_default().with_budget(combined.policy.budget());
        check_limits(&limits)?;
        let (mut mounts, mut project) = (Vec::new(), None);
        for mount in &combined.mounts {
            let asked = asked_for(mount, &wanted);
            let host = located(mount, asked, ceiling.as_ref())?;
            match asked.map_or(Mounting::Directory, |request| request.what) {
                Mounting::Project => project = Some((host, mount.access)),
                Mounting::File => mounts.push(HostMount::open_file_at(mount.at.clone(), &host)?),
                Mounting::Directory => {
                    let force = asked.is_some_and(|request| request.force);
                    let opened = HostMount::open_at(mount.at.clone(), &host, mount.access, force);
                    mounts.push(opened?);
                }
            }
        }
        let passed = passed_on(&combined.policy, &combined.pass_environment)?;
        let set = combined.policy.environment().clone();
        let env = environment(passed.into_iter().chain(set))?;
        let together = Together { flags, ceiling, supported };
        Ok(Granted {
            policy: combined.policy,
            mounts,
            project,
            env,
            limits,
            limited: combined.limited,
            together,
            file_rules,
        })
    }

    /// The mounts as flags, each with what was asked.
    fn declare(&self, by_text: bool) -> Result<Vec<(MountDeclaration, &MountRequest)>, BuildError> {
        let mut declared = Vec::new();
        for request in &self.mounts {
            let MountRequest { at, host, access, .. } = request;
            let at = HostMount::point(at)?;
            let shown = host_env::absolute(host);
            let host = match shown.to_str() {
                Some(text) => text.to_owned(),
                None if by_text => return Err(BuildError::HostName { path: shown }),
                // Distinct for distinct names; no policy compares it.
                None => format!("{shown:?}"),
            };
            let id = Arc::from(format!("mount:{at}"));
            declared.push((MountDeclaration { id, at, host, access: *access, line: 0 }, request));
        }
        Ok(declared)
    }

    /// The numbers as flags. Limits name every number, a budget only some.
    fn asked_budget(&self) -> BudgetSettings {
        if let Some(limits) = &self.limits {
            let mut limits = limits.clone();
            limits.wall = self.wall.unwrap_or(limits.wall);
            return limits.to_budget().tightened_by(&self.budget);
        }
        let mut budget = self.budget.clone();
        if let Some(wall) = self.wall.map(crate::limits::milliseconds) {
            budget.wall_ms = Some(budget.wall_ms.map_or(wall, |named| named.min(wall)));
        }
        budget
    }
}

/// The request that a mount was granted for; none if a text declares it.
fn asked_for<'r>(
    mount: &MountDeclaration,
    wanted: &[(MountDeclaration, &'r MountRequest)],
) -> Option<&'r MountRequest> {
    let same = |declared: &MountDeclaration| declared.at == mount.at && declared.host == mount.host;
    wanted.iter().find(|(declared, _)| same(declared)).map(|(_, request)| *request)
}

/// The path by which a mount that was granted is to be opened.
fn located(
    mount: &MountDeclaration,
    asked: Option<&MountRequest>,
    ceiling: Option<&PolicyFile>,
) -> Result<PathBuf, BuildError> {
    let named = asked.map_or(Path::new(&mount.host), |request| &request.host);
    let Some(ceiling) = ceiling.filter(|ceiling| !ceiling.mounts().is_empty()) else {
        return Ok(named.to_owned());
    };
    // `combine` has compared names; a link in one of them leads elsewhere. What
    // is opened is the directory that was compared.
    let Some(real) = host_env::resolved(named) else { return Ok(named.to_owned()) };
    let within = ceiling.mounts().iter().any(|most| {
        most.access >= mount.access
            && host_env::resolved(Path::new(&most.host)).is_some_and(|most| real.starts_with(most))
    });
    if within {
        return Ok(real);
    }
    let message = format!(
        "{} does not allow mounting what {named:?} leads to",
        ceiling.name().escape_debug()
    );
    let remedy = "mount a directory that the ceiling names, or ask its operator".to_owned();
    Err(CombineErrors(vec![Refused { message, remedy }]).into())
}

/// Variables of the host that the policy passes on, where the host has them.
fn passed_on<'n>(
    policy: &Policy,
    names: impl IntoIterator<Item = &'n String>,
) -> Result<Vec<(String, String)>, BuildError> {
    let mut passed = Vec::new();
    for name in names {
        let unusable = |reason| BuildError::Environment { name: name.clone(), reason };
        if FIXED_ENVIRONMENT.iter().any(|(fixed, _)| fixed == name) {
            return Err(unusable(
                "is the same in every sandbox and cannot be passed on; leave it out of the policy",
            ));
        }
        let request =
            EnvRequest::parse(name).map_err(|_| unusable("cannot be passed on; check its name"))?;
        if policy.decide_environment(&request).verdict != Verdict::Allow {
            continue;
        }
        match host_env::variable(request.get().name()) {
            Some(Ok(value)) => passed.push((name.clone(), value)),
            Some(Err(_)) => {
                return Err(unusable("is not UTF-8 text on this host; leave it out of the policy"));
            }
            None => {}
        }
    }
    Ok(passed)
}

/// The environment of a guest: the fixed one and what is given, a later one of
/// two values.
fn environment(
    given: impl IntoIterator<Item = (String, String)>,
) -> Result<Vec<(String, String)>, BuildError> {
    let mut env: Vec<(String, String)> = FIXED_ENVIRONMENT
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    let mut bytes = 0_usize;
    for (name, value) in given {
        let well_formed = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !well_formed {
            return Err(BuildError::Environment {
                name,
                reason: "is not a name for an environment variable; use letters, digits and underscores",
            });
        }
        if let Some((_, fixed)) = FIXED_ENVIRONMENT.iter().find(|(fixed, _)| *fixed == name) {
            if *fixed == value {
                continue;
            }
            return Err(BuildError::Environment {
                name,
                reason: "is the same in every sandbox and cannot be set; choose another name",
            });
        }
        bytes = bytes.saturating_add(name.len()).saturating_add(value.len());
        if value.contains('\0') || bytes > MAX_ENVIRONMENT_BYTES {
            return Err(BuildError::Environment {
                name,
                reason: "has a value with a NUL in it or of more than 1 MiB; pass large data as a file",
            });
        }
        env.retain(|(present, _)| *present != name);
        env.push((name, value));
    }
    Ok(env)
}

/// A guest path of the embedder's.
pub(crate) fn guest_path(path: &str) -> Result<GuestPath, BuildError> {
    let from = GuestPath::root();
    GuestPath::parse(&from, path.as_bytes())
        .map(|requested| requested.path)
        .map_err(|error| BuildError::Path { path: path.to_owned(), reason: error.to_string() })
}

/// Refuses files that the code could change.
pub(crate) fn check_reach(
    files: &[PathBuf],
    mounts: &[HostMount],
    project: Option<&(PathBuf, Access)>,
) -> Result<(), BuildError> {
    let project = project.filter(|(_, access)| *access == Access::ReadWrite);
    for file in files {
        let unseen = |source| BuildError::Unseen { file: file.clone(), source };
        let within = |at: &str| BuildError::WithinReach { file: file.clone(), at: at.to_owned() };
        for mount in mounts.iter().filter(|mount| mount.access == Access::ReadWrite) {
            if mount.holds(file).map_err(unseen)? {
                return Err(within(&mount.at.to_string()));
            }
        }
        if let Some((directory, _)) = project {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let directory = rustix::fs::open(directory, flags, Mode::empty());
            let directory = directory.map_err(|error| unseen(error.into()))?;
            if lies_in(file, directory).map_err(unseen)? {
                return Err(within("the project"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixed_environment_cannot_be_changed() {
        let with = |name: &str, value: &str| environment([(name.to_owned(), value.to_owned())]);
        assert_eq!(with("PWD", crate::WORKING_DIRECTORY).unwrap().len(), FIXED_ENVIRONMENT.len());
        assert!(with("PWD", "/").is_err());
        let twice = [("A", "1"), ("A", "2")].map(|(name, value)| (name.into(), value.into()));
        assert_eq!(environment(twice).unwrap().last().unwrap().1, "2");
    }
}
