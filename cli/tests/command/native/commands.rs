//! What commands of a program in the WASM tier see, or why it is not started.

use std::fs;

use crate::support::Place;

#[test]
fn inputs_and_mounts_are_python_s_and_bash_s() {
    let place = Place::with(&[("f", "content")]);
    let policy = "version = 1\nflags = \"extend\"\n[fs]\nmemory = \"read-write\"\n[bash]\naction = \"allow\"\n";
    fs::write(place.path("p.toml"), policy).unwrap();
    fs::create_dir(place.path("shared")).unwrap();
    let shared = format!("/data={}:rw", place.path("shared").display());
    let code = "print(open('/work/inputs/project/f').read(), bash('cat /work/inputs/project/f').stdout)\n\
                bash('echo b > /data/new; echo x > /work/inputs/project/f')\n\
                print(open('/data/new').read(), open('/work/inputs/project/f').read())";
    let args = ["run", "--policy", "p.toml", "--input", "project", "--mount", &shared, "-c", code];
    let ran = place.run(&args);
    assert_eq!(ran.stdout, "content content\nb\n content\n", "{}", ran.stderr);
}

#[test]
fn commands_that_could_not_see_what_the_program_sees_are_refused_before_it_starts() {
    let place = Place::with(&[("f", "content")]);
    let policy = |native: &str| {
        let text = format!(
            "version = 1\nflags = \"extend\"\n[bash]\naction = \"allow\"\n[native]\n{native}\n"
        );
        fs::write(place.path("p.toml"), text).unwrap();
    };
    let program = ["run", "--policy", "p.toml", "-c", "print(1)"];
    policy("tiers = [\"process\"]");
    for more in [&["--project", "project"][..], &["--input", "project"]] {
        let ran = place.run(&[&program[..], more].concat());
        assert!(ran.code == 66 && ran.stdout.is_empty(), "{more:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("missing: private-mounts"), "{more:?}: {}", ran.stderr);
    }
    // A guarantee of the policy counts when its tier is chosen.
    policy("tiers = [\"process\"]\nguarantees = [\"network\"]");
    for more in [&[][..], &["--tier", "process"]] {
        let ran = place.run(&[&program[..], more].concat());
        assert!(ran.code == 66 && ran.stdout.is_empty(), "{more:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("missing: network"), "{more:?}: {}", ran.stderr);
    }
}
