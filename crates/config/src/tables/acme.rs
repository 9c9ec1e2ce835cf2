//! `[acme]` and `state_dir`: certificates that convey orders itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use convey_http_core::HostPattern;
use convey_model::{AcmeChallenge, AcmeConfig, Authorities, ExternalAccount, FrontendConfig};
use data_encoding::BASE64URL_NOPAD;
use toml::de::DeValue;

use super::{ParsedFrontend, authorities};
use crate::diff::{below, change, list_or, or};
use crate::keys::{keys, unreported};
use crate::problem::{Place, Placed, Report};
use crate::reader::TomlTable;
use crate::reference::{Docs, KeyDoc, TableDoc};
use crate::values::{choice, not_allowed, string};

/// Default directory for state that outlives the process.
pub(crate) const STATE_DIR: &str = "/var/lib/convey";

/// Maximum number of domain names. Each name needs an order and a file.
const MAX_DOMAINS: usize = 1_000;

/// `[acme]` in the reference.
pub(crate) const DOC: TableDoc = TableDoc { name: "[acme]", docs: AcmeKeys::DOCS };

/// Parsed `[acme]`, with the places of its values.
#[derive(Debug, Clone)]
pub(crate) struct ParsedAcme {
    pub(crate) place: Place,
    keys: AcmeKeys,
    pub(crate) domains: Vec<Placed<String>>,
    external_account: Option<ExternalAccount>,
    authorities: Authorities,
    folder: PathBuf,
}

keys! {
    /// The keys of `[acme]` with plain values.
    pub(crate) struct AcmeKeys => AcmeConfig, from (_unused: (), default);

    key "directory" => directory: String {
        read: directory,
        kind: r#"`"production"` or `"staging"` of Let's Encrypt, or an `https` URL"#,
        default: r#"`"production"`"#,
        sample: r#"#directory = "staging"                  # example; or "production" (default), or the URL of another authority"#,
        example: "'staging'",
    };

    key "email" => email: String {
        read: email,
        unset: "none",
        kind: "the contact address of the account",
        default: "none",
        sample: r#"#email = "ops@example.com"              # example; contact address of the account"#,
        example: "'ops@example.com'",
    };

    also domains = default.domains; {
        changes: |old, new| change("domains", list_or(&old.domains, "none"), list_or(&new.domains, "none")),
        docs: DOMAIN_DOCS,
    };

    key "challenge" => challenge: AcmeChallenge {
        read: choice(&AcmeChallenge::ALL, AcmeChallenge::name),
        kind: r#"`"http-01"` or `"tls-alpn-01"`: the challenge that proves control of a name"#,
        default: r#"`"http-01"` if a frontend in mode http without TLS has port 80, `"tls-alpn-01"` if one with these certificates has port 443"#,
        sample: r#"#challenge = "tls-alpn-01"              # or "http-01", with a frontend without tls; the default depends on the frontends' ports"#,
        example: "'http-01'",
    };

    also external_account = default.external_account; {
        changes: |old, new| change("eab_key_id", key_id(old), key_id(new)),
        docs: ACCOUNT_DOCS,
    };

    also authorities = default.authorities; {
        changes: |old, new| change("ca", ca(old), ca(new)),
        docs: CA_DOCS,
    };

    also folder = default.folder; {
        // The folder is below `state_dir`, whose changes are reported instead.
        changes: unreported,
        docs: &[],
    };
}

/// `domains` in the reference.
const DOMAIN_DOCS: &[Docs] = &[Docs::Key(KeyDoc {
    name: "domains",
    kind: "one or several names of hosts, no wildcards; 1,000 at most. Each gets a certificate",
    default: "the hosts of routes of frontends that take these certificates",
    sample: r#"#domains = ["www.example.com"]          # example; by default the hosts of the routes of these frontends"#,
    example: "'other.example'",
    ..KeyDoc::USUAL
})];

