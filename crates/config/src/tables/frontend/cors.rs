//! `[frontends.NAME.cors]`: which pages of other origins may read responses.

use toml::de::DeValue;

use crate::keys::OnlyIn;
use crate::problem::{Placed, Report};
use crate::reader::TomlTable;
use crate::reference::{Docs, KeyDoc, TableDoc};
use crate::values::{boolean, integer, method, not_allowed};
use convey_http_core::{CorsRules, OriginPattern, is_token};

/// `[frontends.NAME.cors]` in the reference. The table has no list of keys and fields, because it is
/// optional as a whole.
pub(crate) const DOC: TableDoc = TableDoc {
    name: "[frontends.NAME.cors]",
    docs: &[
        Docs::Key(KeyDoc {
            name: "origins",
            only_in: Some(OnlyIn::Http),
            kind: r#"origins such as `"https://app.example.com"` or `"https://*.example.com"`, or `"*"`: every origin"#,
            default: "required",
            sample: r#"#origins = ["https://app.example.com"]  # or "https://*.example.com", or "*""#,
            example: "'https://b.example'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "methods",
            only_in: Some(OnlyIn::Http),
            kind: "methods that pages may use",
            default: r#"`["GET", "HEAD", "POST"]`"#,
            sample: r#"#methods = ["GET", "HEAD", "POST"]"#,
            example: "'PUT'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "headers",
            only_in: Some(OnlyIn::Http),
            kind: "headers of requests that pages may set",
            default: "all that a page asks for",
            sample: r#"#headers = ["Content-Type"]             # example; headers of requests; by default all that a page asks for"#,
            example: "'X-A'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "expose",
            only_in: Some(OnlyIn::Http),
            kind: "headers of responses that pages may read, beside the usual ones",
            default: "none",
            sample: r#"#expose = ["X-Total"]                   # example; headers of responses that pages may read"#,
            example: "'X-A'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "credentials",
            only_in: Some(OnlyIn::Http),
            kind: "`true`: requests may have cookies and other credentials",
            default: "`false`",
            sample: "#credentials = false                    # true: requests may have cookies",
            example: "true",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "max_age",
            only_in: Some(OnlyIn::Http),
            kind: "0 to 86400 seconds for which a browser remembers what is allowed",
            default: "`600`",
            sample: "#max_age = 600                          # seconds for which a browser remembers what is allowed",
            example: "7",
            ..KeyDoc::USUAL
        }),
    ],
};

/// Reads `cors` of a frontend or a route; `None`: the table is not set.
pub(super) fn read(table: &mut TomlTable<'_>, report: &Report<'_>) -> Option<CorsRules> {
    let Some(place) = table.place_of("cors") else {
        table.allow("cors");
        return None;
    };
    let mut own = table.table("cors");
    let texts = |list: Vec<Placed<String>>| list.into_iter().map(|item| item.value).collect::<Vec<String>>();
    // An empty list would allow all headers that a page asks for.
    let headers = texts(own.at_least_one("headers", token));
    let expose = texts(own.any_number("expose", token));
    let methods = own.at_least_one("methods", method).into_iter();
    let mut methods: Vec<String> = methods.map(|method| method.value.into()).collect();
    if methods.is_empty() {
        methods = CorsRules::METHODS.map(str::to_owned).to_vec();
    }
    own.require("origins", "required, but missing: which pages may read responses");
    let origins = read_origins(&mut own, report);
    let credentials = own.or("credentials", false, boolean);
    if credentials && origins.contains(&OriginPattern::Any) {
        report.warning(
            &place,
            "every page could read what a user sees: origins has \"*\", and credentials is true",
        );
    }
    let max_age = own.or("max_age", 600, integer(0..=86_400));
    own.finish();
    Some(CorsRules { origins, methods, headers, expose, credentials, max_age })
}

/// Reads `origins`. Warns of the usual port of a scheme, which browsers leave out.
fn read_origins(own: &mut TomlTable<'_>, report: &Report<'_>) -> Vec<OriginPattern> {
    let origins = own.at_least_one("origins", origin).into_iter();
    let checked = origins.map(|Placed { value, place }| {
        let text = value.to_string();
        for (scheme, port) in [("http://", ":80"), ("https://", ":443")] {
            if let Some(without) = text.strip_suffix(port).filter(|text| text.starts_with(scheme)) {
                let message = format!(
                    "no page has the origin {text}: browsers leave out the usual port; use {without}"
                );
                report.warning(&place, message);
            }
        }
        value
    });
    checked.collect()
}

fn origin(value: &DeValue<'_>) -> Result<OriginPattern, String> {
    let allowed = "an origin, such as https://app.example.com or https://*.example.com, or *";
    value.as_str().and_then(OriginPattern::parse).ok_or_else(|| not_allowed(value, allowed))
}

fn token(value: &DeValue<'_>) -> Result<String, String> {
    let text = value.as_str().filter(|text| is_token(text.as_bytes()));
    text.map(str::to_owned).ok_or_else(|| not_allowed(value, "a name, such as PUT or Content-Type"))
}
