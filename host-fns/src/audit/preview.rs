//! Previews of a tool's arguments for the audit.
//!
//! What: at most [`MAX_PREVIEW_BYTES`] of the arguments that the tool's schema
//! names, each as a short value or as its kind and size.
//!
//! Invariant: a value is shown only if the schema names it, it is a number, a
//! truth value or a short text, and neither its name, its schema nor its look
//! says that it is secret. Everything else is told by size alone.

use std::fmt::Write as _;

use serde_json::{Map, Value};

/// Longest preview, in bytes.
pub const MAX_PREVIEW_BYTES: usize = 256;
/// Most characters of a command that are shown.
const MAX_COMMAND_CHARACTERS: usize = 120;
/// Longest text that is shown, in bytes.
const MAX_SHOWN_TEXT_BYTES: usize = 40;
/// A word of this many bytes or more with digits and letters mixed looks like
/// a key.
const KEY_LIKE_BYTES: usize = 16;

/// Parts of names whose values are secret, in lower case.
const SECRET_NAMES: [&str; 16] = [
    "pass",
    "secret",
    "token",
    "key",
    "auth",
    "cred",
    "cookie",
    "session",
    "signature",
    "bearer",
    "private",
    "pin",
    "otp",
    "cert",
    "salt",
    "jwt",
];

/// Beginnings of well-known credentials.
const SECRET_PREFIXES: [&str; 14] = [
    "sk-",
    "sk_",
    "pk_",
    "rk_",
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "xox",
    "AKIA",
    "ASIA",
    "eyJ",
    "-----BEGIN",
];

/// The preview of the arguments of one call.
pub(crate) fn preview(schema: &Value, arguments: &Map<String, Value>) -> String {
    let properties = schema.get("properties").and_then(Value::as_object);
    let mut text = String::new();
    let mut left_out = 0_usize;
    for (name, value) in arguments {
        let known = properties.and_then(|properties| properties.get(name));
        let Some(property) = known else {
            left_out = left_out.saturating_add(1);
            continue;
        };
        let shown = shown(name, property, value);
        let separator = if text.is_empty() { "" } else { ", " };
        if text.len() + separator.len() + name.len() + 1 + shown.len() > MAX_PREVIEW_BYTES - 16 {
            left_out = left_out.saturating_add(1);
            continue;
        }
        // Writing to a string does not fail.
        let _ = write!(text, "{separator}{name}={shown}");
    }
    if left_out > 0 {
        let separator = if text.is_empty() { "" } else { ", " };
        let _ = write!(text, "{separator}+{left_out}");
    }
    text
}

/// The beginning of a command, escaped, without what looks secret. Redacted
/// before it is cut: half a key does not look like one.
pub(crate) fn command_preview(command: &str) -> String {
    let redacted = redact(command);
    let cut = redacted.char_indices().nth(MAX_COMMAND_CHARACTERS).map(|(at, _)| at);
    let mut text = String::new();
    let shown = redacted.get(..cut.unwrap_or(redacted.len())).unwrap_or_default();
    // Writing to a string does not fail.
    let _ = fumehood_policies::escape(shown.as_bytes(), &mut text);
    if cut.is_some() {
        text.push('…');
    }
    text
}

