//! Requests that someone is asked about, and policies that change.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fumehood_guest_abi::FetchErrorKind::Denied;
use fumehood_host_fns::{
    Answer, ApprovalDesk, ApprovalRequest, ApprovalStatus, Approvals, Approver, Approving,
    LivePolicy, SimpleWaiter, WaitResult, Waiter, Wake,
};
use fumehood_policies::{Flags, GrantTerms, Policy, PolicyFile};

use crate::support::{Guest, Net, PUBLIC, flags, get, ok};

const RULE: &str = "[[net]]\nid = \"careful\"\naction = \"ask\"\nhosts = [\"a.test\", \"b.test\"]\nports = [80]\naccess = \"full\"\n";

/// Answers at once and counts questions.
struct Script {
    answer: Answer,
    asked: AtomicUsize,
    last: Mutex<Option<ApprovalRequest>>,
}

impl Script {
    fn new(answer: Answer) -> Arc<Self> {
        Arc::new(Self { answer, asked: AtomicUsize::new(0), last: Mutex::default() })
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Approver for Script {
    fn ask(&self, request: ApprovalRequest) -> Approving {
        self.asked.fetch_add(1, Ordering::Relaxed);
        *self.last.lock().unwrap() = Some(request);
        Box::pin(std::future::ready(self.answer.clone()))
    }
}

fn net() -> Net {
    let net = Net::new();
    for name in ["a.test", "b.test"] {
        net.name(name, &[&[PUBLIC]]);
    }
    net.answer(&format!("{PUBLIC}:80"), |_| ok("done"));
    net
}

fn policy(text: &str) -> Policy {
    let file = PolicyFile::parse(&format!("version = 1\n{text}"), "p").unwrap();
    Policy::combine(Some(&file), &Flags::default(), None).unwrap().policy
}

fn guest(net: &Net, approver: Arc<dyn Approver>) -> (Guest, Arc<Approvals>) {
    let approvals = Arc::new(Approvals::new(approver));
    let given = Arc::clone(&approvals);
    (net.guest_with(policy(RULE), |config| config.approvals = Some(given)), approvals)
}

fn send(guest: &mut Guest, method: &str, url: &str) -> Result<String, String> {
    let mut start = get(url);
    start.method = method.to_owned();
    match guest.send(&start, &[]) {
        Ok(response) => Ok(response.text()),
        Err((kind, message)) => {
            assert_eq!(kind, Denied);
            Err(message)
        }
    }
}

fn grant(methods: &[&str], prefix: &str) -> Answer {
    Answer::Grant(GrantTerms {
        methods: methods.iter().map(|method| (*method).to_owned()).collect(),
        path_prefix: prefix.to_owned(),
        ..GrantTerms::default()
    })
}

fn operations(guest: &Guest) -> Vec<&'static str> {
    guest.audit.records().iter().map(|record| record.operation).collect()
}

#[test]
fn without_an_approver_asking_is_denying() {
    let net = net();
    let mut guest = net.guest_with(policy(RULE), |_| {});
    let message = send(&mut guest, "GET", "http://a.test/").unwrap_err();
    assert!(message.contains("sends GET"), "{message}");
    assert!(net.names.asked().is_empty());
}

#[test]
fn once_is_once() {
    let net = net();
    let script = Script::new(Answer::Once);
    let (mut guest, approvals) = guest(&net, Arc::<Script>::clone(&script));
    for count in 1..=3 {
        assert_eq!(send(&mut guest, "GET", "http://a.test/x?q=1"), Ok("done".to_owned()));
        assert_eq!(script.asked(), count);
    }
    assert!(approvals.grants().is_empty());
    let shown = script.last.lock().unwrap().clone().unwrap();
    assert_eq!(shown.to_string(), "GET http://a.test/x?q=1 (rule careful)");
    assert_eq!(operations(&guest)[..4], ["approval.ask", "approval.once", "fetch", "fetch"]);
}

#[test]
fn no_is_no_and_says_why() {
    let net = net();
    let reason = "not\u{1b}[2J today".to_owned();
    let (mut guest, _) = guest(&net, Script::new(Answer::Deny { reason }));
    let message = send(&mut guest, "GET", "http://a.test/").unwrap_err();
    assert!(message.contains("the approver said no: not\\u{1b}[2J today"), "{message}");
    assert!(message.contains("(rule careful)") && message.contains("do not retry"));
    assert!(net.names.asked().is_empty());
    assert_eq!(guest.denied_by(), ["careful"]);
}

#[test]
fn a_grant_covers_what_it_names_and_is_asked_about_beyond() {
    let net = net();
    let script = Script::new(grant(&["GET", "POST", "DELETE"], "/v1"));
    let (mut guest, approvals) = guest(&net, Arc::<Script>::clone(&script));
    assert!(send(&mut guest, "GET", "http://a.test/v1/x").is_ok());
    assert!(send(&mut guest, "GET", "http://a.test/v1/y").is_ok());
    assert!(send(&mut guest, "POST", "http://a.test/v1").is_ok());
    assert_eq!((script.asked(), approvals.grants().len()), (1, 1));
    // Beyond: another path, another host, what cannot be undone.
    for (count, (method, url)) in [
        ("GET", "http://a.test/v1x"),
        ("GET", "http://b.test/v1/x"),
        ("DELETE", "http://a.test/v1/x"),
        ("DELETE", "http://a.test/v1/x"),
    ]
    .iter()
    .enumerate()
    {
        assert!(send(&mut guest, method, url).is_ok());
        assert_eq!(script.asked(), count + 2, "{method} {url}");
    }
    assert!(!script.last.lock().unwrap().clone().unwrap().grantable);
    assert!(operations(&guest).contains(&"approval.use"));
}

#[test]
fn a_grant_that_is_taken_back_covers_nothing() {
    let net = net();
    let script = Script::new(grant(&["GET"], "/"));
    let (mut guest, approvals) = guest(&net, Arc::<Script>::clone(&script));
    assert!(send(&mut guest, "GET", "http://a.test/").is_ok());
    let id = approvals.grants()[0].id;
    assert!(approvals.revoke(id) && !approvals.revoke(id));
    assert!(send(&mut guest, "GET", "http://a.test/").is_ok());
    assert_eq!(script.asked(), 2);
    assert!(operations(&guest).contains(&"approval.revoked"));
}

#[test]
fn uses_and_time_of_a_grant_end() {
    let net = net();
    let terms = GrantTerms {
        methods: vec!["GET".to_owned()],
        path_prefix: "/".to_owned(),
        uses: Some(2),
        ..GrantTerms::default()
    };
    let script = Script::new(Answer::Grant(terms.clone()));
    let (mut guest, _) = guest(&net, Arc::<Script>::clone(&script));
    for _ in 0..4 {
        assert!(send(&mut guest, "GET", "http://a.test/").is_ok());
    }
    assert_eq!(script.asked(), 2);
    let short = Script::new(Answer::Grant(GrantTerms { uses: None, lasts_ms: Some(30), ..terms }));
    let (mut guest, approvals) = crate::asking::guest(&net, Arc::<Script>::clone(&short));
    assert!(send(&mut guest, "GET", "http://a.test/").is_ok());
    std::thread::sleep(Duration::from_millis(60));
    assert!(approvals.grants().is_empty());
    assert!(send(&mut guest, "GET", "http://a.test/").is_ok());
    assert_eq!(short.asked(), 2);
}

#[test]
fn a_redirect_is_asked_about_again() {
    let net = net();
    net.answer(&format!("{PUBLIC}:80"), |head| {
        if head.starts_with("GET /1 ") {
            crate::support::response("302 X", "Location: http://b.test/2\r\n", b"")
        } else {
            ok("end")
        }
    });
    let script = Script::new(Answer::Once);
    let (mut guest, _) = guest(&net, Arc::<Script>::clone(&script));
    assert_eq!(send(&mut guest, "GET", "http://a.test/1"), Ok("end".to_owned()));
    assert_eq!(script.asked(), 2);
}

#[test]
fn a_deny_rule_is_not_asked_about() {
    let net = net();
    let text = format!(
        "{RULE}[[net]]\nid = \"never\"\naction = \"deny\"\nhosts = [\"a.test\"]\npaths = [\"/admin/**\"]\n"
    );
    let script = Script::new(Answer::Once);
    let approvals = Arc::new(Approvals::new(Arc::<Script>::clone(&script) as Arc<dyn Approver>));
    let mut guest = net.guest_with(policy(&text), |config| config.approvals = Some(approvals));
    assert!(send(&mut guest, "GET", "http://a.test/admin/x").is_err());
    assert!(send(&mut guest, "GET", "http://c.test/").is_err());
    assert_eq!(script.asked(), 0);
}

/// Runs a request on a thread while the desk is looked at.
fn at_the_desk(
    ttl: &str,
    look: impl FnOnce(&ApprovalDesk) + Send,
) -> (Result<String, String>, ApprovalDesk) {
    let net = net();
    let desk = ApprovalDesk::default();
    let approvals = Arc::new(Approvals::new(Arc::new(desk.clone())));
    let text = format!("[ask]\nttl_s = {ttl}\n{RULE}");
    let mut guest = net.guest_with(policy(&text), |config| config.approvals = Some(approvals));
    let result = std::thread::scope(|scope| {
        let sent = scope.spawn(|| send(&mut guest, "POST", "http://a.test/v1"));
        look(&desk);
        sent.join().unwrap()
    });
    let expired = result.as_ref().is_err_and(|why| why.contains("nobody answered in time"));
    assert_eq!(guest.broker.time_limit_fired(), expired);
    (result, desk)
}

fn wait_for(desk: &ApprovalDesk) -> (u64, String) {
    let started = Instant::now();
    loop {
        if let Some((number, waiting)) = desk.waiting().first() {
            return (*number, waiting.token.clone());
        }
        assert!(started.elapsed() < Duration::from_secs(5));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_answer_needs_the_token_of_what_was_shown_and_counts_once() {
    let (result, desk) = at_the_desk("60", |desk| {
        let (number, token) = wait_for(desk);
        assert_eq!(desk.answer(number + 1, &token, Answer::Once), ApprovalStatus::Unknown);
        assert_eq!(desk.answer(number, "0", Answer::Once), ApprovalStatus::Stale);
        assert_eq!(desk.answer(number, &token, Answer::Once), ApprovalStatus::Applied);
        let late = desk.answer(number, &token, Answer::Deny { reason: String::new() });
        assert_eq!(late, ApprovalStatus::AlreadyApproved);
    });
    assert_eq!(result, Ok("done".to_owned()));
    assert!(desk.waiting().is_empty());
    assert_eq!(desk.answer(1, "x", Answer::Once), ApprovalStatus::AlreadyApproved);
}

#[test]
fn approving_after_a_denial_has_no_effect() {
    let (result, desk) = at_the_desk("60", |desk| {
        let (number, token) = wait_for(desk);
        let no = Answer::Deny { reason: "no".to_owned() };
        assert_eq!(desk.answer(number, &token, no), ApprovalStatus::Applied);
        assert_eq!(desk.answer(number, &token, Answer::Once), ApprovalStatus::AlreadyDenied);
    });
    assert!(result.unwrap_err().contains("said no: no"));
    assert_eq!(desk.answer(1, "x", Answer::Once), ApprovalStatus::AlreadyDenied);
}

#[test]
fn approving_after_its_time_has_no_effect() {
    let mut known = (0, String::new());
    let (result, desk) = at_the_desk("0.1", |desk| known = wait_for(desk));
    assert!(result.unwrap_err().contains("nobody answered in time"));
    assert_eq!(desk.answer(known.0, &known.1, Answer::Once), ApprovalStatus::Expired);
}

/// Notes whether time counted while it was parked.
#[derive(Default)]
struct Counting {
    inner: SimpleWaiter,
    held: Mutex<(bool, usize)>,
}

impl Waiter for Counting {
    fn wait(&self, timeout: Duration) -> WaitResult {
        self.inner.wait(timeout)
    }

    fn park(&self, timeout: Duration) -> Wake {
        let mut held = self.held.lock().unwrap();
        held.1 += usize::from(held.0);
        drop(held);
        self.inner.park(timeout)
    }

    fn waker(&self) -> std::task::Waker {
        self.inner.waker()
    }

    fn hold(&self) {
        self.held.lock().unwrap().0 = true;
    }

    fn release(&self) {
        self.held.lock().unwrap().0 = false;
    }
}

#[test]
fn time_that_a_person_takes_is_not_the_runs() {
    let net = net();
    let desk = ApprovalDesk::default();
    let approvals = Arc::new(Approvals::new(Arc::new(desk.clone())));
    let waiter = Arc::new(Counting::default());
    let given = Arc::clone(&waiter);
    let mut guest = net.guest_with(policy(RULE), |config| {
        config.approvals = Some(approvals);
        config.waiter = given;
    });
    std::thread::scope(|scope| {
        let sent = scope.spawn(|| send(&mut guest, "GET", "http://a.test/"));
        let (number, token) = wait_for(&desk);
        desk.answer(number, &token, Answer::Once);
        assert!(sent.join().unwrap().is_ok());
    });
    let held = waiter.held.lock().unwrap();
    assert!(!held.0 && held.1 >= 1);
}

#[test]
fn a_stopped_run_stops_asking() {
    let net = net();
    let desk = ApprovalDesk::default();
    let approvals = Arc::new(Approvals::new(Arc::new(desk.clone())));
    let waiter = Arc::new(SimpleWaiter::default());
    let given = Arc::clone(&waiter);
    let mut guest = net.guest_with(policy(RULE), |config| {
        config.approvals = Some(approvals);
        config.waiter = given;
    });
    let text = serde_json::to_vec(&get("http://a.test/")).unwrap();
    let request = fumehood_guest_abi::frame(&text, &[]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            wait_for(&desk);
            waiter.interrupt();
        });
        let call = fumehood_host_fns::HostCall::Brokered {
            op: fumehood_guest_abi::fetch_op::FETCH_START,
            request: &request,
            response: &mut [0; 64],
        };
        let stopped = guest.broker.dispatch(call);
        assert!(matches!(stopped, Err(fumehood_host_fns::Refusal::Stop(_))), "{stopped:?}");
    });
    assert!(desk.waiting().is_empty());
}

