//! convey as users see it: the real binary between real clients and real servers, on loopback.
//!
//! A test whose tool, privilege or limit is missing on this machine is reported as ignored, with
//! the reason. Long ones run if `CONVEY_LONG` is set. `CONVEY_BIN` names another binary to test.
#![allow(clippy::disallowed_methods, reason = "tests happen in real time, and their threads can be made")]
#![allow(clippy::unwrap_used, reason = "a story that cannot go on has failed")]

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
mod health;
mod http;
mod http2;
mod http3;
mod http_compat;
mod http_faults;
mod http_limits;
mod http_reload;
mod kubernetes;
mod limits;
mod list;
mod log;
mod logging;
mod loops;
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
mod sources;
mod stats;
mod steering;
mod supervised;
mod tasks;
mod tls;
mod top;
mod trace;
mod transfer;
mod trusted_proxies;
mod udp;
mod upgrade;

use std::process::ExitCode;

use convey_testkit::{raise_file_limit, run_trials};

fn main() -> ExitCode {
    if upgrade::another_version() || ecmp::serves_numbers() {
        return ExitCode::SUCCESS;
    }
    raise_file_limit();
    let stories = [
        access::stories(),
        access_log::stories(),
        acme::stories(),
        affinity::stories(),
        alerts::stories(),
        announce::stories(),
        checks::stories(),
        cli::stories(),
        compression::stories(),
        config::stories(),
        control_socket::stories(),
        dashboard::stories(),
        dashboard_steering::stories(),
        demo::stories(),
        descriptors::stories(),
        drain::stories(),
        ecmp::stories(),
        etcd::stories(),
        explain::stories(),
        file_rights::stories(),
        files::stories(),
        flows::stories(),
        forged::stories(),
        health::stories(),
        http::stories(),
        http2::stories(),
        http3::stories(),
        http_compat::stories(),
        http_faults::stories(),
        http_limits::stories(),
        http_reload::stories(),
        kubernetes::stories(),
        limits::stories(),
        list::stories(),
        log::stories(),
        logging::stories(),
        loops::stories(),
        marks::stories(),
        memory::stories(),
        names::stories(),
        outlier::stories(),
        ports::stories(),
        privileges::stories(),
        proxy::stories(),
        proxy_peers::stories(),
        proxy_protocol::stories(),
        proxy_shares::stories(),
        quic::stories(),
        reload::stories(),
        reload_equals_start::stories(),
        routes_seen::stories(),
        saves::stories(),
        served_files::stories(),
        servers::stories(),
        service_manager::stories(),
        shares::stories(),
        slow::stories(),
        slow_lines::stories(),
        smuggling::stories(),
        sni::stories(),
        sni::limits(),
        sources::stories(),
        stats::stories(),
        steering::stories(),
        tls::stories(),
        top::stories(),
        trace::stories(),
        transfer::stories(),
        trusted_proxies::stories(),
        udp::stories(),
        supervised::stories(),
        tasks::stories(),
        upgrade::stories(),
    ];
    run_trials(stories.into_iter().flatten().collect())
}
