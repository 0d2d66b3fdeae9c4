//! One hop of a request: through the pipeline, on its way, and to its end.
//!
//! Invariant: an exchange is started with the [`crate::Checked`] request that
//! was just decided; its outcome is written when it ends, and a denial that
//! comes to light on the way is a denial like any other.

use std::borrow::Cow;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use fumehood_guest_abi::{FetchErrorKind, FetchHead, FetchHop, FetchReply};
use fumehood_policies::{AddressClass, Canonical, NetRequest, NetRequestError, Verdict};
use http::header::LOCATION;

use super::answers::{Answer, encode, error, kind_of, listed, version_number};
use super::ask::Unapproved;
use super::{Fetch, Stage, Upload, denied};
use crate::audit::{Outcome, Payload, Target};
use crate::broker::tools::Fail;
use crate::broker::{Broker, StopReason};
use crate::errno::Errno;
use crate::meter::Budget;
use crate::net::{
    Allowance, EgressError, Exchange, MAX_REDIRECTS, Order, OrderBody, RequestHeaders, ResponseHead,
};
use crate::pipeline::{Effect as _, Refused, Suspended};

/// Rule id of denials because of the address that a name leads to.
const ADDRESS_RULE: &str = "address";
/// Rule id of denials of redirects.
const REDIRECT_RULE: &str = "redirect";

pub(super) const FINAL: &str = "This is a decision, not a network fault: do not retry.";

/// What stays the same from hop to hop.
pub(super) struct Asked {
    pub(super) headers: RequestHeaders,
    pub(super) body: Carried,
    pub(super) follow: bool,
    pub(super) decode: bool,
    pub(super) timeout: Option<Duration>,
}

/// The body of a request.
pub(super) enum Carried {
    None,
    Bytes(Bytes),
    Stream(Option<u64>),
}

impl Carried {
    /// Bytes that are held for it.
    pub(super) fn held(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::None | Self::Stream(_) => 0,
        }
    }

    fn payload(&self) -> Payload {
        match self {
            Self::None | Self::Stream(None) => Payload::default(),
            Self::Bytes(bytes) => Payload::of(bytes),
            Self::Stream(Some(length)) => Payload { bytes: *length, digest: None },
        }
    }

    fn order(&self) -> OrderBody {
        match self {
            Self::None => OrderBody::None,
            Self::Bytes(bytes) => OrderBody::Bytes(bytes.clone()),
            Self::Stream(length) => OrderBody::Stream(*length),
        }
    }
}

type Started = (Suspended, Box<dyn Exchange>, Option<Upload>);

impl Broker {
    /// Takes one hop through the pipeline and starts its exchange.
    pub(super) fn start_hop(
        &mut self,
        request: Canonical<NetRequest>,
        asked: &Asked,
    ) -> Result<Started, Unapproved> {
        // A call may take many hops and wait for long before each.
        self.follow_policy();
        let target = request.get().target();
        let refused = |why| Unapproved::Refused(Box::new(why));
        let Some(egress) = self.fetches.egress.clone() else {
            return Err(refused(self.deny_fetch(&target, no_egress(request.get()))));
        };
        let payload = asked.body.payload();
        let length_known = !matches!(asked.body, Carried::Stream(None));
        let approved = self.approval(&request, &payload, length_known)?;
        // What was approved is decided by the policy that holds by now.
        self.follow_policy();
        let host: Arc<str> = Arc::from(request.get().host.to_string());
        let meter = self.pipeline.ledger.meter.clone();
        let checked =
            self.pipeline.check_approved(request, payload, approved.as_ref()).map_err(refused)?;
        let obligations = checked.obligations().clone();
        let allowance = |budget, most| {
            let limits = obligations.host_limits.clone();
            Allowance::new(meter.clone(), budget, Arc::clone(&host), limits, most, checked.rule())
        };
        let mut upload = allowance(Budget::BytesUp, obligations.max_request_bytes);
        let download = allowance(Budget::BytesDown, obligations.max_response_bytes);
        let paid = match &asked.body {
            Carried::None | Carried::Stream(None) => Ok(()),
            Carried::Bytes(bytes) => upload.take(bytes.len() as u64),
            Carried::Stream(Some(length)) => upload.fits(*length),
        };
        if let Err(over) = paid {
            checked.conclude(Outcome::Failed(Errno::Nospc), 0);
            let why = self.pipeline.ledger.deny_limit("fetch", &target, &over.0);
            return Err(refused(why));
        }
        let order = Order {
            headers: asked.headers.clone(),
            body: asked.body.order(),
            download,
            decode: asked.decode,
            timeout: asked.timeout,
        };
        let exchange = egress.start(&checked, order);
        let suspended = checked.suspend();
        let streams = matches!(asked.body, Carried::Stream(_));
        Ok((suspended, exchange, streams.then_some(Upload { allowance: upload, ended: false })))
    }

