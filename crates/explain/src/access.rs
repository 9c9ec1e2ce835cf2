//! Finds the access list entry that decides about a client. Pure.

use std::path::PathBuf;

use convey_model::{Access, AccessFile, Prefix};
use convey_snapshot::Snapshot;

use super::question::{AskedPlace, place};
use super::{AskedRequest, ClientAddr, Unanswerable};

/// Query for the file that contains the network that decides about a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkQuestion {
    /// Network to search for.
    pub network: Prefix,
    /// Files from which the access list was read.
    pub files: Vec<AccessFile>,
}

/// Result of the search for a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchedNetwork {
    /// Network that was searched for.
    pub network: Prefix,
    /// Files that were searched, in order. Only the last one may contain the network.
    pub files: Vec<SearchedFile>,
}

/// File that was searched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchedFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Search result, or the operator-facing reason why the file was not read.
    pub outcome: Result<SearchedText, String>,
}

/// Result of the search in the text of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SearchedText {
    /// Line number of the network, counted from 1. `None` if the file does not contain the network.
    pub line: Option<usize>,
    /// Whether the file has changed since convey loaded its networks.
    pub has_changed: bool,
}

impl NetworkQuestion {
    /// Builds the question for a client of a frontend, or for the client that a trusted proxy names
    /// in a request. `None` if no network from a file decides
    /// about the client.
    ///
    /// # Errors
    /// The frontend does not exist, or the question is incomplete or contradictory.
    pub fn new(
        snapshot: &Snapshot,
        client: ClientAddr,
        frontend: &str,
        request: Option<&AskedRequest>,
    ) -> Result<Option<NetworkQuestion>, Unanswerable> {
        let place = place(snapshot, client, frontend)?.with_named_client(request);
        let access = &place.frontend.config.access;
        let Some((network, is_let_in)) = access.network_of(client.ip) else { return Ok(None) };
        let files: Vec<AccessFile> =
            access.files().iter().filter(|file| file.is_allowed == is_let_in).cloned().collect();
        Ok((!files.is_empty()).then_some(NetworkQuestion { network, files }))
    }

    /// Result without a search. `why` is the reason why no file was searched.
    pub fn unanswered(self, why: &str) -> SearchedNetwork {
        let unread = |file: AccessFile| SearchedFile { path: file.path, outcome: Err(why.to_owned()) };
        SearchedNetwork { network: self.network, files: self.files.into_iter().map(unread).collect() }
    }
}

/// Explains why the access lists admit or refuse a client.
pub(super) fn why(access: &Access, place: &AskedPlace, searched: Option<&SearchedNetwork>) -> String {
    let (ip, name) = (place.client.ip, &place.frontend.config.name);
    let list = |is_let_in| format!("frontends.{name}.access.{}", if is_let_in { "allow" } else { "deny" });
    match access.network_of(ip) {
        Some((network, is_let_in)) => {
            let searched = searched.filter(|searched| searched.network == network);
            let line = searched.map(written_at).unwrap_or_default();
            format!("{ip} is in {network} of {}{line}", list(is_let_in))
        }
        None => format!("{ip} is in no network of {}", list(!access.admits(ip))),
    }
}

/// File and line of a network as text. If the line is unknown, the files that may contain the
/// network. Empty if the network is in the configuration itself.
fn written_at(SearchedNetwork { files, .. }: &SearchedNetwork) -> String {
    let found = files.iter().find_map(|file| match &file.outcome {
        Ok(text) => text.line.map(|line| (&file.path, line, text.has_changed)),
        Err(_) => None,
    });
    if let Some((path, line, has_changed)) = found {
        let since = if has_changed { ", which has changed since it was loaded" } else { "" };
        return format!(": line {line} of {}{since}", path.display());
    }
    let may_have = files.iter().filter_map(|SearchedFile { path, outcome }| match outcome {
        Ok(SearchedText { has_changed: true, .. }) => Some(format!(
            "{} has changed since it was loaded; the network was in its old text, or is in the configuration",
            path.display()
        )),
        Ok(_) => None,
        Err(why) => Some(format!("{} may contain the network, but could not be read: {why}", path.display())),
    });
    may_have.map(|file| format!("; {file}")).collect()
}
