//! Sections about the configuration, certificates, announced addresses and runtime overrides. Pure.

use std::collections::BTreeMap;
use std::time::SystemTime;

use convey_api::{
    AcmeNameReport, AcmeReport, AnnouncedReport, ConfigReport, DiscoveryReport, EtcdReport,
    MaintenanceReport, OverlayReport, WallTime,
};

use convey_model::{HttpOverlayValue, HttpTarget};

use super::table::{age, table, trimmed};

/// Remarks about errors of the source of a backend's servers.
pub(super) fn of_discovery(discovery: &DiscoveryReport) -> String {
    let DiscoveryReport { source, connected, error, notes, .. } = discovery;
    let error = match (connected, error) {
        (true, _) => None,
        (false, Some(why)) => {
            Some(format!("  {source} cannot be watched, its servers stay unchanged: {why}\n"))
        }
        (false, None) => Some(format!("  {source} has not answered yet\n")),
    };
    error.into_iter().chain(notes.iter().map(|note| format!("  {source}: {note}\n"))).collect()
}

/// Table of the certificates that convey orders itself.
pub(super) fn of_acme(acme: &AcmeReport, width: Option<usize>) -> String {
    let mut remarks = String::new();
    let mut table = table(["CERTIFICATE", "UNTIL", "NEXT ORDER"], 3, width);
    for (name, AcmeNameReport { not_after, next_order, error, .. }) in &acme.names {
        let time = |time: &Option<WallTime>| time.map_or_else(|| "-".to_owned(), |time| time.to_string());
        table.add_row([name.clone(), time(not_after), time(next_order)]);
        remarks += &error.as_ref().map_or(String::new(), |why| format!("  {name}: {why}\n"));
    }
    format!("\n{}\n{remarks}", trimmed(&table))
}

/// Table of the addresses that convey announces while their frontends can serve.
pub(super) fn of_announced(announced: &BTreeMap<String, AnnouncedReport>, width: Option<usize>) -> String {
    if announced.is_empty() {
        return String::new();
    }
    let mut table = table(["ADDRESS", "ON", "ANNOUNCED", "REASON"], 4, width);
    for (address, AnnouncedReport { interface, announced, reason, .. }) in announced {
        let word = if *announced { "yes" } else { "NO" };
        table.add_row([address.clone(), interface.clone(), word.to_owned(), reason.clone()]);
    }
    format!("\n{}\n", trimmed(&table))
}

/// Lines about a configuration in etcd.
pub(super) fn of_etcd(etcd: &EtcdReport, now: SystemTime) -> String {
    let EtcdReport { address, connected, since, error, revision, refused_revision, problems } = etcd;
    let mut lines = format!("revision {revision} of {address}\n");
    if let Some(refused) = refused_revision {
        lines += &format!("revision {refused} is refused:\n");
        problems.iter().for_each(|problem| lines += &format!("  {problem}\n"));
    }
    if !connected {
        lines += &match error {
            Some(why) => {
                format!("etcd cannot be reached (since {since}, {} ago): {why}\n", age(*since, now))
            }
            None => "etcd has not been reached yet\n".to_owned(),
        };
    }
    lines
}

pub(super) fn of_config(config: &ConfigReport, now: SystemTime) -> String {
    let mut lines = format!("configuration {}, loaded {} ago\n", config.hash, age(config.loaded, now));
    if !config.last_reload_successful {
        lines += &format!("the last reload was refused {} ago:\n", age(config.last_reload, now));
        config.errors.iter().for_each(|error| lines += &format!("  {error}\n"));
    }
    lines
}

/// Line for each frontend, route and backend in maintenance.
pub(super) fn of_maintenances(overlays: &[OverlayReport]) -> String {
    let line = |said: &OverlayReport| {
        let maintenance = said.maintenance.as_ref().filter(|_| !said.absent)?;
        let target = match (&said.frontend, &said.route, &said.backend) {
            (Some(frontend), Some(route), _) => HttpTarget::route(frontend, route),
            (Some(frontend), None, _) => HttpTarget::Frontend(frontend.clone()),
            (None, _, backend) => HttpTarget::Backend(backend.clone().unwrap_or_default()),
        };
        let what = of_maintenance(maintenance);
        Some(format!("MAINTENANCE: {target} since {}, by {}: {what}\n", said.since, said.by))
    };
    overlays.iter().filter_map(line).collect()
}

fn of_maintenance(MaintenanceReport { status, allow, .. }: &MaintenanceReport) -> String {
    let except = if allow.is_empty() { String::new() } else { format!(", except for {}", allow.join(", ")) };
    format!("maintenance, status {status}{except}")
}

pub(super) fn of_overlay(said: &OverlayReport, now: SystemTime) -> String {
    let parts = [&said.backend, &said.server, &said.frontend, &said.route];
    let name = parts.into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join("/");
    let what = match said {
        OverlayReport { added: Some(added), .. } => format!("added at {}", added.addr),
        OverlayReport { removed: true, .. } => "removed".to_owned(),
        OverlayReport { log_level: Some(level), .. } => format!("log level {level}"),
        OverlayReport { weight: Some(weight), .. } => format!("weight {weight}"),
        OverlayReport { weights, .. } if !weights.is_empty() => {
            HttpOverlayValue::Weights(weights.clone()).to_string()
        }
        OverlayReport { maintenance: Some(maintenance), .. } => of_maintenance(maintenance),
        _ => said.state.clone().unwrap_or_default().into_owned(),
    };
    let kind = match (&said.frontend, &said.route) {
        (Some(_), Some(_)) => "route ",
        (Some(_), None) => "frontend ",
        _ => "",
    };
    let of = if name.is_empty() { name } else { format!("{kind}{name}: ") };
    let note = match (said.superseded, said.absent, &said.server) {
        (true, ..) if said.frontend.is_some() => "; no effect: no backend of the route would get requests",
        (true, ..) => "; superseded: the file takes precedence",
        (_, true, _) if said.maintenance.is_some() => "; no effect: no request of mode http reaches it now",
        (_, true, _) if said.frontend.is_some() => {
            "; no effect: there is no such route with these backends now"
        }
        (_, true, Some(_)) => "; no effect: this server does not exist now",
        (_, true, None) => "; no effect: this backend does not exist now",
        _ => "",
    };
    format!("  {of}{what}, for {}, by {}{note}\n", age(said.since, now), said.by)
}
