//! Slow, endless, lying and exploding responses.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use async_compression::tokio::write::{BrotliEncoder, GzipEncoder, ZlibEncoder, ZstdEncoder};
use fumehood_guest_abi::FetchErrorKind::{Closed, Decode, Denied, Protocol, Timeout, TooLarge};
use fumehood_host_fns::{Budget, Phases};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use crate::support::{Guest, Net, PUBLIC, get, read_request, response};

fn net() -> Net {
    let mut net = Net::new();
    net.name("a.test", &[&[PUBLIC]]);
    let ms = Duration::from_millis;
    net.phases = Phases { head: ms(400), idle: ms(400), total: ms(3000), ..Phases::default() };
    net
}

fn serve(net: &Net, handle: impl Fn(&mut TcpStream) + Send + Sync + 'static) -> Guest {
    net.serve(&format!("{PUBLIC}:80"), move |mut stream| {
        if read_request(&mut stream).is_some() {
            handle(&mut stream);
        }
    });
    net.guest(&["a.test:80"])
}

fn raw(text: &'static str) -> impl Fn(&mut TcpStream) + Send + Sync {
    move |stream| {
        let _ = stream.write_all(text.as_bytes());
    }
}

#[test]
fn a_server_that_says_nothing_times_out() {
    let net = net();
    let mut guest = serve(&net, |_| std::thread::sleep(Duration::from_secs(5)));
    let started = Instant::now();
    let (kind, message) = guest.get("http://a.test/").unwrap_err();
    assert_eq!(kind, Timeout);
    assert!(message.contains("the response took too long"), "{message}");
    assert!(started.elapsed() < Duration::from_secs(4));
    let mut start = get("http://a.test/");
    start.timeout_ms = Some(50);
    assert_eq!(guest.send(&start, &[]).unwrap_err().0, Timeout);
    assert!(guest.broker.time_limit_fired());
}

#[test]
fn a_guests_own_time_bounds_the_connection_too() {
    let net = Net::new();
    net.name("a.test", &[&[PUBLIC]]);
    net.black_hole(&format!("{PUBLIC}:80"));
    // Takes connections, and never says a word of TLS.
    net.serve(&format!("{PUBLIC}:443"), |_stream| std::thread::sleep(Duration::from_secs(20)));
    let mut guest = net.guest(&["a.test:80", "a.test"]);
    for (url, what) in [("http://a.test/", "connecting"), ("https://a.test/", "handshake")] {
        let mut start = get(url);
        start.timeout_ms = Some(1000);
        let started = Instant::now();
        let (kind, message) = guest.send(&start, &[]).unwrap_err();
        assert_eq!(kind, Timeout, "{message}");
        assert!(message.contains(what), "{message}");
        assert!(started.elapsed() < Duration::from_secs(10), "{url}: {:?}", started.elapsed());
    }
}

#[test]
fn the_time_for_the_head_begins_when_all_was_sent() {
    let ms = Duration::from_millis;
    let mut net = net();
    net.phases = Phases { head: ms(600), idle: ms(5000), ..Phases::default() };
    net.answer(&format!("{PUBLIC}:80"), |_| response("200 OK", "", b"got it"));
    let mut guest = net.guest(&["a.test:80"]);
    let mut start = get("http://a.test/");
    start.method = "POST".to_owned();
    for length in [Some(6), None] {
        start.body = fumehood_guest_abi::FetchBody::Stream { length };
        let id = guest.start(&start, &[]).unwrap();
        for piece in 0..6 {
            std::thread::sleep(ms(200));
            guest.write(id, b"x", piece == 5).unwrap();
        }
        assert_eq!(guest.finish(id).unwrap().text(), "got it", "{length:?}");
    }
    // From then on it counts.
    net.serve(&format!("{PUBLIC}:80"), |mut stream| {
        read_request(&mut stream);
        std::thread::sleep(Duration::from_secs(20));
    });
    let mut guest = net.guest(&["a.test:80"]);
    let id = guest.start(&start, &[]).unwrap();
    guest.write(id, b"x", true).unwrap();
    let (kind, message) = guest.head(id).unwrap_err();
    assert_eq!(kind, Timeout);
    assert!(message.contains("the response took too long"), "{message}");
}

