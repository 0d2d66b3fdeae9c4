//! S, H: answers of people, and policies that are replaced, used for more than
//! they were given for.
//!
//! Invariant: how many requests a server got is part of what is compared, so
//! that an answer that was refused and took effect all the same is seen.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fumehood::network::{Answer, ApprovalDesk, ApprovalRequest, Approver, Approving, GrantTerms};
use fumehood::policy::{Policy, PolicyFile};
use fumehood::{MemorySink, Sandbox, Session};

use super::servers::{Net, OTHER};
use super::{Grants, PRELUDE, printed};
use crate::harness::{Attack, Attempt, Expected, Observed, Ran, Setting, World, machine};

const ASKED: &str = "[[net]]\nid = \"careful\"\naction = \"ask\"\nhosts = [\"api.allowed.test\", \"other.allowed.test\"]\nports = [80]\naccess = \"full\"\n";
const GET: &str = "print(raw('http://api.allowed.test/v1/x'))";
/// Longest wait for a question.
const PATIENCE: Duration = Duration::from_secs(15);

fn servers() -> Result<Net, Observed> {
    let net = Net::new().map_err(|error| Observed::broken(error.to_string()))?;
    net.name("other.allowed.test", &[OTHER]);
    Ok(net)
}

fn build(
    world: &World<'_>,
    setting: &Setting,
    net: &Net,
    ttl: &str,
    approver: Option<Arc<dyn Approver>>,
) -> Result<Sandbox, Observed> {
    let builder = world.builder(setting).map_err(Observed::broken)?;
    let text = format!("version = 1\n[ask]\nttl_s = {ttl}\n{ASKED}");
    let mut builder = builder.policy(text).egress_options(net.options());
    if let Some(approver) = approver {
        builder = builder.approver(approver);
    }
    builder.build().map_err(|error| Observed::broken(error.to_string()))
}

fn exec(session: &Session, setting: &Setting, code: &str) -> Ran {
    let start = machine::now();
    let outcome = session.exec(format!("{PRELUDE}\n{code}")).wait();
    Ran { outcome, took: start.elapsed(), wall: setting.limits.wall }
}

/// The question that waits: its number and token.
fn waiting(desk: &ApprovalDesk) -> Option<(u64, String)> {
    let start = machine::now();
    loop {
        if let Some((number, waiting)) = desk.waiting().first() {
            return Some((*number, waiting.token.clone()));
        }
        if start.elapsed() > PATIENCE {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn no() -> Answer {
    Answer::Deny { reason: String::new() }
}

/// What a reviewer does with a question while it waits.
type Review = fn(&ApprovalDesk, u64, &str) -> Vec<&'static str>;
/// What a reviewer does with it afterwards.
type After = fn(&ApprovalDesk, u64, &str) -> Vec<&'static str>;

fn nothing(_: &ApprovalDesk, _: u64, _: &str) -> Vec<&'static str> {
    Vec::new()
}

/// One request that waits at a desk.
fn at_the_desk(
    world: &World<'_>,
    setting: &Setting,
    ttl: &str,
    review: Review,
    after: After,
) -> Result<Observed, Observed> {
    let net = servers()?;
    let desk = ApprovalDesk::default();
    let sandbox = build(world, setting, &net, ttl, Some(Arc::new(desk.clone())))?;
    let session = sandbox.session();
    let (ran, mut codes, known) = std::thread::scope(|scope| {
        let running = scope.spawn(|| exec(&session, setting, GET));
        let known = waiting(&desk);
        let codes = known.as_ref().map(|(number, token)| review(&desk, *number, token));
        (running.join().ok(), codes.unwrap_or_default(), known)
    });
    let (Some(ran), Some((number, token))) = (ran, known) else {
        return Err(Observed::broken("nobody was asked"));
    };
    codes.extend(after(&desk, number, &token));
    let fact = format!("{}; {}; served: {}", codes.join(" "), printed(&ran.outcome), net.served());
    Ok(Observed::fact(fact).seen([ran]))
}

fn desk(
    id: &'static str,
    property: &'static str,
    ttl: &'static str,
    steps: (Review, After),
    expected: &'static str,
) -> Attack {
    let either = |result: Result<Observed, Observed>| result.unwrap_or_else(|observed| observed);
    Attack::host(id, property, move |world, setting| {
        either(at_the_desk(world, setting, ttl, steps.0, steps.1))
    })
    .control(
        Attempt::Host(Arc::new(move |world: &World<'_>, setting: &Setting| {
            let once: Review =
                |desk, number, token| vec![desk.answer(number, token, Answer::Once).code()];
            either(at_the_desk(world, setting, "60", once, nothing))
        })),
        Expected::Harmless("applied; hello; served: 1"),
    )
    .expect(
        Expected::Harmless(expected),
        "a question is answered once, in its time, with the token of what was shown",
    )
}

fn late_answers() -> Vec<Attack> {
    vec![
        desk(
            "S-07",
            "a call that waits goes on once, however often it is answered",
            "60",
            (
                |desk, number, token| {
                    let answer = |answer| desk.answer(number, token, answer).code();
                    vec![answer(Answer::Once), answer(Answer::Once)]
                },
                |desk, number, token| vec![desk.answer(number, token, Answer::Once).code()],
            ),
            "applied already_approved already_approved; hello; served: 1",
        ),
        desk(
            "S-08",
            "approving what was denied has no effect and says so",
            "60",
            (
                |desk, number, token| {
                    vec![
                        desk.answer(number, token, no()).code(),
                        desk.answer(number, token, Answer::Once).code(),
                    ]
                },
                |desk, number, token| vec![desk.answer(number, token, Answer::Once).code()],
            ),
            "applied already_denied already_denied; denied; served: 0",
        ),
        desk(
            "S-08b",
            "approving what nobody waits for any more has no effect and says so",
            "0.3",
            (nothing, |desk, number, token| vec![desk.answer(number, token, Answer::Once).code()]),
            "expired; denied; served: 0",
        ),
        desk(
            "S-08c",
            "of answers from several places at once exactly one counts",
            "60",
            (
                |desk, number, token| {
                    let mut codes: Vec<&'static str> = std::thread::scope(|scope| {
                        let tabs: Vec<_> = (0..8)
                            .map(|_| {
                                let desk = desk.clone();
                                scope.spawn(move || desk.answer(number, token, no()).code())
                            })
                            .collect();
                        tabs.into_iter().filter_map(|tab| tab.join().ok()).collect()
                    });
                    codes.sort_unstable();
                    codes.dedup_by(|a, b| a == b && *a != "applied");
                    codes
                },
                nothing,
            ),
            "already_denied applied; denied; served: 0",
        ),
        desk(
            "S-08d",
            "the token of another question, or none, answers nothing",
            "60",
            (
                |desk, number, token| {
                    let other = format!("{token}0");
                    vec![
                        desk.answer(number, "", Answer::Once).code(),
                        desk.answer(number, &other, Answer::Once).code(),
                        desk.answer(number + 1, token, Answer::Once).code(),
                        desk.answer(0, token, Answer::Once).code(),
                        desk.answer(number, token, no()).code(),
                    ]
                },
                nothing,
            ),
            "stale_token stale_token unknown unknown applied; denied; served: 0",
        ),
    ]
}