/// The text of a command without what looks secret: values of variables and
/// options whose names say so, what follows such an option or header, all of it
/// up to the end of the quotes it is in, and words that look like keys. It is no
/// shell: quotes in a comment or a here document are taken for quotes.
fn redact(command: &str) -> String {
    let mut text = String::with_capacity(command.len());
    // How many words the one before makes secret.
    let mut hidden = 0_u8;
    // The quote that is open, and whether what it holds is secret.
    let mut quote = None;
    let mut in_secret = false;
    for word in command.split_inclusive(char::is_whitespace) {
        let bare = word.trim_end();
        let space = word.get(bare.len()..).unwrap_or_default();
        quote = quote_after(quote, bare);
        match secret_value(bare) {
            _ if (in_secret || hidden > 0) && !bare.is_empty() => {
                let scheme = bare.trim_matches(['\'', '"']).to_lowercase();
                let is_scheme =
                    hidden > 1 && matches!(scheme.as_str(), "bearer" | "basic" | "token");
                hidden = u8::from(is_scheme || bare.ends_with('\\'));
                in_secret = quote.is_some();
                text.push_str(if is_scheme { bare } else { HIDDEN });
            }
            Some(start) => {
                hidden = u8::from(bare.ends_with('\\'));
                in_secret = quote.is_some();
                text.push_str(bare.get(..start).unwrap_or_default());
                text.push_str(HIDDEN);
            }
            None if !may_show_word(bare) => text.push_str(HIDDEN),
            None => {
                let is_header = bare.ends_with(':');
                if has_secret_name(bare) && (bare.starts_with('-') || is_header) {
                    hidden = if is_header { 2 } else { 1 };
                    in_secret = is_header && quote.is_some();
                }
                text.push_str(bare);
            }
        }
        text.push_str(space);
    }
    text
}

/// The quote that is open behind a word, given the one before it.
fn quote_after(mut quote: Option<char>, word: &str) -> Option<char> {
    let mut characters = word.chars();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (None | Some('"'), '\\') => drop(characters.next()),
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            _ => {}
        }
    }
    quote
}

/// Where the value begins that a secret name within the word gives.
fn secret_value(word: &str) -> Option<usize> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    word.match_indices(['=', ':']).map(|(at, _)| at).find_map(|at| {
        let name = word.get(..at)?.rsplit(|c| !is_name(c)).next()?;
        let start = at.checked_add(1).filter(|start| *start < word.len())?;
        has_secret_name(name).then_some(start)
    })
}

/// In place of what is not shown.
const HIDDEN: &str = "<hidden>";

fn may_show_word(word: &str) -> bool {
    !SECRET_PREFIXES.iter().any(|prefix| word.contains(prefix))
        && !word.split(|c: char| !c.is_ascii_alphanumeric()).any(looks_like_a_key)
}

fn has_secret_name(name: &str) -> bool {
    let name = name.to_lowercase();
    SECRET_NAMES.iter().any(|part| name.contains(part))
}

fn shown(name: &str, schema: &Value, value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Array(items) => format!("<list of {}>", items.len()),
        Value::Object(members) => format!("<object of {}>", members.len()),
        Value::String(text) if is_secret(name, schema) || !may_show(text) => {
            format!("<text of {}>", text.len())
        }
        Value::String(text) => format!("{text:?}"),
        Value::Bool(_) | Value::Number(_) if is_secret(name, schema) => "<hidden>".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => value.to_string(),
    }
}

fn is_secret(name: &str, schema: &Value) -> bool {
    has_secret_name(name)
        || schema.get("writeOnly").and_then(Value::as_bool) == Some(true)
        || schema.get("format").and_then(Value::as_str) == Some("password")
}

fn may_show(text: &str) -> bool {
    text.len() <= MAX_SHOWN_TEXT_BYTES && may_show_word(text)
}