#[test]
fn an_upload_that_stops_times_out() {
    let mut net = net();
    net.phases = Phases { idle: Duration::from_millis(300), ..Phases::default() };
    let mut guest = serve(&net, |_| {});
    let mut start = get("http://a.test/");
    start.method = "POST".to_owned();
    start.body = fumehood_guest_abi::FetchBody::Stream { length: Some(10) };
    let id = guest.start(&start, &[]).unwrap();
    guest.write(id, b"x", false).unwrap();
    let started = Instant::now();
    let (kind, message) = guest.head(id).unwrap_err();
    assert_eq!(kind, Timeout);
    assert!(message.contains("a piece of the request"), "{message}");
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_body_that_stops_times_out_and_one_that_crawls_runs_out() {
    let net = net();
    let mut guest = serve(&net, |stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
        std::thread::sleep(Duration::from_secs(5));
    });
    let id = guest.start(&get("http://a.test/"), &[]).unwrap();
    guest.head(id).unwrap();
    assert_eq!(guest.read(id, 100).unwrap(), Some(b"abc".to_vec()));
    assert_eq!(guest.read(id, 100).unwrap_err().0, Timeout);
    assert!(guest.broker.time_limit_fired());
    // The same again, for good.
    assert_eq!(guest.read(id, 100).unwrap_err().0, Timeout);
    let mut guest = serve(&net, |stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        while stream.write_all(b"1\r\nx\r\n").is_ok() {
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    let started = Instant::now();
    let (kind, message) = guest.get("http://a.test/").unwrap_err();
    assert_eq!(kind, Timeout);
    assert!(message.contains("the whole exchange"), "{message}");
    assert!(started.elapsed() < Duration::from_secs(8));
}

#[test]
fn an_endless_body_is_cut_at_the_budget_and_memory_stays_bounded() {
    let mut net = net();
    net.phases = Phases::default();
    net.serve(&format!("{PUBLIC}:80"), |mut stream| {
        read_request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        let mut chunk = b"10000\r\n".to_vec();
        chunk.extend(vec![b'x'; 0x10000]);
        chunk.extend(b"\r\n");
        while stream.write_all(&chunk).is_ok() {}
    });
    let mut guest = net.guest_with_policy(
        "[budget]\nbytes_down = 5000000\n[[net]]\nid = \"n\"\nhosts = [\"a.test\"]\nports = [80]\n",
    );
    let (kind, message) = guest.get("http://a.test/").unwrap_err();
    assert_eq!(kind, Denied);
    assert!(message.contains("`bytes_down` is used up"), "{message}");
    assert_eq!(guest.denied_by(), ["budget"]);
    let used = guest.meter.used(Budget::BytesDown);
    assert!((4_000_000..=5_000_000).contains(&used), "{used}");
    // The budget is the session's.
    let (kind, message) = guest.get("http://a.test/").unwrap_err();
    assert_eq!(kind, Denied, "{message}");
}

#[test]
fn a_body_that_nobody_reads_stops_at_the_queue() {
    let mut net = net();
    net.phases = Phases::default();
    let sent = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = std::sync::Arc::clone(&sent);
    let mut guest = serve(&net, move |stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n");
        while stream.write_all(&[0; 65536]).is_ok() {
            count.fetch_add(65536, std::sync::atomic::Ordering::Relaxed);
        }
    });
    let id = guest.start(&get("http://a.test/"), &[]).unwrap();
    guest.head(id).unwrap();
    std::thread::sleep(Duration::from_millis(700));
    let there = sent.load(std::sync::atomic::Ordering::Relaxed);
    // Our queue and buffer, and what the system's own sockets hold.
    assert!(there < 16 << 20, "{there}");
    guest.close(id);
}

#[test]
fn a_length_above_the_rule_is_refused_before_the_body() {
    let net = net();
    net.answer(&format!("{PUBLIC}:80"), |_| response("200 OK", "", &[b'x'; 2000]));
    let mut guest = net.guest_with_policy(
        "[[net]]\nid = \"n\"\nhosts = [\"a.test\"]\nports = [80]\nmax_bytes = 1000\naccess = \"full\"\n",
    );
    let (kind, message) = guest.get("http://a.test/").unwrap_err();
    assert_eq!(kind, Denied);
    assert!(message.contains("max_bytes of rule n"), "{message}");
    assert_eq!(guest.meter.used(Budget::BytesDown), 0);
    let mut start = get("http://a.test/");
    start.method = "POST".to_owned();
    start.body = fumehood_guest_abi::FetchBody::Bytes;
    assert_eq!(guest.send(&start, &[b'x'; 1001]).unwrap_err().0, Denied);
    start.body = fumehood_guest_abi::FetchBody::Stream { length: None };
    let id = guest.start(&start, &[]).unwrap();
    guest.write(id, &[b'x'; 1000], false).unwrap();
    assert_eq!(guest.write(id, b"x", false).unwrap_err().0, Denied);
}

#[test]
fn heads_that_are_too_large_or_no_http_are_refused() {
    let net = net();
    for (what, handle) in [
        (
            "headers",
            Box::new(|stream: &mut TcpStream| {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
                for number in 0..100_000 {
                    if stream.write_all(format!("x-{number}: y\r\n").as_bytes()).is_err() {
                        return;
                    }
                }
                let _ = stream.write_all(b"\r\n");
            }) as Box<dyn Fn(&mut TcpStream) + Send + Sync>,
        ),
        (
            "header",
            Box::new(|stream: &mut TcpStream| {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nx: ");
                for _ in 0..16 {
                    if stream.write_all(&[b'y'; 65536]).is_err() {
                        return;
                    }
                }
                let _ = stream.write_all(b"\r\n\r\n");
            }),
        ),
        ("text", Box::new(raw("hello there, this is no HTTP\r\n\r\n"))),
        ("version", Box::new(raw("HTTP/9.9 200 OK\r\n\r\n"))),
        (
            "lengths",
            Box::new(raw("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab")),
        ),
        ("chunk", Box::new(raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"))),
        (
            "switch",
            Box::new(raw(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
            )),
        ),
    ] {
        let mut guest = serve(&net, handle);
        let (kind, message) = guest.get("http://a.test/").unwrap_err();
        assert!(matches!(kind, Protocol | Closed), "{what}: {kind:?} {message}");
        assert!(guest.report().denials.is_empty(), "{what}");
    }
}

#[test]
fn a_body_that_ends_early_is_a_fault() {
    let net = net();
    let mut guest = serve(&net, raw("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"));
    assert_eq!(guest.get("http://a.test/").unwrap_err().0, Closed);
    let mut guest =
        serve(&net, raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"));
    assert_eq!(guest.get("http://a.test/").unwrap_err().0, Closed);
    let mut guest = serve(&net, |_| {});
    assert_eq!(guest.get("http://a.test/").unwrap_err().0, Closed);
}

#[test]
fn a_second_answer_on_the_connection_is_not_an_answer_to_anything() {
    let net = net();
    let smuggled = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
    let mut guest = serve(&net, raw(smuggled));
    for _ in 0..3 {
        assert_eq!(guest.kind("http://a.test/"), Ok("ok".to_owned()));
    }
}

fn compress<W: AsyncWrite + Unpin>(
    make: impl FnOnce(Vec<u8>) -> W,
    out: impl FnOnce(W) -> Vec<u8>,
    data: &[u8],
) -> Vec<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut encoder = make(Vec::new());
        encoder.write_all(data).await.unwrap();
        encoder.shutdown().await.unwrap();
        out(encoder)
    })
}

pub(crate) fn coded(coding: &str, data: &[u8]) -> Vec<u8> {
    match coding {
        "gzip" => compress(GzipEncoder::new, GzipEncoder::into_inner, data),
        "deflate" => compress(ZlibEncoder::new, ZlibEncoder::into_inner, data),
        "br" => compress(BrotliEncoder::new, BrotliEncoder::into_inner, data),
        _ => compress(ZstdEncoder::new, ZstdEncoder::into_inner, data),
    }
}

#[test]
fn compressed_bodies_are_decompressed_or_passed_on() {
    let net = net();
    let text = "a compressed body ".repeat(5000);
    for coding in ["gzip", "deflate", "br", "zstd"] {
        let body = coded(coding, text.as_bytes());
        let answer = response("200 OK", &format!("Content-Encoding: {coding}\r\n"), &body);
        net.answer(&format!("{PUBLIC}:80"), move |_| answer.clone());
        let mut guest = net.guest(&["a.test:80"]);
        let whole = guest.get("http://a.test/").unwrap();
        assert!(whole.head.decoded && whole.text() == text, "{coding}");
        let mut start = get("http://a.test/");
        start.decode = false;
        let plain = guest.send(&start, &[]).unwrap();
        assert!(!plain.head.decoded && plain.body == body, "{coding}");
    }
}

#[test]
fn a_bomb_is_stopped_and_a_broken_body_is_a_fault() {
    let mut net = net();
    net.phases = Phases::default();
    let zeros = vec![0; 24 << 20];
    for coding in ["gzip", "br", "zstd"] {
        let body = coded(coding, &zeros);
        assert!(body.len() < 200_000);
        let answer = response("200 OK", &format!("Content-Encoding: {coding}\r\n"), &body);
        net.answer(&format!("{PUBLIC}:80"), move |_| answer.clone());
        let mut guest = net.guest(&["a.test:80"]);
        let (kind, message) = guest.get("http://a.test/").unwrap_err();
        assert_eq!(kind, TooLarge, "{coding}: {message}");
        assert!(guest.meter.used(Budget::BytesDown) < 20 << 20);
    }
    for coding in ["gzip", "br", "zstd", "deflate"] {
        let answer = response(
            "200 OK",
            &format!("Content-Encoding: {coding}\r\n"),
            b"not compressed at all",
        );
        net.answer(&format!("{PUBLIC}:80"), move |_| answer.clone());
        assert_eq!(
            net.guest(&["a.test:80"]).get("http://a.test/").unwrap_err().0,
            Decode,
            "{coding}"
        );
    }
}

#[test]
fn a_long_body_that_decompresses_to_nothing_is_paid_for() {
    let net = net();
    let empty = coded("gzip", b"");
    let mut body = Vec::new();
    while body.len() < 3_000_000 {
        body.extend_from_slice(&empty);
    }
    let answer = response("200 OK", "Content-Encoding: gzip\r\n", &body);
    net.answer(&format!("{PUBLIC}:80"), move |_| answer.clone());
    let mut guest = net.guest_with_policy(
        "[budget]\nbytes_down = 1000000\n[[net]]\nid = \"n\"\nhosts = [\"a.test\"]\nports = [80]\n",
    );
    assert_eq!(guest.get("http://a.test/").unwrap_err().0, Denied);
}
