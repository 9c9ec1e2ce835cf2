//! `[backends.NAME.affinity]`: a cookie that names the server of a client.

use std::sync::Arc;

use toml::de::DeValue;

use crate::diff::{change, or};
use crate::keys::OnlyIn;
use crate::problem::{Placed, Report};
use crate::reader::TomlTable;
use crate::reference::{Docs, KeyDoc, TableDoc};
use crate::values::{boolean, choice, integer, not_allowed, string};
use convey_http_core::is_token;
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
    let path = table.or("path", "/".to_owned(), cookie_path).into_boxed_str();
    let domain = table.optional("domain", cookie_domain).map(|domain| domain.value.into_boxed_str());
    let max_age = table.optional("max_age", integer(1..=31_536_000)).map(|age| age.value);
    let same_site = table.or("same_site", SameSite::default(), choice(&SameSite::ALL, SameSite::name));
    let secure = table.optional("secure", boolean);
    let http_only = table.or("http_only", true, boolean);
    let key_file = table.optional("key_file", string);
    table.finish();
    if let Some(Placed { value: false, place }) = &secure
        && same_site == SameSite::None
    {
        report.error(place, "browsers refuse a cookie with same_site = \"none\" that is not secure");
    }
    let key = key_file.map_or_else(|| Some(AffinityKey::default()), |file| key(&file, report))?;
    let secure = secure.map(|secure| secure.value).or((same_site == SameSite::None).then_some(true));
    let cookie = cookie?.into_boxed_str();
    let affinity = AffinityConfig { cookie, path, domain, max_age, same_site, secure, http_only, key };
    Some(Placed { value: Arc::new(affinity), place })
}

fn name(value: &DeValue<'_>) -> Result<String, String> {
    let text = value.as_str().filter(|text| is_token(text.as_bytes()));
    text.map(str::to_owned).ok_or_else(|| not_allowed(value, "the name of a cookie, such as server"))
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