    /// Records a denial of a request.
    pub(super) fn deny_fetch(&mut self, target: &Target, why: Refused) -> Refused {
        self.pipeline.ledger.next_call();
        self.pipeline.ledger.deny("fetch", target, Verdict::Deny, why)
    }

    /// Waits for the head, hop after hop.
    pub(super) fn poll_fetch_head(
        &mut self,
        id: u64,
        context: &mut Context<'_>,
    ) -> Poll<Result<Answer, Fail>> {
        loop {
            let Some(fetch) = self.fetches.open.get_mut(&id) else {
                return Poll::Ready(gone());
            };
            match &fetch.stage {
                Stage::Head => {}
                Stage::Failed(kind, message) => {
                    return Poll::Ready(encode(&error(*kind, message.clone()), Bytes::new()));
                }
                Stage::Body | Stage::Ended => {
                    return Poll::Ready(Err(fumehood_guest_abi::CallError::Malformed.into()));
                }
            }
            let head = match std::task::ready!(fetch.exchange.poll_head(context)) {
                Ok(head) => head,
                Err(failed) => return Poll::Ready(self.fail_fetch(id, &failed)),
            };
            match next_hop(fetch, &head) {
                Next::Answer => return Poll::Ready(self.tell_head(id, head)),
                Next::Hop(next) => match self.hop(id, *next, &head) {
                    Ok(None) => {}
                    Ok(Some(reply)) => return Poll::Ready(encode(&reply, Bytes::new())),
                    Err(reason) => return Poll::Ready(Err(Fail::Stop(reason))),
                },
                Next::Refused(why) => {
                    let target = fetch.request.target();
                    let refused = self.deny_fetch(&target, *why);
                    return Poll::Ready(self.end_refused(id, &refused));
                }
                Next::Failed(kind, message) => {
                    self.conclude_fetch(id, Outcome::Redirected);
                    return Poll::Ready(self.end_failed(id, kind, message));
                }
                Next::Malformed(error, location) => {
                    let method = fetch.request.method;
                    let message = format!("the redirect leads to no request: {error}");
                    self.conclude_fetch(id, Outcome::Redirected);
                    self.deny_malformed(method, &location, &error);
                    return Poll::Ready(self.end_failed(id, FetchErrorKind::Redirect, message));
                }
            }
        }
    }

    fn tell_head(&mut self, id: u64, head: ResponseHead) -> Result<Answer, Fail> {
        let Some(fetch) = self.fetches.open.get_mut(&id) else { return gone() };
        fetch.stage = Stage::Body;
        let reply = FetchReply::Head(FetchHead {
            status: head.status.as_u16(),
            reason: head.reason,
            version: version_number(head.version),
            url: fetch.request.url(),
            method: fetch.request.method.to_owned(),
            headers: listed(&head.headers),
            decoded: head.decoded,
            hops: std::mem::take(&mut fetch.hops),
        });
        encode(&reply, Bytes::new())
    }

