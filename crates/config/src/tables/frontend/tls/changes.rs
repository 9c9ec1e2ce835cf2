//! Changes of a frontend's TLS for the log of a reload, and text of `convey check` about it.

use std::path::Path;

use super::TlsKeys;
use crate::diff::{below, change, or, pair};
use convey_model::{CertificatePair, ClientCa, FrontendConfig, FrontendTls};

/// Changes of `[frontends.NAME.tls]` for the log of a reload.
pub(crate) fn changes(old: Option<&FrontendTls>, new: Option<&FrontendTls>) -> Vec<String> {
    let (old, new) = match both(old, new) {
        Ok(both) => both,
        Err(change) => return change.into_iter().collect(),
    };
    let mut changes = TlsKeys::changes(old, new);
    let bytes = |tls: &FrontendTls| tls.client_ca.as_ref().map(|ca| ca.certificates.clone());
    if changes.is_empty() && bytes(old) != bytes(new) {
        changes.push("client_ca: authorities changed".to_owned());
    }
    below("tls", changes)
}

/// Returns both values if TLS is on before and after the reload.
///
/// # Errors
/// Text that TLS is switched on or off; `None` if it is off before and after.
pub(crate) fn both<'a, T>(old: Option<&'a T>, new: Option<&'a T>) -> Result<(&'a T, &'a T), Option<String>> {
    let is_on = |tls: Option<&T>| if tls.is_some() { "on" } else { "off" };
    old.zip(new).ok_or_else(|| change("tls", is_on(old), is_on(new)))
}

/// Certificates that were added, removed or replaced, for the log of a reload.
pub(crate) fn certificate_changes(old: &[CertificatePair], new: &[CertificatePair]) -> Vec<String> {
    let name = |path: &Path| format!("certificate {}", path.display());
    let told =
        pair(old, new, |a, b| a.chain_path == b.chain_path).into_iter().filter_map(|both| match both {
            (None, Some(after)) => Some(format!("+ {}", name(&after.chain_path))),
            (Some(before), None) => Some(format!("- {}", name(&before.chain_path))),
            (Some(before), Some(after)) if before != after => {
                Some(format!("{}: replaced", name(&after.chain_path)))
            }
            _ => None,
        });
    told.collect()
}

pub(super) fn ca(ca: Option<&ClientCa>) -> String {
    let named = ca.map(|ca| {
        let wanted = if ca.is_required { "required" } else { "optional" };
        format!("{} ({wanted})", ca.path.display())
    });
    or(named, "none")
}

/// Text of `convey check` about a frontend's TLS; empty without TLS.
pub(crate) fn describe(frontend: &FrontendConfig) -> String {
    let Some(tls) = &frontend.tls else { return String::new() };
    let certificates = match tls.certificates.len() {
        1 => "1 certificate".to_owned(),
        0 => "no certificate yet".to_owned(),
        count => format!("{count} certificates"),
    };
    let clients = match tls.client_ca.as_ref().map(|ca| ca.is_required) {
        None => "",
        Some(true) => ", clients need a certificate",
        Some(false) => ", clients may have a certificate",
    };
    let http3 = if tls.http3 { ", HTTP/3" } else { "" };
    format!("; tls {} and later, {certificates}{clients}{http3}", tls.min_version.name())
}
