//! Ports of frontends, of servers and of SNAT, in each mode.

use super::*;

const KEPT: &str = "A server without a port uses the frontend's";

/// An address without a port gives a server the port of its frontend.
#[test]
fn a_server_without_a_port_suits_every_mode_and_every_range() {
    let kept = GOOD.replace("10.0.0.2:80", "10.0.0.2") + "[backends.web.health_check]\nport = 80\n";
    let range = kept.replace("10.0.0.1:80", "10.0.0.1:21000-21010");
    for mode in Mode::ALL {
        assert_eq!(diagnostics(&kept, mode), Ok(vec![]));
        assert_eq!(diagnostics(&range, mode), Ok(vec![]));
    }
    let place = "config.toml:6:8: backends.web.servers.a.addr";
    assert_eq!(
        diagnostics(&range.replace("\"10.0.0.2\"", "\"10.0.0.2:21000\""), Mode::Dsr),
        Err(vec![format!(
            "{place}: port 21000 differs from the port of frontend \"web\", 21000-21010; in dsr mode both must be equal. {KEPT}"
        )])
    );
}

#[test]
fn ports_are_bounded_by_what_they_cost() {
    let with = |listen: &str| {
        GOOD.replace("10.0.0.1:80", listen).replace("10.0.0.2:80", "10.0.0.2")
            + "health_check.kind = 'none'\n"
                .replace("health_check", "\n[backends.web]\nhealth_check")
                .as_str()
    };
    let place = "config.toml:3:15: frontends.web.listen_addr";
    for (listen, is_right) in [
        ("10.0.0.1:10000-11023", [true; 4]),
        ("10.0.0.1:10000-20000", [false, true, true, false]),
        ("10.0.0.1:10000-42767", [false, true, true, false]),
        ("10.0.0.1:1-32769", [false; 4]),
    ] {
        let is_refused =
            |mode| diagnostics(&with(listen), mode).is_err_and(|errors| errors[0].starts_with(place));
        assert_eq!(Mode::ALL.map(is_refused), is_right.map(|right| !right), "{listen}");
    }
    assert_eq!(
        diagnostics(&with("10.0.0.1:1-32769"), Mode::Dsr),
        Err(vec![format!(
            "{place}: with 10.0.0.1:1-32769, the frontends in packet modes have 32769 ports in total; the limit is 32768"
        )])
    );
}

#[test]
fn dsr_cannot_change_the_port() {
    let place = "config.toml:6:8: backends.web.servers.a.addr";
    assert_eq!(
        error_with(Mode::Dsr, "10.0.0.2:80", "10.0.0.2:8080"),
        format!(
            "{place}: port 8080 differs from the port of frontend \"web\", 80; in dsr mode both must be equal. {KEPT}"
        )
    );
    assert_eq!(
        error_with(Mode::Dsr, "\"10.0.0.1:80\"", "[\"10.0.0.1:81\", \"10.0.0.1:80\", \"10.0.0.1:82\"]"),
        format!(
            "{place}: port 80 differs from the port of frontend \"web\", 81 and 82; in dsr mode both must be equal. {KEPT}"
        )
    );
    assert_eq!(diagnostics(&GOOD.replace("10.0.0.2:80", "10.0.0.2:8080"), Mode::Passthrough), Ok(vec![]));
}

#[test]
fn frontend_port_is_no_snat_port_and_others_must_remain() {
    let text = GOOD.replace("10.0.0.1:80", "10.0.0.1:50051");
    assert_eq!(diagnostics(&text, Mode::Passthrough), Ok(vec![]), "gRPC's");
    let error = |ports: &str| {
        format!(
            "config.toml:3:15: frontends.web.listen_addr: frontends use so many of the SNAT ports of \
             10.0.0.1 ({ports}), such as 50051, that too few are left; choose another port here, or set passthrough.snat_ports or passthrough.snat_addresses"
        )
    };
    for (settings, expected) in [
        ("snat_ports = \"50051-50051\"", Err(vec![error("50051-50051")])),
        ("snat_ports = \"50051-50052\"", Ok(vec![])),
        ("snat_ports = \"50051-50053\"\nworkers = 2", Err(vec![error("50051-50053")])),
        ("snat_ports = \"50051-50054\"\nworkers = 2", Ok(vec![])),
        ("snat_ports = \"50051-50051\"\nsnat_addresses = \"10.1.0.1\"", Ok(vec![])),
        (
            "snat_ports = \"50051-50051\"\nsnat_addresses = [\"10.1.0.1\", \"10.0.0.1\"]",
            Err(vec![error("50051-50051")]),
        ),
    ] {
        let text = format!("{text}[passthrough]\n{settings}");
        assert_eq!(diagnostics(&text, Mode::Passthrough), expected, "{settings}");
    }
    let dsr = text.replace("10.0.0.2:80", "10.0.0.2:50051");
    assert_eq!(
        diagnostics(&format!("{dsr}[passthrough]\nsnat_ports = \"50051-50051\""), Mode::Dsr),
        Ok(vec![])
    );
}

#[test]
fn every_worker_needs_a_snat_port() {
    let three = "[passthrough]\nsnat_ports = \"40000-40001\"\nworkers = 3";
    assert_eq!(
        after(Mode::Passthrough, three),
        Err(vec![
            "config.toml:9:11: passthrough.workers: 3 workers cannot share 2 SNAT ports; \
             each worker needs at least one, preferably thousands"
                .to_owned()
        ])
    );
    assert_eq!(after(Mode::Passthrough, &three.replace('3', "2")), Ok(vec![]));
    assert_eq!(after(Mode::Dsr, three), Ok(vec![]));
}
