//! Requests of mode http that end when their server goes down. Their clients' connections go on. A thread has its own list.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::task::{Context, Poll, Waker};

use slab::Slab;

thread_local! {
    static RUNNING: RefCell<Slab<RunningRequest>> = const { RefCell::new(Slab::new()) };
}

struct RunningRequest {
    /// The number of its server.
    server: u32,
    is_over: bool,
    waker: Option<Waker>,
}

/// A request that is with a server.
#[derive(Debug)]
pub struct ServerWatch(usize);

impl ServerWatch {
    /// One that is with the server of this number. `is_over`: that is down already.
    pub(super) fn new(server: u32, is_over: bool) -> ServerWatch {
        let request = RunningRequest { server, is_over, waker: None };
        ServerWatch(RUNNING.with_borrow_mut(|running| running.insert(request)))
    }

    /// Waits until the server is down.
    pub fn poll_down(&self, cx: &mut Context<'_>) -> Poll<()> {
        RUNNING.with_borrow_mut(|running| {
            let request = &mut running[self.0];
            if request.is_over {
                return Poll::Ready(());
            }
            if !request.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                request.waker = Some(cx.waker().clone());
            }
            Poll::Pending
        })
    }
}

impl Drop for ServerWatch {
    fn drop(&mut self) {
        let request = RUNNING.with_borrow_mut(|running| running.try_remove(self.0));
        drop(request);
    }
}

/// Ends this thread's requests that are with these servers.
pub(super) fn end(servers: &BTreeSet<u32>) {
    let wakers: Vec<Waker> = RUNNING.with_borrow_mut(|running| {
        let concerned = running.iter_mut().filter(|(_, request)| servers.contains(&request.server));
        concerned
            .filter_map(|(_, request)| {
                request.is_over = true;
                request.waker.take()
            })
            .collect()
    });
    wakers.into_iter().for_each(Waker::wake);
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn requests_of_a_server_that_is_down_end_and_no_others() {
        let [here, elsewhere, late] =
            [(7, false), (8, false), (7, true)].map(|(server, is_over)| ServerWatch::new(server, is_over));
        let is_over = |watch: &ServerWatch| poll_fn(|cx| watch.poll_down(cx)).now_or_never().is_some();
        assert_eq!([&here, &elsewhere, &late].map(is_over), [false, false, true]);
        end(&BTreeSet::from([7, 9]));
        assert_eq!([&here, &elsewhere, &late].map(is_over), [true, false, true]);
        drop((here, elsewhere, late));
        assert!(RUNNING.with_borrow(Slab::is_empty));
    }
}
