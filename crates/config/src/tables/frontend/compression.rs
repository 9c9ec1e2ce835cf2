//! `compression` of a frontend or of a route: `true`, `false`, or a table of rules.

use toml::de::DeValue;

use crate::problem::{Placed, Report};
use crate::reader::TomlTable;
use crate::values::{boolean, choice, integer, not_allowed};
use convey_http_core::{CompressionRules, ContentCoding, MediaPattern};
use convey_model::RouteCompression;

/// Value of `compression` in the file.
#[derive(Debug, Clone)]
pub(super) enum ParsedCompression {
    Switch(bool),
    Rules(CompressionRules),
}

impl ParsedCompression {
    /// Reads the key of a frontend or of a route. `None` if the key is absent, or wrong and
    /// reported.
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

    /// Rules of a frontend with this value.
    pub(super) fn of_frontend(&self) -> Option<CompressionRules> {
        match self {
            ParsedCompression::Switch(false) => None,
            ParsedCompression::Switch(true) => Some(CompressionRules::default()),
            ParsedCompression::Rules(rules) => Some(rules.clone()),
        }
    }

    /// Setting of a route with this value. With `has_frontend_rules`, a route without rules uses
    /// those of the frontend.
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
    let default = CompressionRules::default();
    let types: Vec<MediaPattern> =
        table.at_least_one("types", media_pattern).into_iter().map(|found| found.value).collect();
    let encodings = table.at_least_one("encodings", choice(&ContentCoding::ALL, ContentCoding::name));
    let rules = CompressionRules {
        types: if types.is_empty() { default.types } else { types },
        min_size: table.or("min_size", default.min_size, integer(0..=u64::from(u32::MAX))),
        encodings: if encodings.is_empty() { default.encodings } else { once_each(encodings, report) },
        with_credentials: table.or("with_credentials", default.with_credentials, boolean),
    };
    table.finish();
    rules
}

/// Encodings in order. Duplicates are reported.
fn once_each(encodings: Vec<Placed<ContentCoding>>, report: &Report<'_>) -> Vec<ContentCoding> {
    let mut once = Vec::new();
    for Placed { value, place } in encodings {
        if once.contains(&value) {
            report.error(&place, format!("has {:?} twice", value.name()));
        } else {
            once.push(value);
        }
    }
    once
}

fn media_pattern(value: &DeValue<'_>) -> Result<MediaPattern, String> {
    let pattern = value.as_str().and_then(MediaPattern::parse);
    pattern.ok_or_else(|| not_allowed(value, "a media type, such as text/html, text/* or *+json"))
}
