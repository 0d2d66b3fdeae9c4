//! A name server, servers and a connector around one attack.
//!
//! Invariant: only the last step is not the product's. The name server answers
//! with public addresses, which are judged as usual, and the connector maps a
//! judged address to a port of the loopback interface. An address that was not
//! mapped leads to a server that says `inside`, so that a connection that
//! should not have been made is seen by what comes of it.
#![allow(
    clippy::disallowed_methods,
    reason = "the servers of attacks listen on the loopback interface"
)]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fumehood::network::{Connector, DialAddress, EgressOptions, Phases};
use hickory_proto::op::Message;
use hickory_proto::rr::rdata::svcb::{IpHint, SvcParamKey, SvcParamValue};
use hickory_proto::rr::{Name, RData, Record, RecordType, rdata};

use super::authority::Authority;

/// The host that is allowed unless an attack says otherwise.
pub(super) const HOST: &str = "api.allowed.test";
/// Where it is.
pub(super) const PUBLIC: &str = "93.184.215.14";
/// The address of others.
pub(super) const OTHER: &str = "151.101.1.6";
/// How an encrypted connection begins, which a plain server does not wait for.
const TLS_HANDSHAKE: u8 = 22;
/// Longest that a server waits for a request.
const PATIENCE: Duration = Duration::from_secs(20);

/// Answers of a name, taken in turn; the last one stays.
type Answers = BTreeMap<String, Vec<Vec<String>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maps judged addresses to servers here and records what was dialled.
#[derive(Default)]
struct Mapped {
    map: Mutex<BTreeMap<SocketAddr, SocketAddr>>,
    inside: Mutex<Option<SocketAddr>>,
    dialled: Mutex<Vec<String>>,
}

impl Connector for Mapped {
    fn connect(
        &self,
        address: DialAddress,
    ) -> Pin<Box<dyn Future<Output = std::io::Result<tokio::net::TcpStream>> + Send + '_>> {
        lock(&self.dialled).push(address.to_string());
        let to = lock(&self.map).get(&address.get()).copied().or_else(|| *lock(&self.inside));
        Box::pin(async move {
            match to {
                Some(to) => tokio::net::TcpStream::connect(to).await,
                None => Err(std::io::ErrorKind::ConnectionRefused.into()),
            }
        })
    }
}

/// Everything around one attack; its servers end with it.
pub(super) struct Net {
    names: SocketAddr,
    answers: Arc<Mutex<Answers>>,
    asked: Arc<Mutex<Vec<String>>>,
    connector: Arc<Mapped>,
    listening: Mutex<Vec<SocketAddr>>,
    over: Arc<AtomicBool>,
    authority: Option<Authority>,
    /// Longest times of exchanges.
    pub(super) phases: Phases,
    /// Addresses that are this program's own.
    pub(super) own: Vec<SocketAddr>,
    /// Requests that servers of this module answered.
    pub(super) served: Arc<Mutex<Vec<String>>>,
}

impl Net {
    /// The host that is allowed, another one, and a name server.
    ///
    /// # Errors
    /// The system's reason.
    pub(super) fn new() -> std::io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let net = Self {
            names: socket.local_addr()?,
            answers: Arc::default(),
            asked: Arc::default(),
            connector: Arc::default(),
            listening: Mutex::default(),
            over: Arc::default(),
            authority: None,
            phases: Phases::default(),
            own: Vec::new(),
            served: Arc::default(),
        };
        let (answers, asked) = (Arc::clone(&net.answers), Arc::clone(&net.asked));
        let over = Arc::clone(&net.over);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                if over.load(Ordering::Acquire) {
                    return;
                }
                let query = buffer.get(..length).and_then(|query| Message::from_vec(query).ok());
                let answer = query.and_then(|query| answer(query, &answers, &asked));
                if let Some(answer) = answer.and_then(|answer| answer.to_vec().ok()) {
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        let inside = net.listen(|mut stream| {
            if read_request(&mut stream).is_some() {
                let _ = stream.write_all(&ok("inside"));
            }
        })?;
        *lock(&net.connector.inside) = Some(inside);
        net.name(HOST, &[PUBLIC]);
        net.name("other.allowed.test", &[OTHER]);
        for address in [PUBLIC, OTHER] {
            net.answer(&format!("{address}:80"), reply)?;
        }
        Ok(net)
    }

