//! Python's `subprocess` in WebAssembly, whose commands run in a native tier.

use super::TIERS;
use crate::support::Place;

/// What usual code does with the module, and what it prints.
const USUAL: &[(&str, &str)] = &[
    (
        "r = sp.run(['printf', '%s|', 'a b', \"it's\", '$HOME'], capture_output=True, text=True)\n\
         print(r.returncode, r.stdout, repr(r.stderr))",
        "0 a b|it's|$HOME| ''",
    ),
    (
        "print(sp.check_output('echo $((6 * 7)); echo err >&2', shell=True, stderr=sp.STDOUT))",
        "b'42\\nerr\\n'",
    ),
    (
        "try: sp.run(['sh', '-c', 'exit 3'], check=True)\n\
         except sp.CalledProcessError as error: print(error.returncode, error)",
        "3 Command ['sh', '-c', 'exit 3'] returned non-zero exit status 3.",
    ),
    (
        "try: sp.run(['no-such-program-x'])\n\
         except FileNotFoundError as error: print(error.filename)",
        "no-such-program-x",
    ),
    (
        "try: sp.run('echo before; sleep 60', shell=True, timeout=5, stdout=sp.PIPE)\n\
         except sp.TimeoutExpired as error: print(error.timeout, error.output)",
        "5 b'before\\n'",
    ),
    (
        "with sp.Popen(['cat'], stdin=sp.PIPE, stdout=sp.PIPE) as p: print(p.communicate(b'piped'))",
        "(b'piped', None)",
    ),
    ("p = sp.Popen('exit 4', shell=True)\nprint(p.wait(), p.poll(), p.returncode)", "4 4 4"),
    ("print(sp.getstatusoutput('echo x; exit 2'))", "(2, 'x')"),
    ("print(sp.call(['true']), sp.check_call(['true']))", "0 0"),
    ("sp.run(['echo', 'inherited'])", "inherited"),
    (
        "print(sp.run('tr a-z A-Z', shell=True, input='text', text=True, stdout=sp.PIPE).stdout)",
        "TEXT",
    ),
    (
        "with open('/tmp/out', 'wb') as file: sp.run(['echo', 'to a file'], stdout=file)\n\
         print(open('/tmp/out').read(), end='')",
        "to a file",
    ),
    (
        "print(sp.run('echo $A', shell=True, env={'A': 'given'}, capture_output=True).stdout)",
        "b'given\\n'",
    ),
];

/// Runs Python in WebAssembly with commands in a tier; output and error output.
fn python(place: &Place, tier: &str, code: &str) -> (String, String) {
    let policy = format!(
        "version = 1\nflags = \"extend\"\n[fs]\nmemory = \"read-write\"\n\
         [bash]\naction = \"allow\"\n[native]\ntiers = [\"{tier}\"]\n"
    );
    place.write("p.toml", &policy);
    let ran = place.run(&["run", "--no-record", "--policy", "p.toml", "-c", code]);
    (ran.stdout, ran.stderr)
}

#[test]
fn usual_code_with_subprocess_runs_in_the_tier() {
    let place = Place::new();
    for tier in TIERS {
        let (mut code, mut wanted) = ("import subprocess as sp\n".to_owned(), String::new());
        for (statement, printed) in USUAL {
            code.push_str(&format!("{statement}\n"));
            wanted.push_str(&format!("{printed}\n"));
        }
        let (stdout, stderr) = python(&place, tier, &code);
        assert_eq!(stdout, wanted, "{tier}: {stderr}");
    }
}
