//! Encrypted connections and HTTP/2.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use fumehood_guest_abi::FetchErrorKind::{Denied, Protocol, Timeout, Tls};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::support::{HERE, Net, PUBLIC, get};

/// An authority of our own.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> Vec<u8> {
        self.0.pem().into_bytes()
    }

    fn config(&self, name: &str, protocols: &[&[u8]]) -> ServerConfig {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let chain = vec![CertificateDer::from(certificate.der().to_vec())];
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        config
    }
}

async fn echo(
    request: hyper::Request<Incoming>,
) -> Result<hyper::Response<Full<Bytes>>, hyper::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    if parts.uri.path() == "/down" {
        let response = hyper::Response::builder().status(302).header("location", "http://a.test/");
        return Ok(response.body(Full::default()).unwrap());
    }
    if parts.uri.path() == "/large" {
        return Ok(hyper::Response::new(Full::new(Bytes::from(vec![b'x'; 5_000_000]))));
    }
    if parts.uri.path() == "/headers" {
        let mut response = hyper::Response::builder();
        for number in 0..2000 {
            response = response.header(format!("x-{number}"), "y".repeat(100));
        }
        return Ok(response.body(Full::default()).unwrap());
    }
    if let Some(count) = parts.uri.path().strip_prefix("/short-headers/") {
        let mut response = hyper::Response::builder();
        for number in 0..count.parse::<u32>().unwrap() {
            response = response.header(format!("x-{number}"), "y");
        }
        return Ok(response.body(Full::default()).unwrap());
    }
    let host = parts.headers.get("host").map_or("-", |host| host.to_str().unwrap());
    let text = format!("{:?} {} {} {host} {}", parts.version, parts.method, parts.uri, body.len());
    Ok(hyper::Response::new(Full::new(Bytes::from(text))))
}

/// A server on threads of its own.
fn serve(config: ServerConfig) -> SocketAddr {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind((HERE, 0))).unwrap();
    let at = listener.local_addr().unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    std::thread::spawn(move || {
        runtime.block_on(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let two = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                    let io = TokioIo::new(stream);
                    let service = service_fn(echo);
                    if two {
                        let builder =
                            hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                        let _ = builder.serve_connection(io, service).await;
                    } else {
                        let builder = hyper::server::conn::http1::Builder::new();
                        let _ = builder.serve_connection(io, service).await;
                    }
                });
            }
        });
    });
    at
}

fn net(authority: &Authority, protocols: &[&[u8]]) -> Net {
    let mut net = Net::new();
    net.name("a.test", &[&[PUBLIC]]);
    net.name("b.test", &[&[PUBLIC]]);
    net.certificates = authority.pem();
    net.map(&format!("{PUBLIC}:443"), serve(authority.config("a.test", protocols)));
    net
}

#[test]
fn both_protocols_carry_requests_and_bodies() {
    let authority = Authority::new();
    for (protocols, version, target, host) in [
        (&[b"h2" as &[u8], b"http/1.1"][..], 20, "https://a.test/x?y", "-"),
        (&[b"http/1.1" as &[u8]][..], 11, "/x?y", "a.test"),
        (&[][..], 11, "/x?y", "a.test"),
    ] {
        let net = net(&authority, protocols);
        let mut guest = net.guest(&["a.test"]);
        let mut start = get("https://a.test/x?y");
        start.method = "POST".to_owned();
        start.body = fumehood_guest_abi::FetchBody::Bytes;
        for _ in 0..3 {
            let response = guest.send(&start, b"hello").unwrap();
            assert_eq!(response.head.version, version);
            let text = response.text();
            assert!(text.ends_with(&format!("POST {target} {host} 5")), "{text}");
        }
        assert_eq!(guest.get("https://a.test/large").unwrap().body.len(), 5_000_000);
        assert_eq!(net.dialled().len(), 1, "one connection serves all");
    }
}

