//! Addresses on the command line.

use std::net::{IpAddr, Ipv4Addr};

/// Text that is not an address to listen on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected an IPv4 or IPv6 address, or localhost")]
pub struct HostError;

/// Parses an address to listen on: IPv4, IPv6 (in brackets or not), or
/// `localhost`, which is 127.0.0.1.
pub fn parse_host(text: &str) -> Result<IpAddr, HostError> {
    if text == "localhost" {
        return Ok(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    let bare = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(text);
    bare.parse().map_err(|_| HostError)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::{HostError, parse_host};

    #[test]
    fn hosts_are_addresses_or_localhost() {
        assert_eq!(parse_host("localhost"), Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        assert_eq!(parse_host("::1").unwrap(), parse_host("[::1]").unwrap());
        assert_eq!(parse_host("example.org"), Err(HostError));
    }
}
