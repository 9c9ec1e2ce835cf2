//! Fields of a request that count only if a trusted proxy has sent them. Pure.

use crate::field_syntax::is_same_for_cgi;
use crate::{RequestHead, UrlScheme};

/// Trust in the fields of a request that describe its client. Conditions of routes, variables and
/// hashes see only the fields that servers would get, too. By default no field is trusted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FieldTrust<'a> {
    /// Whether the peer of the connection is a trusted proxy.
    pub is_peer_trusted: bool,
    /// Whether clients of the frontend may present certificates. If so, `X-SSL-Client-DN` is not
    /// trusted.
    pub has_client_certificates: bool,
    /// Field in which trusted proxies name clients, in addition to the usual ones.
    pub own_field: Option<&'a str>,
}

const SUBJECT: &str = "X-SSL-Client-DN";

/// Fields that describe the client of a request, apart from [`SUBJECT`].
pub(crate) const CLIENT_FIELDS: [&str; 4] =
    ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"];

impl FieldTrust<'_> {
    /// Values of the fields of a request with this name, one for each line; none if the field is not
    /// trusted.
    pub fn values<'s, 'h, 'n>(
        &'s self,
        head: &'h RequestHead,
        name: &'n str,
    ) -> impl Iterator<Item = &'h [u8]> + use<'s, 'h, 'n> {
        // Most requests do not have the field, and then need no comparison of its name.
        head.values(name).filter(move |_| !self.hides(name))
    }

    /// First value of the field of a request with this name; `None` if there is no such field, or if
    /// it is not trusted.
    pub fn field<'h>(&self, head: &'h RequestHead, name: &str) -> Option<&'h [u8]> {
        head.field(name).filter(|_| !self.hides(name))
    }

    /// Scheme that the client uses: to convey, or to a trusted proxy that names it in
    /// `X-Forwarded-Proto`.
    pub fn scheme(&self, head: &RequestHead, has_tls: bool) -> UrlScheme {
        // Each proxy of a chain may have added a scheme: the first one is the client's.
        let begins_with_https = |schemes: &[u8]| {
            let first = schemes.split(|byte| *byte == b',').next().unwrap_or_default();
            first.trim_ascii().eq_ignore_ascii_case(b"https")
        };
        let is_https = has_tls || self.field(head, "X-Forwarded-Proto").is_some_and(begins_with_https);
        if is_https { UrlScheme::Https } else { UrlScheme::Http }
    }

    /// Whether a field is not trusted. A spelling with `_` is never trusted, because servers behind
    /// CGI and the like take it for the field itself.
    fn hides(&self, name: &str) -> bool {
        let is_hidden = |field: &str, is_trusted: bool| {
            is_same_for_cgi(field.as_bytes(), name.as_bytes())
                && !(is_trusted && field.eq_ignore_ascii_case(name))
        };
        let is_subject_trusted = self.is_peer_trusted && !self.has_client_certificates;
        is_hidden(SUBJECT, is_subject_trusted)
            || CLIENT_FIELDS.iter().any(|field| is_hidden(field, self.is_peer_trusted))
            || self.own_field.is_some_and(|field| is_hidden(field, self.is_peer_trusted))
    }

    /// Whether a field with this name counts only if a trusted proxy has sent it.
    pub fn needs_trust(&self, name: &str) -> bool {
        FieldTrust { is_peer_trusted: false, ..*self }.hides(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_about_the_client_counts_only_from_a_trusted_proxy() {
        let text = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1\r\nx-forwarded-proto: 2\r\nForwarded: 3\r\n\
                    X-SSL-Client-DN: 4\r\nCF-Connecting-IP: 5\r\nCF_Connecting_IP: 6\r\nX_Forwarded_For: 7\r\n\
                    X-Canary: 8\r\nX-Forwarded-Host: 9\r\n\r\n";
        let head = RequestHead::of_text(text).unwrap();
        let seen = |trust: FieldTrust<'_>| {
            let names = [
                "X-Forwarded-For",
                "X-Forwarded-Proto",
                "forwarded",
                "x-ssl-client-dn",
                "cf-connecting-ip",
                "cf_connecting_ip",
                "X_Forwarded_For",
                "X-Canary",
                "X-Forwarded-Host",
                "X-Other",
            ];
            let value = |name: &&str| {
                let first = trust.field(&head, name);
                assert_eq!(trust.values(&head, name).next(), first, "{name}");
                String::from_utf8_lossy(first.unwrap_or(b"-")).into_owned()
            };
            names.iter().map(value).collect::<String>()
        };
        let own_field = Some("CF-Connecting-IP");
        let trusted = FieldTrust { is_peer_trusted: true, ..FieldTrust::default() };
        assert_eq!(seen(FieldTrust::default()), "----56-8--");
        assert_eq!(seen(FieldTrust { own_field, ..FieldTrust::default() }), "-------8--");
        assert_eq!(seen(trusted), "123456-89-");
        assert_eq!(seen(FieldTrust { own_field, ..trusted }), "12345--89-");
        assert_eq!(seen(FieldTrust { has_client_certificates: true, ..trusted }), "123-56-89-");
    }
}