const NEVER: &str = "[[net]]\nid = \"never\"\naction = \"deny\"\nhosts = [\"a.test\"]\n";

#[test]
fn an_approval_is_decided_by_the_policy_that_holds_when_it_comes() {
    let net = net();
    let desk = ApprovalDesk::default();
    let approvals = Arc::new(Approvals::new(Arc::new(desk.clone())));
    let live = Arc::new(LivePolicy::new(policy(RULE)));
    let given = Arc::clone(&live);
    let mut guest = net.guest_with(policy(RULE), |config| {
        config.approvals = Some(approvals);
        config.live_policy = Some(given);
    });
    let result = std::thread::scope(|scope| {
        let sent = scope.spawn(|| send(&mut guest, "GET", "http://a.test/"));
        let (number, token) = wait_for(&desk);
        // The operator changes their mind while the question waits.
        assert_eq!(live.replace(policy(&format!("{RULE}{NEVER}"))), Ok(2));
        assert_eq!(desk.answer(number, &token, Answer::Once), ApprovalStatus::Applied);
        sent.join().unwrap()
    });
    assert!(result.unwrap_err().contains("denied by policy (rule never)"));
    assert_eq!(guest.denied_by(), ["never"]);
    assert!(net.names.asked().is_empty());
}

#[test]
fn each_hop_is_decided_by_the_policy_that_holds_then() {
    let net = net();
    let live = Arc::new(LivePolicy::new(flags(&["a.test:80", "b.test:80"])));
    let (given, of_server) = (Arc::clone(&live), Arc::clone(&live));
    net.answer(&format!("{PUBLIC}:80"), move |head| {
        if head.starts_with("GET /1 ") {
            // One call of the guest waits for the head of the whole chain.
            of_server.replace(flags(&["a.test:80"])).unwrap();
            crate::support::response("302 X", "Location: http://b.test/2\r\n", b"")
        } else {
            ok("end")
        }
    });
    let mut guest = net.guest_with(flags(&[]), |config| config.live_policy = Some(given));
    let message = send(&mut guest, "GET", "http://a.test/1").unwrap_err();
    assert!(message.contains("rule default-deny"), "{message}");
    assert!(!net.names.asked().contains(&"b.test".to_owned()));
}

