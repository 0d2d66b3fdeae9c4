//! What would let a call of a tool through, as [`Policy::explain`] proposes it.
//!
//! Invariant: a proposed rule allows the arguments that were asked about and no
//! other values of them.

use std::fmt::Write as _;

use serde_json::Value;

use crate::policy::Policy;
use crate::rules::tools::ToolRule;
use crate::rules::{Action, Ruled};
use crate::tool::ToolRequest;

impl Policy {
    /// The nearest change for a call that no rule allows: what the arguments
    /// fail of the rules that name the tool, else a rule of its own.
    pub(crate) fn tool_change(&self, request: &ToolRequest) -> String {
        let mut failing = Vec::new();
        for layer in self.layers.iter() {
            let Some(rules) = &layer.tools else { continue };
            if rules.decide(request).0 != Ruled::Unlisted {
                continue;
            }
            let mut naming: Vec<_> = rules
                .iter()
                .filter(|rule| rule.action != Action::Deny && rule.names(request.name()))
                .collect();
            naming.sort_by_key(|rule| rule.line);
            failing.extend(naming.into_iter().map(|rule| fails(rule, &layer.name, request)));
        }
        if failing.is_empty() { pinned(request) } else { failing.join("\n") }
    }
}

/// Which constraints of a rule the arguments fail.
fn fails(rule: &ToolRule, source: &str, request: &ToolRequest) -> String {
    let strict = rule.action != Action::Allow;
    let failed: Vec<String> = rule
        .arguments
        .iter()
        .filter(|argument| !argument.holds(request.arguments(), strict))
        .map(ToString::to_string)
        .collect();
    format!(
        "widen rule `{}` ({}:{}), which is only for {}",
        rule.id,
        crate::host::shown(source),
        rule.line,
        failed.join(" and ")
    )
}

/// A rule for exactly the values of these arguments.
fn pinned(request: &ToolRequest) -> String {
    let name = request.name();
    let mut constraints = Vec::new();
    for (argument, value) in request.argument_map().into_iter().flatten() {
        let pointer = format!("/{}", argument.replace('~', "~0").replace('/', "~1"));
        let mut equals = String::new();
        if !write_toml(value, &mut equals) {
            return format!(
                "add a [[tools.rules]] for `{name}` by hand: `{}` holds null, which no constraint can name",
                crate::host::shown(&pointer)
            );
        }
        let mut constraint = "{ pointer = ".to_owned();
        write_string(&pointer, &mut constraint);
        constraints.push(format!("    {constraint}, equals = {equals} }},"));
    }
    let rule = format!("[[tools.rules]]\nid = \"new\"\ntools = [\"{name}\"]");
    if constraints.is_empty() {
        return rule;
    }
    format!("{rule}\narguments = [\n{}\n]", constraints.join("\n"))
}

/// Writes a value as TOML on one line; `false` if it holds null.
fn write_toml(value: &Value, out: &mut String) -> bool {
    match value {
        Value::Null => return false,
        Value::Bool(truth) => out.push_str(if *truth { "true" } else { "false" }),
        Value::Number(number) => out.push_str(&number.to_string()),
        Value::String(text) => write_string(text, out),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { ", " });
                if !write_toml(item, out) {
                    return false;
                }
            }
            out.push(']');
        }
        Value::Object(members) => {
            out.push('{');
            for (index, (name, member)) in members.iter().enumerate() {
                out.push_str(if index == 0 { " " } else { ", " });
                write_string(name, out);
                out.push_str(" = ");
                if !write_toml(member, out) {
                    return false;
                }
            }
            out.push_str(" }");
        }
    }
    true
}

/// Writes text as a basic string of TOML that a terminal shows as it is.
fn write_string(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            ' '..='~' => out.push(character),
            character if character.is_alphanumeric() => out.push(character),
            character => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\U{:08X}", u32::from(character));
            }
        }
    }
    out.push('"');
}