/// Keys for an account with external account binding, in the reference.
const ACCOUNT_DOCS: &[Docs] = &[
    Docs::Key(KeyDoc {
        name: "eab_key_id",
        kind: "the key ID of an external account (external account binding); needs `eab_key_file`",
        default: "none",
        sample: r#"#eab_key_id = "kid-1"                   # example; external account binding"#,
        example: "'7'\neab_key_file = 'TOKEN'",
        ..KeyDoc::USUAL
    }),
    Docs::Key(KeyDoc {
        name: "eab_key_file",
        kind: "a file with the key of `eab_key_id`, in base64url. Others must not be able to read it",
        default: "none",
        sample: r#"#eab_key_file = "eab.key"               # example"#,
        example: "'TOKEN'\neab_key_id = '7'",
        ..KeyDoc::USUAL
    }),
];

/// `ca` in the reference.
const CA_DOCS: &[Docs] = &[Docs::Key(KeyDoc {
    name: "ca",
    kind: "a file in PEM: the authorities that issue the certificate of the directory itself",
    default: "those that this host trusts",
    sample: r#"#ca = "ca.pem"                          # example; the authorities that sign the certificate of the directory itself"#,
    example: "'SITE.pem'",
    ..KeyDoc::USUAL
})];

impl ParsedAcme {
    /// Reads `[acme]` and `state_dir` of the root; `None` without `[acme]`.
    pub(crate) fn read(root: &mut TomlTable<'_>, report: &Report<'_>) -> Option<ParsedAcme> {
        let state_dir = root.optional("state_dir", folder);
        let is_there = root.has("acme");
        let mut table = root.table("acme");
        if !is_there {
            return None;
        }
        let place = table.place.clone();
        let keys = AcmeKeys::read(&mut table);
        let domains = table.any_number("domains", domain);
        if let Some(Placed { place, .. }) = domains.get(MAX_DOMAINS) {
            report.error(place, format!("found {} names; allowed: at most {MAX_DOMAINS}", domains.len()));
        }
        let external_account = external_account(&mut table, report);
        let ca = table.optional("ca", string);
        table.finish();
        let base = state_dir.as_ref().map_or(STATE_DIR, |dir| &dir.value);
        let base = report.beside(state_dir.as_ref().map_or(&place, |dir| &dir.place), base);
        let directory = keys.directory.as_ref().map_or(AcmeConfig::PRODUCTION, |found| &found.value);
        let folder = base.join("acme").join(AcmeConfig::folder_name(directory));
        let authorities = authorities(ca, &place, report)?;
        Some(ParsedAcme { place, keys, domains, external_account, authorities, folder })
    }

    /// Directory of the certificates.
    pub(crate) fn certificates(&self) -> PathBuf {
        self.folder.join(AcmeConfig::CERTIFICATES)
    }

    /// Model of the table, with these frontends.
    pub(crate) fn model(&self, frontends: &[FrontendConfig]) -> Arc<AcmeConfig> {
        let default = AcmeConfig {
            directory: AcmeConfig::PRODUCTION.to_owned(),
            email: None,
            domains: self.names(frontends),
            challenge: usual_challenge(frontends).unwrap_or(AcmeChallenge::Http01),
            external_account: self.external_account.clone(),
            authorities: self.authorities.clone(),
            folder: self.folder.clone(),
        };
        Arc::new(self.keys.model((), default))
    }

    /// Domain names from the file, or by default the hosts in routes of frontends that use ACME
    /// certificates.
    fn names(&self, frontends: &[FrontendConfig]) -> Vec<String> {
        let mut names: Vec<String> = match self.domains.is_empty() {
            false => self.domains.iter().map(|domain| domain.value.clone()).collect(),
            true => {
                let takers = frontends.iter().filter(|frontend| takes_certificates(frontend));
                let mut hosts: Vec<String> = takers.flat_map(hosts).collect();
                hosts.sort();
                hosts
            }
        };
        // Names stay in the order of the file, without duplicates.
        let mut known = std::collections::HashSet::new();
        names.retain(|name| known.insert(name.clone()));
        names
    }

