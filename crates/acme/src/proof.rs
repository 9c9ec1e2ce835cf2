//! Proofs that convey controls a name: a text over HTTP, or a certificate that contains a digest.
//! Nodes share a proof as a file.

use convey_model::AcmeChallenge;
use convey_tls::AcmeProof;
use instant_acme::KeyAuthorization;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use serde::{Deserialize, Serialize};

/// Form of a proof that nodes share. For a proof by certificate, each node creates its own
/// certificate from the shared digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SharedProof {
    /// Text that is served at the path of a token.
    Token { token: String, text: String },
    /// Digest of the key authorization, for a certificate that contains it (RFC 8737, section 3).
    Certificate { name: String, digest: Vec<u8> },
}

impl SharedProof {
    pub(crate) fn new(kind: AcmeChallenge, name: &str, token: &str, key: &KeyAuthorization) -> SharedProof {
        match kind {
            AcmeChallenge::Http01 => {
                SharedProof::Token { token: token.to_owned(), text: key.as_str().to_owned() }
            }
            AcmeChallenge::TlsAlpn01 => {
                let digest = key.digest().as_ref().to_vec();
                SharedProof::Certificate { name: name.to_owned(), digest }
            }
        }
    }

    /// Builds the proof that frontends present.
    ///
    /// # Errors
    /// The certificate cannot be created.
    pub(crate) fn proof(self) -> Result<AcmeProof, rcgen::Error> {
        Ok(match self {
            SharedProof::Token { token, text } => AcmeProof::Token { token, text },
            SharedProof::Certificate { name, digest } => {
                let mut params = CertificateParams::new([name.clone()])?;
                params.distinguished_name = DistinguishedName::new();
                let digest: &[u8; 32] =
                    digest.as_slice().try_into().map_err(|_| rcgen::Error::CouldNotParseCertificate)?;
                params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
                let key = KeyPair::generate()?;
                let chain = params.self_signed(&key)?.der().to_vec();
                AcmeProof::Certificate { name, chain, key: key.serialize_der() }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use convey_tls::AcmeChallenges;

    use super::*;

    #[test]
    fn a_shared_certificate_can_be_shown() {
        let shared = SharedProof::Certificate { name: "a.example".to_owned(), digest: vec![7; 32] };
        let proof = serde_json::from_str::<SharedProof>(&serde_json::to_string(&shared).unwrap()).unwrap();
        let challenges = AcmeChallenges::default();
        challenges.show(vec![proof.proof().unwrap()]).unwrap();
        assert!(challenges.are_shown());
        let cut = SharedProof::Certificate { name: "a.example".to_owned(), digest: vec![7; 31] };
        assert!(cut.proof().is_err());
    }
}