    /// Follows a redirect: a new request. Returns what the guest is told if it
    /// is not made.
    fn hop(
        &mut self,
        id: u64,
        next: NextHop,
        head: &ResponseHead,
    ) -> Result<Option<Box<FetchReply>>, StopReason> {
        self.conclude_fetch(id, Outcome::Redirected);
        let NextHop { request, without_body, other_origin } = next;
        let Some(mut fetch) = self.fetches.open.remove(&id) else {
            return Ok(Some(Box::new(error(FetchErrorKind::Unknown, String::new()))));
        };
        fetch.hops.push(FetchHop {
            status: head.status.as_u16(),
            url: fetch.request.url(),
            headers: listed(&head.headers),
        });
        if without_body {
            self.tools.release(fetch.asked.body.held());
            fetch.asked.body = Carried::None;
            fetch.asked.headers = fetch.asked.headers.without_body();
        }
        if other_origin {
            fetch.asked.headers = fetch.asked.headers.without_credentials();
        }
        let started = self.start_hop(request.clone(), &fetch.asked);
        let answer = match started {
            Ok((suspended, exchange, upload)) => {
                fetch.request = request.get().clone();
                (fetch.suspended, fetch.exchange, fetch.upload) =
                    (Some(suspended), exchange, upload);
                Ok(None)
            }
            Err(Unapproved::Refused(refused)) => {
                let message = refused.sentence();
                fetch.stage = Stage::Failed(FetchErrorKind::Denied, message);
                Ok(Some(denied(&refused)))
            }
            Err(Unapproved::Stop(reason)) => Err(reason),
        };
        self.fetches.open.insert(id, fetch);
        answer
    }

