//! N: servers that try to use up the host.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use super::servers::{Net, Wire, read_request};
use super::{ANSWERED, Case, Grants, USUAL, nothing_more};
use crate::harness::Attack;

const GET: &str = "print(raw('http://api.allowed.test/'))";
const GET_TLS: &str = "print(raw('https://api.allowed.test/'))";
/// Five megabytes may come down.
const FEW_BYTES: Grants = Grants::Policy(
    "[budget]\nbytes_down = 5000000\n[[net]]\nid = \"n\"\nhosts = [\"api.allowed.test\"]\nports = [80]\n",
);
const SEEN: &str = "looked up: api.allowed.test; dialled: 93.184.215.14:80";
const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

fn until_closed(stream: &mut TcpStream, piece: &[u8]) {
    while stream.write_all(piece).is_ok() {}
}

fn short(net: &mut Net) {
    let ms = Duration::from_millis;
    net.phases.head = ms(800);
    net.phases.idle = ms(800);
    net.phases.total = ms(4000);
}

fn bodies() -> Vec<Attack> {
    let case = |id, property, grants: Grants, prepare, ends: &str, reason| {
        Case::new(id, property, &[GET])
            .grants(grants)
            .control(grants, nothing_more, GET, ANSWERED)
            .prepare(prepare)
            .expect(&format!("{ends}; {SEEN}"), reason)
            .about_memory()
    };
    let cut = "what comes in draws on a budget piece by piece, and nothing is collected before it";
    let timed = "each phase of an exchange has its own longest time, and so has the whole";
    vec![
        case(
            "N-32",
            "a body of ten gigabytes is refused by its length",
            FEW_BYTES,
            |net| {
                net.after_request(|stream| {
                    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n";
                    let _ = stream.write_all(head);
                    until_closed(stream, &[b'x'; 65536]);
                })
            },
            "denied",
            cut,
        ),
        case(
            "N-32b",
            "a body without an end is cut at the budget",
            FEW_BYTES,
            |net| {
                net.after_request(|stream| {
                    let _ = stream.write_all(CHUNKED);
                    let mut chunk = b"10000\r\n".to_vec();
                    chunk.extend([b'x'; 0x10000]);
                    chunk.extend(b"\r\n");
                    until_closed(stream, &chunk);
                })
            },
            "denied",
            cut,
        ),
        case(
            "N-32c",
            "a body that comes byte by byte ends with its time",
            USUAL,
            |net| {
                short(net);
                net.after_request(|stream| {
                    let _ = stream.write_all(CHUNKED);
                    while stream.write_all(b"1\r\nx\r\n").is_ok() {
                        std::thread::sleep(Duration::from_millis(200));
                    }
                })
            },
            "timeout",
            timed,
        ),
        case(
            "N-32d",
            "a server that says nothing, or stops in the middle, is not waited for",
            USUAL,
            |net| {
                short(net);
                net.after_request(|stream| {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
                    let _ = stream.read(&mut [0]);
                })
            },
            "timeout",
            timed,
        ),
        case(
            "N-32e",
            "a body that grows a thousand times is stopped while it grows",
            USUAL,
            |net| {
                net.after_request(|stream| {
                    let head =
                        b"HTTP/1.1 200 OK\r\nContent-Encoding: zstd\r\nConnection: close\r\n\r\n";
                    let _ = stream.write_all(head);
                    let Ok(mut encoder) = zstd::Encoder::new(stream, 3) else { return };
                    let zeros = vec![0; 1 << 20];
                    for _ in 0..4000 {
                        if encoder.write_all(&zeros).is_err() {
                            return;
                        }
                    }
                    let _ = encoder.finish();
                })
            },
            "too_large",
            "a body that is decompressed is held to a proportion of what came in",
        ),
    ]
}

fn heads() -> Vec<Attack> {
    let case = |id, property, prepare| {
        Case::new(id, property, &[GET])
            .prepare(prepare)
            .expect(
                &format!("protocol; {SEEN}"),
                "the head of a response has a largest number of headers and of bytes",
            )
            .about_memory()
    };
    vec![
        case("N-32f", "a hundred thousand headers are not collected", |net| {
            net.after_request(|stream| {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
                for number in 0..100_000 {
                    if stream.write_all(format!("x-{number}: y\r\n").as_bytes()).is_err() {
                        return;
                    }
                }
                let _ = stream.write_all(b"\r\n");
                let _ = stream.read(&mut [0]);
            })
        }),
        case("N-32g", "a header of a megabyte is not collected", |net| {
            net.after_request(|stream| {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nx: ");
                for _ in 0..16 {
                    if stream.write_all(&[b'y'; 65536]).is_err() {
                        return;
                    }
                }
                let _ = stream.write_all(b"\r\n\r\n");
                let _ = stream.read(&mut [0]);
            })
        }),
    ]
}

