//! Operator-facing reasons for failed handshakes.

use rustls::{AlertDescription, CertificateError, Error, PeerIncompatible};

/// Describes why a handshake failed, for operators: a fault of the peer, or a mismatch of the
/// settings.
pub fn handshake_fault(error: &Error) -> &'static str {
    match error {
        Error::InvalidMessage(_) | Error::InappropriateMessage { .. } => "the peer does not speak TLS",
        Error::InappropriateHandshakeMessage { .. } | Error::PeerMisbehaved(_) => {
            "the peer violated the TLS protocol"
        }
        Error::PeerIncompatible(reason) => incompatible(reason),
        Error::NoCertificatesPresented => "the peer sent no certificate",
        Error::InvalidCertificate(reason) => certificate(reason),
        Error::NoApplicationProtocol => "no ALPN protocol in common",
        Error::AlertReceived(alert) => alerted(*alert),
        Error::PeerSentOversizedRecord => "the peer sent an oversized record",
        Error::DecryptError => "a record cannot be decrypted",
        Error::General(text) if text.contains("no server certificate chain") => {
            "no certificate for the requested name"
        }
        _ => "the handshake failed",
    }
}

fn incompatible(reason: &PeerIncompatible) -> &'static str {
    match reason {
        PeerIncompatible::NoCipherSuitesInCommon => "no cipher suite in common",
        PeerIncompatible::NoKxGroupsInCommon => "no key exchange group in common",
        PeerIncompatible::NoSignatureSchemesInCommon => "no signature scheme in common",
        PeerIncompatible::Tls12NotOffered
        | PeerIncompatible::Tls12NotOfferedOrEnabled
        | PeerIncompatible::Tls13RequiredForQuic
        | PeerIncompatible::SupportedVersionsExtensionRequired
        | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig => "no TLS version in common",
        _ => "no TLS parameters in common",
    }
}

fn certificate(reason: &CertificateError) -> &'static str {
    match reason {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the peer's certificate has expired"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the peer's certificate is not valid yet"
        }
        CertificateError::UnknownIssuer => "the peer's certificate has an unknown issuer",
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "the peer's certificate is for another name"
        }
        CertificateError::Revoked => "the peer's certificate is revoked",
        _ => "the peer's certificate is invalid",
    }
}

fn alerted(alert: AlertDescription) -> &'static str {
    match alert {
        AlertDescription::UnknownCA => "the peer rejected the certificate: unknown CA",
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown => "the peer rejected the certificate",
        AlertDescription::CertificateExpired => "the peer rejected the certificate: expired",
        AlertDescription::CertificateRevoked => "the peer rejected the certificate: revoked",
        AlertDescription::ProtocolVersion => "no TLS version in common",
        AlertDescription::HandshakeFailure | AlertDescription::InsufficientSecurity => {
            "the peer found no TLS parameters in common"
        }
        AlertDescription::UserCanceled => "the peer cancelled the handshake",
        _ => "the peer sent an alert",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_hear_what_is_wrong() {
        for (error, expected) in [
            (Error::NoCertificatesPresented, "the peer sent no certificate"),
            (
                Error::AlertReceived(AlertDescription::UnknownCA),
                "the peer rejected the certificate: unknown CA",
            ),
            (PeerIncompatible::Tls12NotOfferedOrEnabled.into(), "no TLS version in common"),
            (CertificateError::UnknownIssuer.into(), "the peer's certificate has an unknown issuer"),
            (Error::FailedToGetRandomBytes, "the handshake failed"),
        ] {
            assert_eq!(handshake_fault(&error), expected, "{error}");
        }
    }
}
