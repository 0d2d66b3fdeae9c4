//! N: which addresses a URL or a name may lead to.

use super::servers::{HOST, OTHER, PUBLIC, ok, reply};
use super::{Case, Grants, nothing_more};
use crate::harness::Attack;

/// A written address that is allowed leads somewhere: the connector would
/// have connected.
const INSIDE: &str = "inside; looked up: -; dialled: 127.0.0.1:80";
const AN_ADDRESS: Grants = Grants::Hosts(&["127.0.0.1:80"]);
/// Any name of one label more.
const NAMES: Grants = Grants::Hosts(&["*.allowed.test:80"]);

fn written(id: &'static str, property: &'static str, code: &'static [&'static str]) -> Attack {
    Case::new(id, property, code)
        .grants(AN_ADDRESS)
        .control(AN_ADDRESS, nothing_more, "print(raw('http://127.0.0.1/'))", INSIDE)
        .unseen("[]", "an address has one spelling, and only one that was granted is dialled")
}

fn urls() -> Vec<Attack> {
    vec![
        written(
            "N-01",
            "no spelling of a loopback address in a URL is a request that goes out",
            &[
                "print(through(['http://127.0.0.1:81/', 'http://127.1', 'http://127.0.1', 'http://127.127.127.127', 'http://0/', 'http://0.0.0.0', 'http://localhost/', 'http://localhost:80/', 'http://[::1]/', 'http://[::]/', 'http://169.254.169.254/latest/meta-data/', 'http://metadata.google.internal/']))",
            ],
        ),
        written(
            "N-02",
            "no number that inet_aton would take for an address is a host",
            &[
                "print(through(['http://2130706433/', 'http://0x7f000001/', 'http://0177.0.0.1/', 'http://0251.254.169.254/', 'http://0x7f.1/', 'http://0xa9fea9fe/', 'http://2852039166/', 'http://127.0.0.1./', 'http://127.000.000.001/', 'http://\\uff11\\uff12\\uff17.0.0.1/']))",
            ],
        ),
        written(
            "N-04",
            "no address of IPv4 that is written as one of IPv6 goes out",
            &[
                "print(through(['http://[::ffff:127.0.0.1]/', 'http://[::ffff:7f00:1]/', 'http://[0:0:0:0:0:ffff:a9fe:a9fe]/', 'http://[::FFFF:10.0.0.5]/', 'http://[::ffff:0:127.0.0.1]/', 'http://[fe80::1%25eth0]/', 'http://[fe80::1%eth0]/']))",
            ],
        ),
        written(
            "N-05",
            "no address with another inside it goes out",
            &[
                "print(through(['http://[::127.0.0.1]/', 'http://[64:ff9b::7f00:1]/', 'http://[64:ff9b:1::7f00:1]/', 'http://[2002:7f00:1::]/', 'http://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/', 'http://[fe80::5efe:7f00:1]/', 'http://[2001:db8::5efe:127.0.0.1]/']))",
            ],
        ),
        written(
            "N-07",
            "no address of a range that is not for hosts of the internet goes out",
            &[
                "print(through(['http://%s/' % host for host in ('100.64.0.1', '100.100.100.200', '192.0.0.1', '192.0.0.192', '198.18.0.1', '192.0.2.1', '198.51.100.1', '203.0.113.1', '240.0.0.1', '255.255.255.255', '224.0.0.1', '168.63.129.16', '10.0.0.5', '172.16.0.1', '192.168.1.1', '[fd00:ec2::254]', '[fc00::1]', '[ff02::1]', '[100::1]', '[5f00::1]', '[2001:db8::1]', '[3fff::1]')]))",
            ],
        ),
    ]
}

/// Each name leads to the address in it.
const EMBEDDED: &[(&str, &str)] = &[
    ("mapped", "::ffff:127.0.0.1"),
    ("mapped-meta", "::ffff:a9fe:a9fe"),
    ("compatible", "::7f00:1"),
    ("nat64", "64:ff9b::7f00:1"),
    ("local-nat64", "64:ff9b:1::7f00:1"),
    ("sixtofour", "2002:7f00:1::1"),
    ("teredo", "2001:0:7f00:1::"),
    ("isatap", "2600::5efe:7f00:1"),
];
const RANGES: &[(&str, &str)] = &[
    ("private", "10.0.0.5"),
    ("private-two", "172.16.0.1"),
    ("private-three", "192.168.1.1"),
    ("loopback", "127.0.0.1"),
    ("zero", "0.0.0.0"),
    ("link", "169.254.1.1"),
    ("aws", "169.254.169.254"),
    ("azure", "168.63.129.16"),
    ("alibaba", "100.100.100.200"),
    ("oracle", "192.0.0.192"),
    ("tencent", "169.254.0.23"),
    ("cgnat", "100.64.0.1"),
    ("protocol", "192.0.0.1"),
    ("bench", "198.18.0.1"),
    ("test-one", "192.0.2.1"),
    ("test-two", "198.51.100.1"),
    ("test-three", "203.0.113.1"),
    ("reserved", "240.0.0.1"),
    ("broadcast", "255.255.255.255"),
    ("multicast", "224.0.0.1"),
    ("loopback-six", "::1"),
    ("local-six", "fd12:3456::1"),
    ("aws-six", "fd00:ec2::254"),
    ("link-six", "fe80::1"),
];

