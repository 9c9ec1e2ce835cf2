//! Small files beside large ones: a wrk for each size, all at once, and the latency of small files
//! alone.

use std::fmt::Write;
use std::process::Command;
use std::thread;

use anyhow::Result;

use crate::load::Load;
use crate::loads::LOADS;
use crate::metric::Metric;
use crate::peer::Peer;
use crate::results::Results;

/// Connections and the file that they request. Requests and latencies of the first entry count.
pub(crate) const MIX: [(u32, &str); 3] = [(3, "10k"), (3, "80k"), (4, "10m")];

/// Highest p99 of small files beside large ones, in multiples of their p99 alone.
const P99_GOAL: f64 = 2.0;

/// Runs commands at once, and returns their results in order.
pub(crate) fn at_once<T: Send>(
    commands: Vec<Command>,
    outcome: impl Fn(Command) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let outcome = &outcome;
    thread::scope(|scope| {
        let running: Vec<_> =
            commands.into_iter().map(|command| scope.spawn(move || outcome(command))).collect();
        running.into_iter().map(|one| one.join().expect("it does not panic")).collect()
    })
}

/// p99 of small files alone and beside large ones, and all bytes beside Apache's. Empty unless both
/// loads ran.
pub(crate) fn compared(results: &Results) -> String {
    let loads = |is: fn(&Load) -> bool| LOADS.iter().find(|load| is(load));
    let [Some(alone), Some(mixed)] = [loads(Load::is_alone), loads(Load::is_mixed)] else {
        return String::new();
    };
    let has_both = |peer: &Peer| results.has(alone, *peer) && results.has(mixed, *peer);
    let peers: Vec<Peer> = results.peers.iter().copied().filter(has_both).collect();
    if peers.is_empty() {
        return String::new();
    }
    let median =
        |load, peer, metric| results.figure(load, peer, metric).map_or(f64::NAN, |figure| figure.median);
    let apache = median(mixed, Peer::Apache, Metric::Megabytes);
    let mut text = String::from(
        "\nSmall files beside large ones: the p99 of 10 KB with 3 connections, alone and mixed; MB/s of all sizes, mixed.\n\n\
         | through | alone, ms | mixed, ms | mixed / alone | goal | MB/s | to Apache | goal |\n|---|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for peer in peers {
        let [before, beside] = [alone, mixed].map(|load| median(load, peer, Metric::P99));
        let rate = median(mixed, peer, Metric::Megabytes);
        let (ratio, share) = (beside / before, rate / apache);
        let [p99, total] =
            [ratio <= P99_GOAL, share >= 1.0].map(|is_met| if is_met { "met" } else { "missed" });
        let _ = writeln!(
            text,
            "| {} | {before:.3} | {beside:.3} | {ratio:.1} | {P99_GOAL}, {p99} | {rate:.0} | {share:.2} | 1.0, {total} |",
            peer.name()
        );
    }
    text
}
