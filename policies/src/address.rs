//! Addresses, and which of them a request may reach.
//!
//! What: [`AddressClass::of`] puts an address into one class by our own table;
//! [`DialAddress::admit`] makes an answer of a name server into an address that
//! may be dialled, or says why not.
//! Why: a name is chosen by whoever owns it and can lead anywhere, so what was
//! allowed by name is judged again by address.
//!
//! Invariant: a [`DialAddress`] exists only for an address that was judged. An
//! address that carries another one inside is judged by the inner one and is
//! never better than it. What no row names is public only in `2000::/3` and in
//! IPv4.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::host::HostName;
use crate::network::NetRequest;

/// What comes before the name of a class in a denial.
const TOLD: &str = "leads to an address that is ";

/// What kind of place an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressClass {
    /// Of the public internet.
    Public,
    /// Private network, RFC 1918.
    Private,
    /// Unique local address, RFC 4193.
    UniqueLocal,
    /// Shared between a provider and its customers (CGNAT), RFC 6598.
    Shared,
    /// This machine.
    Loopback,
    /// This link.
    LinkLocal,
    /// A service that tells a cloud machine its own credentials.
    Metadata,
    /// A transition mechanism that carries another address inside.
    Embedding,
    /// Set aside for documentation.
    Documentation,
    /// Set aside for measurements.
    Benchmarking,
    /// Set aside for protocols.
    Protocol,
    /// No address of a host: unspecified, multicast, broadcast, or not given
    /// out.
    Never,
}

impl AddressClass {
    /// Every class.
    pub(crate) const ALL: [Self; 12] = [
        Self::Public,
        Self::Private,
        Self::UniqueLocal,
        Self::Shared,
        Self::Loopback,
        Self::LinkLocal,
        Self::Metadata,
        Self::Embedding,
        Self::Documentation,
        Self::Benchmarking,
        Self::Protocol,
        Self::Never,
    ];

    /// How a denial says that a name leads to an address of this class;
    /// [`AddressClass::told`] reads it.
    #[must_use]
    pub fn tell(self) -> String {
        format!("{TOLD}{}", self.name())
    }

    /// The class that the text of a denial tells.
    #[must_use]
    pub fn told(text: &str) -> Option<Self> {
        let (_, rest) = text.split_once(TOLD)?;
        Self::ALL.into_iter().find(|class| {
            let more = rest.strip_prefix(class.name());
            more.is_some_and(|more| more.is_empty() || more.starts_with('.'))
        })
    }

    /// The name in denials and audit records.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Private => "private",
            Self::UniqueLocal => "unique-local",
            Self::Shared => "shared (CGNAT)",
            Self::Loopback => "loopback",
            Self::LinkLocal => "link-local",
            Self::Metadata => "cloud metadata",
            Self::Embedding => "embedding",
            Self::Documentation => "documentation",
            Self::Benchmarking => "benchmarking",
            Self::Protocol => "protocol",
            Self::Never => "not a host's",
        }
    }

    /// Whether `--allow-private NAME` is enough for it.
    #[must_use]
    pub fn is_private_network(self) -> bool {
        matches!(self, Self::Private | Self::UniqueLocal | Self::Shared)
    }

    /// The class of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(four) => Self::of_v4(four),
            IpAddr::V6(six) => Self::of_v6(six),
        }
    }

    fn of_v4(address: Ipv4Addr) -> Self {
        let bits = u128::from(address.to_bits());
        let row = V4.iter().find(|row| row.holds(bits, 32));
        row.map_or(Self::Public, |row| row.class)
    }

    fn of_v6(address: Ipv6Addr) -> Self {
        let bits = address.to_bits();
        let row = V6.iter().find(|row| row.holds(bits, 128));
        match row.map(|row| row.class) {
            None if is_isatap(bits) => Self::Embedding,
            // Only this is given out to hosts of the internet, RFC 4291.
            None if bits >> 125 == 0b001 => Self::Public,
            None => Self::Never,
            // IPv4-mapped and NAT64 are the inner address in another form.
            Some(Self::Public) => inner_v4(bits),
            Some(class) => class,
        }
    }
}

/// ISATAP (RFC 5214): the interface part is `0:5efe` or `200:5efe` before an
/// IPv4 address.
fn is_isatap(bits: u128) -> bool {
    matches!((bits >> 32) & 0xffff_ffff, 0x0000_5efe | 0x0200_5efe)
}

