//! Requests that are carried out, against what was decided.
//!
//! Property: what is looked up, connected to and sent is the host, port, method
//! and path that the canonicaliser made of the text; what it or the policy
//! refuses is neither looked up nor connected to.

use std::cell::RefCell;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fumehood_guest_abi::{
    FetchBody, FetchErrorKind, FetchHandle, FetchRedirect, FetchReply, FetchStart, fetch_op, frame,
    unframe,
};
use fumehood_host_fns::{
    Broker, BrokerConfig, Connecting, Connector, Egress, EgressOptions, HostAnswer, HostCall,
    HttpEgress, Lookup, Resolver,
};
use fumehood_policies::{DialAddress, Flags, HostGrant, HostName, NetRequest, Policy};

/// Inputs that one broker serves; fewer than its budget of requests.
const INPUTS: u32 = 500;
/// What the first name leads to, and every other.
const FIRST: IpAddr = IpAddr::V4(Ipv4Addr::new(93, 184, 215, 14));
const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(151, 101, 1, 6));
/// What the policy allows.
const ALLOWED: [&str; 4] = ["a.test:80", "a.test:8080", "b.test:80", "*.c.test:80"];

fn address_of(name: &str) -> IpAddr {
    if name == "a.test" { FIRST } else { OTHER }
}

/// What one input led to.
#[derive(Debug, Default)]
struct Seen {
    asked: Vec<String>,
    dialled: Vec<SocketAddr>,
    heads: Vec<String>,
}

/// Names, connections and a server of this process.
struct Outside {
    server: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

fn locked(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Resolver for Outside {
    fn resolve<'r>(&'r self, name: &'r HostName) -> Lookup<'r> {
        let name = name.to_string();
        let address = address_of(&name);
        locked(&self.seen).asked.push(name);
        Box::pin(async move { Ok(vec![address]) })
    }
}

impl Connector for Outside {
    fn connect(&self, address: DialAddress) -> Connecting<'_> {
        locked(&self.seen).dialled.push(address.get());
        Box::pin(tokio::net::TcpStream::connect(self.server))
    }
}

/// Keeps the head and answers; every connection carries one request.
fn serve(mut stream: TcpStream, seen: &Mutex<Seen>) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.extend(byte);
    }
    locked(seen).heads.push(head.into_iter().map(char::from).collect());
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

/// A guest and what is around it.
struct World {
    egress: Arc<dyn Egress>,
    seen: Arc<Mutex<Seen>>,
    policy: Policy,
    broker: Broker,
    left: u32,
}

impl World {
    #[allow(clippy::disallowed_methods, reason = "the server that requests are sent to")]
    fn new() -> Self {
        let Ok(listener) = TcpListener::bind("127.0.0.1:0") else { panic!("no loopback") };
        let Ok(server) = listener.local_addr() else { panic!("no address") };
        let seen = Arc::<Mutex<Seen>>::default();
        let kept = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A connection that ends early is seen by whoever made it.
                let _ = serve(stream, &kept);
            }
        });
        let outside = Arc::new(Outside { server, seen: Arc::clone(&seen) });
        let options = EgressOptions {
            resolver: Some(Arc::<Outside>::clone(&outside) as Arc<dyn Resolver>),
            connector: Some(outside as Arc<dyn Connector>),
            ..EgressOptions::default()
        };
        let Ok(egress) = HttpEgress::new(options) else { panic!("no egress") };
        let egress: Arc<dyn Egress> = Arc::new(egress);
        let allow = ALLOWED.iter().filter_map(|text| HostGrant::parse(text, false).ok()).collect();
        let flags = Flags { allow, ..Flags::default() };
        let Ok(combined) = Policy::combine(None, &flags, None) else { panic!("no policy") };
        let broker = guest(&egress, &combined.policy);
        Self { egress, seen, policy: combined.policy, broker, left: INPUTS }
    }

    /// One call of the guest.
    fn call<T: serde::Serialize>(&mut self, operation: u32, record: &T) -> FetchReply {
        let Ok(text) = serde_json::to_vec(record) else { panic!("no record") };
        let Some(request) = frame(&text, &[]) else { panic!("no frame") };
        let mut response = vec![0; 64 << 10];
        let call = HostCall::Brokered { op: operation, request: &request, response: &mut response };
        let length = match self.broker.dispatch(call) {
            Ok(HostAnswer::Brokered(length)) => usize::try_from(length).unwrap_or(usize::MAX),
            other => panic!("{other:?}"),
        };
        let Some((text, _)) = response.get(..length).and_then(unframe) else {
            panic!("{length} is no length of a record")
        };
        match serde_json::from_slice(text) {
            Ok(reply) => reply,
            Err(error) => panic!("{error}"),
        }
    }

    fn fetch(&mut self, method: &str, url: &str) -> Result<(), FetchErrorKind> {
        let start = FetchStart {
            method: method.to_owned(),
            url: url.to_owned(),
            headers: Vec::new(),
            body: FetchBody::None,
            redirect: FetchRedirect::Follow,
            decode: true,
            timeout_ms: None,
        };
        let id = match self.call(fetch_op::FETCH_START, &start) {
            FetchReply::Started { id } => id,
            FetchReply::Error { kind, .. } => return Err(kind),
            other => panic!("{other:?}"),
        };
        let handle = FetchHandle { id, wait: true };
        let head = self.call(fetch_op::FETCH_HEAD, &handle);
        self.call(fetch_op::FETCH_CLOSE, &handle);
        match head {
            FetchReply::Head(_) => Ok(()),
            FetchReply::Error { kind, .. } => Err(kind),
            other => panic!("{other:?}"),
        }
    }
}