fn name_all(net: &super::Net, list: &[(&str, &str)]) {
    for (name, address) in list {
        net.name(&format!("{name}.allowed.test"), &[address]);
    }
}

/// Names that lead inside; `asked` are those of the list, in order.
fn led(
    id: &'static str,
    property: &'static str,
    prepare: super::Prepare,
    code: &'static [&'static str],
    list: &[(&str, &str)],
) -> Attack {
    let names: Vec<String> = list.iter().map(|(name, _)| format!("{name}.allowed.test")).collect();
    Case::new(id, property, code).grants(NAMES).prepare(prepare).expect(
        &format!("{{'denied'}}; looked up: {}; dialled: -", names.join(" ")),
        "a grant of a name is one of public addresses, and each answer is judged",
    )
}

fn names() -> Vec<Attack> {
    vec![
        led(
            "N-05b",
            "a name that leads to an address with another inside it is not connected to",
            |net| {
                name_all(net, EMBEDDED);
                Ok(())
            },
            &[
                "print({raw('http://%s.allowed.test/' % name) for name in ('mapped', 'mapped-meta', 'compatible', 'nat64', 'local-nat64', 'sixtofour', 'teredo', 'isatap')})",
            ],
            EMBEDDED,
        ),
        led(
            "N-07b",
            "a name that leads to a range that is not of the internet is not connected to",
            |net| {
                name_all(net, RANGES);
                Ok(())
            },
            &[
                "print({raw('http://%s.allowed.test/' % name) for name in 'private private-two private-three loopback zero link aws azure alibaba oracle tencent cgnat protocol bench test-one test-two test-three reserved broadcast multicast loopback-six local-six aws-six link-six'.split()})",
            ],
            RANGES,
        ),
        Case::new(
            "N-08",
            "a name that is allowed and leads to a private address is not connected to",
            &["print(raw('http://api.allowed.test/'))"],
        )
        .prepare(|net| {
            net.name(HOST, &["10.0.0.5"]);
            Ok(())
        })
        .expect(
            "denied; looked up: api.allowed.test; dialled: -",
            "answers are put into classes, and a class needs its own grant",
        ),
        Case::new(
            "N-08b",
            "a name that changes its mind between two requests is judged at each",
            &["print([raw('http://rebind.allowed.test/') for _ in range(3)])"],
        )
        .grants(NAMES)
        .prepare(|net| {
            net.turns("rebind.allowed.test", &[&[OTHER], &["127.0.0.1"], &["169.254.169.254"]]);
            // The connection is not kept, so that each request looks again.
            net.answer(&format!("{OTHER}:80"), |_| {
                b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello".to_vec()
            })
        })
        .expect(
            "['hello', 'denied', 'denied']; looked up: rebind.allowed.test; dialled: 151.101.1.6:80",
            "the address that is dialled is the one that was judged, each time",
        ),
        Case::new(
            "N-10",
            "of public and private answers only a public one is dialled",
            &["print(raw('http://mixed.allowed.test/'))"],
        )
        .grants(NAMES)
        .prepare(|net| {
            net.name("mixed.allowed.test", &["10.0.0.5", "127.0.0.1", "::1", OTHER]);
            Ok(())
        })
        .expect(
            "hello; looked up: mixed.allowed.test; dialled: 151.101.1.6:80",
            "answers that may not be dialled are left out before anything is",
        ),
        Case::new(
            "N-11",
            "an alias to a name inside is judged by where it ends, and hints are not read",
            &[
                "print(words(['http://alias.allowed.test/', 'http://hinted.allowed.test/', 'http://hint.allowed.test/']))",
            ],
        )
        .grants(NAMES)
        .prepare(|net| {
            net.name("alias.allowed.test", &["db.corp.test", "10.0.0.5"]);
            net.name("hinted.allowed.test", &["hint:10.0.0.5", OTHER]);
            net.name("hint.allowed.test", &["hint:10.0.0.5"]);
            Ok(())
        })
        .expect(
            "denied hello name; looked up: alias.allowed.test db.corp.test hinted.allowed.test hint.allowed.test; dialled: 151.101.1.6:80",
            "an alias is followed by the resolver; only addresses are taken from it, and they decide",
        ),
        Case::new(
            "N-37",
            "a name that spells a private address leads nowhere",
            &[
                "print(words(['http://10.0.0.1.nip.test/', 'http://10-0-0-1.nip.test/', 'http://7f000001.nip.test/']))",
            ],
        )
        .grants(Grants::Hosts(&["**.nip.test:80"]))
        .prepare(|net| {
            net.name("10.0.0.1.nip.test", &["10.0.0.1"]);
            net.name("10-0-0-1.nip.test", &["10.0.0.1"]);
            net.name("7f000001.nip.test", &["127.0.0.1"]);
            Ok(())
        })
        .control(
            Grants::Hosts(&["**.nip.test:80"]),
            |net| {
                net.name("public.nip.test", &[OTHER]);
                Ok(())
            },
            "print(raw('http://public.nip.test/'))",
            "hello; looked up: public.nip.test; dialled: 151.101.1.6:80",
        )
        .expect(
            "denied denied denied; looked up: 10.0.0.1.nip.test 10-0-0-1.nip.test 7f000001.nip.test; dialled: -",
            "the class of an address does not depend on the name that led to it",
        ),
    ]
}

