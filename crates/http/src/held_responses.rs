//! Memory budget of a thread for responses that wait for their clients. One client gets at most
//! half of it.

use std::cell::RefCell;
use std::net::IpAddr;

use convey_model::{ClientNetwork, Prefix, client_of, networks_of};
use foldhash::HashMap;

/// Bytes of a response that convey may buffer for its client without a place in the budget.
pub(crate) const ALWAYS_HELD: usize = 8 * 1024;

/// Bytes of a response that convey may buffer for its client with a place in the budget.
pub(crate) const MAX_HELD: usize = 64 * 1024;

/// Number of places in a thread's budget. Together, they are 32 MiB.
const PLACES: u32 = 512;

thread_local! {
    static HELD: RefCell<HeldResponses> = RefCell::default();
}

/// Places of a thread that are in use.
#[derive(Debug, Default)]
struct HeldResponses {
    all: u32,
    /// Places by client, and by the networks around it.
    by_client: HashMap<Prefix, u32>,
}

/// A response's place in the budget. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct HeldResponse {
    client: Prefix,
}

impl HeldResponse {
    /// Takes a place for a response to this client; `None`: the client already has as many places
    /// as are left for others.
    pub(crate) fn take(client: IpAddr) -> Option<HeldResponse> {
        let client = client_of(client);
        HELD.with_borrow_mut(|held| held.take(client)).then(|| HeldResponse { client })
    }
}

impl Drop for HeldResponse {
    fn drop(&mut self) {
        let _ = HELD.try_with(|held| held.borrow_mut().release(self.client));
    }
}

impl HeldResponses {
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

    fn take_all(client: &str) -> Vec<HeldResponse> {
        std::iter::from_fn(|| HeldResponse::take(client.parse().unwrap())).collect()
    }

    #[test]
    fn client_leaves_half_of_the_places_to_others() {
        let first = take_all("192.0.2.1");
        assert_eq!(first.len(), PLACES as usize / 2);
        let second = take_all("192.0.2.2");
        assert_eq!(second.len(), PLACES as usize / 4);
        drop(first);
        assert!(HeldResponse::take("192.0.2.3".parse().unwrap()).is_some());
        drop(second);
        assert!(HELD.with_borrow(|held| held.all == 0 && held.by_client.is_empty()));
    }

    #[test]
    fn places_never_exceed_the_budget() {
        let held: Vec<_> = (0..=255).map(|n| take_all(&format!("192.0.2.{n}"))).collect();
        assert_eq!(held.iter().map(Vec::len).sum::<usize>(), PLACES as usize);
    }
}
