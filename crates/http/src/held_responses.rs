//! Memory budget of a worker for responses that wait for their clients. One client gets at most
//! half of it.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use convey_model::{ClientNetwork, Prefix, client_of, networks_of};
use foldhash::HashMap;

/// Bytes of a response that convey may buffer for its client without a place in the budget.
pub(crate) const ALWAYS_HELD: usize = 8 * 1024;

/// Bytes of a response that convey may buffer for its client with a place in the budget.
pub(crate) const MAX_HELD: usize = 64 * 1024;

/// Number of places in a worker's budget. Together, they are 32 MiB.
const PLACES: u32 = 512;

/// Memory budget of a worker for responses that wait for their clients.
#[derive(Debug, Default)]
pub(crate) struct HeldResponses {
    taken: Mutex<TakenPlaces>,
}

/// Places in a worker's budget that are in use.
#[derive(Debug, Default)]
struct TakenPlaces {
    all: u32,
    /// Places by client, and by the networks around it.
    by_client: HashMap<Prefix, u32>,
}

/// A response's place in the budget. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct HeldResponse {
    client: Prefix,
    budget: Arc<HeldResponses>,
}

/// Client that uses a stream. A part of the response may wait in convey until this client accepts
/// it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitingClient<'a> {
    pub(crate) ip: IpAddr,
    pub(crate) budget: &'a Arc<HeldResponses>,
}

impl WaitingClient<'_> {
    /// Takes a place for a response to this client; `None`: the client already has as many places
    /// as are left for others.
    pub(crate) fn take_place(self) -> Option<HeldResponse> {
        let client = client_of(self.ip);
        let is_taken = self.budget.lock().take(client);
        is_taken.then(|| HeldResponse { client, budget: self.budget.clone() })
    }
}

impl HeldResponses {
    fn lock(&self) -> MutexGuard<'_, TakenPlaces> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HeldResponse {
    fn drop(&mut self) {
        self.budget.lock().release(self.client);
    }
}

impl TakenPlaces {
    fn take(&mut self, client: Prefix) -> bool {
        let left = PLACES - self.all;
        let taken = |network| self.by_client.get(&network).copied().unwrap_or_default();
        let fits =
            networks_of(client).all(|ClientNetwork { network, shares }| taken(network) / shares < left);
        if fits {
            self.all += 1;
            networks_of(client).for_each(|at| *self.by_client.entry(at.network).or_default() += 1);
        }
        fits
    }

    fn release(&mut self, client: Prefix) {
        self.all -= 1;
        for ClientNetwork { network, .. } in networks_of(client) {
            match self.by_client.get_mut(&network) {
                Some(taken) if *taken > 1 => *taken -= 1,
                _ => _ = self.by_client.remove(&network),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(budget: &Arc<HeldResponses>, client: &str) -> Option<HeldResponse> {
        WaitingClient { ip: client.parse().unwrap(), budget }.take_place()
    }

    fn take_all(budget: &Arc<HeldResponses>, client: &str) -> Vec<HeldResponse> {
        std::iter::from_fn(|| take(budget, client)).collect()
    }

    #[test]
    fn client_leaves_half_of_the_places_to_others() {
        let budget = Arc::default();
        let first = take_all(&budget, "192.0.2.1");
        assert_eq!(first.len(), PLACES as usize / 2);
        let second = take_all(&budget, "192.0.2.2");
        assert_eq!(second.len(), PLACES as usize / 4);
        drop(first);
        assert!(take(&budget, "192.0.2.3").is_some());
        drop(second);
        let taken = budget.lock();
        assert!(taken.all == 0 && taken.by_client.is_empty());
    }

    #[test]
    fn place_that_another_thread_drops_is_free_again() {
        let budget = Arc::default();
        let places = take_all(&budget, "192.0.2.1");
        std::thread::scope(|scope| _ = scope.spawn(|| drop(places)));
        assert_eq!(budget.lock().all, 0);
    }

    #[test]
    fn places_never_exceed_the_budget() {
        let budget = Arc::default();
        let held: Vec<_> = (0..=255).map(|n| take_all(&budget, &format!("192.0.2.{n}"))).collect();
        assert_eq!(held.iter().map(Vec::len).sum::<usize>(), PLACES as usize);
    }
}
