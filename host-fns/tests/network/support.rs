//! A name server, servers, a connector and a guest.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fumehood_guest_abi::{
    FetchBody, FetchErrorKind, FetchHandle, FetchHead, FetchRead, FetchRedirect, FetchReply,
    FetchStart, FetchWrite, fetch_op, frame, op, unframe,
};
use fumehood_host_fns::{
    Broker, BrokerConfig, Connector, EgressOptions, HostAnswer, HostCall, HttpEgress, MemorySink,
    Phases, Policy, Refusal, Report, SharedMeter,
};
use fumehood_policies::{DialAddress, Flags, HostGrant, PolicyFile};
use hickory_proto::op::Message;
use hickory_proto::rr::{RData, Record, RecordType, rdata};

/// The address at which most names of these tests are.
pub(crate) const PUBLIC: &str = "93.184.215.14";
/// Another one.
pub(crate) const OTHER: &str = "151.101.1.6";

/// Answers of a name, taken in turn; the last one stays.
type Answers = BTreeMap<String, Vec<Vec<String>>>;

/// A name server on the loopback interface, and everything it was asked.
pub(crate) struct Names {
    pub(crate) address: SocketAddr,
    answers: Arc<Mutex<Answers>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Names {
    fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let names = Self { address, answers: Arc::default(), asked: Arc::default() };
        let (answers, asked) = (Arc::clone(&names.answers), Arc::clone(&names.asked));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                let Ok(query) = Message::from_vec(&buffer[..length]) else { continue };
                let answer = answer(query, &answers, &asked);
                let _ = socket.send_to(&answer.to_vec().unwrap(), from);
            }
        });
        names
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn answer(query: Message, answers: &Mutex<Answers>, asked: &Mutex<Vec<String>>) -> Message {
    let question = query.queries[0].clone();
    let name = question.name().to_string().trim_end_matches('.').to_ascii_lowercase();
    asked.lock().unwrap().push(name.clone());
    let mut answers = answers.lock().unwrap();
    let wanted = question.query_type();
    let listed = match answers.get_mut(&name) {
        // Both kinds are asked for in turn; A moves on.
        Some(turns) if turns.len() > 1 && wanted == RecordType::A => turns.remove(0),
        Some(turns) => turns[0].clone(),
        None => Vec::new(),
    };
    let mut message = query.into_response();
    let mut owner = question.name().clone();
    for text in listed {
        let data = match text.parse::<IpAddr>() {
            Ok(IpAddr::V4(four)) => RData::A(rdata::A(four)),
            Ok(IpAddr::V6(six)) => RData::AAAA(rdata::AAAA(six)),
            Err(_) => {
                let next = hickory_proto::rr::Name::from_ascii(format!("{text}.")).unwrap();
                let record = Record::from_rdata(owner, 0, RData::CNAME(rdata::CNAME(next.clone())));
                message.add_answer(record);
                owner = next;
                continue;
            }
        };
        if data.record_type() == wanted {
            message.add_answer(Record::from_rdata(owner.clone(), 0, data));
        }
    }
    message
}

/// Maps judged addresses to servers here and records what was dialled.
#[derive(Default)]
pub(crate) struct Mapped {
    map: Mutex<BTreeMap<SocketAddr, SocketAddr>>,
    /// Where a connection is neither made nor refused.
    black_holes: Mutex<Vec<SocketAddr>>,
    pub(crate) dialled: Mutex<Vec<String>>,
}

impl Connector for Mapped {
    fn connect(
        &self,
        address: DialAddress,
    ) -> std::pin::Pin<Box<dyn Future<Output = std::io::Result<tokio::net::TcpStream>> + Send + '_>>
    {
        self.dialled.lock().unwrap().push(address.to_string());
        let to = self.map.lock().unwrap().get(&address.get()).copied();
        let lost = self.black_holes.lock().unwrap().contains(&address.get());
        Box::pin(async move {
            if lost {
                std::future::pending::<()>().await;
            }
            match to {
                Some(to) => tokio::net::TcpStream::connect(to).await,
                None => Err(std::io::ErrorKind::ConnectionRefused.into()),
            }
        })
    }
}

/// Everything around guests.
pub(crate) struct Net {
    pub(crate) names: Names,
    pub(crate) connector: Arc<Mapped>,
    pub(crate) certificates: Vec<u8>,
    pub(crate) phases: Phases,
}

impl Net {
    pub(crate) fn new() -> Self {
        Self {
            names: Names::start(),
            connector: Arc::default(),
            certificates: Vec::new(),
            phases: Phases::default(),
        }
    }

    /// What a name leads to; several lists are answered in turn.
    pub(crate) fn name(&self, name: &str, turns: &[&[&str]]) {
        let turns = turns.iter().map(|turn| turn.iter().map(|&text| text.to_owned()).collect());
        self.names.answers.lock().unwrap().insert(name.to_owned(), turns.collect());
    }