fn inner_v4(bits: u128) -> AddressClass {
    // The last 32 bits; the mask makes the conversion exact.
    let inner = u32::try_from(bits & 0xffff_ffff).unwrap_or(0);
    AddressClass::of_v4(Ipv4Addr::from_bits(inner))
}

/// One row of the table: addresses that share their first `length` bits.
#[derive(Clone, Copy, Debug)]
pub struct AddressRange {
    /// The first address.
    pub first: IpAddr,
    /// How many bits they share.
    pub length: u32,
    /// Their class; `Public` for forms of IPv4 that are judged by the address
    /// inside.
    pub class: AddressClass,
    /// What they are and who says so.
    pub source: &'static str,
    bits: u128,
}

impl AddressRange {
    fn holds(&self, bits: u128, width: u32) -> bool {
        let shift = width.saturating_sub(self.length);
        bits.checked_shr(shift).unwrap_or(0) == self.bits.checked_shr(shift).unwrap_or(0)
    }

    const fn four(octets: [u8; 4], length: u32, class: AddressClass, source: &'static str) -> Self {
        let address = Ipv4Addr::from_octets(octets);
        Self { first: IpAddr::V4(address), length, class, source, bits: address.to_bits() as u128 }
    }

    const fn six(parts: [u16; 8], length: u32, class: AddressClass, source: &'static str) -> Self {
        let address = Ipv6Addr::from_segments(parts);
        Self { first: IpAddr::V6(address), length, class, source, bits: address.to_bits() }
    }
}

use AddressClass as C;
use AddressRange as R;

/// Every row, in the order in which they are asked; the first that holds an
/// address decides.
pub fn address_ranges() -> impl Iterator<Item = &'static AddressRange> + Clone {
    V4.iter().chain(V6)
}

const V4: &[AddressRange] = &[
    // Metadata services come first: some lie in ranges that can be granted.
    R::four(
        [169, 254, 169, 254],
        32,
        C::Metadata,
        "AWS, Google, Azure, Oracle, OpenStack, DigitalOcean, Hetzner, Huawei and others",
    ),
    R::four([169, 254, 170, 2], 32, C::Metadata, "AWS task credentials (ECS)"),
    R::four([169, 254, 170, 23], 32, C::Metadata, "AWS pod identity (EKS)"),
    R::four([169, 254, 42, 42], 32, C::Metadata, "Scaleway"),
    R::four([169, 254, 0, 23], 32, C::Metadata, "Tencent Cloud"),
    R::four(
        [168, 63, 129, 16],
        32,
        C::Metadata,
        "Azure platform agent (WireServer), a public address",
    ),
    R::four([100, 100, 100, 200], 32, C::Metadata, "Alibaba Cloud"),
    R::four([100, 96, 0, 96], 32, C::Metadata, "Volcengine"),
    R::four([192, 0, 0, 192], 32, C::Metadata, "Oracle Cloud Classic"),
    R::four([0, 0, 0, 0], 8, C::Never, "this network, RFC 791"),
    R::four([10, 0, 0, 0], 8, C::Private, "private use, RFC 1918"),
    R::four([100, 64, 0, 0], 10, C::Shared, "shared address space, RFC 6598"),
    R::four([127, 0, 0, 0], 8, C::Loopback, "loopback, RFC 1122"),
    R::four([169, 254, 0, 0], 16, C::LinkLocal, "link-local, RFC 3927"),
    R::four([172, 16, 0, 0], 12, C::Private, "private use, RFC 1918"),
    R::four([192, 0, 0, 0], 24, C::Protocol, "protocol assignments, RFC 6890"),
    R::four([192, 0, 2, 0], 24, C::Documentation, "TEST-NET-1, RFC 5737"),
    R::four([192, 88, 99, 0], 24, C::Embedding, "6to4 relays, RFC 7526"),
    R::four([192, 168, 0, 0], 16, C::Private, "private use, RFC 1918"),
    R::four([198, 18, 0, 0], 15, C::Benchmarking, "benchmarking, RFC 2544"),
    R::four([198, 51, 100, 0], 24, C::Documentation, "TEST-NET-2, RFC 5737"),
    R::four([203, 0, 113, 0], 24, C::Documentation, "TEST-NET-3, RFC 5737"),
    R::four([224, 0, 0, 0], 4, C::Never, "multicast, RFC 5771"),
    R::four([240, 0, 0, 0], 4, C::Never, "reserved and broadcast, RFC 1112 and RFC 919"),
];

