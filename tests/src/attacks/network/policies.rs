//! N: rules that could reach further than they look, budgets that could start
//! again, and settings of the host that could change where a request goes.

use std::sync::Arc;

use super::servers::PUBLIC;
use super::{ANSWERED, Case, Grants, nothing_more};
use crate::harness::{Attack, Attempt, Expected, Observed, Setting, World, machine};

const GET_ONLY: Grants = Grants::Policy(
    "[[net]]\nid = \"n\"\nhosts = [\"api.allowed.test\"]\nports = [80]\nmethods = [\"GET\", \"POST\"]\n",
);
const PATHS: Grants = Grants::Policy(
    "[[net]]\nid = \"n\"\nhosts = [\"api.allowed.test\"]\nports = [80]\npaths = [\"/v1/*\"]\n",
);

/// Patterns for hosts that would reach everything, or look as if they did not.
const NO_PATTERNS: &[&str] = &[
    "*",
    "**",
    "*.com",
    "**.com",
    "foo.*",
    "**x.com",
    "x*.com",
    "*.co.uk",
    "**.github.io",
    "a.*.example.com",
    "*.*.example.com",
    "",
    ".",
    "*.",
    "https://example.com",
    "example.com/x",
    "example.com:0",
    "127.1",
    "10.*",
    "[::1",
];

/// Which of some patterns a policy or the builder takes.
fn taken(world: &World<'_>, setting: &Setting, patterns: &[&str]) -> Observed {
    let mut taken = Vec::new();
    for pattern in patterns {
        let text = format!("version = 1\n[[net]]\nid = \"n\"\nhosts = [{pattern:?}]\n");
        for of_policy in [true, false] {
            let builder = match world.builder(setting) {
                Ok(builder) => builder,
                Err(error) => return Observed::broken(error),
            };
            let builder =
                if of_policy { builder.policy(text.as_str()) } else { builder.allow(pattern) };
            if builder.build().is_ok() {
                taken.push(*pattern);
            }
        }
    }
    Observed::fact(format!("{taken:?}"))
}

/// What the program may read leaves with a request that it may send.
fn payload() -> Attack {
    Case::new(
        "N-25b",
        "data that the program may read does not leave in the query of an allowed request",
        &["print(raw('http://api.allowed.test/?data=canary'))"],
    )
    .unseen("denied", "a rule judges where a request goes and not what it says")
    .known_gap(
        "A rule names hosts, ports, methods and paths, and whoever allows a host allows what the \
         program sends there: any judgement of contents is got around by another encoding. Give a \
         program that reads secrets no host that is not trusted with them; budgets bound how much \
         can leave, and the audit log has the digest and the size of every request.",
    )
}

fn patterns() -> Attack {
    Attack::host(
        "N-20",
        "a pattern that reaches whole registries is no pattern",
        |world, setting| taken(world, setting, NO_PATTERNS),
    )
    .control(
        Attempt::Host(Arc::new(|world: &World<'_>, setting: &Setting| {
            taken(world, setting, &["*.example.com"])
        })),
        Expected::Harmless("[\"*.example.com\", \"*.example.com\"]"),
    )
    .expect(
        Expected::Harmless("[]"),
        "a wildcard stands for whole labels in front of a name that somebody registered",
    )
}

