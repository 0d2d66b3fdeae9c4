//! Rules that are proposed for what was denied.
//!
//! What: [`DraftBook::propose`] makes the narrowest rules of `[[net]]` that let
//! denied requests through, each with notes and a review token;
//! [`DraftBook::approve`] puts one into a policy text, [`DraftBook::reject`]
//! drops it.
//! Why: widening a policy is a person's decision, made over what was shown.
//!
//! Invariant: nothing is applied by itself. A token is a digest of the proposed
//! rule and of the text of the policy that it was made for, which together are
//! the policy that it leads to; if either has changed since it was shown,
//! approving fails. What the policy allows by now is not proposed, nor what no
//! rule can allow. A draft that was decided stays decided.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use crate::address::AddressClass;
use crate::combine::{CombineErrors, Flags};
use crate::digest::hexadecimal;
use crate::explain::escape_pattern;
use crate::grant::is_grantable;
use crate::network::NetRequest;
use crate::policy::{DEFAULT_DENY, Policy, Verdict};
use crate::request::Canonical;
use crate::text::PolicyFile;

/// Most drafts of one book.
pub const MAX_DRAFTS: usize = 1000;
/// Rule id of denials because of the address that a name leads to.
const ADDRESS_RULE: &str = "address";
/// Rule ids of denials of what is no request.
const MALFORMED: [&str; 2] = ["url", "method"];
/// Most paths of one draft; beyond it the draft says that it is cut.
pub const MAX_DRAFT_PATHS: usize = 100;

/// Ports of services that are no web servers.
const SERVICES: &[(u16, &str)] = &[
    (22, "SSH"),
    (25, "mail"),
    (1433, "SQL Server"),
    (2375, "the Docker daemon"),
    (2379, "etcd"),
    (3306, "MySQL"),
    (5432, "PostgreSQL"),
    (5984, "CouchDB"),
    (6379, "Redis"),
    (6443, "a Kubernetes API"),
    (8500, "Consul"),
    (9200, "Elasticsearch"),
    (10250, "a kubelet"),
    (11211, "Memcached"),
    (27017, "MongoDB"),
];

/// A denied request and how often it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The request.
    pub request: Canonical<NetRequest>,
    /// The rule that denied it.
    pub rule: String,
    /// How often.
    pub count: u64,
    /// What the name leads to, if the denial said so.
    pub class: Option<AddressClass>,
}

impl Denied {
    /// Reads what a denial of a result names as its target: a method and a
    /// URL. `None` if it is no request. `why` is the denial's reason, of which
    /// the class of an address is read.
    #[must_use]
    pub fn parse(target: &str, rule: &str, why: &str, count: u64) -> Option<Self> {
        let (method, url) = target.split_once(' ')?;
        let request = NetRequest::parse(method, url).ok().filter(|_| !MALFORMED.contains(&rule))?;
        let class = AddressClass::told(why);
        Some(Self { request, rule: rule.to_owned(), count, class })
    }

    /// Whether it was denied because of where its name leads.
    fn by_address(&self) -> bool {
        self.rule == ADDRESS_RULE
    }

    /// Whether a rule more would let it through: not if `policy` allows it and
    /// something else stopped it, such as a budget, nor to where nothing is or
    /// no name may lead.
    fn could_be_allowed(&self, policy: Option<&Policy>) -> bool {
        let address = self.request.get().host.address();
        if address.is_some_and(|address| AddressClass::of(address) == AddressClass::Never) {
            return false;
        }
        if self.by_address() {
            return self.class.is_some_and(AddressClass::is_private_network);
        }
        policy.is_none_or(|policy| {
            policy.decide_network(&self.request).decision.verdict != Verdict::Allow
        })
    }

