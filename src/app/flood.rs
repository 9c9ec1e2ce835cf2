//! Limits SYNs during a flood, where the kernel supports it.

use std::sync::Arc;
use std::time::Duration;

use convey_control::{EventKind, EventLevel, EventLog, FloodEvent, FloodWatch};
use convey_dataplane::{Overruns, SynGate, SynLimit};
use convey_snapshot::stats::PacketStats;
use log::{info, warn};

use super::clock;

/// Interval between checks of the SYN counters.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Watches for SYN floods, and limits new connections during a flood.
pub(super) async fn limit_floods(
    stats: Arc<PacketStats>,
    overruns: Overruns,
    gate: SynGate,
    events: Arc<EventLog>,
) {
    let mut watch = FloodWatch::default();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        overruns.count();
        let (limit, level, line) = match watch.observe(stats.syns(), clock::now()) {
            None => continue,
            Some(FloodEvent::Begins { rate }) => {
                let line = format!(
                    "SYN flood: {rate} SYNs a second open no connection; until the flood ends, clients from unknown networks \
                     connect with their second SYN, one second later"
                );
                (Some(&SynLimit::IN_FLOOD), EventLevel::Warn, line)
            }
            Some(FloodEvent::Ends { lasted, most, refused }) => {
                let seconds = lasted.as_secs();
                let line = format!(
                    "the SYN flood is over after {seconds} s: {refused} SYNs dropped, at most {most} a second"
                );
                (None, EventLevel::Info, line)
            }
        };
        match level {
            EventLevel::Info => info!("{line}"),
            EventLevel::Warn | EventLevel::Error => warn!("{line}"),
        }
        events.record(EventKind::Flood, level, clock::now(), &line);
        if let Err(error) = gate.limit(limit) {
            warn!("SYN flood protection is off: {error}");
        }
    }
}