    /// Maps an address to a server here.
    pub(crate) fn map(&self, address: &str, to: SocketAddr) {
        self.connector.map.lock().unwrap().insert(address.parse().unwrap(), to);
    }

    /// Makes an address one that never answers a connection.
    pub(crate) fn black_hole(&self, address: &str) {
        self.connector.black_holes.lock().unwrap().push(address.parse().unwrap());
    }

    /// A server at an address, each connection on a thread of its own.
    pub(crate) fn serve(
        &self,
        address: &str,
        handle: impl Fn(TcpStream) + Send + Sync + 'static,
    ) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let handle = Arc::new(handle);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let handle = Arc::clone(&handle);
                std::thread::spawn(move || handle(stream));
            }
        });
        self.map(address, at);
        at
    }

    /// A server that answers every request of a connection by its head.
    pub(crate) fn answer(
        &self,
        address: &str,
        respond: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static,
    ) -> SocketAddr {
        self.serve(address, move |mut stream| {
            while let Some((head, _)) = read_request(&mut stream) {
                if stream.write_all(&respond(&head)).is_err() {
                    return;
                }
            }
        })
    }

    pub(crate) fn options(&self) -> EgressOptions {
        EgressOptions {
            phases: self.phases,
            extra_certificates: self.certificates.clone(),
            name_servers: vec![self.names.address],
            connector: Some(Arc::<Mapped>::clone(&self.connector) as Arc<dyn Connector>),
            ..EgressOptions::default()
        }
    }

    pub(crate) fn guest(&self, allow: &[&str]) -> Guest {
        self.guest_with(flags(allow), |_| {})
    }

    pub(crate) fn guest_with_policy(&self, text: &str) -> Guest {
        let file = PolicyFile::parse(&format!("version = 1\n{text}"), "p").unwrap();
        let policy = Policy::combine(Some(&file), &Flags::default(), None).unwrap().policy;
        self.guest_with(policy, |_| {})
    }

    pub(crate) fn guest_with(
        &self,
        policy: Policy,
        change: impl FnOnce(&mut BrokerConfig),
    ) -> Guest {
        self.guest_with_options(policy, self.options(), change)
    }

    pub(crate) fn guest_with_options(
        &self,
        policy: Policy,
        options: EgressOptions,
        change: impl FnOnce(&mut BrokerConfig),
    ) -> Guest {
        let audit = Arc::new(MemorySink::default());
        let mut config = BrokerConfig::new("test");
        config.limits = config.limits.with_budget(policy.budget());
        config.policy = Some(policy);
        config.audit = Arc::<MemorySink>::clone(&audit);
        config.egress = Some(Arc::new(HttpEgress::new(options).unwrap()));
        change(&mut config);
        let meter = config.meter.clone().unwrap_or_else(|| SharedMeter::new(&config.limits));
        config.meter = Some(meter.clone());
        Guest { broker: Broker::new(config).unwrap(), audit, meter }
    }

    pub(crate) fn dialled(&self) -> Vec<String> {
        self.connector.dialled.lock().unwrap().clone()
    }
}

/// A policy of flags; `private:` before a grant makes it one.
pub(crate) fn flags(allow: &[&str]) -> Policy {
    let grant = |text: &&str| match text.strip_prefix("private:") {
        Some(text) => HostGrant::parse(text, true).unwrap(),
        None => HostGrant::parse(text, false).unwrap(),
    };
    let flags = Flags { allow: allow.iter().map(grant).collect(), ..Flags::default() };
    Policy::combine(None, &flags, None).unwrap().policy
}

/// Head and body of the next request; `None` at the end of the connection.
pub(crate) fn read_request(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let _ = stream.set_read_timeout(Some(Duration::from_secs(20)));
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return None,
        }
    }
    let head: String = head.into_iter().map(char::from).collect();
    let lower = head.to_ascii_lowercase();
    if lower.contains("transfer-encoding: chunked") {
        return Some((head, read_chunks(stream)?));
    }
    let length = lower
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some((head, body))
}

fn read_chunks(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = Vec::new();
        let mut byte = [0];
        while !line.ends_with(b"\r\n") {
            stream.read_exact(&mut byte).ok()?;
            line.push(byte[0]);
        }
        let length = usize::from_str_radix(std::str::from_utf8(&line).ok()?.trim(), 16).ok()?;
        let mut chunk = vec![0; length + 2];
        stream.read_exact(&mut chunk).ok()?;
        if length == 0 {
            return Some(body);
        }
        body.extend_from_slice(&chunk[..length]);
    }
}

