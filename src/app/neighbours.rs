//! Has the kernel find the neighbours that packets are to be sent to.

use std::sync::Arc;
use std::time::Duration;

use log::warn;
use tokio::sync::mpsc::Receiver;

use super::clock;
use crate::model::{Timestamp, WantedNeighbour};
use crate::net::{Asking, Netlink};

/// Between two lines of the log.
const QUIET: Duration = Duration::from_secs(1);

/// Asks for whom the workers want, until they are gone. Each request ends within seconds, with or without an answer.
pub(super) async fn resolve(netlink: Arc<Netlink>, mut wanted: Receiver<WantedNeighbour>) {
    let (mut asking, mut logged) = (Asking::default(), None::<Timestamp>);
    loop {
        let more = async {
            match asking.pause() {
                Some(pause) => tokio::time::timeout(pause, wanted.recv()).await.ok(),
                None => Some(wanted.recv().await),
            }
        };
        match more.await {
            Some(Some(neighbour)) => asking.want(neighbour, clock::now()),
            Some(None) => return,
            None => {}
        }
        loop {
            while let Ok(neighbour) = wanted.try_recv() {
                asking.want(neighbour, clock::now());
            }
            let Some(next) = asking.next(clock::now()) else { break };
            if let Err(error) = netlink.resolve(next).await
                && logged.is_none_or(|logged| clock::now().since(logged) >= QUIET)
            {
                logged = Some(clock::now());
                warn!("cannot resolve {}: {error}", next.ip);
            }
        }
    }
}
