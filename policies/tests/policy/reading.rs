//! Problems of policy text: every one, with its line and a remedy.

use fumehood_policies::*;
use proptest::prelude::*;

/// `line: message; remedy` of every problem.
fn problems(text: &str) -> Vec<String> {
    let Err(errors) = PolicyFile::parse(text, "p.toml") else { return Vec::new() };
    for problem in &errors.problems {
        assert!(problem.line >= 1 && problem.column >= 1, "{problem:?}");
        assert!(!problem.message.is_empty() && !problem.remedy.is_empty(), "{problem:?}");
    }
    errors
        .to_string()
        .lines()
        .map(|line| line.strip_prefix("p.toml:").unwrap().to_owned())
        .collect()
}

#[track_caller]
fn assert_one(text: &str, parts: &[&str]) {
    let found = problems(text);
    assert_eq!(found.len(), 1, "{found:#?}");
    for part in parts {
        assert!(found[0].contains(part), "{} lacks {part}", found[0]);
    }
}

#[test]
fn every_problem_is_reported_at_once() {
    let text = r#"version = 2
flgs = "narrow"

[fs]
memory = "read-writ"
alow = ["x"]

[[fs.mounts]]
id = "data"
at = "/work/../data"
host = "relative"

[[fs.rules]]
id = "memory"
action = "alow"
paths = ["/work/../etc/**", "/a?"]
operations = ["fs.read", "reed"]

[budget]
wall_s = "10"
memory_mb = 1
"#;
    let found = problems(text);
    let lines: Vec<&str> = found.iter().map(|line| line.split(':').next().unwrap()).collect();
    assert_eq!(
        lines,
        ["1", "2", "5", "6", "10", "11", "14", "15", "16", "16", "17", "17", "20", "21"],
        "{found:#?}"
    );
    let all = found.join("\n");
    for part in [
        "unknown key \"flgs\" at the top; did you mean \"flags\"?",
        "unknown key \"alow\" in [fs]",
        "did you mean \"read-write\"?",
        "did you mean \"allow\"?",
        "did you mean \"read\"?",
        "without `fs.`",
        "it would mean `/etc/**`",
        "the broker's own",
        "write 64 to 4096",
    ] {
        assert!(all.contains(part), "{part} is not in {all}");
    }
}

#[test]
fn syntax_errors_have_lines_too() {
    let found = problems("version = 1\n[fs\nmemory = \"none\"\n\n[[net]]\nid = = 3\n");
    assert!(found.len() >= 2, "{found:?}");
    assert!(found[0].starts_with("2: "), "{found:?}");
    assert!(found.iter().any(|line| line.starts_with("6: ")), "{found:?}");
    assert_one("version = 1\nversion = 1\n", &["2: ", "duplicate"]);
}

