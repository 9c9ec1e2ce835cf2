//! What the flow cache tells of segments that it has forwarded, on its way to the workers whose flows they are of.

use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::Told;
use crate::forward::{Dispatch, Segment};
use crate::model::FlowKey;

/// A segment, and the key of its packet.
type Item = (FlowKey, Segment);

/// Where a worker finds what it is to hear. Nobody is woken for it.
pub(super) struct News {
    inbox: Receiver<Vec<Item>>,
    post: Option<Arc<Mutex<Post>>>,
}

struct Post {
    told: Told,
    dispatch: Dispatch,
    /// One for each worker.
    outboxes: Vec<Sender<Vec<Item>>>,
}

impl News {
    /// One for each worker.
    pub(super) fn of(workers: usize, told: Option<Told>, dispatch: &Dispatch) -> Vec<News> {
        let (outboxes, inboxes): (Vec<_>, Vec<_>) = (0..workers).map(|_| unbounded()).unzip();
        let post = told.map(|told| Arc::new(Mutex::new(Post { told, dispatch: dispatch.clone(), outboxes })));
        inboxes.into_iter().map(|inbox| News { inbox, post: post.clone() }).collect()
    }

    /// What came since the last time, each flow's in its order. Whoever asks asks for all: a connection that has ended
    /// makes room for the SYN at hand.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Item> {
        if let Some(post) = &self.post {
            post.lock().unwrap_or_else(PoisonError::into_inner).hand_out();
        }
        self.inbox.try_iter().flatten()
    }
}

impl Post {
    fn hand_out(&mut self) {
        let mut batches: Vec<Vec<Item>> = Vec::new();
        while let Some(item) = self.told.take() {
            batches.resize_with(self.outboxes.len(), Vec::new);
            batches[usize::from(self.dispatch.worker(&item.0))].push(item);
        }
        for (outbox, batch) in self.outboxes.iter().zip(batches).filter(|(_, batch)| !batch.is_empty()) {
            let _ = outbox.send(batch); // its worker has ended: we stop
        }
    }
}
