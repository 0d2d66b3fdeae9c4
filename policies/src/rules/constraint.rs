//! Constraints on the arguments of a tool.
//!
//! What: [`ArgumentConstraint`] looks at one place in the arguments, named by
//! a JSON pointer.
//! Why: "this tool, but only for that customer" is a rule and not code.
//!
//! Invariant: for allow an absent or ill-typed value never holds; for deny and
//! ask an ill-typed value always does, because what a tool makes of it is
//! unknown. Patterns take time linear in the value.

use std::cmp::Ordering;
use std::fmt;

use serde_json::{Number, Value};

/// Longest pattern in bytes, and the bound of its compiled form.
pub const MAX_PATTERN_BYTES: usize = 1024;
const MAX_COMPILED_PATTERN_BYTES: usize = 1 << 20;

/// A regular expression that must match a whole value.
#[derive(Clone)]
pub struct Pattern {
    source: String,
    compiled: regex::Regex,
}

impl Pattern {
    /// Compiles a pattern; `.` also matches a line feed.
    ///
    /// # Errors
    /// What is wrong with it, in the words of the regular expression library.
    pub fn new(source: &str) -> Result<Self, String> {
        if source.len() > MAX_PATTERN_BYTES {
            return Err(format!("it is longer than {MAX_PATTERN_BYTES} bytes"));
        }
        // Alone first, so that it cannot close the group that anchors it.
        regex::Regex::new(source).map_err(|error| last_line(&error.to_string()))?;
        let compiled = regex::RegexBuilder::new(&format!(r"\A(?:{source})\z"))
            .size_limit(MAX_COMPILED_PATTERN_BYTES)
            .dot_matches_new_line(true)
            .build()
            .map_err(|error| last_line(&error.to_string()))?;
        Ok(Self { source: source.to_owned(), compiled })
    }

    /// The pattern as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.source
    }
}

fn last_line(text: &str) -> String {
    text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.source, formatter)
    }
}

/// What must hold of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Check {
    /// It is this value.
    Equals(Value),
    /// It is a number within bounds, both included.
    Range {
        /// The least.
        min: Option<Number>,
        /// The most.
        max: Option<Number>,
    },
    /// It is a string that matches as a whole.
    Pattern(Pattern),
    /// It is one of these values.
    OneOf(Vec<Value>),
}

/// A constraint on one argument.
#[derive(Clone, Debug, PartialEq)]
pub struct ArgumentConstraint {
    /// JSON pointer to the value.
    pub pointer: String,
    /// What must hold.
    pub check: Check,
}

enum Judged {
    Holds,
    Fails,
    WrongType,
}

impl ArgumentConstraint {
    /// Whether the constraint holds; `strict` is for deny and ask rules.
    pub(crate) fn holds(&self, arguments: &Value, strict: bool) -> bool {
        match arguments.pointer(&self.pointer).map(|value| self.judge(value)) {
            Some(Judged::Holds) => true,
            Some(Judged::WrongType) => strict,
            Some(Judged::Fails) | None => false,
        }
    }

    fn judge(&self, value: &Value) -> Judged {
        let holds = match (&self.check, value) {
            (Check::Equals(wanted), _) => return judge_list(std::slice::from_ref(wanted), value),
            (Check::OneOf(wanted), _) => return judge_list(wanted, value),
            (Check::Range { min, max }, Value::Number(number)) => {
                min.as_ref().is_none_or(|min| compare(number, min).is_some_and(Ordering::is_ge))
                    && max
                        .as_ref()
                        .is_none_or(|max| compare(number, max).is_some_and(Ordering::is_le))
            }
            (Check::Pattern(pattern), Value::String(text)) => pattern.compiled.is_match(text),
            _ => return Judged::WrongType,
        };
        if holds { Judged::Holds } else { Judged::Fails }
    }