#[test]
fn a_policy_that_is_replaced_holds_for_the_next_request() {
    let net = net();
    let live = Arc::new(LivePolicy::new(flags(&["a.test:80"])));
    let given = Arc::clone(&live);
    let mut guest = net.guest_with(flags(&[]), |config| config.live_policy = Some(given));
    assert!(send(&mut guest, "GET", "http://a.test/").is_ok());
    assert!(send(&mut guest, "GET", "http://b.test/").is_err());
    assert_eq!(live.replace(flags(&["b.test:80"])), Ok(2));
    assert!(send(&mut guest, "GET", "http://b.test/").is_ok());
    assert!(send(&mut guest, "GET", "http://a.test/").is_err());
    let generations: Vec<_> =
        guest.audit.records().iter().map(|record| record.policy.generation).collect();
    assert!(
        generations.is_sorted()
            && generations.first() == Some(&1)
            && generations.last() == Some(&2)
    );
    assert!(operations(&guest).contains(&"policy.replace"));
    // A policy that does not parse is none, and one with other mounts is not
    // this session's: what held goes on to hold.
    assert!(PolicyFile::parse("version = 1\nalow = 1\n", "p").is_err());
    let other = Policy::builder().memory(None).build().unwrap();
    assert!(live.replace(other).is_err());
    assert!(send(&mut guest, "GET", "http://b.test/").is_ok());
    assert_eq!(live.generation(), 2);
}
