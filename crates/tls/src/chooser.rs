//! Which certificate a client gets: by the name that it asks for (SNI, RFC 6066, section 3).

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt};
use rustls::SignatureScheme;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::Certificate;

thread_local! {
    /// The name that the last hello on this thread had: the library tells nobody else of it.
    static ASKED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The name that the hello had which has just come, in lower case.
pub(crate) fn take_asked_name() -> Option<String> {
    ASKED.take()
}

/// The certificates of a frontend.
#[derive(Debug)]
pub(crate) struct CertificateChooser {
    /// By name, in lower case; a wildcard as it is written. Those of one name in the order of the file: keys may be of several kinds.
    by_name: HashMap<String, Vec<Arc<CertifiedKey>>>,
    /// For clients that ask for no name, or for another one.
    default: Vec<Arc<CertifiedKey>>,
    /// Whether a client that asks for a name that no certificate has is refused.
    refuses_unknown: bool,
}

impl CertificateChooser {
    /// Of these; the first one, and all others with the same names, are the default.
    pub(crate) fn new(certificates: &[Certificate], refuses_unknown: bool) -> CertificateChooser {
        let mut by_name: HashMap<String, Vec<Arc<CertifiedKey>>> = HashMap::new();
        for certificate in certificates {
            for name in &certificate.names {
                by_name.entry(name.clone()).or_default().push(certificate.key.clone());
            }
        }
        // Two authorities write the same names in another order.
        let names =
            |certificate: &Certificate| certificate.names.iter().cloned().collect::<BTreeSet<String>>();
        let first = certificates.first().map(names);
        let is_default = |other: &&Certificate| first.as_ref().is_some_and(|first| *first == names(other));
        let default = certificates.iter().filter(is_default).map(|certificate| certificate.key.clone());
        CertificateChooser { by_name, default: default.collect(), refuses_unknown }
    }

    /// The candidates for a name, in lower case; `None`: the client asked for none.
    fn candidates(&self, name: Option<&str>) -> &[Arc<CertifiedKey>] {
        let Some(name) = name else { return &self.default };
        match self.named(name).next() {
            Some(found) => found,
            None if self.refuses_unknown => &[],
            None => &self.default,
        }
    }

    /// The certificates that are valid for a name, in lower case: those that have it, then those with a wildcard.
    fn named(&self, name: &str) -> impl Iterator<Item = &Vec<Arc<CertifiedKey>>> {
        // A wildcard stands for one label (RFC 9525, section 6.3).
        let by_wildcard =
            || name.split_once('.').and_then(|(_, rest)| self.by_name.get(&format!("*.{rest}")));
        let exact = self.by_name.get(name).into_iter();
        exact.chain(std::iter::once_with(by_wildcard).flatten())
    }

    /// Whether a request for `host` came by a handshake whose certificate, chosen by `server_name`, is for other names, while another
    /// certificate is for `host`. Both are in lower case.
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

/// The first one that the client can verify, or else the first one.
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
            // The wildcard is valid for both.
            ("y.b.example", "x.b.example", false),
            ("www.a.example", "a.example", false),
            // Neither the default certificate nor a host without a certificate is judged.
            ("c.example", "a.example", false),
            ("a.example", "c.example", false),
            ("a.example", "192.0.2.1", false),
        ] {
            assert_eq!(chooser.is_misdirected(server_name, host), is_misdirected, "{server_name} {host}");
        }
    }

    #[test]
    fn default_certificates_are_those_with_the_names_of_the_first_in_any_order() {
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