#[test]
fn texts_that_must_be_refused() {
    let rule = |id: &str, more: &str| {
        format!("[[fs.rules]]\nid = \"{id}\"\npaths = [\"/a/**\"]\n{more}\n")
    };
    assert_one("[fs]\n", &["1: ", "version = 1"]);
    let same = format!("version = 1\n{}{}", rule("a", ""), rule("a", ""));
    assert_one(&same, &["6: ", "the id \"a\" is already that of line 2"]);
    let contradiction = format!("version = 1\n{}{}", rule("a", ""), rule("b", "action = \"deny\""));
    assert_one(&contradiction, &["2: ", "rule \"a\" contradicts rule \"b\" (line 6)"]);
    let hosts = |list: &str| format!("version = 1\n[[net]]\nid = \"n\"\nhosts = {list}\n");
    assert_one(&hosts("[]"), &["4: ", "empty"]);
    assert_one("version = 1\n[[net]]\nid = \"n\"\n", &["2: ", "no `hosts`"]);
    for host in ["*", "*.com", "foo.*", "**x.com", "*.co.uk"] {
        assert_one(&hosts(&format!("[\"{host}\"]")), &["4: "]);
    }
    assert_one(
        "version = 1\n[native]\ntiers = [\"landlock\", \"process\"]\n",
        &["process", "alone"],
    );
    assert_one(
        "version = 1\n[[tools.rules]]\nid = \"t\"\ntools = [\"a b\"]\n",
        &["4: ", "no tool"],
    );
    let argument = |text: &str| {
        format!(
            "version = 1\n[[tools.rules]]\nid = \"t\"\ntools = [\"a\"]\n[[tools.rules.arguments]]\npointer = \"/x\"\n{text}\n"
        )
    };
    assert_one(&argument(""), &["5: ", "exactly one"]);
    assert_one(&argument("min = 3\nmax = 1"), &["more than `max`"]);
    assert_one(&argument("pattern = \"(\""), &["7: ", "pattern"]);
    assert_one(&argument("equals = 1\none_of = [1]"), &["exactly one"]);
    assert_one(
        "version = 1\n[[fs.mounts]]\nid = \"m\"\nat = \"/\"\nhost = \"/srv\"\n",
        &["2: ", "in-memory root"],
    );
    let mounts = "version = 1\n[[fs.mounts]]\nid = \"m\"\nat = \"/a\"\nhost = \"/x\"\n[[fs.mounts]]\nid = \"n\"\nat = \"/a/b\"\nhost = \"/y\"\n";
    assert_one(mounts, &["6: ", "overlaps", "line 2"]);
    let failing = "version = 1\n\n[[example]]\nrequest = \"fs.read /x\"\nexpect = \"deny\"\n";
    assert_one(failing, &["4: ", "expected to be deny and is allow (rule memory)"]);
    assert_one(
        "version = 1\n[[example]]\nrequest = \"fs.reed /x\"\nexpect = \"deny\"\n",
        &["3: ", "not a request"],
    );
    let large = "#".repeat(MAX_POLICY_BYTES + 1);
    assert_one(&large, &["1048577 bytes"]);
}

#[test]
fn rules_that_disagree_are_refused() {
    let tool = |id: &str, tools: &str, calls: u32, more: &str| {
        format!(
            "[[tools.rules]]\nid = \"{id}\"\ntools = [\"{tools}\"]\nmax_calls = {calls}\n{more}\n"
        )
    };
    let two = |left: String, right: String| format!("version = 1\n{left}{right}");
    assert_one(
        &two(tool("a", "s*", 1, ""), tool("b", "*h", 2, "")),
        &["7: ", "\"a\" (line 2)", "\"b\"", "disagree"],
    );
    assert!(problems(&two(tool("a", "s*", 1, ""), tool("b", "*h", 1, ""))).is_empty());
    assert!(problems(&two(tool("a", "s*", 1, ""), tool("b", "t*", 2, ""))).is_empty());
    let at = |value: u8| format!("arguments = [{{ pointer = \"/x\", equals = {value} }}]");
    assert!(problems(&two(tool("a", "s*", 1, &at(1)), tool("b", "*h", 2, &at(2)))).is_empty());
    let net = |id: &str, host: &str, bytes: u32| {
        format!("[[net]]\nid = \"{id}\"\nhosts = [\"{host}\"]\nmax_bytes = {bytes}\n")
    };
    assert_one(
        &two(net("a", "**.example.com", 1), net("b", "*.x.example.com", 2)),
        &["6: ", "disagree"],
    );
    assert!(
        problems(&two(net("a", "*.example.com", 1), net("b", "*.x.example.com", 2))).is_empty()
    );
}

#[test]
fn a_whole_policy_is_read() {
    let text = include_str!("../../../docs/policy.md");
    let whole = text.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let file = PolicyFile::parse(whole, "whole.toml").unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(file.unsupported_sections(), ["secrets", "bash", "native"]);
    assert!(file.examples().len() >= 5);
    assert!(file.summary().to_string().contains("good, sha256"));
}