    /// Reports settings of `[acme]` that do not fit the frontends.
    pub(crate) fn check(&self, parsed: &[ParsedFrontend], frontends: &[FrontendConfig], report: &Report<'_>) {
        if !parsed.iter().any(|frontend| frontend.tls.as_ref().is_some_and(|tls| tls.acme)) {
            report.warning(
                &self.place,
                "no frontend uses these certificates; write [frontends.NAME.tls] without certificate, or with acme = true",
            );
            return;
        }
        let names = self.names(frontends);
        if names.is_empty() {
            report.error(
                &self.place,
                "no name to order a certificate for: set domains, because no route of a frontend with these certificates has a host",
            );
        }
        if names.len() > MAX_DOMAINS {
            report.error(
                &self.place,
                format!("found {} hosts in routes; allowed: at most {MAX_DOMAINS}", names.len()),
            );
        }
        // The authority sends its HTTP-01 request without TLS (RFC 8555, section 8.3).
        let is_http = |frontend: &FrontendConfig| frontend.mode.is_http() && frontend.tls.is_none();
        match &self.keys.challenge {
            Some(Placed { value: AcmeChallenge::Http01, place }) if !frontends.iter().any(is_http) => {
                report.error(place, "needs a frontend in mode http, without tls, that the authority reaches at port 80");
            }
            None if usual_challenge(frontends).is_none() => report.error(
                &self.place,
                "the authority needs port 80 of a frontend in http mode without tls, or port 443 of a frontend with these \
                 certificates; set challenge if another host forwards one of these ports to convey",
            ),
            _ => {}
        }
    }
}

/// Whether this frontend uses certificates that convey orders.
fn takes_certificates(frontend: &FrontendConfig) -> bool {
    frontend.tls.as_ref().is_some_and(|tls| tls.acme)
}

/// Default challenge: HTTP-01 if a frontend can receive the authority's request; otherwise
/// TLS-ALPN-01 if a frontend can receive its TLS handshake; otherwise `None`.
fn usual_challenge(frontends: &[FrontendConfig]) -> Option<AcmeChallenge> {
    let listens =
        |frontend: &FrontendConfig, port| frontend.listen.iter().any(|listen| listen.ports().contains(&port));
    let http = |frontend: &FrontendConfig| {
        frontend.mode.is_http() && frontend.tls.is_none() && listens(frontend, 80)
    };
    let tls = |frontend: &FrontendConfig| takes_certificates(frontend) && listens(frontend, 443);
    match () {
        () if frontends.iter().any(http) => Some(AcmeChallenge::Http01),
        () if frontends.iter().any(tls) => Some(AcmeChallenge::TlsAlpn01),
        () => None,
    }
}

/// Hosts in the frontend's routes for which a certificate can be ordered.
fn hosts(frontend: &FrontendConfig) -> Vec<String> {
    let routes = frontend.http.iter().flat_map(|http| &http.routes);
    let exact = routes.flat_map(|route| &route.hosts).filter_map(|host| match host {
        HostPattern::Exact(host) => String::from_utf8(host.to_vec()).ok(),
        HostPattern::Any | HostPattern::Below(_) => None,
    });
    exact.map(|host| host.to_ascii_lowercase()).filter(|host| is_domain(host)).collect()
}

/// Reads `eab_key_id` and `eab_key_file`, the account with external account binding.
fn external_account(table: &mut TomlTable<'_>, report: &Report<'_>) -> Option<ExternalAccount> {
    let (id, file) = (table.optional("eab_key_id", string), table.optional("eab_key_file", string));
    let (id, file) = match (id, file) {
        (Some(id), Some(file)) => (id, file),
        (None, None) => return None,
        (Some(id), None) => {
            report.error(&id.place, "needs eab_key_file, the file with the key of this ID");
            return None;
        }
        (None, Some(file)) => {
            report.error(&file.place, "needs eab_key_id, the ID of this key");
            return None;
        }
    };
    let (path, text) = report.read_secret(&file.place, &file.value)?;
    let key = BASE64URL_NOPAD.decode(text.trim_ascii().trim_end_matches('=').as_bytes());
    match key {
        Ok(key) if !key.is_empty() => {
            Some(ExternalAccount { key_id: id.value, key_path: path, key: key.into() })
        }
        _ => {
            let message = format!(
                "{} does not contain a key in base64url, the form in which authorities issue these keys",
                path.display()
            );
            report.error(&file.place, message);
            None
        }
    }
}

