//! FINs that the flow cache has forwarded, on their way to the workers whose flows they are about.

use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::Told;
use crate::forward::{Dispatch, Segment};
use crate::model::{FlowKey, Timestamp};

/// How often they are asked for. Nobody is woken for one.
const EVERY: Duration = Duration::from_millis(10);

/// A FIN, and the key of its packet.
pub(super) type Fin = (FlowKey, Segment);

/// What a worker has of it.
pub(super) struct Fins {
    inbox: Receiver<Vec<Fin>>,
    /// For the one that asks for all.
    post: Option<Post>,
}

struct Post {
    told: Told,
    dispatch: Dispatch,
    /// One for each worker.
    inboxes: Vec<Sender<Vec<Fin>>>,
    asked: Timestamp,
}

impl Fins {
    /// One for each worker.
    pub(super) fn of(workers: usize, told: Option<Told>, dispatch: &Dispatch) -> Vec<Fins> {
        let (inboxes, fins): (Vec<_>, Vec<_>) = (0..workers).map(|_| unbounded()).unzip();
        let mut post =
            told.map(|told| Post { told, dispatch: dispatch.clone(), inboxes, asked: Timestamp::default() });
        fins.into_iter().map(|inbox| Fins { inbox, post: post.take() }).collect()
    }

    /// Those for this worker.
    pub(super) fn take(&mut self, now: Timestamp) -> impl Iterator<Item = Fin> {
        if let Some(post) = self.post.as_mut().filter(|post| now.since(post.asked) >= EVERY) {
            post.asked = now;
            post.hand_out();
        }
        self.inbox.try_iter().flatten()
    }
}

impl Post {
    fn hand_out(&mut self) {
        let mut batches: Vec<Vec<Fin>> = vec![Vec::new(); self.inboxes.len()];
        while let Some(fin) = self.told.take() {
            batches[usize::from(self.dispatch.worker(&fin.0))].push(fin);
        }
        for (inbox, batch) in self.inboxes.iter().zip(batches).filter(|(_, batch)| !batch.is_empty()) {
            let _ = inbox.send(batch); // its worker has ended: we stop
        }
    }
}