const V6: &[AddressRange] = &[
    R::six([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128, C::Metadata, "AWS"),
    R::six([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23], 128, C::Metadata, "AWS pod identity (EKS)"),
    R::six([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128, C::Metadata, "Google"),
    R::six([0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42], 128, C::Metadata, "Scaleway"),
    R::six([0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe], 128, C::Metadata, "Oracle Cloud"),
    R::six([0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1], 128, C::Metadata, "Akamai Linode"),
    R::six([0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe], 128, C::Metadata, "OpenStack"),
    R::six([0; 8], 128, C::Never, "unspecified, RFC 4291"),
    R::six([0, 0, 0, 0, 0, 0, 0, 1], 128, C::Loopback, "loopback, RFC 4291"),
    R::six(
        [0, 0, 0, 0, 0, 0xffff, 0, 0],
        96,
        C::Public,
        "IPv4-mapped, RFC 4291: as the address inside",
    ),
    R::six([0; 8], 96, C::Embedding, "IPv4-compatible, RFC 4291"),
    R::six([0, 0, 0, 0, 0xffff, 0, 0, 0], 96, C::Embedding, "IPv4-translated, RFC 2765"),
    R::six(
        [0x64, 0xff9b, 0, 0, 0, 0, 0, 0],
        96,
        C::Public,
        "NAT64, RFC 6052: as the address inside",
    ),
    R::six([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48, C::Embedding, "local NAT64, RFC 8215"),
    R::six([0x100, 0, 0, 0, 0, 0, 0, 0], 64, C::Never, "discard, RFC 6666"),
    R::six([0x100, 0, 0, 1, 0, 0, 0, 0], 64, C::Never, "dummy prefix, RFC 9780"),
    R::six([0x2001, 0, 0, 0, 0, 0, 0, 0], 32, C::Embedding, "Teredo, RFC 4380"),
    R::six([0x2001, 2, 0, 0, 0, 0, 0, 0], 48, C::Benchmarking, "benchmarking, RFC 5180"),
    R::six([0x2001, 0, 0, 0, 0, 0, 0, 0], 23, C::Protocol, "protocol assignments, RFC 2928"),
    R::six([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32, C::Documentation, "documentation, RFC 3849"),
    R::six([0x2002, 0, 0, 0, 0, 0, 0, 0], 16, C::Embedding, "6to4, RFC 3056"),
    R::six([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20, C::Documentation, "documentation, RFC 9637"),
    R::six([0x5f00, 0, 0, 0, 0, 0, 0, 0], 16, C::Never, "segment routing, RFC 9602"),
    R::six([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7, C::UniqueLocal, "unique local, RFC 4193"),
    R::six([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10, C::LinkLocal, "link-local, RFC 4291"),
    R::six([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10, C::Never, "site-local, RFC 3879"),
    R::six([0xff00, 0, 0, 0, 0, 0, 0, 0], 8, C::Never, "multicast, RFC 4291"),
];

/// An address was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the address {address} is {}", .class.name())]
pub struct AddressRefused {
    /// The address.
    pub address: IpAddr,
    /// Its class.
    pub class: AddressClass,
}

/// Which answers a request may be taken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressGrant {
    /// Public addresses.
    #[default]
    Public,
    /// Also those of private networks: RFC 1918, unique local, CGNAT.
    Private,
}

/// An address and port that a request may be taken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DialAddress(SocketAddr);

impl DialAddress {
    /// Judges one answer for a request that was allowed.
    ///
    /// A request whose host is written as an address was allowed by a rule that
    /// names exactly this address, which is the grant. For a name, loopback,
    /// link-local, metadata and everything special is out of reach whatever
    /// the grant.
    ///
    /// # Errors
    /// [`AddressRefused`] with the class.
    pub fn admit(
        request: &NetRequest,
        grant: AddressGrant,
        answer: IpAddr,
    ) -> Result<Self, AddressRefused> {
        let class = AddressClass::of(answer);
        // A mapped address is dialled as what it is.
        let address = answer.to_canonical();
        let refused = AddressRefused { address, class };
        let admitted = match (&request.host, class) {
            (_, AddressClass::Never) => false,
            (HostName::Address(literal), _) => *literal == address,
            (HostName::Name(_), AddressClass::Public) => true,
            (HostName::Name(_), class) => {
                grant == AddressGrant::Private && class.is_private_network()
            }
        };
        if admitted { Ok(Self(SocketAddr::new(address, request.port))) } else { Err(refused) }
    }

    /// The address and port.
    #[must_use]
    pub fn get(self) -> SocketAddr {
        self.0
    }
}

impl fmt::Display for DialAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
#[path = "address_tests.rs"]
mod tests;
