//! Renders the report as Prometheus text. Pure.

mod acme;
mod announce;
mod discovery;
mod etcd;
mod files;
mod page;
mod requests;
mod servers;
mod tls;

use std::time::SystemTime;

use convey_api::{ConfigReport, Counts, FrontendReport, PacketReport, StatsReport, TrafficReport, WallTime};

use self::page::{Labels, MetricsPage, labels};
use super::ProcessMetrics;

/// Text of `/metrics`, in exposition format 0.0.4. An error indicates a bug in this module: no
/// report should cause one.
pub fn render(report: &StatsReport, process: &ProcessMetrics) -> prometheus::Result<String> {
    let mut page = MetricsPage::default();
    page.gauge(
        "convey_build_info",
        "Always 1; the label is the running version.",
        &[(labels([("version", &*report.version)]), ())],
        |()| 1.0,
    );
    totals(&mut page, report);
    config(&mut page, &report.config);
    frontends(&mut page, report);
    backends(&mut page, report);
    servers::add(&mut page, report);
    requests::add(&mut page, report);
    files::add(&mut page, report);
    tls::add(&mut page, report);
    acme::add(&mut page, report);
    announce::add(&mut page, report);
    etcd::add(&mut page, report);
    names(&mut page, report);
    discovery::add(&mut page, report);
    if let Some(report) = &report.packets {
        packets(&mut page, report);
        flow_cache(&mut page, report);
    }
    process_metrics(&mut page, report, process);
    page.encode()
}

fn totals(page: &mut MetricsPage, report: &StatsReport) {
    let totals = [(Vec::new(), report.totals())];
    traffic(page, "convey", "all frontends, removed ones included", &totals, |all| all);
    page.counter(
        "convey_log_lines_dropped_total",
        "Lines of the log that were dropped: their reader was too slow, or a write failed.",
        &[(Vec::new(), report.log_lines_dropped)],
        |n| *n as f64,
    );
    page.counter(
        "convey_access_log_lines_dropped_total",
        "Lines of the access log that were dropped: convey produced them faster than it could write them, or the disk is full.",
        &[(Vec::new(), report.access_log_lines_dropped)],
        |n| *n as f64,
    );
}

fn config(page: &mut MetricsPage, config: &ConfigReport) {
    let this = &[(Vec::new(), config)];
    let info = [(labels([("hash", config.hash.as_str())]), ())];
    page.gauge(
        "convey_config_info",
        "Always 1; the label is the same for processes with the same version and configuration.",
        &info,
        |()| 1.0,
    );
    page.gauge(
        "convey_config_last_reload_successful",
        "Whether the last reload succeeded; 1 if there was none.",
        this,
        |config| flag(config.last_reload_successful),
    );
    page.gauge(
        "convey_config_last_reload_timestamp_seconds",
        "When the file was last read, at the start or for a reload, in Unix time.",
        this,
        |config| unix_time(config.last_reload),
    );
    page.gauge(
        "convey_config_last_reload_success_timestamp_seconds",
        "When a file was last applied, at the start or by a reload, in Unix time.",
        this,
        |config| unix_time(config.loaded),
    );
    page.gauge(
        "convey_config_refused_certificates",
        "Certificate and key pairs in a certificate_dir that the last reload refused; their previous pairs stay in use.",
        this,
        |config| config.refused_certificates.len() as f64,
    );
    let results = [("success", config.reloads), ("failure", config.reload_failures)];
    page.counter(
        "convey_config_reloads_total",
        "Reloads by their result.",
        &results.map(|(result, n)| (labels([("result", result)]), n)),
        |n| *n as f64,
    );
}

fn frontends(page: &mut MetricsPage, report: &StatsReport) {
    let all: Vec<_> = report.frontends.iter().map(|(name, f)| (labels([("frontend", name)]), f)).collect();
    let info = |(name, f): (&String, &FrontendReport)| {
        (labels([("frontend", name.as_str()), ("mode", &*f.mode), ("protocol", &*f.protocol)]), ())
    };
    let infos: Vec<_> = report.frontends.iter().map(info).collect();
    page.gauge(
        "convey_frontend_info",
        "Always 1; the labels are the mode and protocol of the frontend.",
        &infos,
        |()| 1.0,
    );
    let backends = report.frontends.iter().flat_map(|(name, f)| {
        f.backends().into_iter().map(move |backend| {
            let of = labels([("frontend", name.as_str()), ("backend", backend)]);
            (of, !f.unserved.contains_key(backend))
        })
    });
    let backends: Vec<_> = backends.collect();
    page.gauge(
        "convey_frontend_backend_ready",
        "Whether a backend of the frontend can serve; 0: requests and connections for it fail.",
        &backends,
        |is_ready| flag(*is_ready),
    );
    traffic(page, "convey_frontend", "the frontend", &all, |f| &f.traffic);
    page.gauge("convey_frontend_max_connections", "Maximum number of open connections.", &all, |f| {
        f.max_connections.map(f64::from)
    });
    page.gauge(
        "convey_frontend_waiting_connections",
        "Connections that wait for a slot of max_connections or max_connections_per_client (proxy mode), without those in the kernel's accept queue.",
        &all,
        |f| f64::from(f.waiting_connections),
    );
    frontend_failures(page, report, &all);
}