    /// What a name leads to.
    pub(super) fn name(&self, name: &str, addresses: &[&str]) {
        self.turns(name, &[addresses]);
    }

    /// What a name leads to, one list after the other.
    pub(super) fn turns(&self, name: &str, turns: &[&[&str]]) {
        let turns = turns.iter().map(|turn| turn.iter().map(|&text| text.to_owned()).collect());
        lock(&self.answers).insert(name.to_owned(), turns.collect());
    }

    fn listen(
        &self,
        handle: impl Fn(TcpStream) + Send + Sync + 'static,
    ) -> std::io::Result<SocketAddr> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let at = listener.local_addr()?;
        let (handle, over) = (Arc::new(handle), Arc::clone(&self.over));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if over.load(Ordering::Acquire) {
                    return;
                }
                let handle = Arc::clone(&handle);
                std::thread::spawn(move || handle(stream));
            }
        });
        lock(&self.listening).push(at);
        Ok(at)
    }

    /// A server at an address, each connection on a thread of its own.
    ///
    /// # Errors
    /// The system's reason.
    pub(super) fn serve(
        &self,
        address: &str,
        handle: impl Fn(TcpStream) + Send + Sync + 'static,
    ) -> std::io::Result<()> {
        let at = self.listen(handle)?;
        let address = address.parse().map_err(std::io::Error::other)?;
        lock(&self.connector.map).insert(address, at);
        Ok(())
    }

    /// A server that answers every request of a connection by its head.
    ///
    /// # Errors
    /// The system's reason.
    pub(super) fn answer(
        &self,
        address: &str,
        respond: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static,
    ) -> std::io::Result<()> {
        let served = Arc::clone(&self.served);
        self.serve(address, move |mut stream| {
            while let Some(head) = read_request(&mut stream) {
                lock(&served).push(head.lines().next().unwrap_or_default().to_owned());
                if stream.write_all(&respond(&head)).is_err() {
                    return;
                }
            }
        })
    }

    /// A server that answers the first request of each connection with bytes
    /// of its own making.
    ///
    /// # Errors
    /// The system's reason.
    pub(super) fn after_request(
        &self,
        handle: impl Fn(&mut TcpStream) + Send + Sync + 'static,
    ) -> std::io::Result<()> {
        self.serve(&format!("{PUBLIC}:80"), move |mut stream| {
            if read_request(&mut stream).is_some() {
                handle(&mut stream);
            }
        })
    }

    /// A server behind TLS whose certificate is good for [`HOST`].
    ///
    /// # Errors
    /// The reason.
    pub(super) fn tls(
        &mut self,
        protocol: &'static [u8],
        handle: impl Fn(&mut dyn Wire) + Send + Sync + 'static,
    ) -> std::io::Result<()> {
        let authority = Authority::new()?;
        let config = Arc::new(authority.server(HOST, protocol)?);
        self.authority = Some(authority);
        self.serve(&format!("{PUBLIC}:443"), move |stream| {
            let _ = stream.set_read_timeout(Some(PATIENCE));
            let Ok(session) = rustls::ServerConnection::new(Arc::clone(&config)) else { return };
            handle(&mut rustls::StreamOwned::new(session, stream));
        })
    }

    /// Settings of connections.
    pub(super) fn options(&self) -> EgressOptions {
        EgressOptions {
            phases: self.phases,
            extra_certificates: self.authority.as_ref().map(Authority::pem).unwrap_or_default(),
            name_servers: vec![self.names],
            own_addresses: self.own.clone(),
            connector: Some(Arc::<Mapped>::clone(&self.connector) as Arc<dyn Connector>),
            ..EgressOptions::default()
        }
    }

    /// Which names were looked up and which addresses dialled, each once, in
    /// order.
    pub(super) fn seen(&self) -> String {
        let once = |list: Vec<String>| {
            let mut kept: Vec<String> = Vec::new();
            for text in list {
                if !kept.contains(&text) {
                    kept.push(text);
                }
            }
            if kept.is_empty() { "-".to_owned() } else { kept.join(" ") }
        };
        let asked = once(lock(&self.asked).clone());
        let dialled = once(lock(&self.connector.dialled).clone());
        format!("looked up: {asked}; dialled: {dialled}")
    }

    /// How many requests [`Net::answer`]'s servers got.
    pub(super) fn served(&self) -> usize {
        lock(&self.served).len()
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        // Wakes those that wait for somebody.
        if let Ok(socket) = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)) {
            let _ = socket.send_to(&[0], self.names);
        }
        for at in lock(&self.listening).iter() {
            drop(TcpStream::connect(at));
        }
    }
}

