//! `convey doctor` beside `convey status`: doctor names each fault that the running convey reports.

use std::net::TcpListener;

use convey_lab::Role;
use convey_testkit::{run, wait_for};

use crate::case::{Case, Family, PacketTest, tests};
use crate::doctor_balancer::Patient;

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![when |case| case.is_passthrough() && case.family == Family::V4 && case.is_cached() =>
        convey_that_is_not_ready_is_named [NGINX],
        server_that_only_convey_calls_down_is_named [NGINX],
        reload_that_was_refused_is_named [NGINX],
        backend_of_a_route_that_was_taken_out_is_named [NGINX],
    ]
}

fn status(patient: &Patient) -> String {
    run(patient.command().arg("status")).stdout
}

/// The server itself is healthy.
fn convey_that_is_not_ready_is_named(case: Case) {
    let patient = Patient::proxy(case).started();
    let _server = patient.network.nginx(1);
    patient.serves();
    assert_eq!(run(patient.command().args(["server", "weight", "pool/s1", "0"])).code, Some(0));
    assert!(status(&patient).contains("NOT READY: "), "{}", status(&patient));
    let finding = patient.is_mended("not-ready", Role::Balancer);
    assert!(finding["seen"].as_str().unwrap().contains("at weight 0"), "{finding:#}");
    patient.is_well();
    patient.serves();
}

/// The server is back, and has not passed enough checks.
fn server_that_only_convey_calls_down_is_named(case: Case) {
    let patient = Patient::proxy(case);
    patient.change("fall = 2\nrise = 1\n", "fall = 1\nrise = 1000\n");
    let patient = patient.started();
    wait_for("the server to be down", || status(&patient).contains("0 of 1 up").then_some(()));
    let _server = patient.network.nginx(1);
    let finding = patient.has("server-down");
    assert!(finding["seen"].as_str().unwrap().contains("pool/s1 ("), "{finding:#}");
}

fn reload_that_was_refused_is_named(case: Case) {
    let patient = Patient::proxy(case).started();
    let _server = patient.network.nginx(1);
    patient.serves();
    // A fixed file would be loaded as soon as it is saved.
    let busy = patient.network.inside(Role::Balancer, || TcpListener::bind("127.0.0.1:8099").unwrap());
    let local = "[frontends.local]\nmode = \"proxy\"\nlisten_addr = \"127.0.0.1:8099\"\nbackend = \"pool\"\n";
    patient.change("[passthrough]", &format!("{local}[passthrough]"));
    let is_refused = || patient.network.log(Role::Balancer).contains("not reloaded").then_some(());
    wait_for("the reload to be refused", is_refused);
    drop(busy);
    patient.is_mended("reload-refused", Role::Balancer);
    patient.is_well();
}

fn backend_of_a_route_that_was_taken_out_is_named(case: Case) {
    let patient = Patient::proxy(case);
    let server = patient.network.address(Role::Server(1));
    patient.change("mode = \"proxy\"", "mode = \"http\"");
    patient.change(
        "backend = \"pool\"\n",
        "backend = \"pool\"\nroutes = [{ path = \"/b\", backend = \"other\" }]\n",
    );
    patient
        .change("[passthrough]", &format!("[backends.other.servers.s1]\naddr = \"{server}\"\n[passthrough]"));
    let patient = patient.started();
    let _server = patient.network.nginx(1);
    patient.serves();
    assert_eq!(run(patient.command().args(["backend", "maint", "other"])).code, Some(0));
    patient.is_mended("backend-taken-out", Role::Balancer);
    patient.is_well();
}
