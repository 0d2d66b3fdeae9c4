//! What an approver has granted.
//!
//! What: a [`RequestGrant`] names the requests that go through although a rule
//! asks; [`RequestGrant::covers`] is the subset relation.
//! Why: a person who approved one thing has not approved others like it.
//!
//! Invariant: a grant covers only what its own terms name, one host and port,
//! under the rule that asked; a request that cannot be undone is never covered.

use std::sync::Arc;

use crate::network::NetRequest;
use crate::weaken;

/// Methods whose effect cannot be undone; each such request is asked about.
pub const IRREVERSIBLE: &[&str] = &["DELETE"];

/// Whether requests of that method may be granted beyond the one at hand.
#[must_use]
pub fn is_grantable(method: &str) -> bool {
    !IRREVERSIBLE.contains(&method)
}

/// What an approver lets through beyond the request at hand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrantTerms {
    /// With which methods; those of [`IRREVERSIBLE`] count for nothing.
    pub methods: Vec<String>,
    /// At this path and below it.
    pub path_prefix: String,
    /// Most bytes of a request's body; `None` for the rule's own bound.
    pub max_body_bytes: Option<u64>,
    /// How often; `None` for the rest of the session.
    pub uses: Option<u64>,
    /// For how long, in milliseconds from now; `None` for the rest of the
    /// session.
    pub lasts_ms: Option<u64>,
}

/// Requests that go through although a rule asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestGrant {
    rule: Arc<str>,
    origin: NetRequest,
    terms: GrantTerms,
    /// On the caller's clock.
    expires_ms: Option<u64>,
    used: u64,
}

impl RequestGrant {
    /// A grant for requests like one that a rule asked about; `None` if the
    /// terms do not cover that request itself, or nothing can.
    #[must_use]
    pub fn new(
        rule: Arc<str>,
        request: &NetRequest,
        terms: GrantTerms,
        body_bytes: u64,
        now_ms: u64,
    ) -> Option<Self> {
        let expires_ms = terms.lasts_ms.map(|lasts| now_ms.saturating_add(lasts));
        let grant = Self { rule, origin: request.clone(), terms, expires_ms, used: 0 };
        grant.covers(&Arc::clone(&grant.rule), request, body_bytes, now_ms).then_some(grant)
    }

    /// Whether a request that a rule asks about goes through.
    #[must_use]
    pub fn covers(&self, rule: &str, request: &NetRequest, body_bytes: u64, now_ms: u64) -> bool {
        let Self { rule: own, origin, terms, expires_ms, used } = self;
        if weaken::off(weaken::Defence::GrantScope) {
            return &**own == rule;
        }
        &**own == rule
            && origin.same_origin(request)
            && is_grantable(request.method)
            && terms.methods.iter().any(|method| method == request.method)
            && is_below(&terms.path_prefix, &request.path)
            && terms.max_body_bytes.is_none_or(|most| body_bytes <= most)
            && terms.uses.is_none_or(|uses| *used < uses)
            && expires_ms.is_none_or(|expires| now_ms < expires)
    }

    /// Counts one use.
    pub fn count(&mut self) {
        self.used = self.used.saturating_add(1);
    }

    /// Whether it covers nothing any more.
    #[must_use]
    pub fn is_over(&self, now_ms: u64) -> bool {
        self.terms.uses.is_some_and(|uses| self.used >= uses)
            || self.expires_ms.is_some_and(|expires| now_ms >= expires)
    }

    /// The rule that asks.
    #[must_use]
    pub fn rule(&self) -> Arc<str> {
        Arc::clone(&self.rule)
    }

    /// The request that it was made for.
    #[must_use]
    pub fn origin(&self) -> &NetRequest {
        &self.origin
    }

    /// The terms.
    #[must_use]
    pub fn terms(&self) -> &GrantTerms {
        &self.terms
    }

    /// How often it was used.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }
}

/// Whether a path is another or lies below it, component by component.
fn is_below(prefix: &str, path: &str) -> bool {
    let Some(rest) = path.strip_prefix(prefix) else { return false };
    prefix.starts_with('/') && (rest.is_empty() || prefix.ends_with('/') || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(method: &str, url: &str) -> NetRequest {
        NetRequest::parse(method, url).unwrap().get().clone()
    }

    fn terms(methods: &[&str], prefix: &str) -> GrantTerms {
        GrantTerms {
            methods: methods.iter().map(|method| (*method).to_owned()).collect(),
            path_prefix: prefix.to_owned(),
            ..GrantTerms::default()
        }
    }

    #[test]
    fn a_grant_is_a_subset_in_every_direction() {
        let origin = request("POST", "https://a.test/v1/x");
        let given = GrantTerms {
            max_body_bytes: Some(10),
            lasts_ms: Some(100),
            uses: Some(2),
            ..terms(&["POST", "GET", "DELETE"], "/v1")
        };
        let mut grant = RequestGrant::new("ask".into(), &origin, given, 5, 1000).unwrap();
        for (rule, method, url, bytes, now, want) in [
            ("ask", "POST", "https://a.test/v1/x", 10, 1099, true),
            ("ask", "GET", "https://a.test/v1/y/z?q", 0, 1000, true),
            ("ask", "POST", "https://a.test/v1", 0, 1000, true),
            ("other", "POST", "https://a.test/v1/x", 0, 1000, false),
            ("ask", "PUT", "https://a.test/v1/x", 0, 1000, false),
            ("ask", "DELETE", "https://a.test/v1/x", 0, 1000, false),
            ("ask", "POST", "https://b.test/v1/x", 0, 1000, false),
            ("ask", "POST", "http://a.test/v1/x", 0, 1000, false),
            ("ask", "POST", "https://a.test:8443/v1/x", 0, 1000, false),
            ("ask", "POST", "https://a.test/v1x", 0, 1000, false),
            ("ask", "POST", "https://a.test/v2/x", 0, 1000, false),
            ("ask", "POST", "https://a.test/v1/x", 11, 1000, false),
            ("ask", "POST", "https://a.test/v1/x", 0, 1100, false),
        ] {
            let covered = grant.covers(rule, &request(method, url), bytes, now);
            assert_eq!(covered, want, "{rule} {method} {url} {bytes} {now}");
        }
        grant.count();
        grant.count();
        assert!(grant.is_over(1000) && !grant.covers("ask", &origin, 0, 1000));
    }

    #[test]
    fn terms_that_do_not_cover_the_request_at_hand_make_no_grant() {
        let origin = request("POST", "https://a.test/v1/x");
        for (methods, prefix, bytes) in [
            (&["GET"][..], "/", 0),
            (&["POST"], "/v2", 0),
            (&["POST"], "", 0),
            (&["POST"], "v1", 0),
        ] {
            let made = RequestGrant::new("r".into(), &origin, terms(methods, prefix), bytes, 0);
            assert!(made.is_none(), "{methods:?} {prefix}");
        }
        let delete = request("DELETE", "https://a.test/v1/x");
        assert!(RequestGrant::new("r".into(), &delete, terms(&["DELETE"], "/"), 0, 0).is_none());
    }

    proptest! {
        #[test]
        fn below_is_by_components(prefix in "(/[ab]{1,2}){0,3}/?", path in "(/[ab]{1,2}){0,4}/?") {
            let parts = |text: &str| text.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect::<Vec<_>>();
            if is_below(&prefix, &path) {
                prop_assert!(parts(&path).starts_with(&parts(&prefix)));
            }
        }
    }
}
