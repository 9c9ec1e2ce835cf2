//! Tables and files of results.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::budget;
use crate::chart;
use crate::load::Load;
use crate::machine;
use crate::metric::Metric;
use crate::mixed;
use crate::peer::Peer;
use crate::results::{Figure, Results};

/// Writes `MODE.md`, `MODE.csv` and `MODE.svg`: into `benches/results` if they are to be kept, else
/// below cargo's target folder. Returns the folder.
pub(crate) fn write(results: &Results, kept: bool) -> Result<PathBuf> {
    let folder = if kept {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/results")
    } else {
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("peers")
    };
    let mode = results.compared.name();
    let file = |ending: &str| folder.join(format!("{mode}.{ending}"));
    fs::create_dir_all(&folder)?;
    fs::write(file("csv"), samples(results))?;
    chart::draw(results, &file("svg")).context("drawing the chart")?;
    fs::write(file("md"), markdown(results))?;
    Ok(folder)
}

/// Table with the notes that a reader needs.
pub(crate) fn markdown(results: &Results) -> String {
    if results.compared.is_budget() {
        return budget::markdown(results);
    }
    let (mode, peers) = (results.compared.name(), &results.peers);
    let mut text = format!(
        "# {} beside its peers\n\n{}.\n\nMedians with the smallest and the largest value; rounds: {}, \
         idle connections: {}. Ratios are of convey's median to the other's. \
         [How it is measured](../README.md), [every sample]({mode}.csv).\n\n![chart]({mode}.svg)\n\n",
        results.compared.title(),
        machine::describe(peers),
        results.rounds,
        results.idle_connections,
    );
    let titles = Metric::ALL.map(Metric::title).join(" | ");
    let _ = writeln!(
        text,
        "| load | through | {titles} | errors |\n|---|---|{}---:|",
        "---:|".repeat(Metric::ALL.len())
    );
    for load in &results.loads {
        let peers = || peers.iter().filter(|peer| results.has(load, **peer));
        for (n, peer) in peers().enumerate() {
            let name = if n == 0 { format!("**{}**", load.name) } else { String::new() };
            let cells =
                cells(load, |metric| results.figure(load, *peer, metric).map(|figure| shown(metric, figure)));
            let errors = match results.errors(load, *peer) {
                (0, _) => "0".to_owned(),
                (errors, all) => format!("⚠ **{errors} of {all}**"),
            };
            let _ = writeln!(text, "| {name} | {} | {cells} | {errors} |", peer.name());
        }
        for peer in peers().filter(|peer| !matches!(peer, Peer::Direct | Peer::Convey)) {
            let cells = cells(load, |metric| {
                let [ours, theirs] = [Peer::Convey, *peer].map(|peer| results.figure(load, peer, metric));
                Some(format!("*{:.2}*", ours?.median / theirs?.median))
            });
            let _ = writeln!(text, "| | *convey / {}* | {cells} | |", peer.name());
        }
    }
    for load in results.loads.iter().filter(|load| load.is_about_added_latency()) {
        text += &added_latency(results, load);
    }
    text + &mixed::compared(results)
}

/// Latency that peers add to that of servers without a balancer.
fn added_latency(results: &Results, load: &Load) -> String {
    const METRICS: [Metric; 2] = [Metric::P50, Metric::Mean];
    let added = |peer: Peer| {
        METRICS.map(|metric| {
            let [through, direct] = [peer, Peer::Direct].map(|peer| results.figure(load, peer, metric));
            Some((through?.median - direct?.median) * 1e3)
        })
    };
    let ours = added(Peer::Convey);
    let mut text = format!("\nAdded latency, {}: a peer's median less that of direct.\n\n", load.name);
    text += "| through | p50, µs | mean, µs | convey to it, p50 | mean |\n|---|---:|---:|---:|---:|\n";
    let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.0}"));
    for peer in results.peers.iter().filter(|peer| **peer != Peer::Direct && results.has(load, **peer)) {
        let theirs = added(*peer);
        // An added latency that is not measurable has no ratio.
        let told = |added: Option<f64>| added.filter(|added| *added > 0.0);
        let ratio = |n: usize| Some(format!("{:.2}", told(ours[n])? / told(theirs[n])?));
        let [p50, mean] = theirs.map(number);
        let [p50_ratio, mean_ratio] = [0, 1].map(|n| ratio(n).unwrap_or_default());
        let _ = writeln!(text, "| {} | {p50} | {mean} | {p50_ratio} | {mean_ratio} |", peer.name());
    }
    text
}

/// Cells of the metrics of a load; the others stay empty.
fn cells(load: &Load, cell: impl Fn(Metric) -> Option<String>) -> String {
    let of = |metric: Metric| if load.metrics.contains(&metric) { cell(metric) } else { None };
    Metric::ALL.map(|metric| of(metric).unwrap_or_default()).join(" | ")
}

/// Median with the smallest and the largest value.
pub(crate) fn shown(metric: Metric, figure: Figure) -> String {
    let [median, min, max] = [figure.median, figure.min, figure.max].map(|value| metric.format(value));
    format!("{median} ({min}-{max})")
}

/// Every sample, one a line.
fn samples(results: &Results) -> String {
    let titles = Metric::ALL.map(|metric| format!("\"{}\"", metric.title())).join(",");
    let mut text = format!("load,through,requests,errors,{titles}\n");
    for (load, peer, sample) in &results.samples {
        let values =
            Metric::ALL.map(|metric| sample.get(metric).map_or(String::new(), |value| format!("{value:.3}")));
        let (requests, errors) = (sample.requests, sample.errors);
        let _ = writeln!(text, "\"{load}\",\"{}\",{requests},{errors},{}", peer.name(), values.join(","));
    }
    text
}