fn rules() -> Vec<Attack> {
    let control = "print(raw('http://api.allowed.test/v1/x'))";
    vec![
        Case::new(
            "N-25",
            "no method but those of the rule goes out, however it is written",
            &[
                r"methods = ['DELETE', 'PUT', 'PATCH', 'OPTIONS', 'TRACE', 'CONNECT', 'get', 'Post', 'GET\t', 'PURGE', 'M-SEARCH']
headers = ['X-HTTP-Method-Override', 'X-HTTP-Method', 'X-Method-Override', 'x-http-method-override', 'X-Original-URL', 'X-Rewrite-URL']
print({raw('http://api.allowed.test/', method=method) in ('denied', 'invalid') for method in methods}, {raw('http://api.allowed.test/', method='POST', body=b'', headers=[(name, 'DELETE')]) for name in headers})",
            ],
        )
        .grants(GET_ONLY)
        .unseen("{True} {'denied'}", "a method is one of a list, and no header stands in for it"),
        Case::new(
            "N-26",
            "no spelling of a path leads out of those of the rule",
            &[
                "print({raw('http://api.allowed.test' + path) in ('denied', 'invalid') for path in ('/v1/../admin', '/v1/%2e%2e/admin', '/v1/%2E%2E%2fadmin', '//v1/x', '/v1//x', '/v1;x/y', '/v1/x;y', '/V1/x', '/v1%2Fx', '/v1/x%2fy', '/v1', '/v1/x/y', '/%76%31/../x', '/v1/./x', '/v1/..', '/v1/%00', '/v1\\\\x', '/v1/x%5cy', '/admin?/v1/x', '/admin#/v1/x')})",
            ],
        )
        .grants(PATHS)
        .control(PATHS, nothing_more, control, ANSWERED)
        .unseen("{True}", "a path has one form; what has two is refused before rules are read"),
        Case::new(
            "N-26b",
            "a path that is only escaped is decided and sent in its one form",
            &["print(raw('http://api.allowed.test/%76%31/%78'), raw('http://api.allowed.test/v1/%78#y'))"],
        )
        .grants(PATHS)
        .prepare(|net| {
            net.answer(&format!("{PUBLIC}:80"), |head| {
                super::servers::ok(head.split(' ').nth(1).unwrap_or_default())
            })
        })
        .control(PATHS, nothing_more, control, ANSWERED)
        .expect(
            "/v1/x /v1/x; looked up: api.allowed.test; dialled: 93.184.215.14:80",
            "the path that is sent is the one that was decided",
        ),
        Case::new(
            "N-41",
            "a connection cannot be turned into another protocol",
            &[
                r"upgrades = [('Upgrade', 'websocket'), ('Connection', 'Upgrade'), ('Sec-WebSocket-Key', 'dGhlIHNhbXBsZSBub25jZQ=='), ('sec-websocket-version', '13'), ('Upgrade', 'h2c'), ('HTTP2-Settings', 'AAMAAABkAARAAAAAAAIAAAAA')]
print({raw('http://api.allowed.test/', headers=[header]) for header in upgrades}, raw('http://api.allowed.test/'))",
            ],
        )
        .prepare(|net| {
            net.after_request(|stream| {
                use std::io::Write as _;
                let switch = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
                let _ = stream.write_all(switch.as_bytes());
                let _ = stream.write_all(b"\x81\x05hello");
            })
        })
        .expect(
            "{'denied'} protocol; looked up: api.allowed.test; dialled: 93.184.215.14:80",
            "only requests and responses exist, whatever a header or a server asks for",
        ),
    ]
}

fn budgets() -> Vec<Attack> {
    let one = Grants::Policy(
        "[budget]\nrequests = 1\n[[net]]\nid = \"n\"\nhosts = [\"api.allowed.test\"]\nports = [80]\n",
    );
    let bytes = Grants::Policy(
        "[budget]\nbytes_down = 10\n[[net]]\nid = \"n\"\nhosts = [\"api.allowed.test\"]\nports = [80]\n",
    );
    let get = "print(raw('http://api.allowed.test/'))";
    vec![
        Case::new(
            "N-43",
            "a budget of requests that is used up stays so for every later run",
            &["print(raw('http://api.allowed.test/'))"; 3],
        )
        .grants(one)
        .control(one, nothing_more, get, ANSWERED)
        .expect(
            "hello | denied | denied; looked up: api.allowed.test; dialled: 93.184.215.14:80",
            "budgets are of the sandbox, and its runs share one meter",
        ),
        Case::new(
            "N-43b",
            "a budget of bytes that is used up stays so for every later run",
            &["print(raw('http://api.allowed.test/'))"; 3],
        )
        .grants(bytes)
        .control(bytes, nothing_more, get, ANSWERED)
        .expect(
            "hello | hello | denied; looked up: api.allowed.test; dialled: 93.184.215.14:80",
            "bytes are counted where they come in, whoever reads them",
        ),
    ]
}

/// Sets in the guest what is set in the host, and asks in three ways.
const SET_EVERYTHING: &str = "import os
for name in ('HTTP_PROXY', 'http_proxy', 'HTTPS_PROXY', 'ALL_PROXY'):
    os.environ[name] = 'http://evil.test:3128'
os.environ['SSL_CERT_FILE'] = '/tmp/none'
found = [raw('http://api.allowed.test/echo'), library('http://api.allowed.test/echo')]
import requests
found.append(requests.get('http://api.allowed.test/echo').text)
print(['authorization' in head.lower() or 'proxy' in head.lower() for head in found])";

/// What the host's own settings would do: another proxy, another authority, a
/// login.
fn host_settings() -> Attack {
    let case = Case::new(
        "N-38",
        "neither the host's variables nor the guest's change where a request goes",
        &[SET_EVERYTHING],
    )
    .expect(
        "[False, False, False]; looked up: api.allowed.test; dialled: 93.184.215.14:80",
        "connections are set up by the operator's arguments, and nothing is read from an environment",
    );
    let Attempt::Host(attempt) = case.attempt.clone() else { return case };
    Attack {
        attempt: Attempt::Host(Arc::new(move |world: &World<'_>, setting: &Setting| {
            // Without them nothing was tried.
            match machine::missing_proxy_settings() {
                None => attempt(world, setting),
                Some(missing) => Observed::broken(format!("{missing} is not set in this process")),
            }
        })),
        ..case
    }
}

/// Every attack of this kind.
pub(super) fn all() -> Vec<Attack> {
    let mut all = vec![patterns(), host_settings(), payload()];
    all.extend(rules());
    all.extend(budgets());
    all
}
