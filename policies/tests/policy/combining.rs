//! Files, flags and ceilings: who may grant what.

use std::collections::{BTreeMap, BTreeSet};

use fumehood_policies::*;
use proptest::prelude::*;

fn file(text: &str) -> PolicyFile {
    PolicyFile::parse(&format!("version = 1\n{text}"), "p.toml")
        .unwrap_or_else(|errors| panic!("{errors}"))
}

fn ask(policy: &Policy, question: &str) -> Verdict {
    Question::parse(question).unwrap().decide(policy).verdict
}

fn path(raw: &str) -> GuestPath {
    GuestPath::parse(&GuestPath::root(), raw.as_bytes()).unwrap().path
}

fn mount(at: &str, host: &str, access: Access) -> MountDeclaration {
    MountDeclaration {
        id: at.trim_start_matches('/').replace('/', "-").into(),
        at: path(at),
        host: host.to_owned(),
        access,
        line: 0,
    }
}

const MOUNT: &str = "[[fs.mounts]]\nid = \"data\"\nat = \"/work/data\"\nhost = \"/srv/data\"\naccess = \"read-write\"\n";

#[test]
fn without_a_file_flags_define_the_policy() {
    let flags = Flags {
        mounts: vec![mount("/work/data", "/srv/data", Access::ReadOnly)],
        environment: BTreeMap::from([("A".to_owned(), "1".to_owned())]),
        pass_environment: BTreeSet::from(["B".to_owned()]),
        ..Flags::default()
    };
    let combined = Policy::combine(None, &flags, None).unwrap();
    let policy = &combined.policy;
    assert_eq!(ask(policy, "fs.create /tmp/x"), Verdict::Allow);
    assert_eq!(ask(policy, "fs.read /work/data/x"), Verdict::Allow);
    assert_eq!(ask(policy, "fs.create /work/data/x"), Verdict::Deny);
    assert_eq!(ask(policy, "tool anything"), Verdict::Allow);
    assert_eq!(ask(policy, "env A"), Verdict::Allow);
    assert_eq!(ask(policy, "env B"), Verdict::Allow);
    assert_eq!(ask(policy, "env C"), Verdict::Deny);
    assert_eq!(ask(policy, "net GET https://a.example/"), Verdict::Deny);
    assert_eq!(ask(policy, "bash true"), Verdict::Deny);
    assert_eq!(policy.budget(), &BudgetLimits::default());
    assert_eq!(policy.generation(), 1);
}

#[test]
fn flags_only_narrow_a_file() {
    let narrow = file(&format!(
        "{MOUNT}[env]\nallow = [\"A\"]\n[[tools.rules]]\nid = \"t\"\ntools = [\"s*\"]\n"
    ));
    let mut flags = Flags {
        mounts: vec![mount("/work/data", "/srv/data", Access::ReadOnly)],
        environment: BTreeMap::from([("A".to_owned(), "1".to_owned())]),
        tools: Some(vec![Wildcard::new("*h"), Wildcard::new("other")]),
        ..Flags::default()
    };
    assert!(flags.budget.set("wall_s", 90_000) && flags.budget.set("cpu_s", 1_000));
    let combined = Policy::combine(Some(&narrow), &flags, None).unwrap();
    assert_eq!(combined.mounts[0].access, Access::ReadOnly);
    assert_eq!(ask(&combined.policy, "fs.create /work/data/x"), Verdict::Deny);
    assert_eq!(ask(&combined.policy, "tool search"), Verdict::Allow);
    assert_eq!(ask(&combined.policy, "tool sum"), Verdict::Deny);
    assert_eq!(ask(&combined.policy, "tool other"), Verdict::Deny);
    assert_eq!(
        (combined.policy.budget().wall_ms, combined.policy.budget().cpu_ms),
        (60_000, 1_000)
    );
    assert_eq!(combined.limited.len(), 1);
    assert_eq!(
        combined.limited[0].to_string(),
        "budget.wall_s: 90 was asked for, p.toml allows 60"
    );

    let flags = Flags {
        mounts: vec![mount("/other", "/etc", Access::ReadOnly)],
        environment: BTreeMap::from([("X".to_owned(), "1".to_owned())]),
        pass_environment: BTreeSet::from(["Y".to_owned()]),
        ..Flags::default()
    };
    let errors = Policy::combine(Some(&narrow), &flags, None).unwrap_err();
    assert_eq!(errors.0.len(), 3, "{errors}");
    let extend = file(&format!("flags = \"extend\"\n{MOUNT}"));
    let combined = Policy::combine(Some(&extend), &flags, None).unwrap();
    assert_eq!(ask(&combined.policy, "fs.read /other/x"), Verdict::Allow);
    assert_eq!(ask(&combined.policy, "env Y"), Verdict::Allow);
}