fn guest(egress: &Arc<dyn Egress>, policy: &Policy) -> Broker {
    let mut config = BrokerConfig::new("fuzz");
    config.policy = Some(policy.clone());
    config.egress = Some(Arc::clone(egress));
    match Broker::new(config) {
        Ok(broker) => broker,
        Err(error) => panic!("{error:?}"),
    }
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// A method, a space and a URL; text without a scheme is a path of `a.test`.
pub fn sent(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (method, url) = text.split_once(' ').unwrap_or(("GET", text));
    let url = if url.contains("://") { url.to_owned() } else { format!("http://a.test/{url}") };
    WORLD.with_borrow_mut(|world| {
        let world = world.get_or_insert_with(World::new);
        if world.left == 0 {
            (world.broker, world.left) = (guest(&world.egress, &world.policy), INPUTS);
        }
        world.left = world.left.saturating_sub(1);
        *locked(&world.seen) = Seen::default();
        let got = world.fetch(method, &url);
        let seen = std::mem::take(&mut *locked(&world.seen));
        check(method, &url, got, &seen);
    });
}

fn check(method: &str, url: &str, got: Result<(), FetchErrorKind>, seen: &Seen) {
    let decided = NetRequest::parse(method, url);
    let (request, allowed) = match (&decided, got) {
        (Ok(request), Ok(())) => (request.get(), true),
        (Ok(request), Err(FetchErrorKind::Denied)) => (request.get(), false),
        (Err(_), Err(FetchErrorKind::Invalid)) => {
            assert!(seen.asked.is_empty() && seen.dialled.is_empty(), "{url}: {seen:?}");
            return;
        }
        (decided, got) => panic!("{method} {url}: decided {decided:?}, then {got:?}"),
    };
    if !allowed {
        assert!(seen.asked.is_empty() && seen.dialled.is_empty(), "{url}: {seen:?}");
        return;
    }
    let name = request.host.to_string();
    assert_eq!(seen.asked, [name.as_str()], "{url}");
    assert_eq!(seen.dialled, [SocketAddr::new(address_of(&name), request.port)], "{url}");
    let [head] = seen.heads.as_slice() else { panic!("{url}: {seen:?}") };
    let line = format!("{} {} HTTP/1.1", request.method, request.path_and_query());
    assert_eq!(head.lines().next(), Some(line.as_str()), "{url}");
    let hosts: Vec<&str> =
        head.lines().filter(|line| line.to_ascii_lowercase().starts_with("host:")).collect();
    assert_eq!(hosts, [format!("host: {}", request.authority())], "{url}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allowed_is_carried_out_and_nothing_else() {
        let mut world = World::new();
        assert_eq!(world.fetch("GET", "http://a.test/x"), Ok(()));
        assert_eq!(locked(&world.seen).heads.len(), 1);
        assert_eq!(world.fetch("GET", "http://d.test/x"), Err(FetchErrorKind::Denied));
        assert_eq!(locked(&world.seen).heads.len(), 1);
    }
}