    /// Whether no arguments satisfy both. `true` is certain.
    pub(crate) fn excludes(&self, other: &Self) -> bool {
        if self.pointer != other.pointer {
            return false;
        }
        let certain = |list: &[Value], by: &Self| {
            !list.iter().any(|value| matches!(by.judge(value), Judged::Holds))
        };
        match (&self.check, &other.check) {
            (Check::Equals(value), _) => certain(std::slice::from_ref(value), other),
            (Check::OneOf(values), _) => certain(values, other),
            (_, Check::Equals(value)) => certain(std::slice::from_ref(value), self),
            (_, Check::OneOf(values)) => certain(values, self),
            (Check::Range { min, max }, Check::Range { min: other_min, max: other_max }) => {
                let apart = |most: &Option<Number>, least: &Option<Number>| {
                    most.as_ref()
                        .zip(least.as_ref())
                        .is_some_and(|(most, least)| compare(most, least) == Some(Ordering::Less))
                };
                apart(max, other_min) || apart(other_max, min)
            }
            (Check::Range { .. }, Check::Pattern(_)) | (Check::Pattern(_), Check::Range { .. }) => {
                true
            }
            (Check::Pattern(_), Check::Pattern(_)) => false,
        }
    }
}

fn judge_list(wanted: &[Value], value: &Value) -> Judged {
    if wanted.iter().any(|wanted| same(wanted, value)) {
        return Judged::Holds;
    }
    let same_type =
        |wanted: &Value| std::mem::discriminant(wanted) == std::mem::discriminant(value);
    if wanted.iter().any(same_type) { Judged::Fails } else { Judged::WrongType }
}

/// Equality in which `1` and `1.0` are the same number.
fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => {
            compare(left, right) == Some(Ordering::Equal)
        }
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len()
                && left.iter().zip(right).all(|(left, right)| same(left, right))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .all(|(key, value)| right.get(key).is_some_and(|other| same(value, other)))
        }
        _ => left == right,
    }
}

/// Exact for whole numbers.
pub(crate) fn compare(left: &Number, right: &Number) -> Option<Ordering> {
    let whole = |number: &Number| {
        number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
    };
    match (whole(left), whole(right)) {
        (Some(left), Some(right)) => Some(left.cmp(&right)),
        _ => left.as_f64()?.partial_cmp(&right.as_f64()?),
    }
}

impl fmt::Display for ArgumentConstraint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "`{}` ", crate::host::shown(&self.pointer))?;
        match &self.check {
            Check::Equals(value) => write!(formatter, "= {value}"),
            Check::OneOf(values) => write!(formatter, "one of {}", Value::from(values.clone())),
            Check::Pattern(pattern) => write!(formatter, "matches {:?}", pattern.source),
            Check::Range { min, max } => match (min, max) {
                (Some(min), Some(max)) => write!(formatter, "from {min} to {max}"),
                (Some(min), None) => write!(formatter, "at least {min}"),
                (_, Some(max)) => write!(formatter, "at most {max}"),
                (None, None) => formatter.write_str("a number"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn holds(check: Check, value: &Value, strict: bool) -> bool {
        ArgumentConstraint { pointer: "/a".to_owned(), check }.holds(&json!({ "a": value }), strict)
    }

    #[test]
    fn each_kind() {
        let range = || Check::Range { min: Some(1.into()), max: Some(10.into()) };
        assert!(holds(range(), &json!(10.0), false) && !holds(range(), &json!(10.5), true));
        assert!(!holds(range(), &json!("5"), false) && holds(range(), &json!("5"), true));
        assert!(holds(Check::Equals(json!(1)), &json!(1.0), false));
        assert!(
            !holds(Check::Equals(json!("x")), &json!("y"), true)
                && holds(Check::Equals(json!("x")), &json!(["x"]), true)
        );
        let pattern = |text| Check::Pattern(Pattern::new(text).unwrap());
        assert!(
            holds(pattern("a|b"), &json!("b"), false)
                && !holds(pattern("a|b"), &json!("ab"), false)
        );
        assert!(holds(pattern(".*x.*"), &json!("1\nx\n2"), false));
        assert!(!holds(pattern("a"), &json!("a\n"), false));
        assert!(
            !ArgumentConstraint { pointer: "/b".to_owned(), check: range() }
                .holds(&json!({}), true)
        );
    }

    #[test]
    fn patterns_are_bounded_and_cannot_break_out() {
        assert!(Pattern::new("a)|(b").is_err());
        assert!(Pattern::new("(?:a{1000}){1000}").is_err());
        assert!(Pattern::new(&"a".repeat(2000)).is_err());
        assert!(Pattern::new("(a+)+$").is_ok());
    }
}