#[test]
fn a_ceiling_only_takes_away() {
    let ceiling = file(
        "[fs]\n[[fs.mounts]]\nid = \"srv\"\nat = \"/any\"\nhost = \"/srv\"\n[[fs.rules]]\nid = \"no-keys\"\naction = \"deny\"\npaths = [\"/**/*.key\"]\n[budget]\nwall_s = 5\n[bash]\n[[net]]\nid = \"n\"\nhosts = [\"a.example\"]\n[env]\nallow = [\"A\"]\n",
    );
    let combined = Policy::combine(Some(&file(MOUNT)), &Flags::default(), Some(&ceiling)).unwrap();
    assert_eq!(combined.mounts[0].access, Access::ReadOnly);
    assert_eq!(combined.policy.budget().wall_ms, 5_000);
    assert_eq!(combined.limited.len(), 2, "{:?}", combined.limited);
    assert_eq!(combined.unsupported, ["bash"]);
    for (question, want) in [
        ("fs.read /work/data/x", Verdict::Allow),
        ("fs.read /work/data/x.key", Verdict::Deny),
        ("bash true", Verdict::Deny),
        ("net GET https://a.example/", Verdict::Deny),
        ("env A", Verdict::Deny),
    ] {
        assert_eq!(ask(&combined.policy, question), want, "{question}");
        let alone = Policy::combine(None, &Flags::default(), Some(&ceiling)).unwrap();
        assert!(
            question.starts_with("fs.") || ask(&alone.policy, question) == Verdict::Deny,
            "{question}"
        );
    }
    let outside = file(&MOUNT.replace("/srv/data", "/srvdata"));
    let errors = Policy::combine(Some(&outside), &Flags::default(), Some(&ceiling)).unwrap_err();
    assert!(errors.to_string().contains("/srvdata"), "{errors}");
    let environment = file("[env]\nset = { B = \"1\" }\n");
    assert!(Policy::combine(Some(&environment), &Flags::default(), Some(&ceiling)).is_err());
}

#[test]
fn the_digest_is_of_what_decides() {
    let digest = |text: &str| {
        Policy::combine(Some(&file(text)), &Flags::default(), None).unwrap().policy.digest_hex()
    };
    let rule = |id: &str| format!("[[tools.rules]]\nid = \"{id}\"\ntools = [\"x\", \"y\"]\n");
    let one = digest(&format!("{}{}", rule("a"), rule("b")));
    assert_eq!(one, digest(&format!("# a comment\n\n{}{}", rule("b"), rule("a"))));
    assert_eq!(
        one,
        digest(&format!("{}{}", rule("a"), rule("b")).replace("\"x\", \"y\"", "\"y\", \"x\""))
    );
    assert_ne!(one, digest(&rule("a")));
    assert_ne!(one, digest(&format!("{}{}[budget]\nwall_s = 59\n", rule("a"), rule("b"))));
    assert_eq!(one.len(), 64);
    let policy = Policy::builder().build().unwrap();
    assert_eq!(policy.clone().with_generation(7).digest(), policy.digest());
}

