//! `[backends.NAME.affinity]`: a cookie that names the server of a client.

use std::sync::Arc;

use toml::de::DeValue;

use crate::diff::{change, or};
use crate::keys::OnlyIn;
use crate::problem::{Placed, Report};
use crate::reader::TomlTable;
use crate::reference::{Docs, KeyDoc, TableDoc};
use crate::tables::{ParsedBackend, ParsedFrontend};
use crate::values::{boolean, choice, integer, not_allowed, string};
use convey_http_core::{HostPattern, is_token};
use convey_model::{AffinityConfig, AffinityKey, SameSite};

/// `[backends.NAME.affinity]` in the reference. The table has no list of keys and fields, because it
/// is optional as a whole.
pub(crate) const DOC: TableDoc = TableDoc {
    name: "[backends.NAME.affinity]",
    docs: &[
        Docs::Key(KeyDoc {
            name: "cookie",
            only_in: Some(OnlyIn::Http),
            kind: "name of a cookie that convey sets: it names the server that gets the client's requests",
            default: "required",
            sample: r#"#cookie = "server"                      # example"#,
            example: "'other'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "path",
            only_in: Some(OnlyIn::Http),
            kind: "path of the cookie: the client sends it with requests for this path and below",
            default: r#"`"/"`"#,
            sample: r#"#path = "/""#,
            example: "'/shop'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "domain",
            only_in: Some(OnlyIn::Http),
            kind: "domain of the cookie, with all hosts below it",
            default: "the host of the request alone",
            sample: r#"#domain = "example.com"                 # example; also hosts below it"#,
            example: "'example.com'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "max_age",
            only_in: Some(OnlyIn::Http),
            kind: "1 to 31536000 seconds that the cookie lasts",
            default: "until the browser ends",
            sample: "#max_age = 86400                        # example; seconds; by default until the browser ends",
            example: "7",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "same_site",
            only_in: Some(OnlyIn::Http),
            kind: r#"`"lax"`, `"strict"` or `"none"`: requests of other sites that carry the cookie"#,
            default: r#"`"lax"`"#,
            sample: r#"#same_site = "lax"                      # or "strict", or "none", which needs Secure"#,
            example: "'strict'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "secure",
            only_in: Some(OnlyIn::Http),
            kind: "whether the cookie is for HTTPS alone",
            default: "for clients that use HTTPS",
            sample: "#secure = true                          # example; by default for clients that use HTTPS",
            example: "true",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "http_only",
            only_in: Some(OnlyIn::Http),
            kind: "`true`: no script of a page can read the cookie",
            default: "`true`",
            sample: "#http_only = true                       # no script of a page can read the cookie",
            example: "false",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "key_file",
            only_in: Some(OnlyIn::Http),
            kind: "a file with 32 to 128 hexadecimal digits: the key of the ids in the cookies. Others must not be able to read it",
            default: "none: whoever knows a server's address can compute its id",
            sample: r#"#key_file = "affinity.key"              # example; 32 to 128 hexadecimal digits. Without it ids can be computed"#,
            example: "'QUIC.key'",
            ..KeyDoc::USUAL
        }),
    ],
};

/// Reads `affinity` of a backend; `None`: the table is not set, or its cookie has no valid name.
pub(super) fn read(backend: &mut TomlTable<'_>, report: &Report<'_>) -> Option<Placed<Arc<AffinityConfig>>> {
    let Some(place) = backend.place_of("affinity") else {
        backend.allow("affinity");
        return None;
    };
    let mut table = backend.table("affinity");
    table.require("cookie", "required, but missing: the name of the cookie");
    let cookie = table.optional("cookie", name).map(|cookie| cookie.value);
    let path = table.optional("path", cookie_path);
    let domain = table.optional("domain", cookie_domain);
    let max_age = table.optional("max_age", integer(1..=31_536_000)).map(|age| age.value);
    let same_site = table.or("same_site", SameSite::default(), choice(&SameSite::ALL, SameSite::name));
    let secure = table.optional("secure", boolean);
    let http_only = table.or("http_only", true, boolean);
    let key_file = table.optional("key_file", string);
    table.finish();
    if let Some(Placed { value: false, place }) = &secure
        && same_site == SameSite::None
    {
        report.error(place, "browsers refuse a cookie with same_site = \"none\" that is not secure; remove this key, or use same_site = \"lax\"");
    }
    let key = key_file.map_or_else(|| Some(AffinityKey::default()), |file| key(&file, report))?;
    let attributes = CookieAttributes { path, domain, secure };
    let usual = AffinityConfig { max_age, same_site, http_only, key, ..AffinityConfig::new(&cookie?) };
    attributes.check(&usual, report);
    let CookieAttributes { path, domain, secure } = attributes;
    let affinity = AffinityConfig {
        path: path.map_or(usual.path, |path| path.value.into()),
        domain: domain.map(|domain| domain.value.into()),
        secure: secure.map(|secure| secure.value).or((same_site == SameSite::None).then_some(true)),
        ..usual
    };
    Some(Placed { value: Arc::new(affinity), place })
}

/// Attributes of the cookie that prefixes of its name restrict.
struct CookieAttributes {
    path: Option<Placed<String>>,
    domain: Option<Placed<String>>,
    secure: Option<Placed<bool>>,
}