#[test]
fn a_certificate_that_nobody_vouches_for_is_a_fault() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let mut net = net(&authority, &[]);
    net.certificates = stranger.pem();
    let (kind, message) = net.guest(&["a.test"]).get("https://a.test/").unwrap_err();
    assert_eq!(kind, Tls);
    assert!(message.contains("invalid peer certificate"), "{message}");
    net.certificates = Vec::new();
    assert_eq!(net.guest(&["a.test"]).kind("https://a.test/"), Err(Tls));
    // Vouched for, and for another name.
    net.certificates = authority.pem();
    assert_eq!(net.guest(&["b.test"]).kind("https://b.test/"), Err(Tls));
    // No TLS at all.
    net.serve(&format!("{PUBLIC}:8443"), |mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        std::thread::sleep(Duration::from_secs(1));
    });
    assert_eq!(net.guest(&["a.test:8443"]).kind("https://a.test:8443/"), Err(Tls));
}

#[test]
fn an_encrypted_request_is_never_taken_to_a_plain_one() {
    let authority = Authority::new();
    for protocols in [&[b"h2" as &[u8]][..], &[b"http/1.1" as &[u8]][..]] {
        let net = net(&authority, protocols);
        net.answer(&format!("{PUBLIC}:80"), |_| crate::support::ok("plain"));
        let mut guest = net.guest(&["a.test", "a.test:80"]);
        let (kind, message) = guest.get("https://a.test/down").unwrap_err();
        assert_eq!(kind, Denied);
        assert!(message.contains("redirects from https to http"), "{message}");
        assert_eq!(guest.denied_by(), ["redirect"]);
        assert!(!net.dialled().contains(&format!("{PUBLIC}:80")));
    }
}

#[test]
fn a_head_beyond_the_limit_is_refused_in_both_protocols() {
    let authority = Authority::new();
    for protocols in [&[b"h2" as &[u8]][..], &[b"http/1.1" as &[u8]][..]] {
        let net = net(&authority, protocols);
        assert!(net.guest(&["a.test"]).get("https://a.test/headers").is_err());
        // Few bytes, and too many headers.
        let mut guest = net.guest(&["a.test"]);
        assert!(guest.get("https://a.test/short-headers/200").is_ok());
        assert_eq!(guest.kind("https://a.test/short-headers/300"), Err(Protocol));
    }
}

/// Passes bytes on between two connections, until it is said not to; both stay
/// open.
fn pass_on(mut from: TcpStream, mut to: TcpStream, is_cut: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        let mut buffer = [0; 16384];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if !is_cut.load(Ordering::Relaxed) && to.write_all(&buffer[..length]).is_err() {
                return;
            }
        }
    });
}

/// A way to a server. Each connection that takes it goes silent, and stays open,
/// when its flag is set.
fn wire(net: &Net, address: &str, server: SocketAddr) -> Arc<Mutex<Vec<Arc<AtomicBool>>>> {
    let wires = Arc::<Mutex<Vec<Arc<AtomicBool>>>>::default();
    let made = Arc::clone(&wires);
    net.serve(address, move |client| {
        let is_cut = Arc::new(AtomicBool::new(false));
        made.lock().unwrap().push(Arc::clone(&is_cut));
        let upstream = TcpStream::connect(server).unwrap();
        let (to_client, to_server) = (client.try_clone().unwrap(), upstream.try_clone().unwrap());
        pass_on(client, to_server, Arc::clone(&is_cut));
        pass_on(upstream, to_client, is_cut);
    });
    wires
}

#[test]
fn a_shared_connection_over_which_nothing_comes_is_given_up() {
    let authority = Authority::new();
    let mut net = net(&authority, &[b"h2"]);
    net.phases.head = Duration::from_secs(2);
    let server = serve(authority.config("a.test", &[b"h2"]));
    let wires = wire(&net, &format!("{PUBLIC}:443"), server);
    let mut guest = net.guest(&["a.test"]);
    assert!(guest.get("https://a.test/").is_ok());
    assert!(guest.get("https://a.test/").is_ok());
    assert_eq!(net.dialled().len(), 1);
    for wire in &*wires.lock().unwrap() {
        wire.store(true, Ordering::Relaxed);
    }
    assert_eq!(guest.kind("https://a.test/"), Err(Timeout));
    // The next request does not go the same way.
    assert!(guest.get("https://a.test/").is_ok());
    assert_eq!(net.dialled().len(), 2);
}
