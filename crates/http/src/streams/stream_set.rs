//! Futures of the streams of one connection. The task of the connection polls all of them.
//!
//! A set polls only futures that were woken. A further request uses the box and the waker of an
//! earlier one, so a busy connection allocates neither.

use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};

/// Maximum number of places that a connection without requests keeps.
const MAX_UNUSED: usize = 16;

/// Futures of streams.
pub(crate) struct StreamSet<F> {
    places: Vec<Place<F>>,
    /// Places without a future.
    free: Vec<u32>,
    /// Woken places that are not polled yet, the longest waiting last.
    next: Vec<u32>,
    woken: Arc<Mutex<WokenPlaces>>,
}

/// Place of a future.
struct Place<F> {
    /// Box of the futures at this place; `None` while the connection has no requests.
    future: Option<Pin<Box<Option<F>>>>,
    waker: Arc<PlaceWaker>,
    /// `waker` in the form that a future gets.
    shared: Waker,
}

/// Waker of a place. If it belonged to an earlier future, it polls the present one needlessly.
struct PlaceWaker {
    place: u32,
    /// Whether the place is woken, and not polled yet.
    is_woken: AtomicBool,
    woken: Arc<Mutex<WokenPlaces>>,
}

/// Places that were woken since the set last looked.
#[derive(Default)]
struct WokenPlaces {
    places: Vec<u32>,
    /// Task that waits for a woken place.
    task: Option<Waker>,
}

impl<F: Future> StreamSet<F> {
    /// Creates a set without futures.
    pub(crate) fn new() -> StreamSet<F> {
        StreamSet { places: Vec::new(), free: Vec::new(), next: Vec::new(), woken: Arc::default() }
    }

    /// Whether the set has no futures.
    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }

    /// Adds a future, which is polled next.
    pub(crate) fn push(&mut self, future: F) {
        let place = self.free.pop().unwrap_or_else(|| {
            let place = self.places.len() as u32;
            self.places.push(Place::new(place, &self.woken));
            place
        });
        let Place { future: boxed, waker, .. } = &mut self.places[place as usize];
        match boxed {
            Some(boxed) => boxed.set(Some(future)),
            None => *boxed = Some(Box::pin(Some(future))),
        }
        waker.wake_by_ref();
    }

    /// Waits until a future has ended, and returns its output. Never returns while the set is empty.
    pub(crate) async fn next(&mut self) -> F::Output {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Waits until all futures have ended.
    pub(crate) async fn all_ended(&mut self) {
        while !self.is_empty() {
            self.next().await;
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<F::Output> {
        // Futures that wake themselves let other tasks run after one poll of each.
        for _ in 0..self.places.len().max(1) {
            let place = ready!(self.poll_woken(cx));
            if let Some(output) = self.poll_place(place) {
                return Poll::Ready(output);
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Waits for a woken place.
    fn poll_woken(&mut self, cx: &Context<'_>) -> Poll<u32> {
        if self.next.is_empty() {
            let mut woken = lock(&self.woken);
            mem::swap(&mut woken.places, &mut self.next);
            self.next.reverse();
            if self.next.is_empty() && !woken.task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
                woken.task = Some(cx.waker().clone());
            }
        }
        self.next.pop().map_or(Poll::Pending, Poll::Ready)
    }

    /// Polls the future at a place. Returns its output if it has ended.
    fn poll_place(&mut self, place: u32) -> Option<F::Output> {
        let Place { future, waker, shared } = self.places.get_mut(place as usize)?;
        waker.is_woken.store(false, Ordering::Release);
        let boxed = future.as_mut()?;
        let running = boxed.as_mut().as_pin_mut()?;
        let Poll::Ready(output) = running.poll(&mut Context::from_waker(shared)) else { return None };
        boxed.set(None);
        self.free.push(place);
        if self.is_empty() {
            self.shrink();
        }
        Some(output)
    }

    /// Frees memory of a connection without requests. It keeps a few wakers.
    fn shrink(&mut self) {
        if self.places.capacity() > MAX_UNUSED {
            self.places = Vec::new();
        }
        self.places.iter_mut().for_each(|place| place.future = None);
        self.free.clear();
        self.free.extend(0..self.places.len() as u32);
    }
}

impl<F> Place<F> {
    fn new(place: u32, woken: &Arc<Mutex<WokenPlaces>>) -> Place<F> {
        let waker = PlaceWaker { place, is_woken: AtomicBool::new(false), woken: woken.clone() };
        let waker = Arc::new(waker);
        Place { future: None, shared: waker.clone().into(), waker }
    }
}

impl Wake for PlaceWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_woken.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut woken = lock(&self.woken);
        woken.places.push(self.place);
        let task = woken.task.take();
        drop(woken);
        if let Some(task) = task {
            task.wake();
        }
    }
}

fn lock(woken: &Mutex<WokenPlaces>) -> MutexGuard<'_, WokenPlaces> {
    woken.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn outputs_come_in_the_order_of_wakes() {
        let mut set = StreamSet::new();
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..5).map(|_| oneshot::channel()).unzip();
        receivers.into_iter().for_each(|receiver| set.push(receiver));
        assert!(set.next().now_or_never().is_none() && !set.is_empty());
        for (n, sender) in senders.into_iter().enumerate().rev() {
            sender.send(n).unwrap();
        }
        for expected in (0..5).rev() {
            assert_eq!(set.next().await, Ok(expected));
        }
        assert!(set.is_empty());
    }

    #[tokio::test]
    async fn future_is_polled_only_when_it_was_woken() {
        let polls = Cell::new(0);
        let mut set = StreamSet::new();
        let (sender, receiver) = oneshot::channel();
        let (_never, sleeper) = oneshot::channel();
        for mut receiver in [receiver, sleeper] {
            let polls = &polls;
            set.push(poll_fn(move |cx| {
                polls.set(polls.get() + 1);
                receiver.poll_unpin(cx)
            }));
        }
        assert!(set.next().now_or_never().is_none());
        sender.send(()).unwrap();
        assert_eq!((set.next().await, polls.get()), (Ok(()), 3));
    }

    #[tokio::test]
    async fn wakers_of_ended_futures_do_no_harm() {
        let mut set = StreamSet::new();
        let mut old = Vec::new();
        for round in 0..3 {
            for _ in 0..4 {
                set.push(poll_fn(|cx| Poll::Ready(cx.waker().clone())));
            }
            while !set.is_empty() {
                old.push(set.next().await);
            }
            old.iter().for_each(Waker::wake_by_ref);
            assert!(set.next().now_or_never().is_none(), "{round}");
        }
    }

    #[tokio::test]
    async fn futures_that_wake_themselves_let_other_tasks_run() {
        let mut set = StreamSet::new();
        for _ in 0..3 {
            set.push(poll_fn(|cx| {
                cx.waker().wake_by_ref();
                Poll::<()>::Pending
            }));
        }
        assert!(set.next().now_or_never().is_none());
    }

    #[tokio::test]
    async fn future_is_woken_by_another_thread() {
        let mut set = StreamSet::new();
        let (sender, receiver) = oneshot::channel();
        set.push(receiver);
        let thread = std::thread::Builder::new().spawn(move || sender.send(7)).unwrap();
        assert_eq!(set.next().await, Ok(7));
        thread.join().unwrap().unwrap();
    }
}
