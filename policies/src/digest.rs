//! The digest of a policy.
//!
//! What: SHA-256 over a canonical serialisation of everything that decides.
//! Why: an audit log and a run's own digest say which policy held.
//!
//! Invariant: the order of rules, comments, line numbers and names of files do
//! not matter; every number, pattern and id does. Host directories are not
//! part: what they hold enters a run's digest as the visible tree. Each field
//! has its name and length before it, so no two policies have one text.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use crate::combine::access_name;
use crate::json::canonical_json;
use crate::layer::Layer;
use crate::policy::Policy;
use crate::rules::Action;
use crate::rules::constraint::{ArgumentConstraint, Check};

struct Writer(Sha256);

impl Writer {
    fn field(&mut self, name: &str, value: impl AsRef<[u8]>) {
        for part in [name.as_bytes(), value.as_ref()] {
            self.0.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
            self.0.update(part);
        }
    }

    fn number(&mut self, name: &str, value: Option<u64>) {
        self.field(name, value.map(|value| value.to_string()).unwrap_or_default());
    }

    /// Entries whose order has no meaning.
    fn set(&mut self, name: &str, values: impl Iterator<Item = String>) {
        let mut values: Vec<String> = values.collect();
        values.sort_unstable();
        values.dedup();
        self.field(name, values.len().to_string());
        for value in values {
            self.field(name, value);
        }
    }
}

impl Policy {
    /// SHA-256 of everything that decides.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let mut writer = Writer(Sha256::new());
        writer.field("fumehood policy", "1");
        for mount in self.mounts.iter() {
            writer.field("mount", &*mount.id);
            writer.field("at", mount.at.as_bytes());
            writer.field("access", access_name(mount.access));
        }
        for (name, value) in self.environment.iter() {
            writer.field("variable", name);
            writer.field("value", value);
        }
        for (key, value) in self.budget.entries() {
            writer.number(key, Some(value));
        }
        for (tool, calls) in &self.budget.tool_calls {
            writer.field("tool_calls", tool);
            writer.number("calls", Some(*calls));
        }
        writer.number("ask", Some(self.ask_ttl_ms));
        for layer in self.layers.iter() {
            write_layer(layer, &mut writer);
        }
        writer.0.finalize().into()
    }

    /// [`Policy::digest`] in lower-case hexadecimal.
    #[must_use]
    pub fn digest_hex(&self) -> String {
        hexadecimal(&self.digest())
    }

    /// Which edition of the session's policy this is; the first is 1.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The same policy as another edition; the digest does not change.
    #[must_use]
    pub fn with_generation(mut self, generation: u64) -> Self {
        self.generation = generation;
        self
    }
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn write_layer(layer: &Layer, writer: &mut Writer) {
    writer.field("layer", "");
    for rule in layer.fs.iter() {
        writer.field("fs", &*rule.id);
        writer.field("action", rule.action.name());
        writer.set("path", rule.paths.iter().map(|path| path.as_str().to_owned()));
        writer.set("operation", rule.operations.names().map(str::to_owned));
    }
    if let Some(rules) = &layer.tools {
        writer.field("tools", "");
        for rule in rules.iter() {
            writer.field("tool", &*rule.id);
            writer.field("action", rule.action.name());
            writer.set("name", rule.tools.iter().map(ToString::to_string));
            writer.set("argument", rule.arguments.iter().map(constraint_text));
            writer.number("max_calls", rule.max_calls);
            writer.number("max_request_bytes", rule.max_request_bytes);
            writer.number("max_response_bytes", rule.max_response_bytes);
        }
    }
    if let Some(rules) = &layer.net {
        writer.field("net", "");
        for rule in rules.iter() {
            writer.field("request", &*rule.id);
            writer.field("action", rule.action.name());
            writer.set("host", rule.hosts.iter().map(ToString::to_string));
            let any = || vec!["*".to_owned()];
            let ports =
                rule.ports.as_ref().map(|ports| ports.iter().map(ToString::to_string).collect());
            writer.set("port", ports.unwrap_or_else(any).into_iter());
            let methods = rule
                .methods
                .as_ref()
                .map(|methods| methods.iter().map(ToString::to_string).collect());
            writer.set("method", methods.unwrap_or_else(any).into_iter());
            let paths = rule
                .paths
                .as_ref()
                .map(|paths| paths.iter().map(|path| path.as_str().to_owned()).collect());
            writer.set("path", paths.unwrap_or_else(any).into_iter());
            writer.set("secret", rule.secrets.iter().map(ToString::to_string));
            writer.number("max_bytes", rule.max_bytes);
            writer.field("https_only", if rule.https_only { "1" } else { "" });
            let private = rule.addresses == crate::address::AddressGrant::Private;
            writer.field("private", if private { "1" } else { "" });
            writer.number("max_requests", rule.max_requests);
            writer.number("max_total_bytes", rule.max_total_bytes);
        }
    }
    if let Some(names) = &layer.environment {
        writer.set("env", names.iter().cloned());
    }
    if let Some(action) = layer.bash {
        writer.field("bash", action.map_or("", Action::name));
    }
}

fn constraint_text(constraint: &ArgumentConstraint) -> String {
    let check = match &constraint.check {
        Check::Equals(value) => format!("equals {}", canonical_json(value)),
        Check::Range { min, max } => format!("range {min:?} {max:?}"),
        Check::Pattern(pattern) => format!("pattern {}", pattern.as_str()),
        Check::OneOf(values) => {
            let mut values: Vec<String> = values.iter().map(canonical_json).collect();
            values.sort_unstable();
            format!("one_of {values:?}")
        }
    };
    format!("{:?} {check}", constraint.pointer)
}
