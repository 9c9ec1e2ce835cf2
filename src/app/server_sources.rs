//! Sources of a backend's servers, besides the file and DNS: one list of them. They run in a thread of their own, because their API
//! servers and files may be slow.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use convey_kubernetes::Kubernetes;
use log::error;
use tokio::runtime::Builder;
use tokio::time::sleep;

use crate::control::DiscoveryBoard;
use crate::model::{DiscoverySource, ServerSource};

/// Pause before another try to start the thread.
const PAUSE: Duration = Duration::from_secs(5);

/// Threads for calls of libraries that block. They stay, for later none might be made.
const BLOCKING_THREADS: usize = 1;
const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);

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
    while let Err(error) = start_thread(board.clone()) {
        error!("no source of servers is watched, trying again: {error}");
        sleep(PAUSE).await;
    }
}

fn start_thread(board: Arc<DiscoveryBoard>) -> io::Result<()> {
    // What is tried here are the threads that the runtime will need.
    thread::Builder::new().spawn(|| ())?;
    let runtime = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(FOR_EVER)
        .build()?;
    let follow = move || {
        runtime.block_on(async {
            // The library that asks Kubernetes runs commands for tokens so. Without a thread there would be a panic later.
            #[expect(clippy::disallowed_methods, reason = "a thread could be made just now")]
            let _ = tokio::task::spawn_blocking(|| ()).await;
            board.follow(watch).await
        })
    };
    thread::Builder::new().name("sources".to_owned()).spawn(follow).map(drop)
}