fn looks_like_a_key(word: &str) -> bool {
    word.len() >= KEY_LIKE_BYTES
        && word.bytes().any(|byte| byte.is_ascii_digit())
        && word.bytes().any(|byte| byte.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    fn of(schema: &Value, arguments: &Value) -> String {
        preview(schema, arguments.as_object().unwrap())
    }

    #[test]
    fn only_what_the_schema_names_and_nothing_that_looks_secret_is_shown() {
        let schema = json!({ "properties": {
            "city": {}, "count": {}, "deep": {}, "list": {}, "password": {}, "apiKey": {},
            "note": {}, "hidden": { "writeOnly": true }, "pw": { "format": "password" }, "n": {},
        }});
        assert_eq!(of(&schema, &json!({ "city": "Rome", "count": 3 })), "city=\"Rome\", count=3");
        for (name, value) in [
            ("password", json!("hunter2")),
            ("password", json!(123_456)),
            ("apiKey", json!("x")),
            ("hidden", json!("hunter2")),
            ("pw", json!("hunter2")),
            ("note", json!("sk-hunter2")),
            ("note", json!("AKIAhunter2")),
            ("note", json!("0123456789abcdef hunter2")),
            ("note", json!("hunter2 ".repeat(20))),
            ("deep", json!({ "a": "hunter2" })),
            ("list", json!(["hunter2"])),
            ("other", json!("hunter2")),
        ] {
            let text = of(&schema, &json!({ name: value }));
            assert!(!text.contains("hunter2") && !text.contains("123456"), "{name}: {text}");
        }
        let hostile = of(&schema, &json!({ "note": "a\n\u{202e}\u{1b}[2J" }));
        assert_eq!(hostile, r#"note="a\n\u{202e}\u{1b}[2J""#);
    }

    #[test]
    fn a_command_is_shown_without_what_looks_secret() {
        for plain in ["ls -l /work", "echo a  b\tc", "", " ", "grep x=1 file:2"] {
            assert_eq!(redact(plain), plain);
        }
        for secret in [
            "API_TOKEN=hunter2 run",
            "curl -H 'Authorization: Bearer hunter2' host",
            "curl -H \"X-Api-Key: hunter2\" host",
            "mysql --password hunter2",
            "mysql --password=hunter2",
            "login sk-hunter2",
            "curl https://x/?key=hunter2",
            "echo hunter20123456789abcdef",
        ] {
            assert!(!redact(secret).contains("hunter2"), "{secret}: {}", redact(secret));
        }
        assert_eq!(redact("A_KEY=x ls"), "A_KEY=<hidden> ls");
    }

    #[test]
    fn a_secret_of_several_words_is_hidden_to_the_end_of_its_quotes() {
        for secret in [
            "DB_PASSWORD='correct hunter2 hunter2' run shown",
            "docker run -e \"DB_PASSWORD=correct hunter2\" shown",
            "mysql --password 'correct hunter2' shown",
            "mysql --password=\"correct \\\" hunter2\" shown",
            "curl -H 'Authorization: Bearer a b hunter2' shown",
            "curl -H \"X-Api-Key: a hunter2\" shown",
            "DB_PASSWORD=correct\\ hunter2 shown",
            "mysql --password correct\\ hunter2 shown",
            "TOKEN='basic token hunter2' shown",
            "sh -c \"API_TOKEN='a hunter2' run\" shown",
        ] {
            let text = redact(secret);
            assert!(!text.contains("hunter2") && text.ends_with(" shown"), "{secret}: {text}");
        }
        let open = "TOKEN='it never ends hunter2";
        assert!(!redact(open).contains("hunter2"));
        assert_eq!(redact("PIN='1 2' ls -l"), "PIN=<hidden> <hidden> ls -l");
        assert_eq!(redact("echo \"it's\" 'a b'"), "echo \"it's\" 'a b'");
    }

    #[test]
    fn a_command_is_redacted_before_it_is_cut_and_escaped() {
        let key = "hunter20123456789abcdef";
        for filler in 0..=MAX_COMMAND_CHARACTERS {
            let text = command_preview(&format!("{} {key}", "x".repeat(filler)));
            assert!(!text.contains("hunter"), "{filler}: {text}");
        }
        let text = command_preview(&format!("a\nTOKEN=hunter2\n\u{1b}]0;{}", "y".repeat(500)));
        assert!(!text.contains("hunter2") && !text.contains('\u{1b}'), "{text}");
        assert!(!text.contains('\n') && text.ends_with('…'), "{text}");
        assert_eq!(command_preview("ls -l"), "ls -l");
    }

    #[test]
    fn a_preview_is_bounded() {
        let names: Vec<String> = (0..500).map(|n| format!("argument{n}")).collect();
        let all: Map<String, Value> = names.iter().map(|n| (n.clone(), json!("value"))).collect();
        let schema = json!({ "properties": all });
        let text = preview(&schema, &all);
        assert!(text.len() <= MAX_PREVIEW_BYTES, "{}", text.len());
        assert!(text.ends_with("+490") || text.contains(", +"), "{text}");
    }
}
