//! Whose connections this thread has, and to which servers, to end those of a server that is down and of clients that a reload
//! denies. A thread has its own list: it costs a connection no lock.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::net::IpAddr;
use std::task::{Poll, Waker};

use slab::Slab;

use super::relay::RelayEnd;
use convey_model::Access;

thread_local! {
    static OPEN: RefCell<Slab<OpenConnection>> = const { RefCell::new(Slab::new()) };
}

struct OpenConnection {
    frontend: u32,
    /// `None` until a PROXY header has said who it is.
    client: Option<IpAddr>,
    /// `None` while it has none.
    server: Option<u32>,
    end: Option<RelayEnd>,
    waker: Option<Waker>,
}

/// A connection of this thread.
pub(super) struct Watched(usize);

impl Watched {
    /// One of a client, if that is known, to the frontend with this number.
    pub(super) fn new(frontend: u32, client: Option<IpAddr>) -> Watched {
        let entry = OpenConnection { frontend, client, server: None, end: None, waker: None };
        Watched(OPEN.with_borrow_mut(|open| open.insert(entry)))
    }

    /// It is to the frontend with this number from now on.
    pub(super) fn set_frontend(&self, frontend: u32) {
        OPEN.with_borrow_mut(|open| open[self.0].frontend = frontend);
    }

    /// This is its client from now on.
    pub(super) fn set_client(&self, client: IpAddr) {
        OPEN.with_borrow_mut(|open| open[self.0].client = Some(client));
    }

    /// It goes to the server with this number from now on.
    pub(super) fn set_server(&self, server: u32) {
        OPEN.with_borrow_mut(|open| open[self.0].server = Some(server));
    }

    /// The number of the server that it goes to.
    pub(super) fn server(&self) -> Option<u32> {
        OPEN.try_with(|open| open.borrow().get(self.0).and_then(|entry| entry.server)).ok().flatten()
    }

    /// How it is to end; `None`: it may go on.
    pub(super) fn end(&self) -> Option<RelayEnd> {
        OPEN.with_borrow(|open| open[self.0].end)
    }

    /// Waits until it is to end. For as long as it is watched.
    pub(super) fn over(&self) -> impl Future<Output = RelayEnd> + use<> {
        let number = self.0;
        poll_fn(move |cx| {
            OPEN.with_borrow_mut(|open| {
                let entry = &mut open[number];
                if let Some(end) = entry.end {
                    return Poll::Ready(end);
                }
                if !entry.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    entry.waker = Some(cx.waker().clone());
                }
                Poll::Pending
            })
        })
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
    end_where(RelayEnd::ServerGone, |entry| entry.server.is_some_and(|server| servers.contains(&server)));
}

/// Ends this thread's connections of clients that may not come in, by the numbers of the frontends.
pub(super) fn end_denied(access: &HashMap<u32, Access>) {
    let is_denied = |entry: &OpenConnection| {
        let (access, client) = (access.get(&entry.frontend), entry.client);
        access.zip(client).is_some_and(|(access, client)| !access.admits(client))
    };
    end_where(RelayEnd::Denied, is_denied);
}

fn end_where(end: RelayEnd, is_concerned: impl Fn(&OpenConnection) -> bool) {
    let wakers: Vec<Waker> = OPEN.with_borrow_mut(|open| {
        let concerned = open.iter_mut().filter(|(_, entry)| is_concerned(entry));
        concerned
            .filter_map(|(_, entry)| {
                entry.end = Some(end);
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
        let [first, second, other, waits] = [(); 4].map(|()| Watched::new(1, None));
        [(&first, 7), (&second, 7), (&other, 8)].into_iter().for_each(|(watched, id)| watched.set_server(id));
        assert!(first.over().now_or_never().is_none());
        end(&BTreeSet::from([7, 9]));
        assert!(first.over().now_or_never().is_some() && second.over().now_or_never().is_some());
        assert!(other.end().is_none() && waits.end().is_none());
        drop((first, second, other, waits));
        assert!(OPEN.with_borrow(Slab::is_empty));
    }

    #[test]
    fn connections_of_a_client_that_is_denied_end_and_no_others() {
        let watched = |frontend, last| Watched::new(frontend, Some([10, 0, 0, last].into()));
        let [denied, let_in, elsewhere] = [watched(1, 6), watched(1, 7), watched(2, 6)];
        let unnamed = Watched::new(1, None);
        let access = Access::new([], ["10.0.0.6".parse().unwrap()]);
        end_denied(&HashMap::from([(1, access)]));
        assert_eq!(denied.over().now_or_never(), Some(RelayEnd::Denied));
        assert!(let_in.end().is_none() && elsewhere.end().is_none() && unnamed.end().is_none());
        unnamed.set_client([10, 0, 0, 6].into());
        end_denied(&HashMap::from([(1, Access::new([], ["10.0.0.6".parse().unwrap()]))]));
        assert!(unnamed.end().is_some());
    }
}
