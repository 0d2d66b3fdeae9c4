use super::*;
use proptest::prelude::*;

fn class(text: &str) -> AddressClass {
    AddressClass::of(text.parse().unwrap_or_else(|_| panic!("{text}")))
}

#[test]
fn every_range_begins_and_ends_where_it_should() {
    // First, last, and the neighbours outside where another range does not
    // begin.
    for (inside, outside, want) in [
        ("0.0.0.0 0.255.255.255", "1.0.0.0", C::Never),
        ("10.0.0.0 10.255.255.255", "9.255.255.255 11.0.0.0", C::Private),
        ("100.64.0.0 100.127.255.255", "100.63.255.255 100.128.0.0", C::Shared),
        (
            "127.0.0.0 127.0.0.1 127.127.127.127 127.255.255.255",
            "126.255.255.255 128.0.0.0",
            C::Loopback,
        ),
        ("169.254.0.0 169.254.255.255", "169.253.255.255 169.255.0.0", C::LinkLocal),
        ("172.16.0.0 172.31.255.255", "172.15.255.255 172.32.0.0", C::Private),
        ("192.0.0.0 192.0.0.255", "191.255.255.255 192.0.1.0", C::Protocol),
        ("192.0.2.0 192.0.2.255", "192.0.1.255 192.0.3.0", C::Documentation),
        ("192.88.99.0 192.88.99.255", "192.88.98.255 192.88.100.0", C::Embedding),
        ("192.168.0.0 192.168.255.255", "192.167.255.255 192.169.0.0", C::Private),
        ("198.18.0.0 198.19.255.255", "198.17.255.255 198.20.0.0", C::Benchmarking),
        ("198.51.100.0 198.51.100.255", "198.51.99.255 198.51.101.0", C::Documentation),
        ("203.0.113.0 203.0.113.255", "203.0.112.255 203.0.114.0", C::Documentation),
        ("224.0.0.0 239.255.255.255", "223.255.255.255", C::Never),
        ("240.0.0.0 255.255.255.255", "223.255.255.255", C::Never),
        ("2001:2:: 2001:2:0:ffff:ffff:ffff:ffff:ffff", "", C::Benchmarking),
        ("2001:1:: 2001:3:: 2001:1ff:ffff::", "2001:200::", C::Protocol),
        (
            "2001:db8:: 2001:db8:ffff:ffff:ffff:ffff:ffff:ffff",
            "2001:db7:ffff:: 2001:db9::",
            C::Documentation,
        ),
        (
            "3fff:: 3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff",
            "3ffe:ffff:: 3fff:1000::",
            C::Documentation,
        ),
        ("fc00:: fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "", C::UniqueLocal),
        ("fe80:: febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "", C::LinkLocal),
        ("fec0:: feff:: ff00:: ff02::1 ffff::", "", C::Never),
        (
            ":: 100:: 100:0:0:1:: 5f00:: 4000:: 1fff:: 400:: 200::",
            "2000:: 2a00::1 3ffe::",
            C::Never,
        ),
        ("::1", "", C::Loopback),
    ] {
        for text in inside.split_whitespace() {
            assert_eq!(class(text), want, "{text}");
        }
        for text in outside.split_whitespace() {
            assert_eq!(class(text), C::Public, "{text}");
        }
    }
}

#[test]
fn every_metadata_service_is_one() {
    for text in [
        "169.254.169.254",
        "169.254.170.2",
        "169.254.170.23",
        "169.254.42.42",
        "169.254.0.23",
        "168.63.129.16",
        "100.100.100.200",
        "100.96.0.96",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",
        "fd00:42::42",
        "fd00:c1::a9fe:a9fe",
        "fd00:a9fe:a9fe::1",
        "fe80::a9fe:a9fe",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b::168.63.129.16",
    ] {
        assert_eq!(class(text), C::Metadata, "{text}");
    }
}

#[test]
fn an_address_inside_another_decides() {
    for (text, want) in [
        ("::ffff:127.0.0.1", C::Loopback),
        ("::ffff:7f00:1", C::Loopback),
        ("0:0:0:0:0:ffff:a9fe:a9fe", C::Metadata),
        ("::ffff:10.0.0.1", C::Private),
        ("::ffff:8.8.8.8", C::Public),
        ("::ffff:0.0.0.0", C::Never),
        ("64:ff9b::7f00:1", C::Loopback),
        ("64:ff9b::192.168.0.1", C::Private),
        ("64:ff9b::100.64.0.1", C::Shared),
        ("64:ff9b::8.8.8.8", C::Public),
        ("64:ff9b:1::7f00:1", C::Embedding),
        ("64:ff9b:1:fffe::8.8.8.8", C::Embedding),
        ("::127.0.0.1", C::Embedding),
        ("::8.8.8.8", C::Embedding),
        ("::ffff:0:127.0.0.1", C::Embedding),
        ("2002:7f00:1::", C::Embedding),
        ("2002:808:808::1", C::Embedding),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", C::Embedding),
        ("2001:0:7f00:1::", C::Embedding),
        ("2a00:1450::5efe:7f00:1", C::Embedding),
        ("2a00:1450::200:5efe:a00:1", C::Embedding),
        ("fe80::5efe:7f00:1", C::LinkLocal),
    ] {
        assert_eq!(class(text), want, "{text}");
    }
}

#[test]
fn every_row_has_its_own_source_and_place() {
    for (at, row) in address_ranges().enumerate() {
        assert!(!row.source.is_empty());
        let earlier = address_ranges().take(at);
        assert!(
            !earlier.clone().any(|other| other.first == row.first && other.length == row.length),
            "{row:?}"
        );
        // The first address of a row is not claimed by a shorter row before it.
        let swallowed = earlier
            .filter(|other| other.first.is_ipv4() == row.first.is_ipv4())
            .any(|other| other.length < row.length && other.holds(row.bits, width(row)));
        assert!(!swallowed, "{row:?}");
    }
}

fn width(row: &AddressRange) -> u32 {
    if row.first.is_ipv4() { 32 } else { 128 }
}

#[test]
fn the_page_has_every_row_and_no_other() {
    let page = include_str!("../../docs/network.md");
    let section = page.split("\n## ").find(|section| section.starts_with("Address table"));
    let rows: Vec<Vec<&str>> = section
        .unwrap_or_default()
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| {
            line.split('|').skip(1).take(3).map(|cell| cell.trim().trim_matches('`')).collect()
        })
        .collect();
    let want: Vec<Vec<String>> = address_ranges()
        .map(|row| {
            let inner = row.class == C::Public;
            let class = if inner { "the address inside" } else { row.class.name() };
            vec![format!("{}/{}", row.first, row.length), class.to_owned(), row.source.to_owned()]
        })
        .collect();
    assert_eq!(rows, want);
}

fn admit(url: &str, grant: AddressGrant, answer: &str) -> bool {
    let request = NetRequest::parse("GET", url).unwrap_or_else(|error| panic!("{url}: {error}"));
    DialAddress::admit(request.get(), grant, answer.parse().unwrap_or_else(|_| panic!())).is_ok()
}

#[test]
fn a_name_reaches_public_addresses_and_private_ones_if_granted() {
    use AddressGrant::{Private, Public};
    let name = "https://api.example.com/";
    for (answer, public, private) in [
        ("8.8.8.8", true, true),
        ("::ffff:8.8.8.8", true, true),
        ("2a00:1450::1", true, true),
        ("10.0.0.5", false, true),
        ("fd12::1", false, true),
        ("100.64.0.1", false, true),
        ("::ffff:192.168.0.1", false, true),
        ("127.0.0.1", false, false),
        ("169.254.1.1", false, false),
        ("169.254.169.254", false, false),
        ("100.100.100.200", false, false),
        ("fd00:ec2::254", false, false),
        ("0.0.0.0", false, false),
        ("203.0.113.1", false, false),
        ("2002:7f00:1::", false, false),
        ("::127.0.0.1", false, false),
    ] {
        assert_eq!(admit(name, Public, answer), public, "{answer}");
        assert_eq!(admit(name, Private, answer), private, "{answer}");
    }
}

#[test]
fn a_written_address_reaches_itself_and_nothing_else() {
    use AddressGrant::Public;
    assert!(admit("http://127.0.0.1:8080/", Public, "127.0.0.1"));
    assert!(admit("http://[::1]:8080/", Public, "::1"));
    assert!(!admit("http://127.0.0.1:8080/", Public, "127.0.0.2"));
    assert!(!admit("http://0.0.0.0/", Public, "0.0.0.0"));
    assert!(!admit("http://255.255.255.255/", Public, "255.255.255.255"));
    let request = NetRequest::parse("GET", "https://api.example.com:8443/").unwrap();
    let mapped = "::ffff:8.8.8.8".parse().unwrap();
    let dialled = DialAddress::admit(request.get(), Public, mapped).unwrap();
    assert_eq!(dialled.to_string(), "8.8.8.8:8443");
}

proptest! {
    #[test]
    fn a_mapped_address_is_never_better_than_the_one_inside(bits in any::<u32>()) {
        let four = Ipv4Addr::from_bits(bits);
        prop_assert_eq!(AddressClass::of(four.to_ipv6_mapped().into()), AddressClass::of(four.into()));
        let nat64 = Ipv6Addr::from_bits((0x64_ff9b_u128 << 96) | u128::from(bits));
        prop_assert_eq!(AddressClass::of(nat64.into()), AddressClass::of(four.into()));
    }

    /// An independent reading: what the standard library calls special is
    /// never public here.
    #[test]
    fn nothing_special_is_public(bits in any::<u32>()) {
        let four = Ipv4Addr::from_bits(bits);
        let special = four.is_private() || four.is_loopback() || four.is_link_local()
            || four.is_broadcast() || four.is_documentation() || four.is_multicast()
            || four.is_unspecified();
        prop_assert!(!special || AddressClass::of(four.into()) != AddressClass::Public);
    }
}

#[test]
fn what_a_denial_tells_of_a_class_is_read_back() {
    for class in AddressClass::ALL {
        assert_eq!(AddressClass::told(&class.tell()), Some(class));
        let reason = format!("denied by policy (rule address): `a.test` {}. Do not.", class.tell());
        assert_eq!(AddressClass::told(&reason), Some(class), "{reason}");
    }
    for text in ["", "loopback", "leads to an address that is privately owned"] {
        assert_eq!(AddressClass::told(text), None, "{text}");
    }
}