fn granted() -> Vec<Attack> {
    vec![
        Case::new(
            "N-08c",
            "a grant of a private name reaches neither loopback nor metadata",
            &["print(words(['http://%s.allowed.test/' % name for name in ('loopback', 'aws', 'alibaba', 'aws-six', 'link')]))"],
        )
        .grants(Grants::Hosts(&[
            "private:loopback.allowed.test:80",
            "private:aws.allowed.test:80",
            "private:alibaba.allowed.test:80",
            "private:aws-six.allowed.test:80",
            "private:link.allowed.test:80",
            "private:private.allowed.test:80",
        ]))
        .prepare(|net| {
            name_all(net, RANGES);
            Ok(())
        })
        .control(
            Grants::Hosts(&["private:private.allowed.test:80"]),
            |net| {
                name_all(net, RANGES);
                Ok(())
            },
            "print(raw('http://private.allowed.test/'))",
            "inside; looked up: private.allowed.test; dialled: 10.0.0.5:80",
        )
        .expect(
            "denied denied denied denied denied; looked up: loopback.allowed.test aws.allowed.test alibaba.allowed.test aws-six.allowed.test link.allowed.test; dialled: -",
            "a private grant is of private networks, and of nothing that is nearer",
        ),
        Case::new(
            "N-31",
            "a server of the program itself is not reached, even where its address is allowed",
            &["print(words(['http://127.0.0.1:8080/', 'http://127.0.0.1:9090/']))"],
        )
        .grants(Grants::Hosts(&["127.0.0.1:8080", "127.0.0.1:9090"]))
        .prepare(|net| {
            net.own = vec![([127, 0, 0, 1], 8080).into(), ([0, 0, 0, 0], 9090).into()];
            Ok(())
        })
        .control(
            Grants::Hosts(&["127.0.0.1:8080"]),
            nothing_more,
            "print(raw('http://127.0.0.1:8080/'))",
            "inside; looked up: -; dialled: 127.0.0.1:8080",
        )
        .unseen("denied denied", "addresses of this program are refused after every other decision"),
        Case::new(
            "N-31b",
            "a name that leads to the address that was allowed is not that address",
            &["print(raw('http://sneaky.allowed.test/'))"],
        )
        .grants(Grants::Hosts(&["127.0.0.1:80", "sneaky.allowed.test:80"]))
        .prepare(|net| {
            net.name("sneaky.allowed.test", &["127.0.0.1"]);
            net.answer(&format!("{PUBLIC}:80"), reply)?;
            net.answer("127.0.0.1:80", |_| ok("inside"))
        })
        .control(AN_ADDRESS, nothing_more, "print(raw('http://127.0.0.1/'))", INSIDE)
        .expect(
            "denied; looked up: sneaky.allowed.test; dialled: -",
            "a grant of an address is of its spelling in a URL and of no name",
        ),
    ]
}

/// Every attack of this kind.
pub(super) fn all() -> Vec<Attack> {
    let mut all = urls();
    all.extend(names());
    all.extend(granted());
    all
}
