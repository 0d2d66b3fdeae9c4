//! Explaining a decision and reviewing a change.

use fumehood_policies::*;

fn file(text: &str) -> PolicyFile {
    PolicyFile::parse(&format!("version = 1\n{text}"), "p.toml")
        .unwrap_or_else(|errors| panic!("{errors}"))
}

const BASE: &str = r#"
[[fs.rules]]
id = "data"
paths = ["/data/**"]

[[tools.rules]]
id = "search"
tools = ["search*"]
max_calls = 5
"#;

#[test]
fn the_nearest_change_allows_the_request() {
    for request in [
        "fs.read /work/[x]*",
        "fs.rename /work/a -> /out/b",
        "fs.link /work/a -> /out/b",
        "fs.create /work/it's",
        "tool pay {\"amount\": 1}",
        "net POST https://api.example.com:8443/v1/x",
        "env HOME",
        "bash ls",
    ] {
        let before = file(BASE).explain(request).unwrap();
        assert_eq!(before.decision.verdict, Verdict::Deny, "{request}");
        let after = file(&format!("{BASE}\n{}\n", before.nearest_change)).explain(request).unwrap();
        assert_eq!(
            after.decision.verdict,
            Verdict::Allow,
            "{request}\n{}\n{after}",
            before.nearest_change
        );
        assert!(after.nearest_change.is_empty());
    }
}

#[test]
fn a_proposed_tool_rule_allows_the_arguments_that_were_asked_about_only() {
    let text = r#"tool pay {"amount": 1.5, "to": "it's \"x\"\n\u202e", "a/b~c": [true, {"k": []}, 9007199254740993]}"#;
    let before = file(BASE).explain(text).unwrap();
    let after = file(&format!("{BASE}\n{}\n", before.nearest_change));
    assert_eq!(after.explain(text).unwrap().decision.verdict, Verdict::Allow);
    for (from, to) in [("1.5", "2"), ("it's", "its"), ("true", "false"), ("9007199254740993", "1")]
    {
        let other = text.replace(from, to);
        assert_ne!(other, text);
        assert_eq!(after.explain(&other).unwrap().decision.verdict, Verdict::Deny, "{other}");
    }
    assert!(!before.nearest_change.contains('\u{202e}'));
    let null = file(BASE).explain("tool pay {\"a\": [null]}").unwrap().nearest_change;
    assert!(null.contains("by hand") && null.contains("`/a`"), "{null}");
}

#[test]
fn a_rule_that_names_the_tool_is_named_with_what_the_arguments_fail() {
    let pay = "[[tools.rules]]\nid = \"small\"\ntools = [\"pay\"]\nmax_calls = 3\n\
               arguments = [{ pointer = \"/amount\", max = 50 }, { pointer = \"/to\", equals = \"a\" }]\n\
               [[tools.rules]]\nid = \"asked\"\naction = \"ask\"\ntools = [\"p*\"]\nmax_calls = 3\n\
               arguments = [{ pointer = \"/to\", equals = \"b\" }]\n\
               [[tools.rules]]\nid = \"never\"\naction = \"deny\"\ntools = [\"pay\"]\n\
               arguments = [{ pointer = \"/to\", equals = \"c\" }]\n";
    let explain = |request: &str| file(pay).explain(request).unwrap().nearest_change;
    assert_eq!(
        explain("tool pay {\"amount\": 51, \"to\": \"a\"}"),
        "widen rule `small` (p.toml:2), which is only for `/amount` at most 50\n\
         widen rule `asked` (p.toml:7), which is only for `/to` = \"b\""
    );
    // A denial that does not match has no say in it.
    let other = explain("tool refund {\"to\": \"c\"}");
    assert!(other.starts_with("[[tools.rules]]") && other.contains("equals = \"c\""), "{other}");
    let after = file(&format!("{pay}{other}\n")).explain("tool refund {\"to\": \"c\"}").unwrap();
    assert_eq!(after.decision.verdict, Verdict::Allow);
}

