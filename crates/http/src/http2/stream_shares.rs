//! Shares of clients in the streams that a worker may have to one server over HTTP/2.

use std::sync::Arc;

use convey_model::{ALWAYS_FITS, ClientNetwork, Prefix, fits, networks_of};
use foldhash::HashMap;
use tokio::sync::Notify;

/// Streams to one server, by client.
#[derive(Default)]
pub(super) struct StreamShares {
    /// Streams of all clients, also of those without a share.
    all: u32,
    /// Streams of a client, and of the networks around it.
    by_client: HashMap<Prefix, u32>,
    /// Notifications for requests that wait for their client's share, by the widest network around
    /// the client.
    waiting: HashMap<Prefix, Arc<Notify>>,
}

impl StreamShares {
    /// Whether a client may have another stream. A client may always have 16 streams. Beyond them,
    /// it may have at most eight times as many as are still free for all clients. `most` returns
    /// the maximum number of streams to the server.
    pub(super) fn has_room(&self, client: Prefix, most: impl FnOnce() -> u64) -> bool {
        let has = self.share_of(client);
        has < ALWAYS_FITS || fits(has, most().saturating_sub(self.all.into()))
    }

    /// Counts a stream of a client; `None`: a stream without a share.
    pub(super) fn add(&mut self, client: Option<Prefix>) {
        self.all += 1;
        for ClientNetwork { network, .. } in client.into_iter().flat_map(networks_of) {
            *self.by_client.entry(network).or_default() += 1;
        }
    }

    /// Notes that a stream of this client is over, and wakes the next request that waits for the
    /// client's share.
    pub(super) fn release(&mut self, client: Option<Prefix>) {
        self.all -= 1;
        let Some(client) = client else { return };
        if let Some(waiting) = self.waiting.get(&widest(client)) {
            waiting.notify_one();
        }
        for ClientNetwork { network, .. } in networks_of(client) {
            match self.by_client.get_mut(&network) {
                Some(taken) if *taken > 1 => *taken -= 1,
                _ => _ = self.by_client.remove(&network),
            }
        }
        // The network has no streams any more, so all waiting requests wake up.
        if !self.by_client.contains_key(&widest(client)) {
            self.waiting.remove(&widest(client)).iter().for_each(|waiting| waiting.notify_waiters());
        }
    }

    /// Returns the notification for requests of this client that wait for its share.
    pub(super) fn waiting(&mut self, client: Prefix) -> Arc<Notify> {
        self.waiting.entry(widest(client)).or_default().clone()
    }

    /// Whether there are no streams.
    pub(super) fn is_empty(&self) -> bool {
        self.all == 0
    }

    /// Number of streams that count against a client's share: its own streams, or the streams of a
    /// network around it divided by the network's shares, whichever is more.
    fn share_of(&self, client: Prefix) -> u32 {
        let taken = |network| self.by_client.get(&network).copied().unwrap_or_default();
        networks_of(client).map(|at| taken(at.network) / at.shares).max().unwrap_or_default()
    }
}

fn widest(client: Prefix) -> Prefix {
    networks_of(client).last().map_or(client, |at| at.network)
}

#[cfg(test)]
mod tests {
    use convey_model::client_of;

    use super::*;

    const MOST: u64 = 900;

    fn client(ip: &str) -> Prefix {
        client_of(ip.parse().unwrap())
    }

    fn take(shares: &mut StreamShares, client: Prefix, most: u64) -> bool {
        let may = shares.has_room(client, || most);
        if may {
            shares.add(Some(client));
        }
        may
    }

    /// Number of streams that a client gets if it takes all it can.
    fn take_all(shares: &mut StreamShares, ip: &str) -> usize {
        std::iter::from_fn(|| take(shares, client(ip), MOST).then_some(())).count()
    }

    #[test]
    fn client_leaves_streams_of_a_server_to_others() {
        let mut shares = StreamShares::default();
        assert_eq!(take_all(&mut shares, "192.0.2.1"), 801);
        assert_eq!(take_all(&mut shares, "192.0.2.2"), 89);
        assert!(take(&mut shares, client("192.0.2.3"), MOST));
    }

    #[test]
    fn networks_of_one_site_share_its_streams() {
        let mut shares = StreamShares::default();
        let taken: usize = (0..200).map(|n| take_all(&mut shares, &format!("2001:db8:0:{n:x}00::1"))).sum();
        assert!(taken < 900, "{taken}");
        assert!(take(&mut shares, client("2001:db8:1::1"), MOST));
    }

    #[test]
    fn small_servers_are_for_all_clients_together() {
        let mut shares = StreamShares::default();
        assert_eq!((0..40).filter(|_| take(&mut shares, client("192.0.2.1"), 2)).count(), 16);
    }

    #[tokio::test]
    async fn request_beyond_its_share_looks_again_after_a_stream_of_its_client() {
        let mut shares = StreamShares::default();
        let (greedy, other) = (client("192.0.2.1"), client("192.0.2.2"));
        let taken = take_all(&mut shares, "192.0.2.1");
        shares.add(Some(other));
        let waiting = shares.waiting(greedy);
        shares.release(Some(other));
        assert!(futures_util::FutureExt::now_or_never(waiting.notified()).is_none());
        shares.release(Some(greedy));
        waiting.notified().await;
        (1..taken).for_each(|_| shares.release(Some(greedy)));
        assert!(shares.is_empty() && shares.by_client.is_empty() && shares.waiting.is_empty());
    }
}