    /// Why there is no rule for it, where a reviewer may wonder.
    fn why_not(&self) -> Option<String> {
        if !self.by_address() || self.could_be_allowed(None) {
            return None;
        }
        let host = &self.request.get().host;
        let what = self.class.map_or("not for programs", AddressClass::name);
        Some(format!("`{host}` leads to an address that is {what}; nobody can allow it by name"))
    }
}

/// What became of a draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DraftState {
    /// It waits.
    Pending,
    /// It was put into a policy.
    Approved,
    /// It was dropped, and why.
    Rejected {
        /// The reviewer's words.
        reason: String,
    },
}

/// One proposed rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// Names it in its book.
    pub id: String,
    /// The rule, as policy text.
    pub text: String,
    /// What a reviewer should know.
    pub notes: Vec<String>,
    /// How many denials it would have prevented.
    pub hits: u64,
    /// What approving needs; shown to reviewers only.
    pub token: String,
    /// What became of it.
    pub state: DraftState,
    /// What its requests have in common.
    place: Place,
}

impl Draft {
    /// The rule without its id, which is what a decision about it is about.
    #[must_use]
    pub fn rule(&self) -> String {
        let lines = self.text.lines().filter(|line| !line.starts_with("id = "));
        lines.fold(String::new(), |text, line| text + line + "\n")
    }

    fn is_pending(&self) -> bool {
        self.state == DraftState::Pending
    }
}

/// Why a draft was not decided.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DraftError {
    /// There is none of that id.
    #[error("there is no draft `{id}`; list them again")]
    Unknown {
        /// The id.
        id: String,
    },
    /// It was decided before.
    #[error("the draft `{id}` was {how} before; nothing was changed")]
    Decided {
        /// The id.
        id: String,
        /// `approved` or `rejected`.
        how: &'static str,
    },
    /// The token is not of what would be applied now.
    #[error("the token of draft `{id}` is stale: draft or policy has changed; review it again")]
    Stale {
        /// The id.
        id: String,
    },
    /// The policy with the rule is none.
    #[error("the policy with the draft `{id}` cannot be used: {reason}")]
    Unusable {
        /// The id.
        id: String,
        /// Why.
        reason: String,
    },
}

impl DraftError {
    /// A stable identifier.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "draft_unknown",
            Self::Decided { .. } => "draft_decided",
            Self::Stale { .. } => "draft_stale",
            Self::Unusable { .. } => "draft_unusable",
        }
    }
}

/// Proposed rules for one policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DraftBook {
    drafts: Vec<Draft>,
    notes: BTreeSet<String>,
}