/// Whether a certificate can be ordered for the name: it must be a host name (RFC 1123, section
/// 2.1) in ASCII, not an address.
fn is_domain(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last_is_number =
        name.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
    name.len() <= 253 && name.split('.').all(is_label) && !last_is_number
}

fn domain(value: &DeValue<'_>) -> Result<String, String> {
    const ALLOWED: &str = "a host name in ASCII, such as www.example.com";
    let name = value.as_str().unwrap_or_default().trim_end_matches('.').to_ascii_lowercase();
    match () {
        () if name.starts_with("*.") => Err(format!(
            "found {name:?}; a wildcard needs a DNS challenge, which convey does not support; name each host"
        )),
        () if is_domain(&name) => Ok(name),
        () => Err(not_allowed(value, ALLOWED)),
    }
}

fn email(value: &DeValue<'_>) -> Result<String, String> {
    let is_email = |text: &&str| {
        let parts = text.split_once('@');
        parts.is_some_and(|(who, host)| !who.is_empty() && is_domain(host))
            && text.chars().all(|c| c.is_ascii_graphic() && !",<>?&".contains(c))
    };
    let text = value.as_str().filter(is_email);
    text.map(str::to_owned).ok_or_else(|| not_allowed(value, "one address, such as \"ops@example.com\""))
}

fn directory(value: &DeValue<'_>) -> Result<String, String> {
    const ALLOWED: &str = "\"production\" or \"staging\" (Let's Encrypt), or an https URL";
    match value.as_str() {
        Some("production") => Ok(AcmeConfig::PRODUCTION.to_owned()),
        Some("staging") => Ok(AcmeConfig::STAGING.to_owned()),
        Some(url) => {
            let parsed = url.parse::<http::Uri>().ok();
            let is_right = |url: &http::Uri| url.scheme_str() == Some("https") && url.host().is_some();
            let url = parsed.filter(is_right).map(|_| url.to_owned());
            url.ok_or_else(|| not_allowed(value, ALLOWED))
        }
        None => Err(not_allowed(value, ALLOWED)),
    }
}

fn folder(value: &DeValue<'_>) -> Result<String, String> {
    let text = value.as_str().filter(|text| !text.is_empty() && Path::new(text).file_name().is_some());
    text.map(str::to_owned).ok_or_else(|| not_allowed(value, "the path of a folder"))
}

/// Line of `convey check` about certificates that convey orders.
pub(crate) fn describe(acme: &AcmeConfig) -> String {
    let AcmeConfig { directory, domains, challenge, folder, .. } = acme;
    let (names, challenge) = (list_or(domains, "no names"), challenge.name());
    format!("certificates from {directory} by {challenge}, saved in {}: {names}\n", folder.display())
}

/// Changes of `[acme]` and `state_dir` for the log of a reload.
pub(crate) fn changes(old: Option<&AcmeConfig>, new: Option<&AcmeConfig>) -> Vec<String> {
    let (old, new) = match (old, new) {
        (Some(old), Some(new)) => (old, new),
        (None, None) => return Vec::new(),
        (old, _) => return vec![format!("acme: {}", if old.is_some() { "removed" } else { "added" })],
    };
    let mut changes = below("acme", AcmeKeys::changes(old, new));
    let folder = |acme: &AcmeConfig| acme.folder.display().to_string();
    changes.extend(change("state_dir", folder(old), folder(new)));
    if changes.is_empty() && old != new {
        changes.push("acme: content of eab_key_file or ca changed".to_owned());
    }
    changes
}

fn key_id(acme: &AcmeConfig) -> String {
    or(acme.external_account.as_ref().map(|account| &account.key_id), "none")
}

fn ca(acme: &AcmeConfig) -> String {
    or(acme.authorities.path.as_ref().map(|path| path.display()), "this host's")
}
