//! Watches the Services of Kubernetes clusters that backends have servers from. A thread of its own does it: API servers and
//! kubeconfigs may be slow, and nobody waits.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::thread;

use convey_kubernetes::watch;
use log::error;
use tokio::task::JoinHandle;

use super::runtime;
use crate::control::DiscoveryBoard;
use crate::model::DiscoverySource;

/// Where what is known of Services is written. The thread begins with the first Service that is wanted.
pub(super) fn begin() -> Arc<DiscoveryBoard> {
    let board = Arc::<DiscoveryBoard>::default();
    tokio::spawn(start(board.clone()));
    board
}

async fn start(board: Arc<DiscoveryBoard>) {
    let mut wanted = board.wanted();
    if wanted.wait_for(|sources| !sources.is_empty()).await.is_err() {
        return;
    }
    let begun = thread::Builder::new().name("kubernetes".to_owned()).spawn(move || match runtime() {
        Ok(runtime) => runtime.block_on(run(&board)),
        Err(error) => error!("no Service is watched: {error:#}"),
    });
    if let Err(error) = begun {
        error!("no Service is watched: {error}");
    }
}

/// Watches each Service that is wanted, as long as it is.
async fn run(board: &Arc<DiscoveryBoard>) {
    let mut wanted = board.wanted();
    let mut watched = BTreeMap::<DiscoverySource, JoinHandle<Infallible>>::new();
    loop {
        let sources: BTreeSet<DiscoverySource> = wanted.borrow_and_update().clone();
        watched.retain(|source, task| {
            let stays = sources.contains(source);
            if !stays {
                task.abort();
            }
            stays
        });
        for source in sources {
            let board = board.clone();
            watched.entry(source.clone()).or_insert_with(|| {
                tokio::spawn(async move {
                    let DiscoverySource::Kubernetes(service) = &source;
                    watch(service, |state| board.post(&source, state)).await
                })
            });
        }
        if wanted.changed().await.is_err() {
            return;
        }
    }
}
