//! Network requests of the guest.
//!
//! What: a request is started, its body given in pieces, its head and body
//! waited for, and it is closed; each wait parks the guest or is told of by
//! `op::TOOL_WAIT`.
//!
//! Invariant: every hop of a request has its own intent and outcome. What was
//! started and not closed is in `open`, at most `requests_open` of it, and ends
//! with the run at the latest.

mod answers;
mod ask;
mod hop;
mod malformed;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake as TaskWake, Waker};
use std::time::Duration;

use bytes::Bytes;
use fumehood_guest_abi::{
    CallError, FetchBody, FetchErrorKind, FetchHandle, FetchHop, FetchRead, FetchRedirect,
    FetchReply, FetchStart, FetchWrite, unframe,
};
use fumehood_policies::NetRequest;
use serde::Deserialize;

use crate::audit::Target;
use crate::broker::tools::{EndedRecord, Fail, RECORD_BYTES, Reply};
use crate::broker::{Broker, StopReason};
use crate::call::MAX_TRANSFER_BYTES;
use crate::environment::Wake;
use crate::net::{Allowance, Egress, Exchange, HeaderProblem, RequestHeaders};
use crate::pipeline::{Refused, Suspended};
pub(super) use answers::Answer;
use answers::{encode, error, invalid};
use ask::Unapproved;
use hop::{Asked, Carried};
use malformed::header_refused;

/// Room that one answer takes in a response of `op::TOOL_WAIT`.
const ANSWER_ROOM: u64 = MAX_TRANSFER_BYTES as u64 + (256 << 10);

/// The requests of a broker.
pub(super) struct Fetches {
    egress: Option<Arc<dyn Egress>>,
    open: BTreeMap<u64, Fetch>,
    next: u64,
    ready: Arc<Ready>,
    /// What `op::TOOL_WAIT` is to tell of, and the request it belongs to.
    pending: BTreeMap<u64, u64>,
}

/// Numbers whose wait may be over.
struct Ready {
    numbers: Mutex<BTreeSet<u64>>,
    guest: Waker,
}

impl Ready {
    fn add(&self, number: u64) {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
    }

    fn take(&self) -> Option<u64> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner).pop_first()
    }
}

/// Wakes the guest for one number.
struct Bell {
    number: u64,
    ready: Arc<Ready>,
}

impl TaskWake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.add(self.number);
        self.ready.guest.wake_by_ref();
    }
}

/// One request that was started.
struct Fetch {
    /// The hop that is going on.
    request: NetRequest,
    suspended: Option<Suspended>,
    exchange: Box<dyn Exchange>,
    asked: Asked,
    hops: Vec<FetchHop>,
    stage: Stage,
    upload: Option<Upload>,
    /// Bytes of the body that the guest was given.
    received: u64,
    /// An operation that `op::TOOL_WAIT` is to tell of.
    waits: Option<(u64, Operation)>,
}

/// How far a request has come.
#[derive(Clone, Debug)]
enum Stage {
    /// The head was not told.
    Head,
    /// The body is being read.
    Body,
    /// All was read.
    Ended,
    /// It failed; every further operation gets the same.
    Failed(FetchErrorKind, String),
}

/// A body that comes in pieces.
struct Upload {
    allowance: Allowance,
    ended: bool,
}

/// Something that may have to wait.
#[derive(Clone, Debug)]
enum Operation {
    Head,
    Read(usize),
    Write { piece: Bytes, end: bool },
}

impl Fetches {
    pub(super) fn new(egress: Option<Arc<dyn Egress>>, guest: Waker) -> Self {
        Self {
            egress,
            open: BTreeMap::new(),
            next: 0,
            ready: Arc::new(Ready { numbers: Mutex::default(), guest }),
            pending: BTreeMap::new(),
        }
    }

    /// Gives up kept connections: they were made under another policy.
    pub(super) fn forget_connections(&self) {
        if let Some(egress) = &self.egress {
            egress.forget();
        }
    }

    pub(super) fn are_pending(&self) -> bool {
        !self.pending.is_empty()
    }
}

/// The record and the bytes of a request of the guest.
fn read<'r, T: Deserialize<'r>>(request: &'r [u8]) -> Result<(T, &'r [u8]), CallError> {
    let (text, bytes) = unframe(request).ok_or(CallError::Malformed)?;
    let record = serde_json::from_slice(text).map_err(|_| CallError::Malformed)?;
    Ok((record, bytes))
}