#[test]
fn an_explanation_names_rules_and_lines() {
    let text = format!(
        "{BASE}\n[[fs.rules]]\nid = \"no\"\naction = \"deny\"\npaths = [\"/data/secret/**\"]\n"
    );
    let explanation = file(&text).explain("fs.read /data/x/../secret/k").unwrap();
    assert_eq!(explanation.request, "fs.read /data/secret/k");
    assert_eq!(&*explanation.decision.rule, "no");
    let shown = explanation.to_string();
    for part in [
        "deny by rule `no`",
        "rule `data` (p.toml:3) says allow",
        "rule `no` (p.toml:12) says deny",
        "narrow or remove rule `no`",
    ] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    let allowed = file(BASE).explain("tool search {}").unwrap().to_string();
    assert!(allowed.contains("at most 5 calls under rule `search`"), "{allowed}");
    let none = file("[fs]\nmemory = \"none\"\n").explain("fs.read /data/x").unwrap();
    assert!(
        none.nearest_change.contains("[[fs.mounts]]")
            && none.nearest_change.contains("at = \"/data\""),
        "{none}"
    );
    let mount = "[[fs.mounts]]\nid = \"m\"\nat = \"/m\"\nhost = \"/h\"\n";
    assert!(file(mount).explain("fs.create /m/x").unwrap().nearest_change.contains("read-write"));
    assert!(file(BASE).explain("reed /x").is_err());
}

fn reach(old: &str, new: &str) -> Vec<String> {
    diff(&file(old), &file(new)).iter().map(ToString::to_string).collect()
}

#[test]
fn a_difference_has_new_reach_only() {
    let mount = |host: &str, access: &str| {
        format!(
            "[[fs.mounts]]\nid = \"m\"\nat = \"/m\"\nhost = \"{host}\"\naccess = \"{access}\"\n"
        )
    };
    assert_eq!(
        reach("", &mount("/h", "read-only")),
        ["[fs] the host directory `/h` at `/m`, read-only (line 2)"]
    );
    assert_eq!(
        reach(&mount("/h", "read-only"), &mount("/h", "read-write")),
        ["[fs] the mount at `/m` is read-write (line 2)"]
    );
    assert!(reach(&mount("/h", "read-write"), &mount("/h", "read-only")).is_empty());
    assert_eq!(reach(&mount("/h", "read-only"), &mount("/k", "read-only")).len(), 1);
    let deny = "[[fs.rules]]\nid = \"no\"\naction = \"deny\"\npaths = [\"/a/**\"]\n";
    assert!(reach("", deny).is_empty());
    assert_eq!(
        reach(deny, ""),
        ["[fs] every operation of `/a/**`: no longer denied (rule \"no\")"]
    );
    assert!(reach(deny, &deny.replace("/a/**", "/**")).is_empty());
    assert_eq!(reach(deny, &deny.replace("deny", "ask")).len(), 1);
    assert!(reach(BASE, &BASE.replace("max_calls = 5", "max_calls = 4")).is_empty());
    assert!(reach(BASE, &BASE.replace("search*", "search_web")).is_empty());
    assert_eq!(
        reach(BASE, &BASE.replace("max_calls = 5", "max_calls = 6")),
        ["[tools] more calls or bytes of the tool `search*`: rule \"search\" (line 7)"]
    );
    assert_eq!(reach(BASE, &BASE.replace("search*", "*")).len(), 1);
    assert_eq!(reach(BASE, &BASE.replace("/data/**", "/**")).len(), 1);
    let net = |host: &str| format!("[[net]]\nid = \"n\"\nhosts = [\"{host}\"]\n");
    assert!(reach(&net("**.example.com"), &net("*.a.example.com")).is_empty());
    assert_eq!(
        reach(&net("*.example.com"), &net("**.example.com")),
        ["[net] **.example.com port 443 method GET path any: rule \"n\" (allow) (line 2)"]
    );
    assert_eq!(reach("", "[budget]\nwall_s = 90\n"), ["[budget] wall_s from 60 to 90"]);
    assert_eq!(reach("", "[bash]\n[env]\nallow = [\"HOME\"]\n").len(), 2);
    assert_eq!(reach("", "flags = \"extend\"\n").len(), 1);
    assert_eq!(reach("[native]\nguarantees = [\"files\"]\n", "[native]\n").len(), 1);
}
