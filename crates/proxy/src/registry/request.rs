//! Requests of mode http in the registry. When a server goes down, its requests end, but the
//! connections of the clients continue.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::Registry;

/// Entry of a request that a server is processing. The drop removes the entry.
#[derive(Debug)]
pub struct RegisteredRequest {
    registry: Arc<Registry>,
    place: usize,
}

impl RegisteredRequest {
    /// Registers a request at the server with this id. `is_over` is set if the server is down
    /// already.
    pub(crate) fn new(registry: &Arc<Registry>, server: u32, is_over: bool) -> RegisteredRequest {
        let place = registry.requests().insert(RunningRequest { server, is_over, waker: None });
        RegisteredRequest { registry: registry.clone(), place }
    }

    /// Returns `Ready` when the server is down. Otherwise wakes the task when the server goes down.
    pub fn poll_down(&self, cx: &mut Context<'_>) -> Poll<()> {
        let request = &mut self.registry.requests()[self.place];
        if request.is_over {
            return Poll::Ready(());
        }
        if !request.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            request.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for RegisteredRequest {
    fn drop(&mut self) {
        let request = self.registry.requests().try_remove(self.place);
        drop(request);
    }
}

/// Running request of a worker, as it is stored in the registry.
pub(super) struct RunningRequest {
    /// Id of the server.
    server: u32,
    is_over: bool,
    waker: Option<Waker>,
}

impl RunningRequest {
    /// Ends the request if one of these servers is processing it. Returns the waker of its task.
    pub(super) fn end_by(&mut self, servers: &BTreeSet<u32>) -> Option<Waker> {
        if !servers.contains(&self.server) {
            return None;
        }
        self.is_over = true;
        self.waker.take()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn requests_end_with_their_server_and_no_others() {
        let registry = Arc::<Registry>::default();
        let [here, elsewhere, late] = [(7, false), (8, false), (7, true)]
            .map(|(server, is_over)| RegisteredRequest::new(&registry, server, is_over));
        let is_over =
            |request: &RegisteredRequest| poll_fn(|cx| request.poll_down(cx)).now_or_never().is_some();
        assert_eq!([&here, &elsewhere, &late].map(is_over), [false, false, true]);
        registry.end_servers(&BTreeSet::from([7, 9]));
        assert_eq!([&here, &elsewhere, &late].map(is_over), [true, false, true]);
        drop((here, elsewhere, late));
        assert!(registry.requests().is_empty());
    }
}
