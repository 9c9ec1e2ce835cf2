//! Where the network is written that lets a client in or keeps it out: which files to search, and what follows. Pure.

use std::path::PathBuf;

use convey_model::{Access, AccessFile, Prefix};
use convey_snapshot::Snapshot;

use super::question::{AskedPlace, place};
use super::{ClientAddr, Unanswerable};

/// Files to be searched for the network that decides about a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkQuestion {
    /// The network.
    pub network: Prefix,
    /// The files that its list was read from.
    pub files: Vec<AccessFile>,
}

/// What the search has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchedNetwork {
    /// The network.
    pub network: Prefix,
    /// The files that were searched, in order; only the last one may have it.
    pub files: Vec<SearchedFile>,
}

/// A file that was searched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchedFile {
    /// Where it is.
    pub path: PathBuf,
    /// What is in it, or why it was not read, in words for an operator.
    pub outcome: Result<SearchedText, String>,
}

/// The text of a file that was searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SearchedText {
    /// The line that has the network, from 1.
    pub line: Option<usize>,
    /// Whether it is another text than the one that was loaded.
    pub has_changed: bool,
}

impl NetworkQuestion {
    /// The files to search for a client of a frontend. `None` if no network in a file may decide.
    ///
    /// # Errors
    /// The question makes no sense.
    pub fn new(
        snapshot: &Snapshot,
        client: ClientAddr,
        frontend: &str,
    ) -> Result<Option<NetworkQuestion>, Unanswerable> {
        let place = place(snapshot, client, frontend)?;
        let access = &place.frontend.config.access;
        let Some((network, is_let_in)) = access.network_of(client.ip) else { return Ok(None) };
        let files: Vec<AccessFile> =
            access.files().iter().filter(|file| file.is_allowed == is_let_in).cloned().collect();
        Ok((!files.is_empty()).then_some(NetworkQuestion { network, files }))
    }

    /// What is known if nobody has searched, for this reason.
    pub fn unanswered(self, why: &str) -> SearchedNetwork {
        let unread = |file: AccessFile| SearchedFile { path: file.path, outcome: Err(why.to_owned()) };
        SearchedNetwork { network: self.network, files: self.files.into_iter().map(unread).collect() }
    }
}

/// Why a client may come in or not.
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

/// Where a network is written; nothing if that is the configuration itself.
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
            "{} had it when it was loaded, or the configuration has it; the file has changed since",
            path.display()
        )),
        Ok(_) => None,
        Err(why) => Some(format!("{} may have it, and was not read: {why}", path.display())),
    });
    may_have.map(|file| format!("; {file}")).collect()
}
