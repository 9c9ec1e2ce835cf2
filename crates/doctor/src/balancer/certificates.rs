//! Certificates that clients do not accept, and ACME orders that fail. Pure.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::Deserialize;

use crate::Diagnosis;

/// Name of this check in findings.
const CHECK: &str = "certificate";

/// TLS state of a frontend in the status of the running convey.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct RunningTls {
    fault: Option<String>,
    certificates: Vec<RunningCertificate>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct RunningCertificate {
    path: String,
    not_after: String,
}

/// ACME orders in the status of the running convey.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct RunningAcme {
    names: BTreeMap<String, RunningOrder>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct RunningOrder {
    next_order: Option<String>,
    error: Option<String>,
}

/// Findings for frontends without a certificate that clients accept, for expired certificates, and
/// for failing ACME orders.
pub(super) fn examine<'a>(
    frontends: impl Iterator<Item = (&'a String, &'a RunningTls)>,
    acme: Option<&RunningAcme>,
    now: SystemTime,
) -> Vec<Diagnosis> {
    const REFUSED: &str = "TLS handshakes with the frontend fail, or clients do not trust its certificate.";
    const EXPIRED: &str = "Clients reject the expired certificate. Replace the file with a renewed certificate: convey loads it by itself.";
    const FAILING: &str = "Unless an order succeeds, the certificate expires. The authority has to reach this convey under this name.";
    let has_expired = |certificate: &&RunningCertificate| {
        humantime::parse_rfc3339_weak(&certificate.not_after).is_ok_and(|until| until < now)
    };
    let mut found = Vec::new();
    for (name, tls) in frontends {
        if let Some(fault) = &tls.fault {
            found.push(Diagnosis::error(CHECK, format!("frontend {name}: {fault}"), REFUSED));
            continue;
        }
        found.extend(tls.certificates.iter().filter(has_expired).map(|one| {
            let seen = format!("certificate {} of frontend {name} expired at {}", one.path, one.not_after);
            Diagnosis::error(CHECK, seen, EXPIRED)
        }));
    }
    let orders = acme.into_iter().flat_map(|acme| &acme.names);
    found.extend(orders.filter_map(|(name, order)| {
        let why = order.error.as_ref()?;
        let next = order.next_order.as_ref().map_or(String::new(), |at| format!(" (next order at {at})"));
        Some(Diagnosis::warning(
            CHECK,
            format!("the last ACME order for {name} failed{next}: {why}"),
            FAILING,
        ))
    }));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_expired_certificates_and_failing_orders_are_found() {
        let tls = |text: &str| serde_json::from_str::<RunningTls>(text).unwrap();
        let frontends: BTreeMap<String, RunningTls> = [
            ("bare", tls(r#"{"fault": "it has no certificate"}"#)),
            (
                "fine",
                tls(r#"{"certificates": [{"path": "new.pem", "not_after": "2030-01-01T00:00:00.000Z"}]}"#),
            ),
            (
                "site",
                tls(r#"{"certificates": [{"path": "old.pem", "not_after": "2020-01-01T00:00:00.000Z"}]}"#),
            ),
        ]
        .map(|(name, tls)| (name.to_owned(), tls))
        .into();
        let acme: RunningAcme =
            serde_json::from_str(r#"{"names": {"a.example": {"error": "no route"}, "b.example": {}}}"#)
                .unwrap();
        let now = humantime::parse_rfc3339_weak("2026-01-01T00:00:00Z").unwrap();
        let found = examine(frontends.iter(), Some(&acme), now);
        let seen: Vec<&str> = found.iter().map(|one| one.seen.as_str()).collect();
        assert_eq!(
            seen,
            [
                "frontend bare: it has no certificate",
                "certificate old.pem of frontend site expired at 2020-01-01T00:00:00.000Z",
                "the last ACME order for a.example failed: no route",
            ]
        );
    }
}
