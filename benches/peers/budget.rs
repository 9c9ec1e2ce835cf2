//! Table of the budget: what each part of a load balancer adds to the floor, beside convey.

use std::fmt::Write;

use crate::floor::Variant;
use crate::load::Load;
use crate::machine;
use crate::metric::Metric;
use crate::peer::Peer;
use crate::report::shown;
use crate::results::Results;

/// Parts of the CPU time. A round has few samples of them, so the table shows means of all rounds.
const PARTS: [Metric; 2] = [Metric::User, Metric::System];

/// Peer that the others are compared with.
const FLOOR: Peer = Peer::Floor(Variant::Plain);

/// Table with the notes that a reader needs.
pub(crate) fn markdown(results: &Results) -> String {
    let (name, [user, system]) = (results.compared.name(), PARTS.map(Metric::title));
    let mut text = format!(
        "# {}\n\n{}.\n\nCPU: medians with the smallest and the largest value; {user} and {system}: means; \
         rounds: {}. [How it is measured](../README.md), [every sample]({name}.csv).\n\n",
        results.compared.title(),
        machine::describe(&results.peers),
        results.rounds,
    );
    let cpu = Metric::Balancer.title();
    let _ = writeln!(
        text,
        "| load | through | {cpu} | {user} | {system} | CPU to the floor | {user}, to it | {system}, to it | errors |\n\
         |---|---|---:|---:|---:|---:|---:|---:|---:|"
    );
    for load in &results.loads {
        for (n, peer) in results.peers.iter().filter(|peer| results.has(load, **peer)).enumerate() {
            let name = if n == 0 { format!("**{}**", load.name) } else { String::new() };
            let (cells, errors) = (cells(results, load, *peer).join(" | "), results.errors(load, *peer).0);
            let _ = writeln!(text, "| {name} | {} | {cells} | {errors} |", peer.name());
        }
    }
    text
}

/// CPU time of a request and its parts, and their ratios to the floor.
fn cells(results: &Results, load: &Load, peer: Peer) -> [String; 6] {
    let figure = |peer| results.figure(load, peer, Metric::Balancer);
    let means = |peer| PARTS.map(|part| results.mean(load, peer, part));
    let cpu = figure(peer).map(|figure| shown(Metric::Balancer, figure)).unwrap_or_default();
    let [user, system] = means(peer);
    let parts = [(user, Metric::User), (system, Metric::System)]
        .map(|(mean, part)| mean.map(|mean| part.format(mean)).unwrap_or_default());
    let ratio = |this: Option<f64>, floor: Option<f64>| {
        this.zip(floor).map(|(this, floor)| format!("{:.2}", this / floor)).unwrap_or_default()
    };
    let [of_cpu, of_floor] = [peer, FLOOR].map(|peer| figure(peer).map(|figure| figure.median));
    let [floor_user, floor_system] = means(FLOOR);
    let [user_text, system_text] = parts;
    [
        cpu,
        user_text,
        system_text,
        ratio(of_cpu, of_floor),
        ratio(user, floor_user),
        ratio(system, floor_system),
    ]
}