impl CookieAttributes {
    /// Reports attributes with which browsers refuse a cookie with this name (RFC 6265bis, section
    /// 4.1.3).
    fn check(&self, affinity: &AffinityConfig, report: &Report<'_>) {
        let prefix = if affinity.is_of_host() { "__Host-" } else { "__Secure-" };
        if let Some(Placed { value: false, place }) = &self.secure
            && affinity.needs_secure()
        {
            report.error(
                place,
                format!(
                    "browsers refuse a cookie that begins with {prefix} and is not secure; remove this key"
                ),
            );
        }
        let path = self.path.as_ref().filter(|path| path.value != "/").map(|path| &path.place);
        let domain = self.domain.as_ref().map(|domain| &domain.place);
        let refused = "browsers refuse a cookie that begins with __Host- and has a";
        for (place, attribute) in [(path, "path other than /"), (domain, "domain")] {
            if let Some(place) = place.filter(|_| affinity.is_of_host()) {
                report.error(place, format!("{refused} {attribute}; remove this key, or use __Secure-"));
            }
        }
    }
}

fn name(value: &DeValue<'_>) -> Result<String, String> {
    const ALLOWED: &str = "the name of a cookie: letters, digits and !#$%&'*+-.^_`|~, such as server";
    let text = value.as_str().unwrap_or_default();
    let is_wrong = |one: &char| !is_token(one.encode_utf8(&mut [0; 4]).as_bytes());
    match text.chars().find(is_wrong) {
        None if text.is_empty() => Err(not_allowed(value, ALLOWED)),
        None => Ok(text.to_owned()),
        Some(wrong) => Err(format!("has the character {wrong:?}, {}", not_allowed(value, ALLOWED))),
    }
}

fn cookie_path(value: &DeValue<'_>) -> Result<String, String> {
    let is_of_path = |byte: u8| byte.is_ascii_graphic() && byte != b';';
    let text = value.as_str().filter(|text| text.starts_with('/') && text.bytes().all(is_of_path));
    text.map(str::to_owned).ok_or_else(|| not_allowed(value, "a path, such as / or /shop"))
}

fn cookie_domain(value: &DeValue<'_>) -> Result<String, String> {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    let text = value.as_str().filter(|text| !text.is_empty() && text.bytes().all(is_of_name));
    text.map(str::to_owned).ok_or_else(|| not_allowed(value, "a domain, such as example.com"))
}

/// Reads the key; `None` after an error, which is reported.
fn key(file: &Placed<String>, report: &Report<'_>) -> Option<AffinityKey> {
    let (path, text) = report.read_secret(&file.place, &file.value)?;
    let digits = text.trim_ascii();
    let bytes = data_encoding::HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).ok();
    let key = bytes.filter(|bytes| (16..=64).contains(&bytes.len())).map(|bytes| AffinityKey::new(&bytes));
    if key.is_none() {
        let message = format!(
            "{} must contain 32 to 128 hexadecimal digits; `openssl rand -hex 32` makes a key",
            path.display()
        );
        report.error(&file.place, message);
    }
    key
}

/// Warns of two backends whose cookies replace each other at a client: their cookies have the same
/// name, path and domain, and one frontend sends requests to both.
pub(crate) fn check_names(frontends: &[ParsedFrontend], backends: &[ParsedBackend], report: &Report<'_>) {
    let with_affinity = backends.iter().filter_map(|backend| Some((backend, backend.affinity.as_ref()?)));
    let with_affinity: Vec<_> = with_affinity.collect();
    for (at, (backend, Placed { value: own, place })) in with_affinity.iter().enumerate() {
        let replaces = |(other, affinity): &&(&ParsedBackend, &Placed<Arc<AffinityConfig>>)| {
            let Placed { value: of_other, .. } = affinity;
            let attributes = |of: &AffinityConfig| (of.cookie.clone(), of.path.clone(), of.domain.clone());
            attributes(of_other) == attributes(own)
                && frontends.iter().any(|frontend| {
                    frontend.uses(&backend.name)
                        && frontend.uses(&other.name)
                        && (own.domain.is_some() || shares_host(frontend, &backend.name, &other.name))
                })
        };
        if let Some((other, affinity)) = with_affinity[..at].iter().find(replaces) {
            let (cookie, name, line) = (&own.cookie, &other.name, report.line(&affinity.place, place));
            let message = format!(
                "backend {name:?} also sets the cookie {cookie} ({line}): a client that uses both backends loses its server; use another name"
            );
            report.warning(place, message);
        }
    }
}

/// Whether requests for one host can get to both backends of this frontend.
fn shares_host(frontend: &ParsedFrontend, a: &str, b: &str) -> bool {
    let (a, b) = (frontend.hosts_of(a), frontend.hosts_of(b));
    let overlap = |a: &HostPattern, b: &HostPattern| match (a, b) {
        (HostPattern::Any, _) | (_, HostPattern::Any) => true,
        (HostPattern::Exact(a), HostPattern::Exact(b)) => a == b,
        (HostPattern::Exact(name), HostPattern::Below(suffix))
        | (HostPattern::Below(suffix), HostPattern::Exact(name)) => name.ends_with(suffix),
        (HostPattern::Below(a), HostPattern::Below(b)) => a.ends_with(b) || b.ends_with(a),
    };
    a.iter().any(|a| b.iter().any(|b| overlap(a, b)))
}

/// Changes of `affinity` for the log of a reload.
pub(super) fn changes(old: Option<&AffinityConfig>, new: Option<&AffinityConfig>) -> Option<String> {
    let cookie = |affinity: &AffinityConfig| format!("cookie {}", affinity.cookie);
    let changed = change("affinity", or(old.map(cookie), "none"), or(new.map(cookie), "none"));
    // The key is a secret, so the text does not contain it.
    changed.or_else(|| (old != new).then(|| "affinity: attributes or key changed".to_owned()))
}

/// Text of `convey check`; empty without session affinity.
pub(super) fn describe(affinity: Option<&AffinityConfig>) -> String {
    let Some(affinity) = affinity else { return String::new() };
    let key = if affinity.key.bytes().is_empty() { "without a key" } else { "with a key" };
    format!("; affinity by cookie {}, {key}", affinity.cookie)
}