#[test]
fn unsupported_sections_are_named() {
    let names = |text: &str| PolicyFile::parse(text, "p").unwrap().unsupported_sections();
    assert!(names("version = 1\n[fs]\n[tools]\n[budget]\n[env]\n[ask]\nttl_s = 5\n").is_empty());
    assert_eq!(names("version = 1\n[bash]\n[native]\n"), ["bash", "native"]);
}

#[test]
fn hostile_text_is_shown_escaped() {
    let found = problems("version = 1\n\"\\u001b[31m\" = 1\n");
    assert_eq!(found.len(), 1);
    assert!(!found[0].contains('\u{1b}'), "{found:?}");
}

#[test]
fn problems_are_bounded() {
    let text = format!(
        "version = 1\n{}",
        (0..500).map(|n| format!("unknown{n} = 1\n")).collect::<String>()
    );
    let errors = PolicyFile::parse(&text, "p").unwrap_err();
    assert_eq!((errors.problems.len(), errors.more), (MAX_PROBLEMS, 400));
}

#[test]
fn large_policies_are_read_in_bounded_time() {
    let rules: String = (0..900)
        .map(|n| format!("[[tools.rules]]\nid = \"r{n}\"\ntools = [\"t{n}_*\", \"*_{n}x\"]\n"))
        .collect();
    assert!(problems(&format!("version = 1\n{rules}")).is_empty());
    let many = (0..1001).map(|n| format!("\"t{n}\"")).collect::<Vec<_>>().join(", ");
    assert_one(
        &format!("version = 1\n[[tools.rules]]\nid = \"r\"\ntools = [{many}]\n"),
        &["1001 entries"],
    );
}

#[test]
fn deep_and_long_texts_end() {
    let half = MAX_POLICY_BYTES / 2;
    let texts = [
        format!("{}a = 1\n", "a.".repeat(half - 10)),
        format!("[{}a]\n", "a.".repeat(half - 10)),
        format!("a = {}", "[".repeat(half)),
        format!("a = {}", "{a=".repeat(half / 2)),
        "[a]\n".repeat(half / 4),
        "[[example]]\n".repeat(half / 12),
        "a\n".repeat(half),
        "\"".repeat(half),
        format!("[env]\nset = {{ {} }}", "a.".repeat(1000) + "a = 1"),
    ];
    for text in texts {
        assert!(!problems(&text).is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn parsing_never_panics(text in "\\PC{0,200}") {
        let _ = PolicyFile::parse(&text, "p");
    }

    #[test]
    fn parsing_words_of_policies_never_panics(words in proptest::collection::vec(prop_oneof![
        Just("version = 1\n"), Just("[fs]\n"), Just("[[fs.rules]]\n"), Just("[[fs.mounts]]\n"), Just("[[net]]\n"),
        Just("[env]\n"), Just("[tools]\n"), Just("[[tools.rules]]\n"), Just("[[tools.rules.arguments]]\n"),
        Just("[budget]\n"), Just("[[example]]\n"), Just("id = \"a\"\n"), Just("id = \"b\"\n"), Just("paths = [\"/a/**\"]\n"),
        Just("hosts = [\"*.example.com\"]\n"), Just("tools = [\"*\"]\n"), Just("action = \"deny\"\n"), Just("at = \"/m\"\n"),
        Just("host = \"/h\"\n"), Just("request = \"fs.read /a/b\"\n"), Just("expect = \"deny\"\n"), Just("pointer = \"/a\"\n"),
        Just("equals = 1\n"), Just("max_calls = 1\n"), Just("wall_s = 1.5\n"), Just("preset = \"small\"\n"),
        Just("set = { A = \"b\" }\n"), Just("allow = [\"A\"]\n"), Just("[secrets.x]\n"), Just("= = \n"), Just("paths = 1\n"),
    ], 0..20)) {
        let text: String = words.concat();
        if let Ok(file) = PolicyFile::parse(&text, "p") {
            let _ = file.summary();
            prop_assert!(diff(&file, &file).is_empty());
        }
    }
}
