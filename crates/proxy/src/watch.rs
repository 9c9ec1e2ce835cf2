//! Which server each connection of this thread goes to, to end those of a server that is down. A thread has its own list:
//! it costs a connection no lock.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::task::{Poll, Waker};

use slab::Slab;

thread_local! {
    static OPEN: RefCell<Slab<Entry>> = const { RefCell::new(Slab::new()) };
}

struct Entry {
    server: u32,
    is_over: bool,
    waker: Option<Waker>,
}

/// A connection of this thread.
pub(super) struct Watched(usize);

impl Watched {
    /// One to the server with this number.
    pub(super) fn new(server: u32) -> Watched {
        Watched(OPEN.with_borrow_mut(|open| open.insert(Entry { server, is_over: false, waker: None })))
    }

    /// Waits until the server's connections are to end.
    pub(super) async fn over(&self) {
        poll_fn(|cx| {
            OPEN.with_borrow_mut(|open| {
                let entry = &mut open[self.0];
                if entry.is_over {
                    return Poll::Ready(());
                }
                if !entry.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    entry.waker = Some(cx.waker().clone());
                }
                Poll::Pending
            })
        })
        .await;
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let entry = OPEN.with_borrow_mut(|open| open.try_remove(self.0));
        drop(entry);
    }
}

/// Ends this thread's connections to these servers.
pub(super) fn end(servers: &BTreeSet<u32>) {
    let wakers: Vec<Waker> = OPEN.with_borrow_mut(|open| {
        let concerned = open.iter_mut().filter(|(_, entry)| servers.contains(&entry.server));
        concerned
            .filter_map(|(_, entry)| {
                entry.is_over = true;
                entry.waker.take()
            })
            .collect()
    });
    wakers.into_iter().for_each(Waker::wake);
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn connections_of_a_server_that_is_given_up_end_and_no_others() {
        let [first, second, other] = [7, 7, 8].map(Watched::new);
        assert!(first.over().now_or_never().is_none());
        end(&BTreeSet::from([7, 9]));
        assert!(first.over().now_or_never().is_some() && second.over().now_or_never().is_some());
        assert!(other.over().now_or_never().is_none());
        drop((first, second, other));
        assert!(OPEN.with_borrow(Slab::is_empty));
    }
}