/// Either end of a connection, encrypted or not.
pub(super) trait Wire: Read + Write {}

impl<T: Read + Write> Wire for T {}

fn answer(query: Message, answers: &Mutex<Answers>, asked: &Mutex<Vec<String>>) -> Option<Message> {
    let question = query.queries.first()?.clone();
    let name = question.name().to_string().trim_end_matches('.').to_ascii_lowercase();
    lock(asked).push(name.clone());
    let wanted = question.query_type();
    let listed = match lock(answers).get_mut(&name) {
        // Both kinds are asked for in turn; A moves on.
        Some(turns) if turns.len() > 1 && wanted == RecordType::A => turns.remove(0),
        Some(turns) => turns.first().cloned().unwrap_or_default(),
        None => Vec::new(),
    };
    let mut message = query.into_response();
    let mut owner = question.name().clone();
    for text in listed {
        if let Some(address) = text.strip_prefix("hint:") {
            message.add_answer(Record::from_rdata(owner.clone(), 0, hint(address)?));
            continue;
        }
        let data = match text.parse::<IpAddr>() {
            Ok(IpAddr::V4(four)) => RData::A(rdata::A(four)),
            Ok(IpAddr::V6(six)) => RData::AAAA(rdata::AAAA(six)),
            Err(_) => {
                let next = Name::from_ascii(format!("{text}.")).ok()?;
                let alias = RData::CNAME(rdata::CNAME(next.clone()));
                message.add_answer(Record::from_rdata(owner, 0, alias));
                owner = next;
                continue;
            }
        };
        if data.record_type() == wanted {
            message.add_answer(Record::from_rdata(owner.clone(), 0, data));
        }
    }
    Some(message)
}

/// A record of type HTTPS that names an address.
fn hint(address: &str) -> Option<RData> {
    let hinted = SvcParamValue::Ipv4Hint(IpHint(vec![rdata::A(address.parse().ok()?)]));
    let parameters = vec![(SvcParamKey::Ipv4Hint, hinted)];
    Some(RData::HTTPS(rdata::HTTPS(rdata::SVCB::new(1, Name::root(), parameters))))
}

/// The head of the next request, its body read; `None` at the end of the
/// connection.
pub(super) fn read_request(stream: &mut dyn Wire) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0_u8];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) if head.len() < 1 << 20 => head.extend(byte),
            _ => return None,
        }
        if head == [TLS_HANDSHAKE] {
            return None;
        }
    }
    let head: String = head.into_iter().map(char::from).collect();
    let length = head
        .to_ascii_lowercase()
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(head)
}

/// A whole response.
pub(super) fn response(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{headers}\r\n{body}", body.len())
        .into_bytes()
}

pub(super) fn ok(body: &str) -> Vec<u8> {
    response("200 OK", "", body)
}

/// What servers answer unless they are told otherwise: a redirect to what
/// follows `/to?`, the head of the request at `/echo`, else `hello`.
pub(super) fn reply(head: &str) -> Vec<u8> {
    let target = head.split(' ').nth(1).unwrap_or_default();
    if let Some(to) = target.strip_prefix("/to?") {
        return response("302 Found", &format!("Location: {to}\r\n"), "");
    }
    if target == "/echo" { ok(head) } else { ok("hello") }
}