    /// Waits for a piece of the body.
    pub(super) fn poll_fetch_body(
        &mut self,
        id: u64,
        most: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<Answer, Fail>> {
        let Some(fetch) = self.fetches.open.get_mut(&id) else { return Poll::Ready(gone()) };
        match &fetch.stage {
            Stage::Body => {}
            Stage::Ended => {
                return Poll::Ready(encode(&FetchReply::Data { end: true }, Bytes::new()));
            }
            Stage::Failed(kind, message) => {
                return Poll::Ready(encode(&error(*kind, message.clone()), Bytes::new()));
            }
            Stage::Head => {
                return Poll::Ready(Err(fumehood_guest_abi::CallError::Malformed.into()));
            }
        }
        match std::task::ready!(fetch.exchange.poll_body(context, most)) {
            Ok(Some(bytes)) => {
                fetch.received = fetch.received.saturating_add(bytes.len() as u64);
                Poll::Ready(encode(&FetchReply::Data { end: false }, bytes))
            }
            Ok(None) => {
                fetch.stage = Stage::Ended;
                self.conclude_fetch(id, Outcome::Done);
                Poll::Ready(encode(&FetchReply::Data { end: true }, Bytes::new()))
            }
            Err(failed) => Poll::Ready(self.fail_fetch(id, &failed)),
        }
    }

    /// Waits for room for a piece of the request's body.
    pub(super) fn poll_fetch_room(
        &mut self,
        id: u64,
        piece: &Bytes,
        end: bool,
        context: &mut Context<'_>,
    ) -> Poll<Result<Answer, Fail>> {
        let Some(fetch) = self.fetches.open.get_mut(&id) else { return Poll::Ready(gone()) };
        if let Stage::Failed(kind, message) = &fetch.stage {
            return Poll::Ready(encode(&error(*kind, message.clone()), Bytes::new()));
        }
        let Some(upload) = fetch.upload.as_mut().filter(|upload| !upload.ended) else {
            return Poll::Ready(Err(fumehood_guest_abi::CallError::Malformed.into()));
        };
        if std::task::ready!(fetch.exchange.poll_room(context)) {
            if let Err(over) = upload.allowance.take(piece.len() as u64) {
                let failed = EgressError::Limit(over.0);
                return Poll::Ready(self.fail_fetch(id, &failed));
            }
            fetch.exchange.write(piece.clone());
        }
        if end {
            upload.ended = true;
            fetch.exchange.end();
        }
        Poll::Ready(encode(&FetchReply::Done {}, Bytes::new()))
    }

    /// Ends a request with a fault, or a denial that came to light on the way.
    fn fail_fetch(&mut self, id: u64, failed: &EgressError) -> Result<Answer, Fail> {
        let Some(fetch) = self.fetches.open.get(&id) else { return gone() };
        let (request, target) = (fetch.request.clone(), fetch.request.target());
        let outcome = match failed {
            EgressError::Timeout(_) => Outcome::TimedOut,
            EgressError::Limit(_) | EgressError::Bomb => Outcome::TooLarge,
            EgressError::Address(_) | EgressError::Own => Outcome::Failed(Errno::Acces),
            EgressError::Internal => Outcome::Unknown,
            _ => Outcome::Failed(Errno::Io),
        };
        self.conclude_fetch(id, outcome);
        match failed {
            EgressError::Internal => {
                let reference = "egress-fault".to_owned();
                tracing::error!(reference, "an exchange ended without a word");
                Err(Fail::Stop(StopReason::Fault(reference)))
            }
            EgressError::Limit(name) => {
                self.pipeline.ledger.next_call();
                let refused = self.pipeline.ledger.deny_limit("fetch", &target, name);
                self.end_refused(id, &refused)
            }
            EgressError::Address(class) => {
                let why = address_refused(&request, *class);
                let preview = Some(Arc::from(class.tell()));
                self.pipeline.ledger.next_call();
                let ledger = &mut self.pipeline.ledger;
                let refused = ledger.deny_previewed("fetch", &target, Verdict::Deny, why, preview);
                self.end_refused(id, &refused)
            }
            EgressError::Own => {
                let refused = self.deny_fetch(&target, own_refused(&request));
                self.end_refused(id, &refused)
            }
            failed => {
                let message = format!("{}: {failed}", request.authority());
                self.end_failed(id, kind_of(failed), message)
            }
        }
    }

    fn end_refused(&mut self, id: u64, refused: &Refused) -> Result<Answer, Fail> {
        self.end_failed(id, FetchErrorKind::Denied, refused.sentence())
    }

    fn end_failed(
        &mut self,
        id: u64,
        kind: FetchErrorKind,
        message: String,
    ) -> Result<Answer, Fail> {
        self.conclude_fetch(id, Outcome::Failed(Errno::Acces));
        if let Some(fetch) = self.fetches.open.get_mut(&id) {
            fetch.stage = Stage::Failed(kind, message.clone());
        }
        encode(&error(kind, message), Bytes::new())
    }

    /// Writes the outcome of the present hop, once.
    fn conclude_fetch(&mut self, id: u64, outcome: Outcome) {
        let Some(fetch) = self.fetches.open.get_mut(&id) else { return };
        let sent = fetch.upload.as_ref().map_or(0, |upload| upload.allowance.moved());
        let bytes = std::mem::take(&mut fetch.received);
        let digest = fetch.exchange.digest().filter(|_| outcome == Outcome::Done);
        let target = fetch.request.target();
        let Some(suspended) = fetch.suspended.take() else { return };
        if sent != 0 {
            let ledger = &mut self.pipeline.ledger;
            ledger.record_stream("fetch.upload", target, None, [1, 0, sent]);
        }
        let given = Payload { bytes, digest };
        self.pipeline.conclude(suspended, outcome, given);
    }

    pub(super) fn give_up_fetch(&mut self, id: u64) {
        self.conclude_fetch(id, Outcome::Cancelled);
        let Some(fetch) = self.fetches.open.remove(&id) else { return };
        self.tools.release(fetch.asked.body.held());
        if let Some((number, _)) = fetch.waits {
            self.fetches.pending.remove(&number);
        }
    }
}

fn gone() -> Result<Answer, Fail> {
    encode(&error(FetchErrorKind::Unknown, "this request was closed".to_owned()), Bytes::new())
}

/// What a head means.
enum Next {
    Answer,
    Hop(Box<NextHop>),
    Refused(Box<Refused>),
    Failed(FetchErrorKind, String),
    /// What the redirect names, which is no request.
    Malformed(Box<NetRequestError>, String),
}

struct NextHop {
    request: Canonical<NetRequest>,
    without_body: bool,
    other_origin: bool,
}

/// Where a redirect leads, by the rules of the Fetch standard.
fn next_hop(fetch: &Fetch, head: &ResponseHead) -> Next {
    let status = head.status.as_u16();
    if !fetch.asked.follow || !matches!(status, 301 | 302 | 303 | 307 | 308) {
        return Next::Answer;
    }
    let Some(location) = head.headers.get(LOCATION) else { return Next::Answer };
    let failed = |message: &str| Next::Failed(FetchErrorKind::Redirect, message.to_owned());
    if fetch.hops.len() >= MAX_REDIRECTS {
        return failed("the request was redirected too often");
    }
    let method = fetch.request.method;
    let to_get = match status {
        303 => !matches!(method, "GET" | "HEAD"),
        301 | 302 => method == "POST",
        _ => false,
    };
    if !to_get && matches!(fetch.asked.body, Carried::Stream(_)) {
        return failed(
            "a body that was sent in pieces cannot be sent again to where it was redirected",
        );
    }
    let method = if to_get { "GET" } else { method };
    let parsed = match location.to_str() {
        Ok(location) => fetch.request.redirected(method, location),
        Err(_) => Err(NetRequestError::NotAUrl { url: "a location that is not text".to_owned() }),
    };
    let request = match parsed {
        Ok(request) => request,
        Err(error) => {
            let named = String::from_utf8_lossy(location.as_bytes()).into_owned();
            return Next::Malformed(Box::new(error), named);
        }
    };
    if fetch.request.https && !request.get().https {
        return Next::Refused(Box::new(downgrade(&fetch.request)));
    }
    let other_origin = !fetch.request.same_origin(request.get());
    Next::Hop(Box::new(NextHop { request, without_body: to_get, other_origin }))
}

pub(super) fn refused(rule: &str, reason: String, hint: impl Into<Cow<'static, str>>) -> Refused {
    Refused { errno: Errno::Acces, rule: Arc::from(rule), reason: reason.into(), hint: hint.into() }
}

fn no_egress(request: &NetRequest) -> Refused {
    let reason = format!(
        "denied by policy (rule {}): this sandbox has no network. {FINAL}",
        fumehood_policies::DEFAULT_DENY
    );
    let NetRequest { host, port, https, .. } = request;
    let port = if *https && *port == 443 { String::new() } else { format!(":{port}") };
    let hint = format!(
        "the operator could allow it with `--allow {host}{port}`; an embedder could also give the sandbox an egress"
    );
    refused(fumehood_policies::DEFAULT_DENY, reason, hint)
}

fn downgrade(request: &NetRequest) -> Refused {
    let host = &request.host;
    let reason = format!(
        "denied by policy (rule {REDIRECT_RULE}): `{host}` redirects from https to http. {FINAL}"
    );
    refused(REDIRECT_RULE, reason, "nobody can allow it; ask for the address that is meant")
}

fn own_refused(request: &NetRequest) -> Refused {
    let reason = format!(
        "denied by policy (rule {ADDRESS_RULE}): `{}` is a server of the sandbox's own program. {FINAL}",
        request.authority()
    );
    refused(ADDRESS_RULE, reason, "nobody can allow it")
}

fn address_refused(request: &NetRequest, class: AddressClass) -> Refused {
    let host = &request.host;
    let reason =
        format!("denied by policy (rule {ADDRESS_RULE}): `{host}` {}. {FINAL}", class.tell());
    let hint = if class.is_private_network() {
        let port = if request.https && request.port == 443 {
            String::new()
        } else {
            format!(":{}", request.port)
        };
        format!(
            "the operator could allow it with `--allow-private {host}{port}`, or `private = true` in [[net]]"
        )
    } else if class == AddressClass::Never {
        "nobody can allow it: it is the address of no host".to_owned()
    } else {
        format!(
            "the operator could name the address itself, as in `--allow ADDRESS:{}`, if a program may reach it",
            request.port
        )
    };
    refused(ADDRESS_RULE, reason, hint)
}
