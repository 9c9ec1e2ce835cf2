//! convey as users see it: the real binary between real clients and real servers, on loopback.
//!
//! A test whose tool, privilege or limit is missing on this machine is reported as ignored, with
//! the reason. Long ones run if `CONVEY_LONG` is set. `CONVEY_BIN` names another binary to test.
#![allow(clippy::disallowed_methods, reason = "tests happen in real time, and their threads can be made")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod access;
mod access_log;
mod acme;
mod affinity;
mod alerts;
mod announce;
mod checks;
mod cli;
mod compression;
mod config;
mod control_socket;
mod curl;
mod dashboard;
mod dashboard_steering;
mod demo;
mod descriptors;
mod drain;
mod ecmp;
mod etcd;
mod explain;
mod file_rights;
mod files;
mod flows;
mod forged;
mod grpc_checks;
mod health;
mod http;
mod http2;
mod http3;
mod http_compat;
mod http_deadline;
mod http_faults;
mod http_limits;
mod http_pairs;
mod http_peers;
mod http_reload;
mod http_responses;
mod http_rules;
mod http_upgrade;
mod kubernetes;
mod limits;
mod list;
mod log;
mod log_formats;
mod logging;
mod loops;
mod maintenance;
mod marks;
mod memory;
mod names;
mod operator;
mod outlier;
mod ports;
mod privileges;
mod proxy;
mod proxy_peers;
mod proxy_protocol;
mod proxy_shares;
mod pseudo_terminal;
mod quic;
mod reload;
mod reload_equals_start;
mod requests_seen;
mod retries;
mod route_weights;
mod routes_seen;
mod saves;
mod served_files;
mod servers;
mod service_manager;
mod shares;
mod slow;
mod slow_lines;
mod smuggling;
mod sni;
mod source;
mod sources;
mod stats;
mod steering;
mod supervised;
mod syslog;
mod tasks;
mod tls;
mod top;
mod total_limits;
mod trace;
mod transfer;
mod trusted_proxies;
mod udp;
mod unix_sockets;
mod upgrade;

use std::process::ExitCode;

use convey_testkit::{raise_file_limit, run_trials};

fn main() -> ExitCode {
    if upgrade::another_version() || ecmp::serves_numbers() {
        return ExitCode::SUCCESS;
    }
    raise_file_limit();
    let tests = [
        access::tests(),
        access_log::tests(),
        acme::tests(),
        affinity::tests(),
        alerts::tests(),
        announce::tests(),
        checks::tests(),
        cli::tests(),
        compression::tests(),
        config::tests(),
        control_socket::tests(),
        dashboard::tests(),
        dashboard_steering::tests(),
        demo::tests(),
        descriptors::tests(),
        drain::tests(),
        ecmp::tests(),
        etcd::tests(),
        explain::tests(),
        file_rights::tests(),
        files::tests(),
        flows::tests(),
        forged::tests(),
        grpc_checks::tests(),
        health::tests(),
        http::tests(),
        http2::tests(),
        http3::tests(),
        http_compat::tests(),
        http_deadline::tests(),
        http_faults::tests(),
        http_limits::tests(),
        http_pairs::tests(),
        http_peers::tests(),
        http_reload::tests(),
        http_responses::tests(),
        http_rules::tests(),
        http_upgrade::tests(),
        kubernetes::tests(),
        limits::tests(),
        list::tests(),
        log::tests(),
        log_formats::tests(),
        logging::tests(),
        loops::tests(),
        maintenance::tests(),
        marks::tests(),
        memory::tests(),
        names::tests(),
        outlier::tests(),
        ports::tests(),
        privileges::tests(),
        proxy::tests(),
        proxy_peers::tests(),
        proxy_protocol::tests(),
        proxy_shares::tests(),
        quic::tests(),
        reload::tests(),
        reload_equals_start::tests(),
        requests_seen::tests(),
        retries::tests(),
        route_weights::tests(),
        routes_seen::tests(),
        saves::tests(),
        served_files::tests(),
        servers::tests(),
        service_manager::tests(),
        shares::tests(),
        slow::tests(),
        slow_lines::tests(),
        smuggling::tests(),
        sni::tests(),
        sni::limits(),
        source::tests(),
        sources::tests(),
        stats::tests(),
        steering::tests(),
        tls::tests(),
        top::tests(),
        total_limits::tests(),
        trace::tests(),
        transfer::tests(),
        trusted_proxies::tests(),
        udp::tests(),
        unix_sockets::tests(),
        supervised::tests(),
        syslog::tests(),
        tasks::tests(),
        upgrade::tests(),
    ];
    run_trials(tests.into_iter().flatten().collect())
}