/// What requests of one draft have in common.
type Place = (String, u16, bool, &'static str, bool);

impl DraftBook {
    /// The narrowest rules that let denied requests through, one for each host,
    /// port, scheme and method. `policy` is the text that they would be added
    /// to.
    ///
    /// # Errors
    /// The problems of `policy`, if it is none.
    pub fn propose(denied: &[Denied], policy: &str) -> Result<Self, crate::PolicyErrors> {
        let mut book = Self::default();
        book.update(denied, policy)?;
        Ok(book)
    }

    /// The same for denials that are known by now. A draft that waits is made
    /// again, so that its token is of what would be applied now; what was
    /// decided stays decided, and no rule is proposed a second time.
    ///
    /// # Errors
    /// The problems of `policy`, if it is none.
    pub fn update(&mut self, denied: &[Denied], policy: &str) -> Result<(), crate::PolicyErrors> {
        let decided = combined(&PolicyFile::parse(policy, "policy")?).ok();
        let base = Sha256::digest(policy);
        self.notes = denied.iter().filter_map(Denied::why_not).take(MAX_DRAFTS).collect();
        let mut places: BTreeMap<Place, Vec<&Denied>> = BTreeMap::new();
        for denied in denied.iter().filter(|denied| denied.could_be_allowed(decided.as_ref())) {
            let NetRequest { host, port, https, method, .. } = denied.request.get();
            let inside = denied.by_address();
            let place = (host.to_string(), *port, *https, *method, inside);
            places.entry(place).or_default().push(denied);
        }
        for (place, denied) in places {
            let number = self.drafts.len();
            let waits = |known: &&mut Draft| known.place == place && known.is_pending();
            let known = self.drafts.iter_mut().find(waits);
            if known.is_none() && number >= MAX_DRAFTS {
                continue;
            }
            let id =
                known.as_ref().map_or_else(|| free_id(policy, number), |known| known.id.clone());
            let mut next = draft(&id, place, &denied);
            next.token = token(&next.text, &base);
            if let Some(known) = known {
                *known = next;
            } else if !self.drafts.iter().any(|known| known.rule() == next.rule()) {
                self.drafts.push(next);
            }
        }
        Ok(())
    }

    /// Every draft.
    #[must_use]
    pub fn drafts(&self) -> &[Draft] {
        &self.drafts
    }

    /// Denials for which no rule is proposed because none would help, each in
    /// one sentence for a reviewer.
    pub fn notes(&self) -> impl Iterator<Item = &str> {
        self.notes.iter().map(String::as_str)
    }

    fn pending(&mut self, id: &str) -> Result<&mut Draft, DraftError> {
        let unknown = || DraftError::Unknown { id: crate::host::shown(id) };
        let draft = self.drafts.iter_mut().find(|draft| draft.id == id).ok_or_else(unknown)?;
        let how = match draft.state {
            DraftState::Pending => return Ok(draft),
            DraftState::Approved => "approved",
            DraftState::Rejected { .. } => "rejected",
        };
        Err(DraftError::Decided { id: id.to_owned(), how })
    }

    /// The policy text with a draft in it.
    ///
    /// # Errors
    /// [`DraftError`]; then nothing has changed.
    pub fn approve(&mut self, id: &str, token: &str, policy: &str) -> Result<String, DraftError> {
        let draft = self.pending(id)?;
        let next = with_rule(policy, &draft.text);
        let unusable = |reason| DraftError::Unusable { id: id.to_owned(), reason };
        let file =
            PolicyFile::parse(&next, "policy").map_err(|errors| unusable(errors.to_string()))?;
        combined(&file).map_err(|errors| unusable(errors.to_string()))?;
        let now = self::token(&draft.text, &Sha256::digest(policy));
        if draft.token != token || now != token {
            return Err(DraftError::Stale { id: id.to_owned() });
        }
        draft.state = DraftState::Approved;
        Ok(next)
    }

    /// Takes over what was decided about a rule before: see [`Draft::rule`].
    pub fn decided(&mut self, rule: &str, state: &DraftState) {
        for draft in self.drafts.iter_mut().filter(|draft| draft.rule() == rule) {
            draft.state = state.clone();
        }
    }

    /// Drops a draft.
    ///
    /// # Errors
    /// [`DraftError`]; then nothing has changed.
    pub fn reject(&mut self, id: &str, reason: &str) -> Result<(), DraftError> {
        let draft = self.pending(id)?;
        draft.state = DraftState::Rejected { reason: crate::host::shown(reason) };
        Ok(())
    }
}

fn free_id(policy: &str, index: usize) -> String {
    let mut number = index.saturating_add(1);
    loop {
        let id = format!("draft-{number}");
        if !policy.contains(&format!("\"{id}\"")) {
            return id;
        }
        number = number.saturating_add(MAX_DRAFTS);
    }
}

fn with_rule(policy: &str, rule: &str) -> String {
    format!("{}\n\n{rule}", policy.trim_end())
}

/// The policy of a text that stands alone.
fn combined(file: &PolicyFile) -> Result<Policy, CombineErrors> {
    Ok(Policy::combine(Some(file), &Flags::default(), None)?.policy)
}

/// The digest of a rule and of the policy that it is for.
fn token(rule: &str, policy: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update(b"fumehood draft 2\0");
    hash.update(policy);
    hash.update(rule.as_bytes());
    hexadecimal(&hash.finalize())
}

fn draft(id: &str, place: Place, denied: &[&Denied]) -> Draft {
    let (host, port, https, method, inside) = &place;
    let mut paths: Vec<&str> =
        denied.iter().map(|denied| denied.request.get().path.as_str()).collect();
    paths.sort_unstable();
    paths.dedup();
    let cut = paths.len().saturating_sub(MAX_DRAFT_PATHS);
    paths.truncate(MAX_DRAFT_PATHS);
    let mut text = format!("[[net]]\nid = \"{id}\"\nhosts = [\"{host}\"]\n");
    if !(*https && *port == 443) {
        let _ = writeln!(text, "ports = [{port}]");
    }
    let _ = writeln!(text, "methods = [\"{method}\"]");
    let listed: Vec<String> =
        paths.iter().map(|path| format!("'{}'", escape_pattern(path.as_bytes()))).collect();
    let _ = writeln!(text, "paths = [{}]", listed.join(", "));
    if *inside {
        let _ = writeln!(text, "private = true");
    }
    let hits = denied.iter().fold(0_u64, |sum, denied| sum.saturating_add(denied.count));
    let mut notes = notes(denied, *port, *https, method, *inside);
    if cut != 0 {
        notes.push(format!("{cut} more paths were denied and are not in this rule"));
    }
    Draft {
        id: id.to_owned(),
        text,
        notes,
        hits,
        token: String::new(),
        state: DraftState::Pending,
        place,
    }
}

fn notes(denied: &[&Denied], port: u16, https: bool, method: &str, inside: bool) -> Vec<String> {
    let mut notes = Vec::new();
    let address = denied.first().and_then(|denied| denied.request.get().host.address());
    if let Some(address) = address {
        let class = AddressClass::of(address);
        if class != AddressClass::Public {
            notes.push(format!("this is an internal address ({})", class.name()));
        } else {
            notes.push("this is an address and not a name: whose it is can change".to_owned());
        }
    }
    if inside {
        notes.push("the name leads to an internal address of a private network".to_owned());
    }
    if let Some((_, service)) = SERVICES.iter().find(|(known, _)| *known == port) {
        notes.push(format!("port {port} is usually {service}"));
    }
    if https && port != 443 {
        notes.push(format!("a rule for port {port} lets http through there as well"));
    }
    if !https {
        notes.push("http is not encrypted: others on the way can read and change it".to_owned());
    }
    if !is_grantable(method) {
        notes.push(format!("what {method} does cannot be undone"));
    } else if !matches!(method, "GET" | "HEAD" | "OPTIONS") {
        notes.push(format!("{method} can send data out and change things there"));
    }
    let explicit: Vec<&str> = denied
        .iter()
        .filter(|denied| !matches!(denied.rule.as_str(), DEFAULT_DENY | ADDRESS_RULE))
        .map(|denied| denied.rule.as_str())
        .collect();
    if let Some(rule) = explicit.first() {
        notes.push(format!(
            "rule `{}` denied it; while it is there, an allow rule changes nothing",
            crate::host::shown(rule)
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "version = 1\n\n[[net]]\nid = \"draft-1\"\nhosts = [\"a.example\"]\n";

    fn denied(list: &[(&str, &str, u64)]) -> Vec<Denied> {
        list.iter()
            .map(|(target, rule, count)| {
                let why =
                    if *rule == "address" { AddressClass::Private.tell() } else { String::new() };
                Denied::parse(target, rule, &why, *count).unwrap()
            })
            .collect()
    }

    fn verdict(policy: &str, method: &str, url: &str) -> Verdict {
        let file = PolicyFile::parse(policy, "p").unwrap();
        let policy = Policy::combine(Some(&file), &Flags::default(), None).unwrap().policy;
        policy.decide_network(&NetRequest::parse(method, url).unwrap()).decision.verdict
    }

    #[test]
    fn the_narrowest_rules_are_proposed_and_approved_one_by_one() {
        let list = denied(&[
            ("GET https://api.example.com/v1/a", "default-deny", 3),
            ("GET https://api.example.com/v1/it's*", "default-deny", 1),
            ("POST https://api.example.com/v1/a", "default-deny", 1),
            ("GET http://db.example.com:5432/", "address", 2),
        ]);
        let mut book = DraftBook::propose(&list, POLICY).unwrap();
        let drafts = book.drafts().to_vec();
        assert_eq!(drafts.len(), 3);
        assert!(drafts.iter().all(|draft| draft.id != "draft-1"), "the id is taken");
        assert_eq!(drafts[0].hits, 4);
        let notes = drafts[2].notes.join("\n");
        for part in ["internal address", "PostgreSQL", "not encrypted"] {
            assert!(notes.contains(part), "{notes}");
        }
        let next = book.approve(&drafts[0].id, &drafts[0].token, POLICY).unwrap();
        for (method, url, want) in [
            ("GET", "https://api.example.com/v1/a", Verdict::Allow),
            ("GET", "https://api.example.com/v1/it's*", Verdict::Allow),
            ("GET", "https://api.example.com/v1/b", Verdict::Deny),
            ("POST", "https://api.example.com/v1/a", Verdict::Deny),
            ("GET", "https://api.example.com:8443/v1/a", Verdict::Deny),
        ] {
            assert_eq!(verdict(&next, method, url), want, "{method} {url}");
        }
    }

    #[test]
    fn only_what_was_reviewed_is_applied_and_only_once() {
        let list = denied(&[
            ("GET https://a.test/1", "default-deny", 1),
            ("GET https://b.test/2", "default-deny", 1),
            ("GET https://c.test/3", "default-deny", 1),
        ]);
        let mut book = DraftBook::propose(&list, POLICY).unwrap();
        let tokens: Vec<_> =
            book.drafts().iter().map(|draft| (draft.id.clone(), draft.token.clone())).collect();
        let code = |result: Result<String, DraftError>| result.unwrap_err().code();
        let (first, second, third) = (&tokens[0], &tokens[1], &tokens[2]);
        assert_eq!(code(book.approve("draft-99", &first.1, POLICY)), "draft_unknown");
        assert_eq!(code(book.approve(&first.0, "", POLICY)), "draft_stale");
        assert_eq!(code(book.approve(&first.0, &second.1, POLICY)), "draft_stale");
        // The policy has changed since.
        let next = book.approve(&first.0, &first.1, POLICY).unwrap();
        assert_eq!(code(book.approve(&first.0, &first.1, &next)), "draft_decided");
        assert_eq!(code(book.approve(&second.0, &second.1, &next)), "draft_stale");
        assert_eq!(code(book.approve(&second.0, &second.1, "version = 2\n")), "draft_unusable");
        book.reject(&third.0, "no\u{1b}[31m").unwrap();
        assert_eq!(code(book.approve(&third.0, &third.1, POLICY)), "draft_decided");
        assert_eq!(book.reject(&third.0, "again").unwrap_err().code(), "draft_decided");
        let reason = &book.drafts()[2].state;
        assert!(matches!(reason, DraftState::Rejected { reason } if !reason.contains('\u{1b}')));
    }

    #[test]
    fn drafts_are_kept_while_denials_come() {
        let policy = "version = 1\n";
        let denied = |path: &str| {
            Denied::parse(&format!("GET https://a.test{path}"), "default-deny", "", 1).unwrap()
        };
        let mut book = DraftBook::propose(&[denied("/1")], policy).unwrap();
        let first = book.drafts()[0].clone();
        // More of the same place: the same draft, another token.
        book.update(&[denied("/1"), denied("/2")], policy).unwrap();
        assert_eq!((book.drafts().len(), book.drafts()[0].id.as_str()), (1, first.id.as_str()));
        let stale = book.approve(&first.id, &first.token, policy).unwrap_err();
        assert_eq!(stale.code(), "draft_stale");
        let second = book.drafts()[0].clone();
        let wider = book.approve(&second.id, &second.token, policy).unwrap();
        // What was decided is not proposed again, something else is.
        book.update(&[denied("/1"), denied("/2")], &wider).unwrap();
        assert_eq!(book.drafts().len(), 1);
        book.update(&[denied("/1"), denied("/2"), denied("/3")], &wider).unwrap();
        let third = book.drafts()[1].clone();
        assert!(third.id != second.id && third.token != second.token);
        book.reject(&third.id, "no").unwrap();
        book.update(&[denied("/1"), denied("/2"), denied("/3")], &wider).unwrap();
        assert_eq!(book.drafts().len(), 2);
        let code = book.approve(&third.id, &third.token, &wider).unwrap_err().code();
        assert_eq!(code, "draft_decided");
        // In another book, which is told of it.
        let mut other = DraftBook::propose(&[denied("/9")], policy).unwrap();
        let (id, token, rule) = (
            other.drafts()[0].id.clone(),
            other.drafts()[0].token.clone(),
            other.drafts()[0].rule(),
        );
        other.decided(&rule, &DraftState::Rejected { reason: "no".to_owned() });
        assert_eq!(other.approve(&id, &token, policy).unwrap_err().code(), "draft_decided");
    }

    #[test]
    fn what_a_rule_cannot_change_is_no_draft() {
        let policy = "version = 1\n[[net]]\nid = \"a\"\nhosts = [\"a.test\"]\n";
        let list = denied(&[
            // It is allowed: a budget or a header stopped it.
            ("GET https://a.test/", "budget", 1),
            ("GET http://0.0.0.0/", "default-deny", 1),
            ("GET https://b.test:8443/", "default-deny", 1),
        ]);
        let book = DraftBook::propose(&list, policy).unwrap();
        let [draft] = book.drafts() else { panic!("{:?}", book.drafts()) };
        assert!(draft.text.contains("b.test"), "{}", draft.text);
        let notes = draft.notes.join("\n");
        assert!(notes.contains("port 8443 lets http through"), "{notes}");
    }

    #[test]
    fn only_a_private_network_can_be_allowed_by_name() {
        let policy = "version = 1\n[[net]]\nid = \"a\"\nhosts = [\"a.test\"]\n";
        for class in AddressClass::ALL {
            let denied = Denied::parse("GET https://a.test/", "address", &class.tell(), 1).unwrap();
            let book = DraftBook::propose(&[denied], policy).unwrap();
            let private = class.is_private_network();
            assert_eq!(book.drafts().len(), usize::from(private), "{class:?}");
            assert!(book.drafts().iter().all(|draft| draft.text.contains("private = true")));
            let notes: Vec<_> = book.notes().collect();
            assert_eq!(notes.len(), usize::from(!private), "{class:?}");
            assert!(notes.iter().all(|note| note.contains("nobody can allow it by name")));
        }
        // A server of the sandbox's own program: no class is told.
        let own = Denied::parse("GET https://a.test/", "address", "", 1).unwrap();
        let book = DraftBook::propose(&[own], policy).unwrap();
        assert_eq!((book.drafts().len(), book.notes().count()), (0, 1));
    }

    #[test]
    fn what_is_no_request_is_no_draft() {
        for target in ["", "GET", "read /etc/passwd", "GET file:///x", "get https://a.test/"] {
            assert_eq!(Denied::parse(target, "default-deny", "", 1), None, "{target}");
        }
        // What was cut of it for the log could be one.
        assert_eq!(Denied::parse("GET https://a.test/", "url", "", 1), None);
        assert!(DraftBook::propose(&[], "version = 1\nversoin = 1\n").is_err());
    }
}
