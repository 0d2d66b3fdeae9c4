//! Reading a table of policy text.
//!
//! What: [`Section`] gives typed values of a table and reports what is wrong
//! with them; it is made with the keys it knows and reports all others.
//! Why: one walk finds every problem with its line, which a deserialiser that
//! stops at the first cannot.
//!
//! Invariant: a getter that returns `None` for a key that is there has reported
//! a problem, so a text without problems was read completely.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::{Number, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::Report;
use crate::host::shown;

/// Most entries of one list in policy text.
pub(crate) const MAX_LIST: usize = 1000;

pub(crate) type Span = Range<usize>;

/// A value with its place.
#[derive(Clone, Debug)]
pub(crate) struct At<T> {
    pub(crate) value: T,
    pub(crate) span: Span,
}

/// A table, its name in messages and its path of keys.
pub(crate) struct Section<'s> {
    table: &'s DeTable<'s>,
    pub(crate) span: Span,
    name: String,
    path: String,
    known: &'static [&'static str],
    pub(crate) report: &'s Report<'s>,
}

impl<'s> Section<'s> {
    pub(crate) fn new(
        report: &'s Report<'s>,
        table: &'s DeTable<'s>,
        span: Span,
        name: String,
        path: String,
        known: &'static [&'static str],
    ) -> Self {
        let section = Self { table, span, name, path, known, report };
        for key in table.keys() {
            section.check_key(key);
        }
        section
    }

    fn check_key(&self, key: &Spanned<std::borrow::Cow<'_, str>>) {
        let written: &str = key.get_ref();
        if self.known.contains(&written) {
            return;
        }
        let place = if self.path.is_empty() {
            "at the top".to_owned()
        } else {
            format!("in {}", self.name)
        };
        let remedy = suggestion(written, self.known).map_or_else(
            || format!("the keys here are {}", self.known.join(", ")),
            |known| format!("did you mean \"{known}\"?"),
        );
        self.report.add(
            &key.span(),
            &self.key(&shown(written)),
            format!("unknown key \"{}\" {place}", shown(written)),
            remedy,
        );
    }

    /// The path of a key of this table.
    pub(crate) fn key(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    pub(crate) fn line(&self) -> usize {
        self.report.line(&self.span)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&'s Spanned<DeValue<'s>>> {
        debug_assert!(self.known.contains(&key), "{key} is not a known key of {}", self.name);
        self.table.get(key)
    }

    pub(crate) fn problem(
        &self,
        span: &Span,
        key: &str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.report.add(span, &self.key(key), message, remedy);
    }

    pub(crate) fn wrong_type(&self, value: &Spanned<DeValue<'_>>, key: &str, wanted: &str) {
        let found = value.get_ref().type_str();
        self.problem(
            &value.span(),
            key,
            format!("`{key}` is a {found}"),
            format!("write {wanted}"),
        );
    }

    /// Reports a required key that is absent.
    pub(crate) fn missing(&self, key: &str, remedy: &str) {
        self.problem(&self.span, key, format!("{} has no `{key}`", self.name), remedy);
    }

    pub(crate) fn text(&self, key: &str) -> Option<At<String>> {
        let value = self.get(key)?;
        match value.get_ref() {
            DeValue::String(text) => Some(At { value: text.to_string(), span: value.span() }),
            _ => {
                self.wrong_type(value, key, "a string in quotes");
                None
            }
        }
    }

    /// A string, of which there must be one.
    pub(crate) fn required_text(&self, key: &str, remedy: &str) -> Option<At<String>> {
        if !self.has(key) {
            self.missing(key, remedy);
        }
        self.text(key)
    }

    /// One of a few words.
    pub(crate) fn choice<T: Copy>(&self, key: &str, choices: &[(&'static str, T)]) -> Option<T> {
        let text = self.text(key)?;
        self.word(&text, key, choices)
    }

    pub(crate) fn word<T: Copy>(
        &self,
        text: &At<String>,
        key: &str,
        choices: &[(&'static str, T)],
    ) -> Option<T> {
        if let Some((_, value)) = choices.iter().find(|(name, _)| *name == text.value) {
            return Some(*value);
        }
        let names: Vec<&'static str> = choices.iter().map(|(name, _)| *name).collect();
        let remedy = suggestion(&text.value, &names).map_or_else(
            || format!("write one of {}", quoted(&names)),
            |known| format!("did you mean \"{known}\"?"),
        );
        self.problem(&text.span, key, format!("`{key}` is \"{}\"", shown(&text.value)), remedy);
        None
    }

    /// `true` or `false`.
    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        let value = self.get(key)?;
        if let DeValue::Boolean(flag) = value.get_ref() {
            return Some(*flag);
        }
        self.wrong_type(value, key, "true or false, without quotes");
        None
    }

    /// A whole number that is not negative.
    pub(crate) fn integer(&self, key: &str) -> Option<At<u64>> {
        let value = self.get(key)?;
        let number = match value.get_ref() {
            DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => None,
        };
        if number.is_none() {
            self.problem(
                &value.span(),
                key,
                format!("`{key}` is not a whole number from 0"),
                "write a number without quotes, sign or point",
            );
        }
        number.map(|number| At { value: number, span: value.span() })
    }

    /// A number in units, which may have a fraction where the unit is large.
    pub(crate) fn scaled(&self, key: &str, scale: u64) -> Option<At<u64>> {
        let value = self.get(key)?;
        let scaled = match value.get_ref() {
            DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix())
                .ok()
                .and_then(|number| number.checked_mul(scale)),
            DeValue::Float(number) if scale > 1 => {
                number.as_str().parse::<f64>().ok().and_then(|number| scale_float(number, scale))
            }
            _ => None,
        };
        if scaled.is_none() {
            let remedy = if scale > 1 {
                "write a number from 0 without quotes"
            } else {
                "write a whole number from 0 without quotes"
            };
            self.problem(&value.span(), key, format!("`{key}` is not such a number"), remedy);
        }
        scaled.map(|number| At { value: number, span: value.span() })
    }

    /// A list of strings; an empty one is reported.
    pub(crate) fn texts(&self, key: &str) -> Option<Vec<At<String>>> {
        let value = self.get(key)?;
        let DeValue::Array(items) = value.get_ref() else {
            self.wrong_type(value, key, "a list such as [\"a\", \"b\"]");
            return None;
        };
        if items.is_empty() {
            let message = format!("`{key}` is empty, so it would match nothing");
            self.problem(&value.span(), key, message, "name at least one, or remove the rule");
            return None;
        }
        if items.len() > MAX_LIST {
            self.problem(
                &value.span(),
                key,
                format!("`{key}` has {} entries", items.len()),
                format!("keep it to {MAX_LIST}"),
            );
            return None;
        }
        let mut texts = Vec::with_capacity(items.len());
        for item in items.iter() {
            match item.get_ref() {
                DeValue::String(text) => {
                    texts.push(At { value: text.to_string(), span: item.span() })
                }
                _ => self.wrong_type(item, key, "strings in quotes"),
            }
        }
        Some(texts)
    }

    /// A table under a key.
    pub(crate) fn table(&self, key: &str, known: &'static [&'static str]) -> Option<Self> {
        let value = self.get(key)?;
        let DeValue::Table(table) = value.get_ref() else {
            self.wrong_type(value, key, &format!("a table: [{}]", self.key(key)));
            return None;
        };
        let path = self.key(key);
        Some(Self::new(self.report, table, value.span(), format!("[{path}]"), path, known))
    }

    /// A list of tables under a key.
    pub(crate) fn tables(&self, key: &str, known: &'static [&'static str]) -> Vec<Self> {
        let Some(value) = self.get(key) else { return Vec::new() };
        let path = self.key(key);
        let DeValue::Array(items) = value.get_ref() else {
            self.wrong_type(value, key, &format!("tables: [[{path}]]"));
            return Vec::new();
        };
        if items.len() > MAX_LIST {
            self.problem(
                &value.span(),
                key,
                format!("`{path}` has {} entries", items.len()),
                format!("keep it to {MAX_LIST}"),
            );
            return Vec::new();
        }
        let mut sections = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            match item.get_ref() {
                DeValue::Table(table) => {
                    let (name, path) = (format!("[[{path}]]"), format!("{path}[{index}]"));
                    sections.push(Self::new(self.report, table, item.span(), name, path, known));
                }
                _ => self.wrong_type(item, key, &format!("tables: [[{path}]]")),
            }
        }
        sections
    }

    /// The entries of a table whose keys are names of the user's.
    pub(crate) fn entries(&self, key: &str) -> Vec<(At<String>, &'s Spanned<DeValue<'s>>)> {
        let Some(value) = self.get(key) else { return Vec::new() };
        let DeValue::Table(table) = value.get_ref() else {
            self.wrong_type(value, key, "a table such as { NAME = \"value\" }");
            return Vec::new();
        };
        table
            .iter()
            .map(|(name, value)| {
                (At { value: name.get_ref().to_string(), span: name.span() }, value)
            })
            .collect()
    }

    /// A number with or without a fraction.
    pub(crate) fn number(&self, key: &str) -> Option<Number> {
        let value = self.get(key)?;
        match to_json(value.get_ref()) {
            Some(Value::Number(number)) => Some(number),
            _ => {
                self.wrong_type(value, key, "a finite number of at most 64 bits");
                None
            }
        }
    }

    /// A value of JSON.
    pub(crate) fn json(&self, key: &str) -> Option<Value> {
        let value = self.get(key)?;
        let json = to_json(value.get_ref());
        if json.is_none() {
            self.wrong_type(value, key, "a string, number, boolean, list or table");
        }
        json
    }
}

