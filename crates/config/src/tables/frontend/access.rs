//! `[frontends.NAME.access]`: networks, and files of networks.

use std::path::Path;

use toml::de::DeValue;

use crate::problem::{Place, Placed, Report};
use crate::reader::TomlTable;
use crate::reference::{Docs, KeyDoc, TableDoc};
use crate::values::network_or;
use crate::{encoding, files};
use convey_model::{Access, AccessFile, FrontendConfig, Mode, Prefix};

/// `[frontends.NAME.access]` in the reference. The table has no list of keys and fields, because
/// both keys, with the files that they name, set one field of the model.
pub(crate) const DOC: TableDoc = TableDoc {
    name: "[frontends.NAME.access]",
    docs: &[
        Docs::Key(KeyDoc {
            name: "allow",
            kind: r#"networks or addresses. `"@PATH"` is a file with one a line"#,
            default: "everybody",
            sample: r#"#allow = ["10.0.0.0/8"]                 # example; such as ["10.0.0.0/8", "@office.txt"]"#,
            example: "'10.0.0.0/8'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "deny",
            kind: "the same",
            default: "nobody",
            sample: r#"#deny = ["10.6.6.0/24"]                 # example"#,
            example: "'10.6.6.0/24'",
            ..KeyDoc::USUAL
        }),
    ],
};

/// Character before the path of a file.
const FILE: char = '@';

/// Entry of a list of networks.
pub(super) enum AccessEntry {
    Network(Prefix),
    /// Path as written in the list.
    File(String),
}

/// Reads `[frontends.NAME.access]` and the files that it names.
pub(super) fn read(mut table: TomlTable<'_>, report: &Report<'_>) -> Access {
    let lists_allowed = table.has("allow");
    let mut files = Vec::new();
    let [allowed, denied] = [("allow", true), ("deny", false)].map(|(key, is_allowed)| {
        let entries = table.any_number(key, entry);
        let networks = entries.into_iter().map(|entry| listed(entry, is_allowed, &mut files, report));
        networks.flat_map(|listed| listed.value).collect::<Vec<Prefix>>()
    });
    // The file may be empty because another program is writing it. Then an empty list would refuse
    // every client.
    if lists_allowed && allowed.is_empty() {
        report.missing(&table.place, "allow has no network, so convey would refuse every client");
    }
    table.finish();
    report.share(Access::from_files(allowed, denied, files))
}

/// Changes of `[frontends.NAME.access]` for the log of a reload.
pub(super) fn changes(old: &FrontendConfig, new: &FrontendConfig) -> Option<String> {
    (old.access != new.access).then(|| {
        let (added, gone) = new.access.changes_since(&old.access);
        format!("access networks: {added} added and {gone} removed")
    })
}

/// Text of `convey check` about access; empty if every client is allowed.
pub(super) fn describe(frontend: &FrontendConfig, _: &[Mode]) -> String {
    match frontend.access.is_open() {
        true => String::new(),
        false => format!("; access: {}", frontend.access),
    }
}

/// Searches a file of networks for a network. Returns the number of the first line that has the
/// network, if any, and the [fingerprint](AccessFile::fingerprint) of the text.
///
/// # Errors
/// Operator-facing reason why the file cannot be read.
pub fn find_network(path: &Path, network: Prefix) -> Result<(Option<usize>, u64), String> {
    let bytes = files::read(path).map_err(|error| error.to_string())?;
    let text = encoding::decode("", bytes).map_err(|problem| problem.message)?;
    let is_it = |text: &str| plain_network(&DeValue::String(text.into()), "") == Ok(network);
    let line = entries(&text).find(|(_, entry)| is_it(entry)).map(|(line, _)| line);
    Ok((line, AccessFile::fingerprint(&text)))
}

/// Networks of an entry, in the place of the entry. Reads the file that the entry names, and adds it
/// to `files`.
pub(super) fn listed(
    Placed { value, place }: Placed<AccessEntry>,
    is_allowed: bool,
    files: &mut Vec<AccessFile>,
    report: &Report<'_>,
) -> Placed<Vec<Prefix>> {
    let networks = match value {
        AccessEntry::Network(network) => vec![network],
        AccessEntry::File(path) => match report.read_list(&place, &path) {
            Some((at, text)) => {
                let fingerprint = AccessFile::fingerprint(&text);
                files.push(AccessFile { is_allowed, path: at, fingerprint });
                networks(&text, (&place, &path), report)
            }
            None => Vec::new(),
        },
    };
    Placed { value: networks, place }
}

/// Parses an entry of a list of networks: a network, or `@` and the path of a file.
pub(super) fn entry(value: &DeValue<'_>) -> Result<AccessEntry, String> {
    match value.as_str().and_then(|text| text.strip_prefix(FILE)) {
        Some("") => Err("the path of the file is missing after @".to_owned()),
        Some(path) => Ok(AccessEntry::File(path.to_owned())),
        None => plain_network(value, ", or @ and the path of a file").map(AccessEntry::Network),
    }
}

/// Parses a network of clients. IPv4-mapped IPv6 networks are an error: convey shows such clients
/// with IPv4 addresses.
fn plain_network(value: &DeValue<'_>, others: &str) -> Result<Prefix, String> {
    let network = network_or(value, others)?;
    match network.first().to_canonical() == network.first() {
        true => Ok(network),
        false => {
            Err(format!("write an IPv4 network in IPv4 notation, found \"{network}\"; allowed: a network"))
        }
    }
}

/// Parses a file of networks: one network per line; `#` and `;` begin a comment. `place` is where
/// the configuration names the file, by `path`. Error messages quote nothing from the file, because
/// other users may not be allowed to read it.
fn networks(text: &str, (place, path): (&Place, &str), report: &Report<'_>) -> Vec<Prefix> {
    let (mut networks, mut wrong) = (Vec::new(), Vec::new());
    for (line, entry) in entries(text) {
        match plain_network(&DeValue::String(entry.into()), "") {
            Ok(network) => networks.push(network),
            Err(_) => wrong.push((line, Prefix::around(entry))),
        }
    }
    let others = wrong.len().saturating_sub(MAX_ERRORS_OF_FILE);
    for (nth, (line, meant)) in wrong.into_iter().take(MAX_ERRORS_OF_FILE).enumerate() {
        // The hint contains only an address, which is no secret.
        let mut message = NO_NETWORK.to_owned();
        message += &meant.map(|network| format!("; did you mean \"{network}\"?")).unwrap_or_default();
        if nth + 1 == MAX_ERRORS_OF_FILE && others > 0 {
            message += &format!(" ({others} more lines are wrong)");
        }
        report.error_in_list(place, path, line, message);
    }
    networks
}

/// Maximum number of errors reported for one file of networks.
const MAX_ERRORS_OF_FILE: usize = 3;

const NO_NETWORK: &str = "the line is not a network; allowed: a network, such as 10.0.0.0/8 (all bits after the prefix are zero), or an address";

/// Entries of a file of networks, with their line numbers from 1.
pub(crate) fn entries(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let entry = text.lines().map(|line| line.split(['#', ';']).next().unwrap_or_default().trim());
    (1..).zip(entry).filter(|(_, entry)| !entry.is_empty())
}