#[test]
fn obligations_reach_the_caller() {
    let text = "[[tools.rules]]\nid = \"t\"\ntools = [\"pay\"]\nmax_calls = 3\nmax_request_bytes = 20\nmax_response_bytes = 5\n[[tools.rules.arguments]]\npointer = \"/amount\"\nmax = 100\n";
    let policy = Policy::combine(Some(&file(text)), &Flags::default(), None).unwrap().policy;
    let call = |arguments: &str| {
        policy.decide_tool(&ToolRequest::parse("pay", arguments.as_bytes(), 1000).unwrap())
    };
    let good = call("{\"amount\": 100}");
    assert_eq!(good.decision.verdict, Verdict::Allow);
    assert_eq!(good.obligations.max_calls, [CallLimit { rule: "t".into(), calls: 3 }]);
    assert_eq!(good.obligations.max_response_bytes, Some(5));
    let large = call("{\"amount\": 100, \"note\": \"xxxxxxxxxxxxxxxxxxxx\"}");
    assert_eq!((large.decision.verdict, large.decision.cause), (Verdict::Deny, Cause::TooLarge));
    assert!(large.obligations.is_empty());
    for arguments in ["{\"amount\": 101}", "{}", "{\"amount\": \"1\"}"] {
        let denied = call(arguments);
        assert_eq!(denied.decision.cause, Cause::Unlisted, "{arguments}");
        for part in ["policy", "not a fault", "do not retry"] {
            assert!(denied.decision.reason.contains(part));
        }
    }
}

fn any_text() -> impl Strategy<Value = String> {
    let action = || prop_oneof![Just("allow"), Just("ask"), Just("deny")];
    let mount = (
        prop_oneof![Just("/a"), Just("/b")],
        prop_oneof![Just("/h"), Just("/h/x"), Just("/k")],
        prop_oneof![Just("read-only"), Just("read-write")],
    );
    let rule = (
        action(),
        prop_oneof![Just("/**"), Just("/a/**"), Just("/b/*"), Just("/**/x")],
        prop_oneof![Just("read"), Just("write"), Just("create")],
    );
    let tool = (action(), "[st*]{1,2}", proptest::option::of(0_u8..3));
    (
        proptest::option::of(prop_oneof![Just("read-write"), Just("read-only"), Just("none")]),
        proptest::collection::vec(mount, 0..2),
        proptest::collection::vec(rule, 0..3),
        proptest::option::of(proptest::collection::vec(tool, 0..3)),
        proptest::option::of(1_u32..200),
        any::<bool>(),
        (proptest::option::of(action()), proptest::option::of(action())),
    )
        .prop_map(|(memory, mounts, rules, tools, wall, env, (net, bash))| {
            let mut text = memory.map(|memory| format!("[fs]\nmemory = \"{memory}\"\n")).unwrap_or_default();
            for (index, (at, host, access)) in mounts.iter().enumerate() {
                text += &format!("[[fs.mounts]]\nid = \"m{index}\"\nat = \"{at}\"\nhost = \"{host}\"\naccess = \"{access}\"\n");
            }
            for (index, (action, glob, operation)) in rules.iter().enumerate() {
                text += &format!("[[fs.rules]]\nid = \"f{index}\"\naction = \"{action}\"\npaths = [\"{glob}\"]\noperations = [\"{operation}\"]\n");
            }
            if let Some(tools) = tools {
                text += "[tools]\n";
                for (index, (action, tool, equals)) in tools.iter().enumerate() {
                    text += &format!("[[tools.rules]]\nid = \"t{index}\"\naction = \"{action}\"\ntools = [\"{tool}\"]\n");
                    text += &equals.map(|value| format!("arguments = [{{ pointer = \"/x\", equals = {value} }}]\n")).unwrap_or_default();
                }
            }
            text += &wall.map(|wall| format!("[budget]\nwall_s = {wall}\n")).unwrap_or_default();
            text += if env { "[env]\nallow = [\"A\"]\n" } else { "" };
            text += &net.map(|action| format!("[[net]]\nid = \"n\"\naction = \"{action}\"\nhosts = [\"a.example\"]\n")).unwrap_or_default();
            text += &bash.map(|action| format!("[bash]\naction = \"{action}\"\n")).unwrap_or_default();
            text
        })
}

