//! Hosts of requests and of URLs.

/// Splits a host from its port, if there is one. The brackets of an IPv6 address stay.
pub(crate) fn split_port(host: &[u8]) -> (&[u8], Option<&[u8]>) {
    match host.iter().rposition(|byte| *byte == b':') {
        Some(colon) if !host[colon..].contains(&b']') => (&host[..colon], Some(&host[colon + 1..])),
        _ => (host, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_is_split_from_names_and_addresses() {
        for (host, name, port) in [
            ("a.example", "a.example", None),
            ("a.example:8080", "a.example", Some("8080")),
            ("192.0.2.1:80", "192.0.2.1", Some("80")),
            ("[2001:db8::1]", "[2001:db8::1]", None),
            ("[2001:db8::1]:80", "[2001:db8::1]", Some("80")),
            ("", "", None),
        ] {
            let split = split_port(host.as_bytes());
            assert_eq!(split, (name.as_bytes(), port.map(str::as_bytes)), "{host}");
        }
    }
}
