//! Threads that wait for disks. Some are started before they are needed. If no further thread can
//! be started, the existing threads do the work.

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;

/// Maximum number of threads that wait for disks. Further jobs wait in a queue.
const MAX_THREADS: usize = 32;

/// Number of disk threads that keep running once a backend serves files.
pub const MIN_DISK_THREADS: usize = 2;

/// Idle time after which a thread beyond `MIN_DISK_THREADS` ends.
const IDLE_TIME: Duration = Duration::from_secs(10);

static DISK_THREADS: DiskThreads = DiskThreads::new(named_thread);

type Job = Box<dyn FnOnce() + Send>;
type MakeThread = fn(Job) -> io::Result<()>;

/// Starts the minimum number of threads for file backends, unless they are running.
///
/// # Errors
/// No thread can be started.
pub fn start_disk_threads() -> io::Result<()> {
    DISK_THREADS.start()
}

/// Runs work that may wait for a disk in a disk thread. `None` if there is no thread, and none can
/// be started.
pub(super) async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    DISK_THREADS.run(work)?.await.ok()
}

struct DiskThreads {
    queue: Mutex<JobQueue>,
    has_work: Condvar,
    make: MakeThread,
}

struct JobQueue {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

fn named_thread(run: Job) -> io::Result<()> {
    thread::Builder::new().name("disk".to_owned()).spawn(run).map(drop)
}

impl DiskThreads {
    const fn new(make: MakeThread) -> DiskThreads {
        let queue = JobQueue { jobs: VecDeque::new(), threads: 0, idle: 0 };
        DiskThreads { queue: Mutex::new(queue), has_work: Condvar::new(), make }
    }

    fn queue(&self) -> MutexGuard<'_, JobQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&'static self) -> io::Result<()> {
        let mut queue = self.queue();
        while queue.threads < MIN_DISK_THREADS {
            self.add_thread(&mut queue)?;
        }
        Ok(())
    }

    /// Queues work, and starts a thread for it if all are busy. Returns the receiver of the result;
    /// `None`: there is no thread, and none can be started.
    fn run<T: Send + 'static>(
        &'static self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<oneshot::Receiver<T>> {
        let (done, result) = oneshot::channel();
        let mut queue = self.queue();
        if queue.jobs.len() >= queue.idle && queue.threads < MAX_THREADS {
            let _ = self.add_thread(&mut queue);
        }
        if queue.threads == 0 {
            return None;
        }
        queue.jobs.push_back(Box::new(move || drop(done.send(work()))));
        drop(queue);
        self.has_work.notify_one();
        Some(result)
    }

    fn add_thread(&'static self, queue: &mut JobQueue) -> io::Result<()> {
        (self.make)(Box::new(move || self.work()))?;
        // A new thread counts as idle until it takes a job.
        queue.threads += 1;
        queue.idle += 1;
        Ok(())
    }

    fn work(&self) {
        let mut queue = self.queue();
        loop {
            while let Some(job) = queue.jobs.pop_front() {
                queue.idle -= 1;
                drop(queue);
                job();
                queue = self.queue();
                queue.idle += 1;
            }
            let waited = self.has_work.wait_timeout(queue, IDLE_TIME);
            let (waiting, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            queue = waiting;
            if timeout.timed_out() && queue.jobs.is_empty() && queue.threads > MIN_DISK_THREADS {
                queue.threads -= 1;
                queue.idle -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn disk_work_uses_existing_threads_if_more_cannot_be_created() {
        static LEFT: AtomicUsize = AtomicUsize::new(MIN_DISK_THREADS);
        static POOL: DiskThreads = DiskThreads::new(|run| {
            let has_left = LEFT.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            has_left.map_err(|_| io::ErrorKind::WouldBlock)?;
            named_thread(run)
        });
        POOL.start().unwrap();
        POOL.start().unwrap();
        assert_eq!(LEFT.load(Ordering::SeqCst), 0);
        let (go, wait) = mpsc::channel::<()>();
        let held = POOL.run(move || wait.recv()).unwrap();
        let others: Vec<_> = (0..100).map(|n| POOL.run(move || n).unwrap()).collect();
        for (n, other) in others.into_iter().enumerate() {
            assert_eq!(other.await, Ok(n));
        }
        go.send(()).unwrap();
        assert_eq!(held.await, Ok(Ok(())));
        assert_eq!(POOL.queue().threads, MIN_DISK_THREADS);
    }

    #[test]
    fn disk_work_without_any_thread_is_refused() {
        static POOL: DiskThreads = DiskThreads::new(|_| Err(io::ErrorKind::WouldBlock.into()));
        assert!(POOL.start().is_err());
        assert!(POOL.run(|| ()).is_none());
        assert!(POOL.queue().jobs.is_empty());
    }

    #[test]
    fn disk_threads_are_at_most_so_many() {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        static POOL: DiskThreads = DiskThreads::new(|_| {
            MADE.fetch_add(1, Ordering::SeqCst);
            Ok(())
        });
        let waiting: Vec<_> = (0..100).map(|n| POOL.run(move || n).unwrap()).collect();
        assert_eq!((waiting.len(), MADE.load(Ordering::SeqCst)), (100, MAX_THREADS));
    }
}
