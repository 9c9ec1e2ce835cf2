//! Samples of the counters of requests, for rates and latencies of the last half minute.

use std::sync::Arc;

use convey_snapshot::NewestSnapshot;
use convey_snapshot::stats::REQUEST_SAMPLE_INTERVAL;

use super::clock;

/// Takes samples as long as the program runs.
pub(super) async fn take(snapshot: Arc<NewestSnapshot>) {
    loop {
        snapshot.load().sample_requests(clock::now());
        tokio::time::sleep(REQUEST_SAMPLE_INTERVAL).await;
    }
}