/// Adds the counters of refused, cut and untracked traffic.
fn frontend_failures(page: &mut MetricsPage, report: &StatsReport, all: &[(Labels, &FrontendReport)]) {
    by_reason(
        page,
        "convey_frontend_connections_ended_total",
        "Connections that ended without an orderly close by both sides.",
        report.frontends.iter().map(|(name, f)| (name, &f.ended)),
    );
    by_reason(
        page,
        "convey_frontend_datagrams_dropped_total",
        "Dropped datagrams (UDP in proxy mode, HTTP/3), and reset streams (HTTP/2 and HTTP/3 in mode http).",
        report.frontends.iter().map(|(name, f)| (name, &f.drops)),
    );
    by_reason(
        page,
        "convey_frontend_refused_total",
        "Refused connections, datagrams and (packet modes) packets of clients.",
        report.frontends.iter().map(|(name, f)| (name, &f.refused)),
    );
    page.counter(
        "convey_frontend_uncounted_sources_total",
        "Times a source was not tracked, because the table of sources was full.",
        all,
        |f| f.uncounted_sources as f64,
    );
    page.counter(
        "convey_frontend_accept_backoffs_total",
        "Times accepting paused because descriptors or memory ran out.",
        all,
        |f| f.accept_backoffs as f64,
    );
}

/// Adds a counter of frontends with a label for the reason.
fn by_reason<'a>(
    page: &mut MetricsPage,
    name: &str,
    help: &str,
    frontends: impl Iterator<Item = (&'a String, &'a Counts)>,
) {
    let rows = frontends.flat_map(|(frontend, counts)| {
        counts.iter().map(move |(reason, n)| (labels([("frontend", frontend), ("reason", reason)]), *n))
    });
    page.counter(name, help, &rows.collect::<Vec<_>>(), |n| *n as f64);
}

fn backends(page: &mut MetricsPage, report: &StatsReport) {
    let all: Vec<_> = report.backends.iter().map(|(name, b)| (labels([("backend", name)]), b)).collect();
    traffic(page, "convey_backend", "the backend", &all, |b| &b.traffic);
    page.counter(
        "convey_backend_connect_failures_total",
        "Failed attempts to connect to a server of the backend.",
        &all,
        |b| b.connect_failures as f64,
    );
    page.counter(
        "convey_backend_retries_total",
        "Connections and datagrams tried on another server because one had failed.",
        &all,
        |b| b.retries as f64,
    );
    page.histogram(
        "convey_backend_connect_duration_seconds",
        "Duration of successful connects to servers of the backend (proxy mode).",
        &all,
        |b| b.connect_seconds.as_ref(),
    );
    page.histogram(
        "convey_backend_session_duration_seconds",
        "Duration from accepting a client to the end of its connection. Only connections that got a server count (proxy mode).",
        &all,
        |b| b.session_seconds.as_ref(),
    );
    page.gauge(
        "convey_backend_waiting_connections",
        "Connections that wait for a server, because all servers are at their limits (proxy mode).",
        &all,
        |b| f64::from(b.waiting_connections),
    );
    page.gauge("convey_backend_servers", "Servers configured.", &all, |b| b.servers.len() as f64);
    page.gauge("convey_backend_servers_up", "Servers that are healthy.", &all, |b| b.servers_up as f64);
}

fn names(page: &mut MetricsPage, report: &StatsReport) {
    let all: Vec<_> = report.names.iter().map(|(host, name)| (labels([("name", host)]), name)).collect();
    page.gauge(
        "convey_name_resolved",
        "Whether the last lookup of the name found an address.",
        &all,
        |name| flag(name.resolved),
    );
    page.gauge("convey_name_addresses", "Addresses of the name.", &all, |name| name.addresses.len() as f64);
    page.counter("convey_name_lookups_total", "Lookups of the name.", &all, |name| name.lookups as f64);
    page.counter("convey_name_lookup_failures_total", "Lookups of the name that failed.", &all, |name| {
        name.lookup_failures as f64
    });
}

