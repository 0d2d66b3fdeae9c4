//! The harness judged by itself: what must not pass does not.

use fumehood_host_fns::Errno;

use super::wat::Program;
use super::{Attack, Expected, Stage, Verdict, check_suite, run};

const WHY: &str = "a reason of more than three words";
const GAP: &str = "A rationale that is long enough to be one: it says what gets through, why that is \
                   where the boundary is, and what the operator can do about it.";

fn opens(path: &str) -> Program {
    Program::new(format!("(call $answer (call $open @\"{path}\" %2 %R))"))
}

fn attack(path: &str) -> Attack {
    Attack::module("T-01", "a path that is not there is not opened", opens(path))
        .control_module(opens("tmp"))
        .expect(Expected::Errno(&[Errno::Noent]), WHY)
}

fn verdict(attack: &Attack) -> &'static str {
    run(&Stage::new(), attack).verdict.name()
}

#[test]
fn verdicts_follow_from_evidence() {
    assert_eq!(verdict(&attack("none")), "blocked");
    assert_eq!(verdict(&attack("tmp")), "unexpected");
    assert_eq!(verdict(&attack("tmp").known_gap(GAP)), "known_gap");
    assert_eq!(verdict(&attack("none").known_gap(GAP)), "unexpected");
    assert_eq!(verdict(&attack("tmp").known_gap("too short")), "error");
    assert_eq!(verdict(&attack("none").control_module(opens("none"))), "error");
    assert_eq!(verdict(&attack("none").no_control("")), "error");
    assert_eq!(verdict(&attack("none").expect(Expected::Errno(&[Errno::Noent]), "")), "error");
    let wrong =
        Attack::module("T-01", "a program that is no program is an error", Program::new("("));
    assert_eq!(verdict(&wrong.no_control(WHY).expect(Expected::Harmless(""), WHY)), "error");
}

#[test]
fn a_detail_of_the_host_in_the_output_is_found() {
    let tells = Attack::module(
        "T-02",
        "output tells nothing of the host",
        Program::new("(call $print @\"/tmp/canary-host-directory-x\")"),
    );
    let tells =
        tells.no_control(WHY).expect(Expected::Harmless("/tmp/canary-host-directory-x"), WHY);
    assert_eq!(verdict(&tells), "unexpected");
}

#[test]
fn a_suite_answers_every_case_once() {
    let attacks = [attack("none"), attack("none")];
    let problems = check_suite(&attacks, &[], &["T-01", "T-09"]);
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(!Verdict::Error(String::new()).passes());
}
