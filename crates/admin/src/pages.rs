//! Renders `/stats` and `/metrics` in a separate thread. Concurrent requests share a rendering.

use std::io;
use std::sync::Arc;
use std::thread;

use convey_api::StatsReport;
use hyper::body::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::{ProcessMetrics, StatsSource, render};

/// Page that takes long to render.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Page {
    Stats,
    Metrics,
}

/// A rendered page, or the reason why rendering failed.
pub(super) type Rendered = Result<Bytes, String>;

/// Maximum number of renderings that slow readers still hold in memory. With thousands of servers,
/// each rendering takes megabytes. Beyond this limit, a request gets the previous rendering, which
/// is at most as old as the connection of the slowest reader.
const MAX_RENDERINGS: usize = 8;

/// Size of a page, in bytes, from which freed memory is returned to the kernel. Rendering takes
/// several times this size.
const LARGE: usize = 1 << 20;

/// Handle of the rendering thread. The thread ends when this handle is dropped.
pub(super) struct Pages(mpsc::Sender<PageRequest>);

struct PageRequest {
    page: Page,
    answer: oneshot::Sender<Rendered>,
}

impl Pages {
    /// Starts the thread. At most `clients` requests are queued; callers of further requests wait
    /// for a place in the queue.
    pub(super) fn start(source: Arc<StatsSource>, clients: usize) -> io::Result<Pages> {
        let (ask, asked) = mpsc::channel(clients);
        let renderer = Renderer { source, sent: Vec::new() };
        thread::Builder::new().name("statistics".to_owned()).spawn(move || renderer.run(asked))?;
        Ok(Pages(ask))
    }

    /// Returns the page. The page is rendered after this call, unless slow readers hold too many
    /// renderings; then the previous rendering is returned.
    pub(super) async fn get(&self, page: Page) -> Rendered {
        let (answer, rendered) = oneshot::channel();
        let gone = |_| "the thread that renders pages has ended".to_owned();
        self.0.send(PageRequest { page, answer }).await.map_err(|_| gone(()))?;
        rendered.await.map_err(|_| gone(()))?
    }
}

struct Renderer {
    source: Arc<StatsSource>,
    /// Renderings that clients may still be reading, including the last one of each page.
    sent: Vec<(Page, Arc<String>)>,
}

impl Renderer {
    fn run(mut self, mut asked: mpsc::Receiver<PageRequest>) {
        while let Some(first) = asked.blocking_recv() {
            let began = (self.source.now)();
            let mut together = vec![first];
            while let Ok(another) = asked.try_recv() {
                together.push(another);
            }
            for page in [Page::Stats, Page::Metrics] {
                self.answer(page, together.extract_if(.., |asked| asked.page == page).collect());
            }
            // This pause limits the load of clients that send requests continuously to half a core.
            thread::sleep((self.source.now)().since(began));
        }
    }

    fn answer(&mut self, page: Page, mut asked: Vec<PageRequest>) {
        asked.retain(|asked| !asked.answer.is_closed());
        if asked.is_empty() {
            return;
        }
        let rendered = self.rendered(page);
        for asked in asked {
            let _ = asked.answer.send(rendered.clone());
        }
    }

    fn rendered(&mut self, page: Page) -> Rendered {
        let last = self.sent.iter().rposition(|(sent, _)| *sent == page);
        let read = |at: usize| Arc::strong_count(&self.sent[at].1) > 1;
        if let Some(last) = last
            && (0..self.sent.len()).filter(|at| read(*at)).count() >= MAX_RENDERINGS
        {
            return Ok(shared(&self.sent[last].1));
        }
        let text = Arc::new(text(page, &self.source)?);
        if text.len() >= LARGE {
            convey_heap::note_peak();
        }
        self.sent.retain(|(sent, text)| *sent != page || Arc::strong_count(text) > 1);
        self.sent.push((page, text.clone()));
        Ok(shared(&text))
    }
}

fn text(page: Page, source: &StatsSource) -> Result<String, String> {
    let report = source.report();
    match page {
        Page::Stats => json(&report).map_err(|error| error.to_string()),
        Page::Metrics => render(&report, &ProcessMetrics::read()).map_err(|error| error.to_string()),
    }
}

/// Renders a report as JSON: indented for people, with a final newline for shells.
fn json(report: &StatsReport) -> serde_json::Result<String> {
    serde_json::to_string_pretty(report).map(|text| text + "\n")
}

/// Returns the bytes of the text without a copy. Until the bytes are dropped, they count as a
/// reader of the text.
fn shared(text: &Arc<String>) -> Bytes {
    struct Shared(Arc<String>);
    impl AsRef<[u8]> for Shared {
        fn as_ref(&self) -> &[u8] {
            self.0.as_bytes()
        }
    }
    Bytes::from_owner(Shared(text.clone()))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::SystemTime;

    use futures_util::FutureExt;
    use futures_util::future::join_all;

    use super::*;
    use convey_model::Timestamp;
    use convey_snapshot::{NewestSnapshot, Snapshot};

    /// Number of renderings so far. Each rendering reads the number of lost log lines once.
    static RENDERED: AtomicU64 = AtomicU64::new(0);

    /// Blocks rendering while it is locked.
    static HELD: Mutex<()> = Mutex::new(());

    fn source() -> Arc<StatsSource> {
        Arc::new(StatsSource {
            acme: Arc::default(),
            announce: Arc::default(),
            remote: Arc::default(),
            snapshot: Arc::new(NewestSnapshot::new(Snapshot::empty(1))),
            started: SystemTime::UNIX_EPOCH,
            now: Box::new(|| Timestamp(0)),
            draining: Arc::default(),
            packets: None,
            log_level: convey_model::LogLevel::default,
            dropped_log_lines: || {
                drop(HELD.lock());
                RENDERED.fetch_add(1, Ordering::Relaxed)
            },
            loads: Arc::default(),
            access_log: Arc::default(),
            events: Arc::default(),
            trace: Arc::default(),
            flows: Default::default(),
            data_path: Default::default(),
        })
    }

    fn rendered() -> u64 {
        RENDERED.load(Ordering::Relaxed)
    }

    // A single test, because the counter of renderings is global.
    #[tokio::test]
    async fn concurrent_requests_share_a_rendering_and_slow_readers_hold_few() {
        let held = HELD.lock().unwrap();
        let pages = Pages::start(source(), 64).unwrap();
        let mut asks = join_all((0..60).map(|_| pages.get(Page::Metrics)));
        assert!((&mut asks).now_or_never().is_none(), "all have asked, and none is answered");
        drop(held);
        let asked = asks.await;
        assert!(asked.iter().all(Result::is_ok));
        // The thread may have taken some requests before the others arrived, so two renderings are
        // possible.
        assert!((1..=2).contains(&rendered()));
        drop(asked);

        let before = rendered();
        let mut held = Vec::new();
        for _ in 0..20 {
            held.push(pages.get(Page::Stats).await.unwrap());
        }
        assert_eq!(rendered() - before, MAX_RENDERINGS as u64);
        assert_eq!(held[MAX_RENDERINGS - 1], held[19], "then the last one goes around");
        held.clear();
        pages.get(Page::Stats).await.unwrap();
        assert_eq!(rendered() - before, MAX_RENDERINGS as u64 + 1, "nobody reads the old ones any more");
    }
}
