//! Policies on the command line: what is refused and how it is told, the
//! commands that read them, and what holds in a run.
use serde_json::{Value, json};

use crate::support::Place;

/// The exit code and the JSON on standard output.
fn json(place: &Place, args: &[&str]) -> (i32, Value) {
    let ran = place.run(args);
    (ran.code, ran.value())
}

/// Policies with one problem each, and how it is told.
const REFUSED: &[(&str, &str)] = &[
    (
        "version = 1\n[fs]\nmemroy = \"none\"\n",
        "policy.toml:3: unknown key \"memroy\" in [fs]; did you mean \"memory\"?",
    ),
    (
        "version = 1\ncolour = 1\n",
        "policy.toml:2: unknown key \"colour\" at the top; the keys here are version, ",
    ),
    (
        "version = 1\n[[net]]\nid = \"a\"\nhosts = []\n",
        "policy.toml:4: `hosts` is empty, so it would match nothing; name at least one",
    ),
    (
        "version = 1\n[[example]]\nrequest = \"fs.create /tmp/x\"\nexpect = \"deny\"\n",
        "policy.toml:3: the example `fs.create /tmp/x` is expected to be deny and is allow (rule memory); \
         correct the rule or the example",
    ),
    (
        "version = 1\n[[tools.rules]]\nid = \"a\"\ntools = [\"x\"]\n[[tools.rules]]\nid = \"b\"\n\
         action = \"deny\"\ntools = [\"*\"]\n",
        "policy.toml:2: rule \"a\" contradicts rule \"b\" (line 5), which denies all that it matches; ",
    ),
    (
        "version = 1\n[[tools.rules]]\nid = \"a\"\ntools = [\"x\"]\nmax_calls = 1\n[[tools.rules]]\n\
         id = \"b\"\ntools = [\"*\"]\nmax_calls = 2\n",
        "policy.toml:6: rules \"a\" (line 2) and \"b\" can match one request and disagree on bounds; ",
    ),
    ("version = 1\n[fs\n", "policy.toml:2: "),
    ("", "policy.toml:1: "),
];

#[test]
fn a_policy_with_a_problem_is_refused_with_its_line_and_a_remedy_and_runs_nothing() {
    let place = Place::new();
    for (text, said) in REFUSED {
        place.write("policy.toml", text);
        for option in ["--policy", "--ceiling"] {
            let ran = place.run(&["run", option, "policy.toml", "-c", "print('ran')"]);
            assert_eq!((ran.code, ran.stdout.as_str()), (64, ""), "{text}: {}", ran.stderr);
            assert!(ran.stderr.starts_with(&format!("fumehood: {said}")), "{}", ran.stderr);
            assert!(ran.stderr.lines().all(|line| line.contains("; ")), "{}", ran.stderr);
        }
        let ran = place.run(&["policy", "check", "policy.toml"]);
        assert_eq!((ran.code, ran.stderr.as_str()), (1, ""), "{text}");
        assert!(ran.stdout.starts_with(said), "{}", ran.stdout);
        let (code, value) = json(&place, &["policy", "check", "policy.toml", "--json"]);
        assert_eq!((code, &value["good"]), (1, &json!(false)));
        let problem = &value["problems"][0];
        assert!(said.starts_with(&format!("policy.toml:{}: ", problem["line"])), "{value:#}");
        assert!(!problem["remedy"].as_str().unwrap().is_empty());
        for other in [
            &["policy", "explain", "policy.toml", "env A"][..],
            &["policy", "diff", "strict", "policy.toml"],
        ] {
            let ran = place.run(other);
            assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{other:?}");
            assert!(ran.stderr.starts_with(&format!("fumehood: {said}")), "{}", ran.stderr);
        }
    }
}

#[test]
fn every_problem_is_told_at_once() {
    let place = Place::new();
    place.write("policy.toml", "version = 1\na = 1\nb = 2\n[budget]\nwall_s = -1\n");
    let ran = place.run(&["run", "--policy", "policy.toml", "-c", "1"]);
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert_eq!((ran.code, lines.len()), (64, 3), "{}", ran.stderr);
    for (line, at) in lines.iter().zip([2, 3, 5]) {
        assert!(line.starts_with(&format!("fumehood: policy.toml:{at}: ")), "{line}");
    }
}

