//! `[acme]` and `state_dir`: certificates that convey orders itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use convey_http_core::HostPattern;
use convey_model::{AcmeChallenge, AcmeConfig, Authorities, ExternalAccount, FrontendConfig};
use data_encoding::BASE64URL_NOPAD;
use toml::de::DeValue;

use super::diff::{change, list_or, or};
use super::problem::{Place, Placed, Report};
use super::reader::TomlTable;
use super::tables::{ParsedFrontend, authorities};
use super::values::{choice, not_allowed, string};

/// Default folder of the state that outlives the process.
pub(super) const STATE_DIR: &str = "/var/lib/convey";

/// Most names: each name is an order, and a file.
const MAX_DOMAINS: usize = 1_000;

/// `[acme]` as the file has it.
#[derive(Debug, Clone)]
pub(super) struct ParsedAcme {
    pub(super) place: Place,
    email: Option<String>,
    directory: String,
    pub(super) domains: Vec<Placed<String>>,
    challenge: Option<Placed<AcmeChallenge>>,
    external_account: Option<ExternalAccount>,
    authorities: Authorities,
    folder: PathBuf,
}

impl ParsedAcme {
    /// Reads `[acme]` and `state_dir` of the root; `None` without `[acme]`.
    pub(super) fn read(root: &mut TomlTable<'_>, report: &Report<'_>) -> Option<ParsedAcme> {
        let state_dir = root.optional("state_dir", folder);
        let is_there = root.has("acme");
        let mut table = root.table("acme");
        if !is_there {
            return None;
        }
        let place = table.place.clone();
        let email = table.optional("email", email).map(|email| email.value);
        let directory = table.or("directory", AcmeConfig::PRODUCTION.to_owned(), directory);
        let domains = table.any_number("domains", domain);
        if let Some(Placed { place, .. }) = domains.get(MAX_DOMAINS) {
            report.error(place, format!("found {} names; allowed: {MAX_DOMAINS}", domains.len()));
        }
        let challenge = table.optional("challenge", choice(&AcmeChallenge::ALL, AcmeChallenge::name));
        let external_account = external_account(&mut table, report);
        let ca = table.optional("ca", string);
        table.finish();
        let base = state_dir.as_ref().map_or(STATE_DIR, |dir| &dir.value);
        let base = report.beside(state_dir.as_ref().map_or(&place, |dir| &dir.place), base);
        let folder = base.join("acme").join(AcmeConfig::folder_name(&directory));
        let authorities = authorities(ca, &place, report)?;
        Some(ParsedAcme {
            place,
            email,
            directory,
            domains,
            challenge,
            external_account,
            authorities,
            folder,
        })
    }

    /// Folder of the certificates.
    pub(super) fn certificates(&self) -> PathBuf {
        self.folder.join(AcmeConfig::CERTIFICATES)
    }

    /// Model of the table, with these frontends.
    pub(super) fn model(&self, frontends: &[FrontendConfig]) -> Arc<AcmeConfig> {
        Arc::new(AcmeConfig {
            directory: self.directory.clone(),
            email: self.email.clone(),
            domains: self.names(frontends),
            challenge: self
                .challenge
                .as_ref()
                .map(|challenge| challenge.value)
                .or_else(|| usual_challenge(frontends))
                .unwrap_or(AcmeChallenge::Http01),
            external_account: self.external_account.clone(),
            authorities: self.authorities.clone(),
            folder: self.folder.clone(),
        })
    }