/// A session that goes back to before a request that was approved.
fn after_a_restore(world: &World<'_>, setting: &Setting) -> Result<Observed, Observed> {
    let net = servers()?;
    let desk = ApprovalDesk::default();
    let sandbox = build(world, setting, &net, "60", Some(Arc::new(desk.clone())))?;
    let session = sandbox.session();
    let begun = exec(&session, setting, "");
    let broken = |error: fumehood::SessionError| Observed::broken(error.to_string());
    let checkpoint = session.checkpoint().wait().map_err(broken)?;
    let mut facts = Vec::new();
    let mut seen = vec![begun];
    let mut first = None;
    for _ in 0..2 {
        let ran = std::thread::scope(|scope| {
            let running = scope.spawn(|| exec(&session, setting, GET));
            if let Some((number, token)) = waiting(&desk) {
                let (of, given) = first.get_or_insert((number, token.clone())).clone();
                // What was approved first is tried on whatever waits now.
                facts.push(desk.answer(of, &given, Answer::Once).code());
                facts.push(desk.answer(number, &given, Answer::Once).code());
                desk.answer(number, &token, no());
            }
            running.join().ok()
        });
        let ran = ran.ok_or_else(|| Observed::broken("the cell gave no answer"))?;
        facts.push(if ran.outcome.stdout_text().contains("hello") { "hello" } else { "denied" });
        seen.push(ran);
        session.restore(checkpoint).wait().map_err(broken)?;
    }
    Ok(Observed::fact(format!("{}; served: {}", facts.join(" "), net.served())).seen(seen))
}

fn restored() -> Attack {
    Attack::host(
        "S-07b",
        "going back to before a request that was approved does not approve it again",
        |world, setting| after_a_restore(world, setting).unwrap_or_else(|observed| observed),
    )
    .control_cell("print('x')", "x")
    .expect(
        Expected::Harmless(
            "applied already_approved hello already_approved stale_token denied; served: 1",
        ),
        "an answer is for one question, and a question that is asked again is another one",
    )
}

/// Answers each question in its turn; the last answer stays.
struct InTurn {
    answers: Mutex<Vec<Answer>>,
    asked: AtomicUsize,
}

