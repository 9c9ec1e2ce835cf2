//! Searches the files of access lists for the network that decides about a client. Runs only on
//! request.

use std::time::Duration;

use convey_config::files::aside;
use convey_config::find_network;
use convey_explain::{NetworkQuestion, SearchedFile, SearchedNetwork, SearchedText};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Permit for a search. Only one search runs at a time, so that a disk that does not respond blocks
/// only one thread.
static TURN: Semaphore = Semaphore::const_new(1);

/// Upper bound for a search, including the wait for other searches.
const PATIENCE: Duration = Duration::from_secs(3);

/// Searches the files in order, and stops at the first that contains the network.
pub async fn search_network(question: NetworkQuestion) -> SearchedNetwork {
    let asked = question.clone();
    let searched = async {
        let turn = TURN.acquire().await.ok()?;
        // The permit is released when the thread ends, even if the requester has disconnected.
        aside(move || {
            let _turn = turn;
            search_all(question)
        })
        .await
    };
    match timeout(PATIENCE, searched).await {
        Ok(Some(searched)) => searched,
        Ok(None) => asked.unanswered("cannot start a thread for the search"),
        Err(_) => asked.unanswered("it takes too long"),
    }
}

fn search_all(NetworkQuestion { network, files }: NetworkQuestion) -> SearchedNetwork {
    let mut searched = SearchedNetwork { network, files: Vec::new() };
    for file in files {
        let outcome = find_network(&file.path, network)
            .map(|(line, fingerprint)| SearchedText { line, has_changed: fingerprint != file.fingerprint });
        let has_it = matches!(outcome, Ok(SearchedText { line: Some(_), .. }));
        searched.files.push(SearchedFile { path: file.path, outcome });
        if has_it {
            break;
        }
    }
    searched
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use convey_model::AccessFile;

    #[tokio::test]
    async fn network_search_returns_the_line_of_each_file_and_whether_it_changed() {
        let directory = tempfile::tempdir().unwrap();
        let texts =
            [("a", "# nothing\n\n10.9.0.0/16\n"), ("b", "10.8.0.0/16\n10.7.0.1 ; one\n"), ("c", "10.7.0.1")];
        let files = texts.map(|(name, text)| {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            AccessFile { is_allowed: false, path, fingerprint: AccessFile::fingerprint(text) }
        });
        let question =
            |network: &str| NetworkQuestion { network: network.parse().unwrap(), files: files.to_vec() };
        let outcomes = async |network| {
            let searched = search_network(question(network)).await;
            searched.files.into_iter().map(|file| file.outcome).collect::<Vec<_>>()
        };
        let text = |line, has_changed| Ok(SearchedText { line, has_changed });
        assert_eq!(outcomes("10.7.0.1").await, [text(None, false), text(Some(2), false)]);
        fs::write(&files[0].path, "10.7.0.1/32").unwrap();
        assert_eq!(outcomes("10.7.0.1").await, [text(Some(1), true)]);
        fs::remove_file(&files[0].path).unwrap();
        let gone = outcomes("10.6.0.0/16").await;
        assert!(
            gone.len() == 3 && gone[0].as_ref().is_err_and(|why| why.contains("No such file")),
            "{gone:?}"
        );
    }
}
