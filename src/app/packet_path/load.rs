//! Tasks that count events outside the workers: lost frames, frames that a guard drops, memory
//! peaks, floods.

use std::sync::Arc;
use std::time::Duration;

use convey_dataplane::{FrameMemory, Guard, LastingGuard, Offloader, Overruns, Pipeline, StackedTags};
use convey_model::DropReason;
use convey_snapshot::stats::PacketStats;
use tokio::task::JoinSet;

use crate::app::flood;
use crate::app::paths::Parts;

/// Interval between checks for a peak of memory for frames.
const PEAK_LOOK_EVERY: Duration = Duration::from_secs(5);

/// Components of the data path whose counters are watched.
pub(super) struct WatchedParts<'a> {
    pub(super) pipeline: &'a Pipeline,
    pub(super) offloader: Option<&'a Offloader>,
    pub(super) guards: Vec<StackedTags>,
}

/// Starts the tasks that watch lost frames, frames that guards drop, memory peaks and floods.
pub(super) fn watch_load(
    tasks: &mut JoinSet<()>,
    parts: &Parts<'_>,
    WatchedParts { pipeline, offloader, guards }: WatchedParts<'_>,
    stats: &Arc<PacketStats>,
) {
    let interval = parts.config.passthrough.capture_stats_interval;
    tasks.spawn(count_overruns(pipeline.overruns(), interval));
    tasks.spawn(count_stacked_tags(guards, stats.clone(), interval));
    tasks.spawn(note_peaks(pipeline.frame_memory()));
    if let Some(offloader) = offloader {
        let (gate, events) = (offloader.syn_gate(), parts.event_log.clone());
        tasks.spawn(flood::limit_floods(stats.clone(), pipeline.overruns(), gate, events));
    }
}

/// Counts the frames that the kernel dropped, once per interval.
async fn count_overruns(overruns: Overruns, interval: Duration) {
    let mut ticks = tokio::time::interval(interval);
    loop {
        ticks.tick().await;
        overruns.count();
    }
}

/// Counters of frames that the active guards drop.
pub(super) fn stacked_tags(guard: Option<&Guard>, lasting: Option<&LastingGuard>) -> Vec<StackedTags> {
    let (guard, lasting) = (guard.map(Guard::stacked_tags), lasting.map(LastingGuard::stacked_tags));
    guard.into_iter().chain(lasting).collect()
}

/// Counts, once per interval, the frames that these guards dropped because of a second priority
/// tag.
async fn count_stacked_tags(guards: Vec<StackedTags>, stats: Arc<PacketStats>, interval: Duration) {
    let mut ticks = tokio::time::interval(interval);
    loop {
        ticks.tick().await;
        stats.set_kernel_drops(DropReason::StackedTags, guards.iter().map(StackedTags::count).sum());
    }
}

/// Returns free memory to the kernel after a peak of queued frames.
async fn note_peaks(frames: FrameMemory) {
    let mut ticks = tokio::time::interval(PEAK_LOOK_EVERY);
    loop {
        ticks.tick().await;
        if frames.had_peak() {
            convey_heap::note_peak();
        }
    }
}