impl Broker {
    /// `op::FETCH_START`.
    pub(super) fn fetch_start(&mut self, request: &[u8]) -> Result<Answer, Fail> {
        let (start, bytes) = read::<FetchStart>(request)?;
        let reply = match self.begin_fetch(start, bytes) {
            Ok(id) => FetchReply::Started { id },
            Err(NotBegun::Reply(reply)) => *reply,
            Err(NotBegun::Stop(reason)) => return Err(Fail::Stop(reason)),
        };
        encode(&reply, Bytes::new())
    }

    fn begin_fetch(&mut self, start: FetchStart, bytes: &[u8]) -> Result<u64, NotBegun> {
        let FetchStart { method, url, headers, body, redirect, decode, timeout_ms } = start;
        let request = NetRequest::parse(&method, &url).map_err(|error| {
            self.deny_malformed(&method, &url, &error);
            invalid(error.to_string())
        })?;
        let target = || Target::Request(request.get().method, Arc::from(request.get().place()));
        let headers = RequestHeaders::parse(&headers).map_err(|problem| {
            let refused = self.deny_fetch(&target(), header_refused(&problem));
            match problem {
                HeaderProblem::Reserved { .. } => denied(&refused),
                problem => invalid(problem.to_string()),
            }
        })?;
        let open = self.fetches.open.len() as u64;
        if open >= u64::from(self.limits.requests_open) {
            self.pipeline.ledger.next_call();
            let refused = self.pipeline.ledger.deny_limit("fetch", &target(), "requests_open");
            return Err(denied(&refused).into());
        }
        let body = match body {
            FetchBody::None => Carried::None,
            FetchBody::Bytes => {
                if !self.tools.charge(bytes.len() as u64) {
                    self.pipeline.ledger.next_call();
                    let ledger = &mut self.pipeline.ledger;
                    let refused = ledger.deny_limit("fetch", &target(), "tool_waiting_bytes");
                    return Err(denied(&refused).into());
                }
                Carried::Bytes(Bytes::copy_from_slice(bytes))
            }
            FetchBody::Stream { length } => Carried::Stream(length),
        };
        let asked = Asked {
            headers,
            body,
            follow: redirect == FetchRedirect::Follow,
            decode,
            timeout: timeout_ms.map(Duration::from_millis),
        };
        let held = asked.body.held();
        let hop = self.start_hop(request.clone(), &asked);
        let (suspended, exchange, upload) = hop.map_err(|unapproved| {
            self.tools.release(held);
            match unapproved {
                Unapproved::Refused(refused) => NotBegun::Reply(denied(&refused)),
                Unapproved::Stop(reason) => NotBegun::Stop(reason),
            }
        })?;
        self.fetches.next = self.fetches.next.saturating_add(1);
        let id = self.fetches.next;
        let fetch = Fetch {
            request: request.get().clone(),
            suspended: Some(suspended),
            exchange,
            asked,
            hops: Vec::new(),
            stage: Stage::Head,
            upload,
            received: 0,
            waits: None,
        };
        self.fetches.open.insert(id, fetch);
        Ok(id)
    }

    /// `op::FETCH_WRITE`.
    pub(super) fn fetch_write(&mut self, request: &[u8]) -> Result<Answer, Fail> {
        let (FetchWrite { id, end, wait }, piece) = read(request)?;
        if piece.len() > MAX_TRANSFER_BYTES {
            return Err(CallError::TooLarge.into());
        }
        let operation = Operation::Write { piece: Bytes::copy_from_slice(piece), end };
        self.operate_fetch(id, operation, wait)
    }

    /// `op::FETCH_HEAD`.
    pub(super) fn fetch_head(&mut self, request: &[u8]) -> Result<Answer, Fail> {
        let (FetchHandle { id, wait }, _) = read(request)?;
        self.operate_fetch(id, Operation::Head, wait)
    }

    /// `op::FETCH_READ`.
    pub(super) fn fetch_read(&mut self, request: &[u8]) -> Result<Answer, Fail> {
        let (FetchRead { id, max, wait }, _) = read(request)?;
        let most = usize::try_from(max).unwrap_or(usize::MAX).clamp(1, MAX_TRANSFER_BYTES);
        // Text and length stand before the bytes of an answer.
        let fits = usize::try_from(self.limits.request_bytes).unwrap_or(usize::MAX);
        let most = most.min(fits.saturating_sub(256).max(1));
        self.operate_fetch(id, Operation::Read(most), wait)
    }

    /// `op::FETCH_CLOSE`.
    pub(super) fn fetch_close(&mut self, request: &[u8]) -> Result<Answer, Fail> {
        let (FetchHandle { id, .. }, _) = read(request)?;
        self.give_up_fetch(id);
        encode(&FetchReply::Done {}, Bytes::new())
    }

