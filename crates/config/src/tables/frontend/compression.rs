//! `compression` of a frontend or of a route: `true`, `false`, or a table of rules.

use toml::de::DeValue;

use crate::keys::{keys, unreported};
use crate::problem::{Placed, Report};
use crate::reader::TomlTable;
use crate::reference::TableDoc;
use crate::values::{boolean, choice, integer, not_allowed};
use convey_http_core::{CompressionRules, ContentCoding, MediaPattern};
use convey_model::RouteCompression;

/// `[frontends.NAME.compression]` in the reference.
pub(crate) const DOC: TableDoc =
    TableDoc { name: "[frontends.NAME.compression]", docs: CompressionKeys::DOCS };

/// Value of `compression` in the file.
#[derive(Debug, Clone)]
pub(super) enum ParsedCompression {
    Switch(bool),
    Rules(CompressionRules),
}

keys! {
    /// The keys of `[frontends.NAME.compression]`.
    struct CompressionKeys => CompressionRules, from (_unused: (), default);

    list "encodings" => encodings: ContentCoding {
        read: choice(&ContentCoding::ALL, ContentCoding::name),
        by: at_least_one,
        unset: "none",
        kind: r#"`"zstd"`, `"br"` or `"gzip"`, or several. convey prefers the first of those that the client likes equally"#,
        default: r#"`["zstd", "br", "gzip"]`"#,
        sample: r#"#encodings = ["zstd", "br", "gzip"]     # allowed encodings; among those that the client likes equally, the first one wins"#,
        example: "'gzip'",
    };

    key "min_size" => min_size: u64 {
        read: integer(0..=u64::from(u32::MAX)),
        kind: "0 to 4294967295 bytes: shorter bodies stay as they are",
        default: "1024",
        sample: "#min_size = 1024                        # bytes; convey does not compress shorter bodies",
        example: "7",
    };

    list "types" => types: MediaPattern {
        read: media_pattern,
        by: at_least_one,
        unset: "none",
        kind: r#"media types: `"text/html"`, `"text/*"`, `"*+json"`"#,
        default: "text, JSON, XML, scripts, fonts and others that get shorter",
        sample: r#"#types = ["text/*", "*+json"]           # example; by default text, JSON, XML, scripts, fonts and other types that get shorter"#,
        example: "'text/html'",
    };

    key "with_credentials" => with_credentials: bool {
        read: boolean,
        kind: "`true`: answers that [may bear a secret](../guides/compression.md#secrets), too",
        default: "`false`",
        sample: r##"
#with_credentials = false               # true: compress also if the request has cookies or Authorization, or the response sets a
                                        # cookie or is private. Only for responses without secrets (BREACH)
"##,
        example: "true",
    };

    also own_cookies = default.own_cookies; {
        // A frontend fills the list from its backends, which report changes of their cookies.
        changes: unreported,
        docs: &[],
    };
}

impl ParsedCompression {
    /// Reads `compression` of a frontend or of a route. `None` if the key is absent, or if its
    /// value is wrong, which is reported.
    pub(super) fn read(table: &mut TomlTable<'_>, report: &Report<'_>) -> Option<ParsedCompression> {
        if table.has_table("compression") {
            return Some(ParsedCompression::Rules(rules(table.table("compression"), report)));
        }
        let switch = |value: &DeValue<'_>| {
            boolean(value)
                .map_err(|_| not_allowed(value, "true, false, or a table, such as { min_size = 512 }"))
        };
        table.optional("compression", switch).map(|on| ParsedCompression::Switch(on.value))
    }

    /// Compression rules of a frontend with this value; `None` without compression.
    pub(super) fn of_frontend(&self) -> Option<CompressionRules> {
        match self {
            ParsedCompression::Switch(false) => None,
            ParsedCompression::Switch(true) => Some(CompressionRules::default()),
            ParsedCompression::Rules(rules) => Some(rules.clone()),
        }
    }

    /// Compression of a route with this value. If the value is `true` and the frontend has rules
    /// (`has_frontend_rules`), the route uses those rules.
    pub(super) fn of_route(&self, has_frontend_rules: bool) -> RouteCompression {
        match self {
            ParsedCompression::Switch(false) => RouteCompression::Off,
            ParsedCompression::Switch(true) if has_frontend_rules => RouteCompression::OfFrontend,
            ParsedCompression::Switch(true) => RouteCompression::Rules(CompressionRules::default()),
            ParsedCompression::Rules(rules) => RouteCompression::Rules(rules.clone()),
        }
    }
}

fn rules(mut table: TomlTable<'_>, report: &Report<'_>) -> CompressionRules {
    let keys = CompressionKeys::read(&mut table);
    table.finish();
    once_each(&keys.encodings, report);
    keys.model((), CompressionRules::default())
}

/// Reports encodings that are twice in the list.
fn once_each(encodings: &[Placed<ContentCoding>], report: &Report<'_>) {
    for (index, Placed { value, place }) in encodings.iter().enumerate() {
        if encodings[..index].iter().any(|other| other.value == *value) {
            report.error(place, format!("has {:?} twice", value.name()));
        }
    }
}

fn media_pattern(value: &DeValue<'_>) -> Result<MediaPattern, String> {
    let pattern = value.as_str().and_then(MediaPattern::parse);
    pattern.ok_or_else(|| not_allowed(value, "a media type, such as text/html, text/* or *+json"))
}
