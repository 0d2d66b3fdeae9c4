//! N: where a redirect may lead, and what goes with it.

use super::servers::{OTHER, ok, read_request, response};
use super::{Case, Grants, USUAL, nothing_more};
use crate::harness::Attack;

/// Two hosts, so that a redirect between them is allowed.
const BOTH: Grants = Grants::Hosts(&["api.allowed.test:80", "other.allowed.test:80"]);
const FOLLOWED: &str = "hello; looked up: api.allowed.test other.allowed.test; dialled: 93.184.215.14:80 151.101.1.6:80";
const FOLLOW: &str = "print(raw('http://api.allowed.test/to?http://other.allowed.test/'))";

fn carried() -> Vec<Attack> {
    vec![
        Case::new(
            "N-13",
            "an encrypted request is never taken to a plain one",
            &["print(raw('https://api.allowed.test/'))"],
        )
        .prepare(|net| {
            net.tls(b"http/1.1", |stream| {
                while read_request(stream).is_some() {
                    let down = response("302 X", "Location: http://api.allowed.test/\r\n", "");
                    if stream.write_all(&down).is_err() {
                        return;
                    }
                }
            })
        })
        .control(
            USUAL,
            |net| {
                net.tls(b"http/1.1", |stream| {
                    while read_request(stream).is_some() {
                        if stream.write_all(&ok("hello")).is_err() {
                            return;
                        }
                    }
                })
            },
            "print(raw('https://api.allowed.test/'))",
            "hello; looked up: api.allowed.test; dialled: 93.184.215.14:443",
        )
        .expect(
            "denied; looked up: api.allowed.test; dialled: 93.184.215.14:443",
            "a redirect from https to http is refused, whatever the policy allows",
        ),
        Case::new(
            "N-13b",
            "credentials do not follow to another origin, by record or by library",
            &[
                r"secret = 'canary-credential'
url = 'http://api.allowed.test/to?http://other.allowed.test/echo'
headers = {name: secret for name in ('Authorization', 'Cookie', 'X-Api-Key', 'X-Auth-Token', 'Proxy-Token', 'X-Session')}
import requests
found = [raw(url, headers=list(headers.items())), library(url, headers=headers), requests.get(url, headers=headers).text, requests.get(url, auth=('a', secret)).text]
print(['canary' in head or 'authorization' in head.lower() for head in found])",
            ],
        )
        .grants(BOTH)
        .control(BOTH, nothing_more, FOLLOW, FOLLOWED)
        .expect(
            "[False, False, False, False]; looked up: api.allowed.test other.allowed.test; dialled: 93.184.215.14:80 151.101.1.6:80",
            "headers that hold credentials end at the origin they were given for",
        ),
        Case::new(
            "N-13c",
            "a redirect to what is not allowed is denied before it is looked up",
            &[
                r"targets = ['http://evil.test/', 'http://169.254.169.254/latest/meta-data/', 'http://127.0.0.1/', '//evil.test/x', 'http://api.allowed.test:81/', 'http://2852039166/', 'http://[::ffff:169.254.169.254]/', 'http://a@api.allowed.test/', 'file:///etc/passwd', 'http://api.allowed.test/v1/../x', 'gopher://api.allowed.test/']
print({raw('http://api.allowed.test/to?' + target) in ('denied', 'redirect') for target in targets})",
            ],
        )
        .grants(BOTH)
        .prepare(|net| {
            // Targets as they stand, spaces and all, are what a server can send.
            let reply = super::servers::reply;
            net.answer(&format!("{}:80", super::servers::PUBLIC), reply)
        })
        .control(BOTH, nothing_more, FOLLOW, FOLLOWED)
        .expect(
            "{True}; looked up: api.allowed.test; dialled: 93.184.215.14:80",
            "each hop is a request of its own, decided before its name is looked up",
        ),
        Case::new(
            "N-13d",
            "a redirect to an allowed name that leads inside is denied",
            &["print(raw('http://api.allowed.test/to?http://other.allowed.test/'))"],
        )
        .grants(BOTH)
        .prepare(|net| {
            net.name("other.allowed.test", &["169.254.169.254"]);
            Ok(())
        })
        .control(BOTH, nothing_more, FOLLOW, FOLLOWED)
        .expect(
            "denied; looked up: api.allowed.test other.allowed.test; dialled: 93.184.215.14:80",
            "the address of each hop is judged like that of a first request",
        ),
        Case::new(
            "N-13e",
            "a circle of redirects ends and is counted",
            &["print(raw('http://api.allowed.test/'), raw('http://other.allowed.test/'))"],
        )
        .grants(Grants::Policy(
            "[budget]\nrequests = 30\n[[net]]\nid = \"n\"\nhosts = [\"api.allowed.test\", \"other.allowed.test\"]\nports = [80]\n",
        ))
        .prepare(|net| {
            for address in [super::servers::PUBLIC, OTHER] {
                net.answer(&format!("{address}:80"), |_| {
                    response("302 X", "Location: /again\r\n", "")
                })?;
            }
            Ok(())
        })
        .control(BOTH, nothing_more, FOLLOW, FOLLOWED)
        .expect(
            "redirect denied; looked up: api.allowed.test other.allowed.test; dialled: 93.184.215.14:80 151.101.1.6:80",
            "hops have a number of their own, and each draws on the budget of requests",
        ),
    ]
}

/// Every attack of this kind.
pub(super) fn all() -> Vec<Attack> {
    carried()
}