    fn operate_fetch(&mut self, id: u64, operation: Operation, wait: bool) -> Result<Answer, Fail> {
        let Some(fetch) = self.fetches.open.get(&id) else {
            let message = "this request was closed, or its run has ended".to_owned();
            return encode(&error(FetchErrorKind::Unknown, message), Bytes::new());
        };
        if fetch.waits.is_some() {
            return Err(CallError::Malformed.into());
        }
        // In deterministic mode what the guest is told does not depend on which
        // server is faster.
        if !wait && !self.tools.are_in_order() {
            return self.operate_later(id, operation);
        }
        let waker = self.waiter.waker();
        loop {
            let mut context = Context::from_waker(&waker);
            if let Poll::Ready(answer) = self.poll_fetch(id, &operation, &mut context) {
                return answer;
            }
            if self.park(Duration::MAX) == Wake::Interrupted {
                return Err(Fail::Stop(StopReason::Interrupted));
            }
        }
    }

    fn operate_later(&mut self, id: u64, operation: Operation) -> Result<Answer, Fail> {
        let number = self.tools.next_id();
        let bell = Bell { number, ready: Arc::clone(&self.fetches.ready) };
        let waker = Waker::from(Arc::new(bell));
        let mut context = Context::from_waker(&waker);
        if let Poll::Ready(answer) = self.poll_fetch(id, &operation, &mut context) {
            return answer;
        }
        if let Some(fetch) = self.fetches.open.get_mut(&id) {
            fetch.waits = Some((number, operation));
        }
        self.fetches.pending.insert(number, id);
        encode(&FetchReply::Pending { id: number }, Bytes::new())
    }

    /// Adds what started operations have become, as much as fits one response.
    pub(super) fn ended_fetches(&mut self, ended: &mut Vec<EndedRecord>) -> Result<(), Fail> {
        let used: u64 = ended.iter().map(|record| record.reply.bytes()).sum();
        let mut room = u64::from(self.limits.request_bytes).saturating_sub(used);
        let most = u64::from(self.limits.request_bytes).min(ANSWER_ROOM);
        while room >= most || ended.is_empty() {
            let Some(number) = self.fetches.ready.take() else { break };
            let Some(id) = self.fetches.pending.get(&number).copied() else { continue };
            let waits = self.fetches.open.get_mut(&id).and_then(|fetch| fetch.waits.take());
            let Some((_, operation)) = waits else { continue };
            let bell = Bell { number, ready: Arc::clone(&self.fetches.ready) };
            let waker = Waker::from(Arc::new(bell));
            let answer = self.poll_fetch(id, &operation, &mut Context::from_waker(&waker));
            let Poll::Ready(answer) = answer else {
                if let Some(fetch) = self.fetches.open.get_mut(&id) {
                    fetch.waits = Some((number, operation));
                }
                continue;
            };
            self.fetches.pending.remove(&number);
            let reply = Reply::frame(answer?.joined());
            room = room.saturating_sub(reply.bytes().saturating_add(RECORD_BYTES));
            ended.push(EndedRecord { id: number, reply });
        }
        if room < most {
            // What did not fit is looked at again.
            self.fetches.ready.guest.wake_by_ref();
        }
        Ok(())
    }

    fn poll_fetch(
        &mut self,
        id: u64,
        operation: &Operation,
        context: &mut Context<'_>,
    ) -> Poll<Result<Answer, Fail>> {
        match operation {
            Operation::Head => self.poll_fetch_head(id, context),
            Operation::Read(most) => self.poll_fetch_body(id, *most, context),
            Operation::Write { piece, end } => self.poll_fetch_room(id, piece, *end, context),
        }
    }

    /// Gives every request up: the run is over or was taken back.
    pub(super) fn give_up_fetches(&mut self) {
        while let Some(id) = self.fetches.open.keys().next().copied() {
            self.give_up_fetch(id);
        }
        self.fetches.pending.clear();
        while self.fetches.ready.take().is_some() {}
    }
}

/// Why a request was not started.
enum NotBegun {
    Reply(Box<FetchReply>),
    Stop(StopReason),
}

impl From<Box<FetchReply>> for NotBegun {
    fn from(reply: Box<FetchReply>) -> Self {
        Self::Reply(reply)
    }
}

/// What the guest gets for a denial.
fn denied(refused: &Refused) -> Box<FetchReply> {
    Box::new(error(FetchErrorKind::Denied, refused.sentence()))
}
