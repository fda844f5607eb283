//! The address of a client behind trusted proxies.

use std::net::IpAddr;

use axum::http::HeaderMap;
use ipnet::IpNet;

const FORWARDED_FOR: &str = "x-forwarded-for";

/// The address of the client: that of the connection, or if that is a trusted proxy's, the
/// last one in `X-Forwarded-For` that is none. What stands before it can be forged.
pub(super) fn client_address(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let is_trusted = |address: &IpAddr| {
        trusted
            .iter()
            .any(|range| range.contains(&address.to_canonical()))
    };
    let mut client = peer.to_canonical();
    let fields: Vec<_> = headers.get_all(FORWARDED_FOR).iter().collect();
    let entries = fields.iter().rev().flat_map(|field| {
        let text = field.to_str().unwrap_or_default();
        text.rsplit(',')
    });
    for entry in entries {
        if !is_trusted(&client) {
            break;
        }
        let Some(address) = parse(entry.trim()) else {
            break;
        };
        client = address.to_canonical();
    }
    client
}

/// An address, optionally with a port, as some proxies write it.
fn parse(entry: &str) -> Option<IpAddr> {
    let with_port = || entry.parse().ok().map(|it: std::net::SocketAddr| it.ip());
    let in_brackets = || entry.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    entry.parse().ok().or_else(with_port).or_else(in_brackets)
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderValue};
    use ipnet::IpNet;

    use super::{FORWARDED_FOR, client_address};

    fn resolve(peer: &str, fields: &[&'static str], trusted: &[&str]) -> String {
        let trusted: Vec<IpNet> = trusted.iter().map(|range| range.parse().unwrap()).collect();
        let mut headers = HeaderMap::new();
        for field in fields {
            headers.append(FORWARDED_FOR, HeaderValue::from_static(field));
        }
        client_address(peer.parse().unwrap(), &headers, &trusted).to_string()
    }

    #[test]
    fn only_trusted_proxies_are_believed() {
        let proxies = ["10.0.0.0/8", "2001:db8::/32"];
        for (peer, fields, expected) in [
            ("192.0.2.1", &["198.51.100.7"][..], "192.0.2.1"),
            ("10.1.2.3", &["198.51.100.7"], "198.51.100.7"),
            ("::ffff:10.1.2.3", &["198.51.100.7"], "198.51.100.7"),
            ("2001:db8::1", &["[2001:db9::7]:443"], "2001:db9::7"),
            ("10.1.2.3", &["198.51.100.7:4711, 10.9.9.9"], "198.51.100.7"),
            // The client itself sent the first entries.
            ("10.1.2.3", &["127.0.0.1, 198.51.100.7"], "198.51.100.7"),
            ("10.1.2.3", &["127.0.0.1", "198.51.100.7"], "198.51.100.7"),
            ("10.1.2.3", &["198.51.100.7, unknown"], "10.1.2.3"),
            ("10.1.2.3", &["10.4.4.4"], "10.4.4.4"),
            ("10.1.2.3", &[""], "10.1.2.3"),
            ("10.1.2.3", &[], "10.1.2.3"),
        ] {
            assert_eq!(
                resolve(peer, fields, &proxies),
                expected,
                "{peer} {fields:?}"
            );
        }
        assert_eq!(resolve("10.1.2.3", &["198.51.100.7"], &[]), "10.1.2.3");
    }
}
