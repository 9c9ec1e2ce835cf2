//! Choice of the certificate by the server name that the client requests (SNI, RFC 6066, section
//! 3).

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt};
use rustls::SignatureScheme;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::Certificate;

thread_local! {
    /// Server name of the last ClientHello that this thread has processed. rustls passes the name
    /// only to the certificate resolver, so the resolver stores the name here. The caller of rustls
    /// takes the name immediately, before this thread processes another ClientHello.
    static ASKED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Takes the server name of the ClientHello that this thread has just processed, in lower case.
pub(crate) fn take_server_name() -> Option<String> {
    ASKED.take()
}

/// Certificates of a frontend, by server name.
#[derive(Debug)]
pub(crate) struct CertificateChooser {
    /// Certificates by the names that they cover, in lower case; wildcards as `*.example.com`. A
    /// name may have several certificates for different kinds of keys, in the order of the
    /// configuration.
    by_name: HashMap<String, Vec<Arc<CertifiedKey>>>,
    /// Certificates for clients that send no server name, or an unknown one.
    default: Vec<Arc<CertifiedKey>>,
    /// Whether clients that request a name without a certificate are refused.
    refuses_unknown: bool,
}

impl CertificateChooser {
    /// Creates the chooser. The default is the first certificate, together with all others that
    /// cover the same names.
    pub(crate) fn new(certificates: &[Certificate], refuses_unknown: bool) -> CertificateChooser {
        let mut by_name: HashMap<String, Vec<Arc<CertifiedKey>>> = HashMap::new();
        for certificate in certificates {
            for name in &certificate.names {
                by_name.entry(name.clone()).or_default().push(certificate.key.clone());
            }
        }
        // Compares the names as sets, because certificate authorities may list the same names in
        // different orders.
        let names =
            |certificate: &Certificate| certificate.names.iter().cloned().collect::<BTreeSet<String>>();
        let first = certificates.first().map(names);
        let is_default = |other: &&Certificate| first.as_ref().is_some_and(|first| *first == names(other));
        let default = certificates.iter().filter(is_default).map(|certificate| certificate.key.clone());
        CertificateChooser { by_name, default: default.collect(), refuses_unknown }
    }

    /// Returns the candidate certificates for a client. `name` is the requested server name in
    /// lower case; `None` if the client sent no name. If the result is empty, the client is
    /// refused.
    fn candidates(&self, name: Option<&str>) -> &[Arc<CertifiedKey>] {
        let Some(name) = name else { return &self.default };
        match self.named(name).next() {
            Some(found) => found,
            None if self.refuses_unknown => &[],
            None => &self.default,
        }
    }

    /// Returns the certificates that cover a name in lower case: exact matches, then wildcards.
    fn named(&self, name: &str) -> impl Iterator<Item = &Vec<Arc<CertifiedKey>>> {
        // A wildcard matches exactly one label (RFC 9525, section 6.3).
        let by_wildcard =
            || name.split_once('.').and_then(|(_, rest)| self.by_name.get(&format!("*.{rest}")));
        let exact = self.by_name.get(name).into_iter();
        exact.chain(std::iter::once_with(by_wildcard).flatten())
    }

    /// Whether the certificate for `server_name` does not cover `host`, but another certificate
    /// does. Both names are in lower case. See `TlsAcceptor::is_misdirected`.
    pub(crate) fn is_misdirected(&self, server_name: &str, host: &str) -> bool {
        let Some(shown) = self.named(server_name).next() else { return false };
        let mut of_host = self.named(host).flatten().peekable();
        of_host.peek().is_some() && !of_host.any(|key| shown.iter().any(|other| Arc::ptr_eq(key, other)))
    }
}

impl ResolvesServerCert for CertificateChooser {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().map(|name| name.trim_end_matches('.').to_ascii_lowercase());
        let chosen = choose(self.candidates(name.as_deref()), hello.signature_schemes());
        ASKED.set(name);
        chosen
    }
}

/// Returns the first candidate whose signatures the client can verify. If there is none, returns
/// the first candidate; `None` without candidates.
fn choose(candidates: &[Arc<CertifiedKey>], offered: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
    let fits = |key: &&Arc<CertifiedKey>| key.key.choose_scheme(offered).is_some();
    candidates.iter().find(fits).or(candidates.first()).cloned()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn certificate(names: &[&str]) -> Certificate {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let chain = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        let provider = rustls::crypto::ring::default_provider();
        Certificate::from_pem(chain.pem().as_bytes(), key.serialize_pem().as_bytes(), &provider).unwrap()
    }

    #[test]
    fn request_is_misdirected_where_another_certificate_alone_is_for_its_host() {
        let names: [&[&str]; 4] =
            [&["a.example", "www.a.example"], &["*.b.example"], &["x.b.example"], &["www.a.example"]];
        let chooser = CertificateChooser::new(&names.map(certificate), false);
        for (server_name, host, is_misdirected) in [
            ("a.example", "a.example", false),
            ("a.example", "www.a.example", false),
            ("a.example", "x.b.example", true),
            ("a.example", "y.b.example", true),
            ("x.b.example", "y.b.example", true),
            // The wildcard covers both names.
            ("y.b.example", "x.b.example", false),
            ("www.a.example", "a.example", false),
            // The default certificate covers any host, and a host without a certificate is never
            // misdirected.
            ("c.example", "a.example", false),
            ("a.example", "c.example", false),
            ("a.example", "192.0.2.1", false),
        ] {
            assert_eq!(chooser.is_misdirected(server_name, host), is_misdirected, "{server_name} {host}");
        }
    }

    #[test]
    fn default_certificates_have_the_names_of_the_first_one() {
        let all = [
            certificate(&["a.example", "www.a.example"]),
            certificate(&["b.example"]),
            certificate(&["www.a.example", "a.example"]),
        ];
        let chooser = CertificateChooser::new(&all, false);
        let found = chooser.candidates(None);
        assert!(found.len() == 2 && Arc::ptr_eq(&found[1], &all[2].key));
    }
}
