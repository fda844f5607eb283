//! Which addresses the URLs of upstreams may lead to. Administrators choose the URLs;
//! an address of the machine or of its cloud would give them more than upstreams.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use ipnet::IpNet as UpstreamRange;

/// Addresses outside of the link-local ranges at which clouds serve metadata and
/// credentials of the machine: Alibaba and Oracle; Amazon and Google by IPv6.
const METADATA: [IpAddr; 4] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

/// The addresses that connections to upstreams may use: all but link-local,
/// unspecified, multicast and broadcast addresses and those of cloud metadata, in every
/// form that leads to them. Private and loopback addresses are permitted, since models
/// are served there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpstreamAddresses {
    /// Ranges that are permitted in addition.
    allowed: Vec<UpstreamRange>,
}

impl UpstreamAddresses {
    /// Permits the addresses of these ranges, too.
    pub fn allowing(ranges: impl IntoIterator<Item = UpstreamRange>) -> Self {
        Self {
            allowed: ranges.into_iter().collect(),
        }
    }

    /// Whether connections to the address are permitted.
    pub fn permits(&self, address: IpAddr) -> bool {
        let effective = embedded(address).map_or(address, IpAddr::V4);
        let is_allowed =
            |address: &IpAddr| self.allowed.iter().any(|range| range.contains(address));
        !(is_refused(address) || is_refused(effective))
            || is_allowed(&address)
            || is_allowed(&effective)
    }
}

fn is_refused(address: IpAddr) -> bool {
    let special = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast() || v4.octets()[0] == 0,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    special || address.is_unspecified() || address.is_multicast() || METADATA.contains(&address)
}

/// The IPv4 address to which an IPv6 address leads: mapped, compatible, translated
/// (RFC 6052, RFC 8215), tunneled by 6to4 (RFC 3056), Teredo (RFC 4380) or ISATAP
/// (RFC 5214).
fn embedded(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(v6) = address else {
        return None;
    };
    let parts = v6.segments();
    let join = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match parts {
        // `::` and `::1` are addresses of their own.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0x2001, 0, .., high, low] => Some(join(!high, !low)),
        [0x2002, high, low, ..]
        | [0x64, 0xff9b, 0 | 1, .., high, low]
        | [.., 0 | 0x200, 0x5efe, high, low]
        | [0, 0, 0, 0, 0 | 0xffff, 0 | 0xffff, high, low] => Some(join(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::UpstreamAddresses;

    #[test]
    fn addresses_of_the_machine_and_its_cloud_are_refused_in_every_form() {
        let all = UpstreamAddresses::default();
        for refused in [
            "169.254.169.254",
            "169.254.0.1",
            "0.0.0.0",
            "0.1.2.3",
            "255.255.255.255",
            "224.0.0.1",
            "100.100.100.200",
            "192.0.0.192",
            "::",
            "fe80::1",
            "febf::1",
            "ff02::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "::ffff:169.254.169.254",
            "::169.254.169.254",
            "::ffff:0:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "2001::5601:5601",
            "2001:db8::5efe:a9fe:a9fe",
            "2001:db8::200:5efe:169.254.169.254",
            "::ffff:0.0.0.0",
            "::ffff:100.100.100.200",
        ] {
            assert!(!all.permits(refused.parse().unwrap()), "{refused}");
        }
        for permitted in [
            "10.0.0.1",
            "127.0.0.1",
            "192.168.1.1",
            "172.16.0.1",
            "100.64.0.1",
            "8.8.8.8",
            "::1",
            "fd00::1",
            "2001:db8::1",
            "::ffff:10.0.0.1",
            "64:ff9b::808:808",
            "2606:4700::1111",
        ] {
            assert!(all.permits(permitted.parse().unwrap()), "{permitted}");
        }
    }

    #[test]
    fn ranges_can_be_allowed() {
        let ranges = ["169.254.8.0/24", "fe80::/64"].map(|range| range.parse().unwrap());
        let some = UpstreamAddresses::allowing(ranges);
        for (address, permitted) in [
            ("169.254.8.1", true),
            ("::ffff:169.254.8.1", true),
            ("64:ff9b::169.254.8.1", true),
            ("169.254.9.1", false),
            ("fe80::1", true),
            ("fe80:1::1", false),
            ("10.0.0.1", true),
        ] {
            assert_eq!(
                some.permits(address.parse().unwrap()),
                permitted,
                "{address}"
            );
        }
    }
}