fn traffic<T>(
    page: &mut MetricsPage,
    prefix: &str,
    whose: &str,
    members: &[(Labels, T)],
    of: impl Fn(&T) -> &TrafficReport,
) {
    let name = |suffix: &str| format!("{prefix}_{suffix}");
    let help = |what: &str| format!("{what} {whose}.");
    page.counter(&name("connections_total"), &help("Connections taken by"), members, |member| {
        of(member).total_connections as f64
    });
    page.gauge(&name("open_connections"), &help("Connections open at"), members, |member| {
        of(member).current_connections as f64
    });
    page.counter(
        &name("received_bytes_total"),
        &help("Bytes received from clients for"),
        members,
        |member| of(member).bytes_rx as f64,
    );
    page.counter(&name("sent_bytes_total"), &help("Bytes sent to clients for"), members, |member| {
        of(member).bytes_tx as f64
    });
    page.counter(
        &name("received_packets_total"),
        &help("Packets (packet modes) or datagrams (UDP in proxy mode) received from clients for"),
        members,
        |member| of(member).packets_rx as f64,
    );
    page.counter(
        &name("sent_packets_total"),
        &help("Packets or datagrams sent to clients for"),
        members,
        |member| of(member).packets_tx as f64,
    );
}

fn packets(page: &mut MetricsPage, packets: &PacketReport) {
    page.counter(
        "convey_packets_dropped_total",
        "Dropped packets, by reason.",
        &by("reason", &packets.drops),
        |n| *n as f64,
    );
    page.counter(
        "convey_flows_evicted_total",
        "Flows that were evicted for new ones, by the resource that ran short.",
        &by("for", &packets.evicted),
        |n| *n as f64,
    );
    page.counter(
        "convey_packets_passed_total",
        "Captured packets that do not belong to a frontend.",
        &[(Vec::new(), packets.passed)],
        |n| *n as f64,
    );
    page.counter(
        "convey_packets_untracked_total",
        "Packets of clients that were forwarded without a flow record, because the table was full (DSR).",
        &[(Vec::new(), packets.untracked)],
        |n| *n as f64,
    );
    page.counter(
        "convey_capture_errors_total",
        "Frames that could not be read.",
        &[(Vec::new(), packets.capture_errors)],
        |n| *n as f64,
    );
    page.gauge(
        "convey_flows",
        "Flows by the state of their connection.",
        &by("state", &packets.flows),
        |n| *n as f64,
    );
    page.gauge(
        "convey_snat_ports_in_use",
        "SNAT ports in use. A port counts once for each server that it is used with.",
        &[(Vec::new(), packets.snat_ports_in_use)],
        |n| *n as f64,
    );
}

fn flow_cache(page: &mut MetricsPage, packets: &PacketReport) {
    page.gauge(
        "convey_flows_cached",
        "Flows whose packets the kernel's flow cache forwards.",
        &[(Vec::new(), packets.cached_flows)],
        |n| *n as f64,
    );
    page.counter(
        "convey_cache_packets_total",
        "Packets that the kernel's flow cache forwarded, or left to a worker, by reason.",
        &by("outcome", &packets.cache),
        |n| *n as f64,
    );
    page.counter(
        "convey_cache_failures_total",
        "Changes of the flow cache that the kernel refused. convey tries them again.",
        &[(Vec::new(), packets.cache_failures)],
        |n| *n as f64,
    );
    page.counter(
        "convey_cache_entries_lost_total",
        "Entries of the flow cache that the kernel refused to remove, and that convey does not try to remove again.",
        &[(Vec::new(), packets.cache_entries_lost)],
        |n| *n as f64,
    );
    let offload: Vec<_> = packets
        .offload
        .iter()
        .map(|(interface, layer)| (labels([("interface", interface.as_str()), ("layer", &**layer)]), 1))
        .collect();
    page.gauge(
        "convey_interface_info",
        "Layer that forwards open flows received on an interface: xdp, tc or worker. Always 1.",
        &offload,
        |n| f64::from(*n),
    );
}

/// Samples of a metric: one value per entry of `counts`. The key of the entry becomes the value of
/// the label `name`.
fn by(name: &str, counts: &Counts) -> Vec<(Labels, u64)> {
    counts.iter().map(|(label, n)| (labels([(name, &**label)]), *n)).collect()
}

/// Adds process metrics under the names that Prometheus client libraries agree on.
fn process_metrics(page: &mut MetricsPage, report: &StatsReport, process: &ProcessMetrics) {
    let this = &[(Vec::new(), process)];
    page.gauge("process_start_time_seconds", "When the process started, in Unix time.", this, |_| {
        unix_time(report.started)
    });
    page.counter("process_cpu_seconds_total", "Processor time used, user and system.", this, |p| {
        p.cpu_seconds
    });
    page.gauge("process_open_fds", "Open file descriptors.", this, |p| p.open_fds.map(|n| n as f64));
    page.gauge("process_max_fds", "Maximum number of open file descriptors.", this, |p| {
        p.max_fds.map(|n| n as f64)
    });
    page.gauge("process_resident_memory_bytes", "Resident memory.", this, |p| {
        p.resident_memory_bytes.map(|n| n as f64)
    });
    let help = "Connections that a panic has ended, which is a bug in convey: please report it.";
    page.counter("convey_connection_panics_total", help, this, |p| p.connection_panics as f64);
}

fn flag(value: bool) -> f64 {
    f64::from(u8::from(value))
}

fn unix_time(WallTime(time): WallTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests;
