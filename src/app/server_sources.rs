//! Sources of a backend's servers, besides the file and DNS: one list of them. They run in a thread of their own, because their API
//! servers and files may be slow.

use std::convert::Infallible;
use std::sync::Arc;
use std::thread;

use convey_kubernetes::Kubernetes;
use log::error;

use super::runtime;
use crate::control::DiscoveryBoard;
use crate::model::{DiscoverySource, ServerSource};

/// The list: every source of servers has one line.
async fn watch(source: DiscoverySource, board: Arc<DiscoveryBoard>) -> Infallible {
    let tell = |state| board.post(&source, state);
    match source.clone() {
        DiscoverySource::Kubernetes(service) => Kubernetes.watch(service, tell).await,
    }
}

/// The board that sources write on. The thread begins with the first source that is wanted.
pub(super) fn begin() -> Arc<DiscoveryBoard> {
    let board = Arc::<DiscoveryBoard>::default();
    tokio::spawn(start(board.clone()));
    board
}

async fn start(board: Arc<DiscoveryBoard>) {
    board.any_is_wanted().await;
    let begun = thread::Builder::new().name("sources".to_owned()).spawn(move || match runtime() {
        Ok(runtime) => runtime.block_on(board.follow(watch)),
        Err(error) => error!("no source of servers is watched: {error:#}"),
    });
    if let Err(error) = begun {
        error!("no source of servers is watched: {error}");
    }
}