/// A whole response.
pub(crate) fn response(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{headers}\r\n", body.len())
        .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

pub(crate) fn ok(body: &str) -> Vec<u8> {
    response("200 OK", "", body.as_bytes())
}

/// A request that failed.
pub(crate) type Failure = (FetchErrorKind, String);

/// A whole response as the guest got it.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) head: FetchHead,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

pub(crate) struct Guest {
    pub(crate) broker: Broker,
    pub(crate) audit: Arc<MemorySink>,
    pub(crate) meter: SharedMeter,
}

pub(crate) fn get(url: &str) -> FetchStart {
    FetchStart {
        method: "GET".to_owned(),
        url: url.to_owned(),
        headers: Vec::new(),
        body: FetchBody::None,
        redirect: FetchRedirect::Follow,
        decode: true,
        timeout_ms: None,
    }
}

impl Guest {
    /// One brokered call, and the rest of its response.
    pub(crate) fn call(&mut self, operation: u32, request: &[u8]) -> Result<Vec<u8>, i64> {
        let mut response = vec![0; 4096];
        let length = self.raw(operation, request, &mut response)?;
        if length > response.len() {
            response = vec![0; length];
            self.raw(op::TAKE, &[], &mut response)?;
        }
        response.truncate(length);
        Ok(response)
    }

    fn raw(&mut self, op: u32, request: &[u8], response: &mut [u8]) -> Result<usize, i64> {
        match self.broker.dispatch(HostCall::Brokered { op, request, response }) {
            Ok(HostAnswer::Brokered(length)) => usize::try_from(length).map_err(|_| length),
            Ok(other) => panic!("{other:?}"),
            Err(Refusal::Errno(errno)) => panic!("{errno:?}"),
            Err(Refusal::Stop(reason)) => panic!("stopped: {reason:?}"),
        }
    }

    pub(crate) fn operate<T: serde::Serialize>(
        &mut self,
        operation: u32,
        record: &T,
        bytes: &[u8],
    ) -> (FetchReply, Vec<u8>) {
        let request = frame(&serde_json::to_vec(record).unwrap(), bytes).unwrap();
        let response = self.call(operation, &request).unwrap();
        let (text, bytes) = unframe(&response).unwrap();
        (serde_json::from_slice(text).unwrap(), bytes.to_vec())
    }

    pub(crate) fn start(&mut self, start: &FetchStart, body: &[u8]) -> Result<u64, Failure> {
        match self.operate(fetch_op::FETCH_START, start, body).0 {
            FetchReply::Started { id } => Ok(id),
            FetchReply::Error { kind, message } => Err((kind, message)),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn head(&mut self, id: u64) -> Result<FetchHead, Failure> {
        match self.operate(fetch_op::FETCH_HEAD, &FetchHandle { id, wait: true }, &[]).0 {
            FetchReply::Head(head) => Ok(head),
            FetchReply::Error { kind, message } => Err((kind, message)),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn read(&mut self, id: u64, max: u64) -> Result<Option<Vec<u8>>, Failure> {
        let record = FetchRead { id, max, wait: true };
        match self.operate(fetch_op::FETCH_READ, &record, &[]) {
            (FetchReply::Data { end: false }, bytes) => Ok(Some(bytes)),
            (FetchReply::Data { end: true }, _) => Ok(None),
            (FetchReply::Error { kind, message }, _) => Err((kind, message)),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn write(&mut self, id: u64, bytes: &[u8], end: bool) -> Result<(), Failure> {
        let record = FetchWrite { id, end, wait: true };
        match self.operate(fetch_op::FETCH_WRITE, &record, bytes).0 {
            FetchReply::Done {} => Ok(()),
            FetchReply::Error { kind, message } => Err((kind, message)),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn close(&mut self, id: u64) {
        self.operate(fetch_op::FETCH_CLOSE, &FetchHandle { id, wait: true }, &[]);
    }

    pub(crate) fn finish(&mut self, id: u64) -> Result<Response, Failure> {
        let finished = self.head(id).and_then(|head| {
            let mut body = Vec::new();
            while let Some(piece) = self.read(id, 1 << 20)? {
                body.extend(piece);
            }
            Ok(Response { head, body })
        });
        self.close(id);
        finished
    }

    pub(crate) fn send(&mut self, start: &FetchStart, body: &[u8]) -> Result<Response, Failure> {
        let id = self.start(start, body)?;
        self.finish(id)
    }

    pub(crate) fn get(&mut self, url: &str) -> Result<Response, Failure> {
        self.send(&get(url), &[])
    }

    /// The kind of failure, or the body.
    pub(crate) fn kind(&mut self, url: &str) -> Result<String, FetchErrorKind> {
        self.get(url).map(|response| response.text()).map_err(|(kind, _)| kind)
    }

    pub(crate) fn report(&mut self) -> Report {
        self.broker.report()
    }

    /// Rules of the denials since the last report.
    pub(crate) fn denied_by(&mut self) -> Vec<String> {
        self.report().denials.into_iter().map(|denial| denial.rule).collect()
    }
}

/// The loopback interface, for servers that are dialled without the map.
pub(crate) const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