/// One frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    let mut frame = length.get(1..).unwrap_or_default().to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
/// `:status: 200` in HPACK's table.
const STATUS_200: u8 = 0x88;

/// A server of HTTP/2 that is kind until the request has come.
fn two(net: &mut Net, misbehave: fn(&mut dyn Wire)) -> std::io::Result<()> {
    net.tls(b"h2", move |stream| {
        let mut preface = [0; 24];
        if stream.read_exact(&mut preface).is_err()
            || stream.write_all(&frame(SETTINGS, 0, 0, &[])).is_err()
        {
            return;
        }
        // Frames of the client up to its request.
        loop {
            let mut head = [0; 9];
            if stream.read_exact(&mut head).is_err() {
                return;
            }
            let [a, b, c, kind, ..] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
            if stream.read_exact(&mut payload).is_err() {
                return;
            }
            if kind == HEADERS {
                break;
            }
        }
        misbehave(stream);
    })
}

fn flood(stream: &mut dyn Wire, frame: &[u8]) {
    // Bounded, so that a client that takes everything is found by the answer.
    for _ in 0..200_000 {
        if stream.write_all(frame).is_err() {
            return;
        }
    }
}

fn second_version() -> Vec<Attack> {
    let case = |id, property, prepare, ends: &str| {
        Case::new(id, property, &[GET_TLS])
            .prepare(prepare)
            .control(
                USUAL,
                |net| {
                    two(net, |stream| {
                        let _ =
                            stream.write_all(&frame(HEADERS, END_HEADERS | 1, 1, &[STATUS_200]));
                        let _ = stream.read(&mut [0]);
                        // Closed at once, what the client still writes would
                        // come back as a reset before it has read the answer.
                        std::thread::sleep(Duration::from_millis(300));
                    })
                },
                "print('got', raw('https://api.allowed.test/'))",
                "got; looked up: api.allowed.test; dialled: 93.184.215.14:443",
            )
            .expect(
                &format!("{ends}; looked up: api.allowed.test; dialled: 93.184.215.14:443"),
                "the client's own limits on frames end a connection that floods it",
            )
            .about_memory()
    };
    vec![
        case(
            "N-40",
            "headers that never end do not fill memory",
            |net| {
                two(net, |stream| {
                    let _ = stream.write_all(&frame(HEADERS, 0, 1, &[STATUS_200]));
                    // A literal header without indexing, name and value of one byte.
                    let piece = [0, 1, b'a', 1, b'b'].repeat(3000);
                    flood(stream, &frame(CONTINUATION, 0, 1, &piece));
                })
            },
            "closed",
        ),
        case(
            "N-40b",
            "streams that are reset again and again end the exchange",
            |net| two(net, |stream| flood(stream, &frame(RESET, 0, 1, &[0, 0, 0, 8]))),
            "closed",
        ),
        case(
            "N-40c",
            "settings and pings without end do not fill memory",
            |net| {
                short(net);
                two(net, |stream| {
                    let settings = [0, 3, 0, 0, 0, 100].repeat(2000);
                    let mut both = frame(SETTINGS, 0, 0, &settings);
                    both.extend(frame(PING, 0, 0, &[7; 8]));
                    flood(stream, &both);
                })
            },
            "timeout",
        ),
        case(
            "N-40d",
            "a frame that is larger than was agreed ends the exchange",
            |net| {
                two(net, |stream| {
                    let _ = stream.write_all(&frame(HEADERS, END_HEADERS, 1, &vec![0; 1 << 20]));
                    let _ = stream.read(&mut [0]);
                })
            },
            "closed",
        ),
    ]
}

/// A stream of events is a body like any other.
fn events() -> Attack {
    Case::new("N-41b", "a stream of events that never ends is cut at the budget", &[GET])
        .grants(FEW_BYTES)
        .control(FEW_BYTES, nothing_more, GET, ANSWERED)
        .prepare(|net| {
            net.serve(&format!("{}:80", super::servers::PUBLIC), |mut stream| {
                if read_request(&mut stream).is_some() {
                    let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
                    let _ = stream.write_all(head);
                    until_closed(&mut stream, "data: event\n\n".repeat(5000).as_bytes());
                }
            })
        })
        .expect(&format!("denied; {SEEN}"), "a body draws on the budget, whatever its type says")
}

/// Every attack of this kind.
pub(super) fn all() -> Vec<Attack> {
    let mut all = bodies();
    all.extend(heads());
    all.extend(second_version());
    all.push(events());
    all
}
