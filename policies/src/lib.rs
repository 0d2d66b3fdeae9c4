//! Canonical request types, their only parsers, and the pure policy decision.
//!
//! What: a [`GuestPath`] is made from guest bytes by one parser; a
//! [`Canonical`] request can only be made here; [`Policy::decide`] and its
//! kin map one to a [`Decision`]; [`PolicyFile`] is policy text that was
//! understood completely, and [`Policy::combine`] makes a policy of it.
//! Why: the value that was decided must be the value that is acted on, so both
//! come from the same parse.
//!
//! Invariant: nothing here does I/O, reads a clock or waits. The same policy
//! and the same request give the same decision for ever.
//!
//! This crate must never open a host path, and never know an engine or a
//! descriptor.

mod address;
mod allow;
mod bash;
mod budget;
mod combine;
mod diff;
mod digest;
mod draft;
mod environment;
mod explain;
mod glob;
mod grant;
mod host;
mod json;
mod layer;
mod network;
mod openshell;
mod path;
mod persistence;
mod policy;
mod presets;
mod propose;
mod question;
mod request;
mod rules;
mod text;
mod tool;
pub mod weaken;
mod wildcard;

pub use address::{
    AddressClass, AddressGrant, AddressRange, AddressRefused, DialAddress, address_ranges,
};
pub use allow::{GrantError, GrantedHost, HostGrant, companions, granted_hosts};
pub use bash::{BashRequest, BashRequestError, MAX_COMMAND_BYTES};
pub use budget::{
    BUDGET_NUMBERS, BudgetLimits, BudgetNumber, BudgetPreset, BudgetSettings, budget_number,
};
pub use combine::{CombineErrors, Combined, FLAGS_RULE, Flags, Limited, Refused};
pub use diff::{NewReach, diff};
pub use draft::{Denied, Draft, DraftBook, DraftError, DraftState, MAX_DRAFT_PATHS, MAX_DRAFTS};
pub use environment::{EnvRequest, EnvRequestError, MAX_VARIABLE_NAME_BYTES};
pub use explain::{Explanation, Speaks, Summary};
pub use glob::{GlobError, MAX_GLOB_COMPONENTS, PathGlob};
pub use grant::{GrantTerms, IRREVERSIBLE, RequestGrant, is_grantable};
pub use host::{HostError, HostName, HostPattern};
pub use json::{JsonError, MAX_JSON_DEPTH, MAX_JSON_VALUES, canonical_json, parse_json};
pub use layer::{BASH_RULE, ENVIRONMENT_RULE, REGISTERED_RULE, Ruling};
pub use network::{MAX_URL_BYTES, METHODS, MethodPreset, NetRequest, NetRequestError};
pub use openshell::MAX_OPENSHELL_BYTES;
pub use path::{
    GuestPath, LinkError, MAX_COMPONENT_BYTES, MAX_PATH_BYTES, PathError, RequestedPath, escape,
};
pub use persistence::{Guard, GuardFacts, Guarded, PersistenceGuard, is_secret_file_name};
pub use policy::{
    Access, Cause, DEFAULT_ASK_TTL_MS, DEFAULT_DENY, Decision, MEMORY_RULE, MountRule, Policy,
    PolicyBuilder, PolicyError, Verdict,
};
pub use presets::{PRESETS, Preset, preset};
pub use question::{MAX_QUESTION_BYTES, Question, QuestionError};
pub use request::{Canonical, FsAction, FsRequest};
pub use rules::constraint::{ArgumentConstraint, Check, MAX_PATTERN_BYTES, Pattern};
pub use rules::fs::{FS_OPERATIONS, FsFacts, FsOperations, FsRule};
pub use rules::net::NetRule;
pub use rules::tools::ToolRule;
pub use rules::{Action, CallLimit, HostLimit, Obligations};
pub use text::problem::{MAX_PROBLEMS, PolicyErrors, Problem};
pub use text::{
    BashSection, EnvironmentSection, Example, FlagMode, FsSection, MAX_POLICY_BYTES,
    MountDeclaration, NativeSection, PolicyFile, SECTIONS, SecretBinding, verdict_name,
};
pub use tool::{MAX_TOOL_NAME_BYTES, ToolRequest, ToolRequestError, is_tool_name};
pub use wildcard::Wildcard;
