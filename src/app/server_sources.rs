//! Sources of a backend's servers besides the file and DNS, for example Kubernetes. They run in a
//! separate thread because their API servers and files may be slow.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use convey_control::SourceRegistry;
use convey_kubernetes::Kubernetes;
use convey_model::{DiscoverySource, ServerSource};
use log::error;
use tokio::runtime::Builder;
use tokio::time::sleep;

/// Pause before another attempt to start the thread.
const PAUSE: Duration = Duration::from_secs(5);

/// Watches one source, and posts its state to the registry. A new kind of source needs one line
/// here.
async fn watch(source: DiscoverySource, board: Arc<SourceRegistry>) -> Infallible {
    let tell = |state| board.post(&source, state);
    match source.clone() {
        DiscoverySource::Kubernetes(service) => Kubernetes.watch(service, tell).await,
    }
}

/// Creates the registry that sources write to. The thread starts with the first source.
pub(super) fn begin() -> Arc<SourceRegistry> {
    let board = Arc::<SourceRegistry>::default();
    tokio::spawn(start(board.clone()));
    board
}

async fn start(board: Arc<SourceRegistry>) {
    board.any_is_wanted().await;
    while let Err(error) = start_thread(board.clone()) {
        error!("cannot start the thread that looks up servers, trying again: {error}");
        sleep(PAUSE).await;
    }
}

fn start_thread(board: Arc<SourceRegistry>) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let follow = move || runtime.block_on(board.follow(watch));
    thread::Builder::new().name("sources".to_owned()).spawn(follow).map(drop)
}