impl Approver for InTurn {
    fn ask(&self, _: ApprovalRequest) -> Approving {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let next = if answers.len() > 1 {
            answers.remove(0)
        } else {
            answers.first().cloned().unwrap_or_else(no)
        };
        Box::pin(std::future::ready(next))
    }
}

fn grant(terms: GrantTerms) -> Answer {
    Answer::Grant(GrantTerms {
        methods: ["GET", "POST", "DELETE"].map(str::to_owned).to_vec(),
        path_prefix: "/v1".to_owned(),
        ..terms
    })
}

/// One grant and then denials; how often someone was asked is compared too.
fn granted(
    world: &World<'_>,
    setting: &Setting,
    terms: GrantTerms,
    codes: &[&str],
    between: fn(&Sandbox),
) -> Result<Observed, Observed> {
    let net = servers()?;
    let answers = Mutex::new(vec![grant(terms), no()]);
    let person = Arc::new(InTurn { answers, asked: AtomicUsize::new(0) });
    let asked = Arc::clone(&person);
    let sandbox = build(world, setting, &net, "60", Some(person))?;
    let session = sandbox.session();
    let mut texts = Vec::new();
    let mut seen = Vec::new();
    for code in codes {
        let ran = exec(&session, setting, code);
        texts.push(printed(&ran.outcome));
        seen.push(ran);
        between(&sandbox);
    }
    let asked = asked.asked.load(Ordering::SeqCst);
    let fact = format!("{}; asked: {asked}; served: {}", texts.join(" | "), net.served());
    Ok(Observed::fact(fact).seen(seen))
}

fn grants() -> Vec<Attack> {
    let attack = |id,
                  property,
                  terms: fn() -> GrantTerms,
                  codes: &'static [&'static str],
                  between: fn(&Sandbox),
                  expected| {
        let carry = move |world: &World<'_>, setting: &Setting, terms, codes, between| {
            granted(world, setting, terms, codes, between).unwrap_or_else(|observed| observed)
        };
        Attack::host(id, property, move |world, setting| {
            carry(world, setting, terms(), codes, between)
        })
        .control(
            Attempt::Host(Arc::new(move |world: &World<'_>, setting: &Setting| {
                carry(world, setting, GrantTerms::default(), &[GET, GET], |_| {})
            })),
            Expected::Harmless("hello | hello; asked: 1; served: 2"),
        )
        .expect(
            Expected::Harmless(expected),
            "a grant covers what it names, as long as it is there, and nothing that cannot be undone",
        )
    };
    vec![
        attack(
            "S-08e",
            "a grant for one host, path or query is none for another",
            GrantTerms::default,
            &[
                GET,
                "print(words(['http://other.allowed.test/v1/x', 'http://api.allowed.test/v1x', 'http://api.allowed.test/', 'http://api.allowed.test/v1/y']))",
            ],
            |_| {},
            "hello | denied denied denied hello; asked: 4; served: 2",
        ),
        attack(
            "S-08f",
            "what cannot be undone is asked about each time, whatever was granted",
            GrantTerms::default,
            &[
                "print(raw('http://api.allowed.test/v1/x', method='DELETE'))",
                "print(raw('http://api.allowed.test/v1/x', method='DELETE'), raw('http://api.allowed.test/v1/x'))",
            ],
            |_| {},
            "hello | denied denied; asked: 3; served: 1",
        ),
        attack(
            "S-08g",
            "a grant that was taken back covers nothing",
            GrantTerms::default,
            &[GET, GET],
            |sandbox| {
                if let Some(approvals) = sandbox.approvals() {
                    for listed in approvals.grants() {
                        approvals.revoke(listed.id);
                    }
                }
            },
            "hello | denied; asked: 2; served: 1",
        ),
        attack(
            "S-08h",
            "a grant ends with the number of its uses",
            || GrantTerms { uses: Some(2), ..GrantTerms::default() },
            &[GET, GET, GET],
            |_| {},
            "hello | hello | denied; asked: 2; served: 2",
        ),
        Attack::host(
            "S-08i",
            "without anybody to ask, what has to be asked about is denied",
            |world, setting| {
                let run = || {
                    let net = servers()?;
                    let sandbox = build(world, setting, &net, "60", None)?;
                    let ran = exec(&sandbox.session(), setting, GET);
                    let fact = format!("{}; {}", printed(&ran.outcome), net.seen());
                    Ok(Observed::fact(fact).seen([ran]))
                };
                run().unwrap_or_else(|observed: Observed| observed)
            },
        )
        .control(
            Attempt::Host(Arc::new(|world: &World<'_>, setting: &Setting| {
                super::cells(world, setting, super::USUAL, super::nothing_more, &[GET])
            })),
            Expected::Harmless(super::ANSWERED),
        )
        .expect(
            Expected::Harmless("denied; looked up: -; dialled: -"),
            "an answer that nobody gives is no, and nothing is looked up before it",
        ),
    ]
}