fn scale_float(number: f64, scale: u64) -> Option<u64> {
    #[allow(clippy::cast_precision_loss)]
    let scaled = (number * scale as f64).round();
    // Below 2^53 every whole number is exact.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    (scaled.is_finite() && (0.0..9_007_199_254_740_992.0).contains(&scaled))
        .then_some(scaled as u64)
}

/// A value of TOML as JSON; `None` for dates and what JSON cannot hold.
pub(crate) fn to_json(value: &DeValue<'_>) -> Option<Value> {
    match value {
        DeValue::String(text) => Some(Value::String(text.to_string())),
        DeValue::Integer(number) => {
            let signed = i64::from_str_radix(number.as_str(), number.radix()).ok().map(Value::from);
            signed.or_else(|| {
                u64::from_str_radix(number.as_str(), number.radix()).ok().map(Value::from)
            })
        }
        DeValue::Float(number) => {
            Number::from_f64(number.as_str().parse().ok()?).map(Value::Number)
        }
        DeValue::Boolean(value) => Some(Value::Bool(*value)),
        DeValue::Datetime(_) => None,
        DeValue::Array(items) => items
            .iter()
            .map(|item| to_json(item.get_ref()))
            .collect::<Option<Vec<_>>>()
            .map(Value::Array),
        DeValue::Table(table) => {
            let entry = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
                let key: &std::borrow::Cow<'_, str> = key.get_ref();
                to_json(value.get_ref()).map(|value| (key.to_string(), value))
            };
            table
                .iter()
                .map(entry)
                .collect::<Option<BTreeMap<_, _>>>()
                .map(|map| Value::Object(map.into_iter().collect()))
        }
    }
}

/// The known word that is nearest to a written one.
pub(crate) fn suggestion<'k>(written: &str, known: &[&'k str]) -> Option<&'k str> {
    if written.len() > 64 {
        return None;
    }
    let lower = written.to_lowercase();
    let near = |word: &&'k str| (strsim::damerau_levenshtein(&lower, word), *word);
    let (distance, word) = known.iter().map(near).min()?;
    let prefix = word.len() >= 3
        && lower.len() >= 3
        && (lower.starts_with(word) || word.starts_with(&lower));
    (distance <= 1.max(word.len() / 3) || prefix).then_some(word)
}

pub(crate) fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}