#[test]
fn bad_arguments_are_one_sentence_and_64() {
    let place = Place::new();
    place.write("good.toml", "version = 1\n");
    std::fs::write(place.path("latin.toml"), b"version = 1 # \xe9\n").unwrap();
    std::fs::write(place.path("large.toml"), vec![b'#'; (1 << 20) + 1]).unwrap();
    for args in [
        &["policy"][..],
        &["policy", "check"],
        &["policy", "check", "missing.toml"],
        &["policy", "check", "lax"],
        &["policy", "check", "."],
        &["policy", "check", "latin.toml"],
        &["policy", "check", "large.toml"],
        &["policy", "explain", "good.toml"],
        &["policy", "explain", "good.toml", "fs.read x"],
        &["policy", "explain", "good.toml", "fs.reed /x"],
        &["policy", "explain", "good.toml", "tool x [1]"],
        &["policy", "diff", "good.toml"],
        &["policy", "diff", "good.toml", "missing.toml"],
        &["run", "--policy", "lax", "-c", "print(1)"],
        &["run", "--ceiling", "missing.toml", "-c", "print(1)"],
        &["run", "--budget", "huge", "-c", "print(1)"],
        &["run", "--policy", "strict", "--env", "A=1", "-c", "print(1)"],
        &["run", "--policy", "strict", "--mount", "/d=.", "-c", "print(1)"],
        &["run", "--ceiling", "strict", "--env", "A=1", "-c", "print(1)"],
    ] {
        let ran = place.run(args);
        assert_eq!((ran.code, ran.stdout.as_str()), (64, ""), "{args:?}: {}", ran.stderr);
        if args.len() > 1 {
            assert_eq!(ran.stderr.lines().count(), 1, "{args:?}: {}", ran.stderr);
            assert!(ran.stderr.starts_with("fumehood: "), "{args:?}: {}", ran.stderr);
        }
        println!("{args:?}\n    {}", ran.stderr.trim_end());
    }
}