/// Tries to replace the policy; the words say what came of it.
type Reload = fn(&Sandbox) -> Vec<&'static str>;

fn valid(hosts: &str) -> Option<PolicyFile> {
    let text = format!("version = 1\n[[net]]\nid = \"n\"\nhosts = [{hosts:?}]\nports = [80]\n");
    PolicyFile::parse(&text, "policy").ok()
}

fn reloaded(world: &World<'_>, setting: &Setting, reload: Reload) -> Result<Observed, Observed> {
    let net = servers()?;
    let hosts =
        Grants::Policy("[[net]]\nid = \"n\"\nhosts = [\"api.allowed.test\"]\nports = [80]\n");
    let audit = Arc::new(MemorySink::default());
    let builder = world.builder(setting).map_err(Observed::broken)?;
    let builder = hosts.apply(builder).egress_options(net.options());
    let sandbox = builder.audit(Arc::<MemorySink>::clone(&audit)).build();
    let sandbox = sandbox.map_err(|error| Observed::broken(error.to_string()))?;
    let session = sandbox.session();
    let both = "print(words(['http://api.allowed.test/', 'http://other.allowed.test/']))";
    let before = exec(&session, setting, both);
    let words = reload(&sandbox);
    let after = exec(&session, setting, both);
    let replaced = audit.records().iter().any(|record| record.operation == "policy.replace");
    let generations: Vec<u64> =
        audit.records().iter().map(|record| record.policy.generation).collect();
    let fact = format!(
        "{}; {}; {}; recorded: {replaced}; generation {}",
        printed(&before.outcome),
        words.join(" "),
        printed(&after.outcome),
        generations.last().copied().unwrap_or_default(),
    );
    Ok(Observed::fact(fact).seen([before, after]))
}

/// Texts that are no policy; none of them may take effect in any part.
const BROKEN: &[&str] = &[
    "",
    "version = 2\n",
    "version = 1\nalow = 1\n",
    "version = 1\n[[net]]\nid = \"n\"\nhosts = [\"*\"]\n",
    "version = 1\n[[net]]\nid = \"n\"\nhosts = \"other.allowed.test\"\n",
    "version = 1\n[[net]]\nid = \"n\"\nhosts = [\"other.allowed.test\"]\nports = [0]\n",
    "version = 1\n[[net]]\nid = \"n\"\nhosts = [\"other.allowed.test\"]\n[[net]]\nid = \"n\"\nhosts = [\"a.test\"]\n",
    "version = 1\n[[net]]\nid = \"n\"\nhosts = [\"other.allowed.test\"]\n[[example]]\nrequest = \"net GET http://other.allowed.test/\"\nexpect = \"deny\"\n[fs",
];

fn reloads() -> Vec<Attack> {
    let attack = |id, property, reload: Reload, expected| {
        let run = |world: &World<'_>, setting: &Setting, reload| {
            reloaded(world, setting, reload).unwrap_or_else(|observed| observed)
        };
        Attack::host(id, property, move |world, setting| run(world, setting, reload))
            .control(
                Attempt::Host(Arc::new(move |world: &World<'_>, setting: &Setting| {
                    run(world, setting, |sandbox| {
                        let other = valid("other.allowed.test");
                        vec![match other.map(|file| sandbox.replace_policy(&file)) {
                            Some(Ok(2)) => "replaced",
                            _ => "not replaced",
                        }]
                    })
                })),
                Expected::Harmless(
                    "hello denied; replaced; denied hello; recorded: true; generation 2",
                ),
            )
            .expect(
                Expected::Harmless(expected),
                "a policy is replaced by a whole valid one over the same mounts, or it stays",
            )
    };
    vec![
        attack(
            "H-22",
            "a text that is no policy replaces nothing, in whole or in part",
            |sandbox| {
                let parsed =
                    BROKEN.iter().filter_map(|text| PolicyFile::parse(text, "policy").ok());
                let replaced = parsed.filter(|file| sandbox.replace_policy(file).is_ok());
                vec![if replaced.count() == 0 { "kept" } else { "replaced" }]
            },
            "hello denied; kept; hello denied; recorded: false; generation 1",
        ),
        attack(
            "H-22b",
            "a policy with other mounts replaces none, and the old one holds",
            |sandbox| {
                let other = Policy::builder().memory(None).build();
                vec![match other.map(|policy| sandbox.live_policy().replace(policy)) {
                    Ok(Err(_)) => "refused",
                    _ => "replaced",
                }]
            },
            "hello denied; refused; hello denied; recorded: false; generation 1",
        ),
    ]
}

/// Every attack of this kind.
pub(super) fn all() -> Vec<Attack> {
    let mut all = late_answers();
    all.push(restored());
    all.extend(grants());
    all.extend(reloads());
    all
}