fn any_file() -> impl Strategy<Value = PolicyFile> {
    any_text().prop_filter_map("contradicts itself", |text| {
        PolicyFile::parse(&format!("version = 1\n{text}"), "p").ok()
    })
}

const QUESTIONS: &[&str] = &[
    "fs.read /a/x",
    "fs.read /b/y",
    "fs.list /",
    "fs.create /a/y",
    "fs.create /b/x",
    "fs.create /c/x/z",
    "fs.rename /a/x -> /b/y",
    "fs.link /b/x -> /a/y",
    "fs.rename /c -> /d",
    "fs.remove /c/x",
    "tool s",
    "tool t {\"x\": 1}",
    "tool st {\"x\": \"1\"}",
    "net GET https://a.example/",
    "net POST https://a.example/",
    "env A",
    "bash true",
];

fn rank(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Allow => 0,
        Verdict::Ask => 1,
        Verdict::Deny => 2,
    }
}

proptest! {
    #[test]
    fn flags_never_widen_a_file(
        file in any_file(),
        memory in prop_oneof![Just(None), Just(Some(None)), Just(Some(Some(Access::ReadOnly))), Just(Some(Some(Access::ReadWrite)))],
        mounted in proptest::option::of((prop_oneof![Just("/a"), Just("/b"), Just("/c")], prop_oneof![Just("/h"), Just("/k")], any::<bool>())),
        tools in proptest::option::of("[st*]{1,2}"),
        wall in proptest::option::of(1_u64..200_000),
    ) {
        let access = |write| if write { Access::ReadWrite } else { Access::ReadOnly };
        let mut flags = Flags {
            memory,
            mounts: mounted.map(|(at, host, write)| mount(at, host, access(write))).into_iter().collect(),
            tools: tools.map(|tool| vec![Wildcard::new(&tool)]),
            ..Flags::default()
        };
        flags.budget.wall_ms = wall;
        let alone = Policy::combine(Some(&file), &Flags::default(), None).unwrap().policy;
        if let Ok(combined) = Policy::combine(Some(&file), &flags, None) {
            for question in QUESTIONS {
                prop_assert!(rank(ask(&combined.policy, question)) >= rank(ask(&alone, question)), "{}", question);
            }
            for ((key, narrowed), (_, whole)) in combined.policy.budget().entries().zip(alone.budget().entries()) {
                prop_assert!(narrowed <= whole, "{}", key);
            }
        }
    }

    #[test]
    fn ceilings_never_widen(file in proptest::option::of(any_file()), ceiling in any_file()) {
        let alone = Policy::combine(file.as_ref(), &Flags::default(), None).unwrap().policy;
        if let Ok(combined) = Policy::combine(file.as_ref(), &Flags::default(), Some(&ceiling)) {
            for question in QUESTIONS {
                prop_assert!(rank(ask(&combined.policy, question)) >= rank(ask(&alone, question)), "{}", question);
            }
            for ((key, narrowed), (_, whole)) in combined.policy.budget().entries().zip(alone.budget().entries()) {
                prop_assert!(narrowed <= whole, "{}", key);
            }
        }
    }

    #[test]
    fn new_reach_is_never_missed(old in any_file(), new in any_file()) {
        let policy = |file| Policy::combine(Some(file), &Flags::default(), None).unwrap().policy;
        let (before, after) = (policy(&old), policy(&new));
        // A file and no directory is renamed: see `FsFacts`.
        let verdict = |policy: &Policy, text: &str| match Question::parse(text).unwrap() {
            Question::File(request) => policy.decide_with(&request, FsFacts { source_is_directory: Some(false) }).verdict,
            other => other.decide(policy).verdict,
        };
        let opened = QUESTIONS.iter().find(|text| rank(verdict(&after, text)) < rank(verdict(&before, text)));
        if let Some(opened) = opened {
            prop_assert!(!diff(&old, &new).is_empty(), "{} is newly reachable", opened);
        }
        prop_assert!(diff(&old, &old).is_empty());
    }
}