#[test]
fn a_section_without_an_executor_is_checked_and_not_run() {
    let place = Place::new();
    place.write(
        "policy.toml",
        "version = 1\n[secrets.key]\nfrom = \"env:KEY\"\nhosts = [\"a.test\"]\n\
         slot = \"header:Authorization\"\n[native]\ntiers = [\"landlock\"]\n",
    );
    for option in ["--policy", "--ceiling"] {
        let ran = place.run(&["run", option, "policy.toml", "-c", "print(1)"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (66, ""), "{}", ran.stderr);
        assert!(ran.stderr.contains("[native], [secrets]"), "{}", ran.stderr);
    }
    let (code, value) = json(&place, &["policy", "check", "policy.toml", "--json"]);
    assert_eq!((code, &value["good"]), (0, &json!(true)));
    assert_eq!(value["unsupported"].as_array().unwrap().len(), 2);
    place.write(
        "policy.toml",
        "version = 1\n[bash]\naction = \"ask\"\n[native]\ntiers = [\"landlock\"]\n",
    );
    let (_, value) = json(&place, &["policy", "check", "policy.toml", "--json"]);
    assert_eq!(value["unsupported"].as_array().unwrap().len(), 0);
    let (code, value) = json(&place, &["policy", "explain", "policy.toml", "bash ls", "--json"]);
    assert_eq!((code, &value["verdict"], &value["rule"]), (0, &json!("ask"), &json!("bash")));
}

#[test]
fn explain_names_rule_line_and_the_nearest_change() {
    let place = Place::new();
    place.write(
        "policy.toml",
        "version = 1\n[[tools.rules]]\nid = \"pay\"\ntools = [\"pay\"]\nmax_calls = 3\n\
         arguments = [{ pointer = \"/amount\", max = 50 }]\n",
    );
    let ran = place.run(&["policy", "explain", "policy.toml", "tool pay {\"amount\": 50}"]);
    assert_eq!(ran.code, 0);
    assert_eq!(
        ran.stdout,
        "tool pay {\"amount\":50}\n  allow by rule `pay`\n  rule `pay` (policy.toml:2) says allow\n  \
         at most 3 calls under rule `pay`\n"
    );
    let (code, value) =
        json(&place, &["policy", "explain", "policy.toml", "--json", "tool pay {\"amount\": 51}"]);
    assert_eq!((code, &value["verdict"]), (0, &json!("deny")), "{value:#}");
    assert_eq!(value["rule"], "default-deny");
    assert_eq!(
        value["nearest_change"],
        "widen rule `pay` (policy.toml:2), which is only for `/amount` at most 50"
    );
    let members: Vec<&String> = value.as_object().unwrap().keys().collect();
    assert_eq!(
        members,
        ["request", "verdict", "rule", "reason", "hint", "rules", "bounds", "nearest_change"]
    );
}

#[test]
fn diff_tells_new_reach_only() {
    let place = Place::new();
    place.write("old.toml", "version = 1\n[[tools.rules]]\nid = \"a\"\ntools = [\"a\", \"b\"]\n");
    place.write("new.toml", "version = 1\n[[tools.rules]]\nid = \"a\"\ntools = [\"a\", \"c\"]\n");
    let ran = place.run(&["policy", "diff", "old.toml", "new.toml"]);
    assert_eq!((ran.code, ran.stdout.lines().count()), (1, 1), "{}", ran.stdout);
    assert!(ran.stdout.starts_with("[tools] ") && ran.stdout.contains("c"), "{}", ran.stdout);
    let (code, value) = json(&place, &["policy", "diff", "old.toml", "new.toml", "--json"]);
    assert_eq!((code, &value["new_reach"][0]["section"]), (1, &json!("tools")));
    let ran = place.run(&["policy", "diff", "old.toml", "old.toml"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "nothing is newly reachable\n"));
    let (code, value) = json(&place, &["policy", "diff", "strict", "strict", "--json"]);
    assert_eq!((code, value), (0, json!({ "new_reach": [] })));
    assert_eq!(place.run(&["policy", "diff", "strict", "open-read"]).code, 1);
}

#[test]
fn a_file_with_the_name_of_a_preset_is_named_by_its_path() {
    let place = Place::new();
    place.write("strict", "version = 1\nwrong = 1\n");
    assert_eq!(place.run(&["policy", "check", "strict"]).code, 0);
    assert_eq!(place.run(&["policy", "check", "./strict"]).code, 1);
}

#[test]
fn a_run_is_held_to_policy_budget_and_ceiling() {
    let place = Place::new();
    std::fs::create_dir(place.path("data")).unwrap();
    place.write(
        "data/main.py",
        "print(__file__, open('/data/in').read())\nopen('/data/out', 'w')\n",
    );
    place.write("data/in", "42");
    let data = place.path("data").canonicalize().unwrap();
    place.write(
        "policy.toml",
        &format!(
            "version = 1\n[[fs.mounts]]\nid = \"data\"\nat = \"/data\"\nhost = {data:?}\n\
             [env]\nallow = [\"HOST_VARIABLE\"]\n[budget]\nwall_s = 5\n"
        ),
    );
    // The program is found in the directory that the policy mounts.
    let ran = place.run(&["run", "--policy", "policy.toml", "data/main.py"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, "/data/main.py 42\n"), "{}", ran.stderr);
    assert!(ran.stderr.contains("(data); the operator could"), "{}", ran.stderr);
    let code = "import os\nprint(os.environ.get('HOST_VARIABLE'))";
    assert_eq!(place.run(&["run", "--policy", "policy.toml", "-c", code]).stdout, "of the host\n");
    assert_eq!(place.run(&["run", "-c", code]).stdout, "None\n");

    // Numbers are only lowered, and what was not granted is told.
    let ran = place.run(&["run", "--policy", "policy.toml", "--timeout", "9", "-c", "print(1)"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "1\n"));
    assert_eq!(
        ran.stderr,
        "fumehood: budget.wall_s: 9 was asked for, policy.toml allows 5, which holds; change it \
         there to have more\n"
    );
    place.write("ceiling.toml", "version = 1\n[budget]\nwall_s = 0.3\n");
    let endless = "while True: pass";
    let ran = place.run(&["run", "--ceiling", "ceiling.toml", "-c", endless]);
    assert_eq!(ran.code, 124);
    assert!(
        ran.stderr.contains("after 0.3 s of wall-clock time; raise `wall_s`"),
        "{}",
        ran.stderr
    );
    let noop = "import _fumehood\nwhile True: _fumehood.call(_fumehood.NOOP, b'')";
    place.write("calls.toml", "version = 1\n[budget]\nhost_calls = 5000\n");
    let (code, value) = json(&place, &["run", "--json", "--policy", "calls.toml", "-c", noop]);
    assert_eq!((code, &value["outcome"]["name"]), (68, &json!("host_calls")), "{value:#}");
    let large = "x = bytearray(300 << 20)\nprint(len(x))";
    assert_eq!(place.run(&["run", "-c", large]).code, 0);
    assert_ne!(place.run(&["run", "--budget", "small", "-c", large]).code, 0);
    assert_eq!(place.run(&["run", "--budget", "small", "--memory", "512", "-c", large]).code, 0);
    let both = ["run", "--policy", "strict", "--budget", "large", "-c", large];
    assert_ne!(place.run(&both).code, 0);
}
