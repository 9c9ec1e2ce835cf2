//! What the flow cache tells of segments that it has forwarded, on its way to the workers whose flows they are of.

use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::Told;
use crate::forward::{Dispatch, Segment};
use crate::model::{FlowKey, Timestamp};

/// How often it is asked. Nobody is woken for it.
const EVERY: Duration = Duration::from_millis(10);

/// A segment, and the key of its packet.
type Item = (FlowKey, Segment);

/// Where a worker finds what it is to hear.
pub(super) struct News {
    inbox: Receiver<Vec<Item>>,
    /// For the one that asks for all.
    post: Option<Post>,
}

struct Post {
    told: Told,
    dispatch: Dispatch,
    /// One for each worker.
    outboxes: Vec<Sender<Vec<Item>>>,
    asked: Timestamp,
}

impl News {
    /// One for each worker.
    pub(super) fn of(workers: usize, told: Option<Told>, dispatch: &Dispatch) -> Vec<News> {
        let (outboxes, inboxes): (Vec<_>, Vec<_>) = (0..workers).map(|_| unbounded()).unzip();
        let mut post =
            told.map(|told| Post { told, dispatch: dispatch.clone(), outboxes, asked: Timestamp::default() });
        inboxes.into_iter().map(|inbox| News { inbox, post: post.take() }).collect()
    }

    /// What came since the last time, each flow's in its order.
    pub(super) fn take(&mut self, now: Timestamp) -> impl Iterator<Item = Item> {
        if let Some(post) = self.post.as_mut().filter(|post| now.since(post.asked) >= EVERY) {
            post.asked = now;
            post.hand_out();
        }
        self.inbox.try_iter().flatten()
    }
}

impl Post {
    fn hand_out(&mut self) {
        let mut batches: Vec<Vec<Item>> = vec![Vec::new(); self.outboxes.len()];
        while let Some(item) = self.told.take() {
            batches[usize::from(self.dispatch.worker(&item.0))].push(item);
        }
        for (outbox, batch) in self.outboxes.iter().zip(batches).filter(|(_, batch)| !batch.is_empty()) {
            let _ = outbox.send(batch); // its worker has ended: we stop
        }
    }
}
