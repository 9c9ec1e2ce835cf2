//! `convey status`: one screen, or a list of recent events. Pure.

mod backend;
mod filter;
mod requests;
mod sources;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use convey_api::{Counts, EventReport, FrontendReport, Label, StatsReport};

use self::backend::WholeBackend;
use self::table::{table, time, trimmed};
use super::Refused;
use super::requests::{refusals, server_errors};
use crate::StatusFilter;

/// Text of events, one per line, as in the log.
pub fn past(events: &[EventReport]) -> String {
    let line =
        |event: &EventReport| format!("{} {:<5} {}\n", event.at, event.level.to_uppercase(), event.text);
    events.iter().map(line).collect()
}

/// Screen of `convey status`.
#[derive(Debug, Clone, Copy)]
pub struct StatusScreen<'a> {
    /// Lines of `/readyz`: the reasons why convey should get no traffic.
    pub obstacles: &'a [String],
    /// Frontends, routes, backends and servers to show.
    pub filter: &'a StatusFilter,
    /// Present wall-clock time.
    pub now: SystemTime,
    /// The width of the terminal; `None` does not limit the length of lines.
    pub width: Option<usize>,
}

impl StatusScreen<'_> {
    /// The text of the screen.
    ///
    /// # Errors
    /// A name of the filter does not exist.
    pub fn text(self, mut status: StatsReport) -> Result<String, Refused> {
        let StatusScreen { obstacles, filter, now, width } = self;
        let whole: BTreeMap<String, WholeBackend> =
            status.backends.iter().map(|(name, backend)| (name.clone(), WholeBackend::of(backend))).collect();
        let is_filtered = *filter != StatusFilter::default();
        if is_filtered {
            filter::apply(filter, &mut status)?;
        }
        let status = &status;
        let up = time(Duration::from_secs(status.uptime_seconds));
        let mut screen = format!("convey {}, up {up}\n", status.version);
        screen += &sources::of_config(&status.config, now);
        screen += &status.etcd.as_ref().map(|etcd| sources::of_etcd(etcd, now)).unwrap_or_default();
        screen += &of_readiness(status, obstacles);
        screen += &sources::of_maintenances(&status.overlays);
        if is_filtered && status.frontends.is_empty() && status.backends.is_empty() {
            return Ok(screen + "\nnothing matches the filters\n");
        }
        screen += &of_frontends(status, width);
        screen += &requests::of_frontends(&status.frontends, is_filtered, width);
        for (name, backend) in &status.backends {
            let whole = whole.get(name).copied().unwrap_or_default();
            screen += &backend::of_backend(name, backend, whole, now, width);
            screen += &status.discovery.get(name).map(sources::of_discovery).unwrap_or_default();
        }
        screen += &status.acme.as_ref().map(|acme| sources::of_acme(acme, width)).unwrap_or_default();
        screen += &sources::of_announced(&status.announced, width);
        screen += &of_losses(status);
        if !status.overlays.is_empty() {
            screen += "\nRuntime overrides (`convey reset` removes them):\n";
            status.overlays.iter().for_each(|said| screen += &sources::of_overlay(said, now));
        }
        Ok(screen)
    }
}

/// Frontends without a certificate that is valid now, each with the reason.
pub fn certificate_faults(status: &StatsReport) -> Vec<String> {
    let fault = |(name, frontend): (&String, &FrontendReport)| {
        Some(format!("frontend {name}: {}", frontend.tls.as_ref()?.fault.as_ref()?))
    };
    status.frontends.iter().filter_map(fault).collect()
}

fn of_readiness(status: &StatsReport, obstacles: &[String]) -> String {
    let faults = certificate_faults(status);
    let fault = |fault: &String| format!("NO VALID CERTIFICATE: {fault}\n");
    if !obstacles.is_empty() {
        let lines = obstacles.iter().map(|line| format!("NOT READY: {line}\n"));
        return lines.chain(faults.iter().filter(|one| !obstacles.contains(one)).map(fault)).collect();
    }
    let unserved = status.frontends.iter().flat_map(|(name, frontend)| {
        frontend.unserved.values().map(move |why| format!("NOT SERVED: frontend {name}: {why}\n"))
    });
    let unserved: String = unserved.chain(faults.iter().map(fault)).collect();
    let ready = if unserved.is_empty() { "ready: every frontend can serve\n" } else { "ready\n" };
    ready.to_owned() + &unserved
}

/// Runtime overrides of the running convey, one line each. Empty if the running convey uses another
/// file.
pub fn other_than_file(status: &StatsReport, is_file: impl Fn(&str) -> bool, now: SystemTime) -> Vec<String> {
    if !is_file(&status.config.file) {
        return Vec::new();
    }
    status.overlays.iter().map(|said| sources::of_overlay(said, now).trim().to_owned()).collect()
}

fn of_frontends(status: &StatsReport, width: Option<usize>) -> String {
    let mut remarks = String::new();
    let titles = ["FRONTEND", "MODE", "LISTENS", "BACKEND", "OPEN", "TOTAL", "REFUSED"];
    let mut table = table(titles, 4, width);
    for (name, frontend) in &status.frontends {
        let backends = frontend.backends();
        let mode = format!("{} {}", frontend.mode, frontend.protocol);
        let refused: u64 = frontend.refused.values().sum();
        if frontend.accept_backoffs > 0 {
            let pauses = frontend.accept_backoffs;
            remarks +=
                &format!("  {name}: paused accepting {pauses} times, for lack of descriptors or memory\n");
        }
        table.add_row([
            name.clone(),
            mode,
            frontend.listen_addr.join(" "),
            if backends.is_empty() { "-".to_owned() } else { backends.join(" ") },
            frontend.traffic.current_connections.to_string(),
            frontend.traffic.total_connections.to_string(),
            refused.to_string(),
        ]);
    }
    format!("\n{}\n{remarks}", trimmed(&table))
}

/// Dropped packets and datagrams, and connections that ended early, by reason.
fn of_losses(status: &StatsReport) -> String {
    let frontends = || status.frontends.values();
    let packets = status.packets.iter().flat_map(|packets| &packets.drops);
    let dropped = sums(frontends().flat_map(|frontend| &frontend.drops).chain(packets));
    let ended = sums(frontends().flat_map(|frontend| &frontend.ended));
    let requests = || frontends().filter_map(|frontend| frontend.requests.as_ref());
    let has_errors =
        requests().any(|one| server_errors(one) > 0 || refusals(one).any(|(_, count)| *count > 0));
    match (&*dropped, &*ended) {
        ("", "") if has_errors => String::new(),
        ("", "") => "\nnothing dropped\n".to_owned(),
        ("", ended) => format!("\nended early: {ended}\n"),
        (dropped, "") => format!("\ndropped: {dropped}\n"),
        (dropped, ended) => format!("\ndropped: {dropped}\nended early: {ended}\n"),
    }
}

/// Sums by reason, as text.
fn sums<'a>(counts: impl Iterator<Item = (&'a Label, &'a u64)>) -> String {
    let mut all = Counts::new();
    counts.for_each(|(reason, count)| *all.entry(reason.clone()).or_default() += count);
    requests::listed(all.iter())
}
