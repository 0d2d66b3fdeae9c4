//! Policy text and questions to a policy.

use fumehood_policies::{Flags, MAX_PROBLEMS, Policy, PolicyFile, Question, Verdict, diff, preset};

/// Asked of every policy that was understood.
const QUESTIONS: &[&str] = &[
    "fs.read /work/x",
    "fs.create /tmp/y",
    "fs.rename /work/a -> /tmp/b",
    "tool search {\"a\": 1}",
    "net GET https://api.example.com/v1",
    "env PATH",
    "bash ls",
];

/// Policy text, with a question in the lines after a line `---`.
///
/// Properties: the same text gives the same policy; what is refused is refused
/// with at least one problem and a bounded number of them; a policy differs
/// from itself in nothing; a ceiling never allows more.
pub fn policy(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (text, question) = text.split_once("\n---\n").unwrap_or((text, ""));
    let file = match PolicyFile::parse(text, "fuzz.toml") {
        Ok(file) => file,
        Err(errors) => {
            let problems = errors.problems.len();
            assert!((1..=MAX_PROBLEMS).contains(&problems), "{problems} problems");
            assert!(!errors.to_string().is_empty());
            return;
        }
    };
    assert!(diff(&file, &file).is_empty());
    let combined = |ceiling| Policy::combine(Some(&file), &Flags::default(), ceiling).ok();
    let Some(alone) = combined(None) else { return };
    let again = PolicyFile::parse(text, "fuzz.toml")
        .ok()
        .and_then(|file| Policy::combine(Some(&file), &Flags::default(), None).ok());
    assert!(again.is_some_and(|again| again.policy.digest() == alone.policy.digest()));
    let strict = preset("strict").and_then(|preset| PolicyFile::parse(preset.text, "strict").ok());
    let Some(strict) = strict else { panic!("the strict preset is a policy") };
    let below = combined(Some(&strict));
    for question in QUESTIONS.iter().copied().chain(question.lines()) {
        let Ok(asked) = Question::parse(question) else { continue };
        let decided = asked.decide(&alone.policy);
        assert_eq!(asked.decide(&alone.policy), decided);
        if let Some(below) = &below
            && asked.decide(&below.policy).verdict == Verdict::Allow
        {
            assert_eq!(decided.verdict, Verdict::Allow, "{question}");
        }
        let _ = alone.policy.explain(question);
        let _ = file.explain(question);
    }
    let _ = file.summary();
}