    /// Names from the file, or else the hosts of routes of frontends that use ACME certificates.
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
        // In the order of the file, without duplicates.
        let mut known = std::collections::HashSet::new();
        names.retain(|name| known.insert(name.clone()));
        names
    }

    /// Reports settings that do not fit the frontends.
    pub(super) fn check(&self, parsed: &[ParsedFrontend], frontends: &[FrontendConfig], report: &Report<'_>) {
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
                "there is no name to order a certificate for: no route of a frontend with TLS has a host; set domains",
            );
        }
        if names.len() > MAX_DOMAINS {
            report
                .error(&self.place, format!("found {} hosts of routes; allowed: {MAX_DOMAINS}", names.len()));
        }
        // The authority's request comes without TLS (RFC 8555, section 8.3).
        let is_http = |frontend: &FrontendConfig| frontend.mode.is_http() && frontend.tls.is_none();
        match &self.challenge {
            Some(Placed { value: AcmeChallenge::Http01, place }) if !frontends.iter().any(is_http) => {
                report.error(place, "needs a frontend with mode = \"http\" and without tls that clients reach at port 80");
            }
            None if usual_challenge(frontends).is_none() => report.error(
                &self.place,
                "no frontend in http mode listens on port 80, and none with these certificates on port 443; set challenge if \
                 another host forwards port 80 or 443 to a port of convey",
            ),
            _ => {}
        }
    }
}

/// Whether this frontend uses the certificates that convey orders.
fn takes_certificates(frontend: &FrontendConfig) -> bool {
    frontend.tls.as_ref().is_some_and(|tls| tls.acme)
}

/// Default challenge: HTTP if a frontend can receive the authority's request, or else the TLS
/// handshake.
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

/// Hosts of the frontend's routes that a certificate can be ordered for.
fn hosts(frontend: &FrontendConfig) -> Vec<String> {
    let routes = frontend.http.iter().flat_map(|http| &http.routes);
    let exact = routes.filter_map(|route| match &route.host {
        HostPattern::Exact(host) => String::from_utf8(host.to_vec()).ok(),
        HostPattern::Any | HostPattern::Below(_) => None,
    });
    exact.map(|host| host.to_ascii_lowercase()).filter(|host| is_domain(host)).collect()
}

/// `eab_key_id` and `eab_key_file`.
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
                "{}: no base64url-encoded key, the form in which authorities issue it",
                path.display()
            );
            report.error(&file.place, message);
            None
        }
    }
}

/// Whether a certificate can be ordered for the name: a host name (RFC 1123, section 2.1) in ASCII,
/// and no address.
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
    const ALLOWED: &str = "a name of a host in ASCII, such as www.example.com";
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

/// Description of the ordered certificates.
pub(super) fn describe(acme: &AcmeConfig) -> String {
    let AcmeConfig { directory, domains, challenge, folder, .. } = acme;
    let (names, challenge) = (list_or(domains, "nothing"), challenge.name());
    format!("certificates of {directory} by {challenge}, kept in {}: {names}\n", folder.display())
}

/// Log text of the differences between two tables.
pub(super) fn changes(old: Option<&AcmeConfig>, new: Option<&AcmeConfig>) -> Vec<String> {
    let (old, new) = match (old, new) {
        (Some(old), Some(new)) => (old, new),
        (None, None) => return Vec::new(),
        (old, _) => return vec![format!("acme: {}", if old.is_some() { "removed" } else { "added" })],
    };
    // Destructured, so that a new field cannot be forgotten.
    let AcmeConfig { directory, email, domains, challenge, external_account, authorities, folder } = old;
    let id = |account: &Option<ExternalAccount>| {
        or(account.as_ref().map(|account| account.key_id.clone()), "none")
    };
    let ca = |authorities: &Authorities| {
        or(authorities.path.as_ref().map(|path| path.display().to_string()), "this host's")
    };
    let told = [
        change("acme.directory", directory, &new.directory),
        change("acme.email", or(email.as_deref(), "none"), or(new.email.as_deref(), "none")),
        change("acme.domains", list_or(domains, "none"), list_or(&new.domains, "none")),
        change("acme.challenge", challenge.name(), new.challenge.name()),
        change("acme.eab_key_id", id(external_account), id(&new.external_account)),
        change("acme.ca", ca(authorities), ca(&new.authorities)),
        change("state_dir", folder.display().to_string(), new.folder.display().to_string()),
    ];
    let mut changes: Vec<String> = told.into_iter().flatten().collect();
    if changes.is_empty() && old != new {
        changes.push("acme: key or authorities changed".to_owned());
    }
    changes
}
