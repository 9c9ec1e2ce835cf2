//! Operator-facing reasons for failed handshakes.

use rustls::{AlertDescription, CertificateError, Error, PeerIncompatible};

/// Describes why a handshake failed, for operators: a fault of the peer, or a mismatch of the
/// settings.
pub fn handshake_fault(error: &Error) -> &'static str {
    match error {
        Error::InvalidMessage(_) | Error::InappropriateMessage { .. } => "it does not speak TLS",
        Error::InappropriateHandshakeMessage { .. } | Error::PeerMisbehaved(_) => "it breaks the protocol",
        Error::PeerIncompatible(reason) => incompatible(reason),
        Error::NoCertificatesPresented => "it has no certificate",
        Error::InvalidCertificate(reason) => certificate(reason),
        Error::NoApplicationProtocol => "no protocol (ALPN) in common",
        Error::AlertReceived(alert) => alerted(*alert),
        Error::PeerSentOversizedRecord => "it sent a record that is too long",
        Error::DecryptError => "a record cannot be decrypted",
        Error::General(text) if text.contains("no server certificate chain") => {
            "no certificate is for the name"
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
        | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig => "no version of TLS in common",
        _ => "nothing in common",
    }
}

fn certificate(reason: &CertificateError) -> &'static str {
    match reason {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "its certificate has expired",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet"
        }
        CertificateError::UnknownIssuer => "its certificate is of an unknown issuer",
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "its certificate is for another name"
        }
        CertificateError::Revoked => "its certificate is revoked",
        _ => "its certificate is invalid",
    }
}

fn alerted(alert: AlertDescription) -> &'static str {
    match alert {
        AlertDescription::UnknownCA => "it does not trust the certificate: unknown CA",
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown => "it does not accept the certificate",
        AlertDescription::CertificateExpired => "it says that the certificate has expired",
        AlertDescription::CertificateRevoked => "it says that the certificate is revoked",
        AlertDescription::ProtocolVersion => "it speaks no version of TLS in common",
        AlertDescription::HandshakeFailure | AlertDescription::InsufficientSecurity => {
            "it says that nothing is in common"
        }
        AlertDescription::UserCanceled => "it gave up",
        _ => "it sent an alert",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_hear_what_is_wrong() {
        for (error, expected) in [
            (Error::NoCertificatesPresented, "it has no certificate"),
            (
                Error::AlertReceived(AlertDescription::UnknownCA),
                "it does not trust the certificate: unknown CA",
            ),
            (PeerIncompatible::Tls12NotOfferedOrEnabled.into(), "no version of TLS in common"),
            (CertificateError::UnknownIssuer.into(), "its certificate is of an unknown issuer"),
            (Error::FailedToGetRandomBytes, "the handshake failed"),
        ] {
            assert_eq!(handshake_fault(&error), expected, "{error}");
        }
    }
}
