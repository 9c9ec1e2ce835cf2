//! Certificates: selection for a client, and changes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use convey_testkit::{
    BalancerProcess, Loopback, Setup, TestHttpServer, TlsClient, TlsSettings, binary, run, tests, wait_for,
};

use super::{authority, https};
use crate::http::client::Client;
use crate::operator::run_command;

tests!("tls_certificates":
    a_client_gets_the_certificate_of_the_name_that_it_asks_for,
    unknown_server_name_is_refused_if_configured,
    a_renewed_certificate_is_served_at_once_and_open_connections_stay,
    mismatched_key_pair_is_refused_and_the_old_one_stays,
    broken_pair_of_a_folder_is_refused_alone,
    a_key_that_others_may_read_is_refused,
    operators_are_told_of_certificates_that_expire,
    expired_certificate_is_named_and_keeps_the_frontend_ready,
);

/// The frontend with the certificates of this network's folder.
fn of_folder(lab: &Loopback, lines: &str) -> Setup {
    let folder = lab.directory().join("certificates");
    let tls =
        format!("mode = \"http\"\n[frontends.web.tls]\ncertificate_dir = \"{}\"\n{lines}", folder.display());
    Setup::new(lab).frontend(&tls).server("a", lab.server(1), "")
}

fn a_client_gets_the_certificate_of_the_name_that_it_asks_for() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let authority = authority(&lab);
    let folder = lab.directory().join("certificates");
    fs::create_dir(&folder).unwrap();
    let certificates = [
        ("0-first", vec!["first.example", "second.example"]),
        ("1-wildcard", vec!["*.wild.example"]),
        ("2-exact", vec!["exact.example", "other.test"]),
    ]
    .map(|(file, names)| {
        let certificate = authority.issue(&names);
        certificate.save(&folder, file);
        certificate.der()
    });
    let balancer = BalancerProcess::start(&lab, &of_folder(&lab, ""));
    let config = TlsSettings::trusting(&authority).client();
    let shown = |name: &str| TlsClient::connect(lab.vip(), name, &config).unwrap().certificate();
    for (name, expected) in [
        ("first.example", 0),
        ("second.example", 0),
        ("exact.example", 2),
        ("EXACT.example", 2),
        ("other.test", 2),
        ("any.wild.example", 1),
    ] {
        assert!(shown(name) == certificates[expected], "{name}");
    }
    // A wildcard covers one label, and no certificate has these names: clients get the first
    // certificate, and refuse it.
    for name in ["a.b.wild.example", "wild.example", "elsewhere.test"] {
        let error = TlsClient::connect(lab.vip(), name, &config).map(drop).unwrap_err().to_string();
        assert!(error.contains("not valid for name"), "{name}: {error}");
    }
    // An added file is served without a restart.
    let new = authority.issue(&["a.b.wild.example"]);
    new.save(&folder, "3-new");
    balancer.wait_for_log("+ certificate");
    assert!(shown("a.b.wild.example") == new.der());
}

fn unknown_server_name_is_refused_if_configured() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let authority = authority(&lab);
    let balancer = BalancerProcess::start(&lab, &https(&lab, "refuse_unknown_names = true"));
    let config = TlsSettings::trusting(&authority).client();
    let mut client = Client(TlsClient::connect(lab.vip(), "site.example", &config).unwrap());
    assert_eq!(client.get("site.example", "/").status, 200);
    let error = TlsClient::connect(lab.vip(), "other.example", &config).map(drop).unwrap_err();
    assert!(error.to_string().contains("AccessDenied"), "{error}");
    balancer.wait_for_stat("/frontends/web/ended/tls_handshake_failed", 1);
}

fn a_renewed_certificate_is_served_at_once_and_open_connections_stay() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let authority = authority(&lab);
    let balancer = BalancerProcess::start(&lab, &https(&lab, ""));
    let config = TlsSettings::trusting(&authority).client();
    let connect = || Client(TlsClient::connect(lab.vip(), "site.example", &config).unwrap());
    let mut open = connect();
    assert_eq!(open.get("site.example", "/").status, 200);
    let renewed = authority.issue(&["site.example"]);
    renewed.save(lab.directory(), "site");
    balancer.wait_for_log("site.pem: replaced");
    // A full handshake: a resumed session shows no certificate.
    let fresh = TlsSettings::trusting(&authority).client();
    let client = TlsClient::connect(lab.vip(), "site.example", &fresh).unwrap();
    assert!(client.certificate() == renewed.der());
    assert_eq!(open.get("site.example", "/").status, 200);
    assert_eq!(balancer.stat("/frontends/web/ended/tls_handshake_failed"), 0);
}

fn mismatched_key_pair_is_refused_and_the_old_one_stays() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let authority = authority(&lab);
    let balancer = BalancerProcess::start(&lab, &https(&lab, ""));
    let config = TlsSettings::trusting(&authority).client();
    let shown = || TlsClient::connect(lab.vip(), "site.example", &config).unwrap().certificate();
    let before = shown();
    let (chain, other) = (lab.directory().join("site.pem"), authority.issue(&["site.example"]));
    fs::write(&chain, &other.chain).unwrap();
    balancer.wait_for_log("the private key does not match the first certificate");
    assert!(shown() == before);
    fs::write(&chain, "nothing").unwrap();
    balancer.wait_for_log("it has no certificate");
    assert!(shown() == before);
    other.save(lab.directory(), "site");
    balancer.wait_for_log("site.pem: replaced");
    let fresh = TlsSettings::trusting(&authority).client();
    assert!(TlsClient::connect(lab.vip(), "site.example", &fresh).unwrap().certificate() == other.der());
}

fn broken_pair_of_a_folder_is_refused_alone() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let authority = authority(&lab);
    let folder = lab.directory().join("certificates");
    fs::create_dir(&folder).unwrap();
    let issue = |name: &str| {
        let certificate = authority.issue(&[&format!("{name}.example")]);
        certificate.save(&folder, name);
        certificate.der()
    };
    let (before, _) = (issue("a"), issue("b"));
    let balancer = BalancerProcess::start(&lab, &of_folder(&lab, ""));
    let shown = |name: &str| {
        let config = TlsSettings::trusting(&authority).client();
        TlsClient::connect(lab.vip(), &format!("{name}.example"), &config).unwrap().certificate()
    };
    // One file is broken, and one is new but no certificate; another one is renewed, and one is
    // added.
    fs::write(folder.join("a.pem"), "nothing").unwrap();
    fs::write(folder.join("c.pem"), "nothing").unwrap();
    let (renewed, added) = (issue("b"), issue("d"));
    balancer.wait_for_log(
        "certificates/a.pem is refused: it has no certificate (-----BEGIN CERTIFICATE-----); the previous certificate stays in use",
    );
    balancer.wait_for_log("certificates/c.pem is refused: ");
    balancer.wait_for_log("d.pem");
    wait_for("the certificates that can be used", || {
        (shown("b") == renewed && shown("d") == added).then_some(())
    });
    assert!(shown("a") == before);
    balancer.wait_for_stat("/config/reload_failures", 0);
    let refused = balancer.stat("/config/refused_certificates");
    assert_eq!(refused.as_array().unwrap().len(), 2, "{refused}");
    assert!(balancer.page("/metrics").1.contains("\nconvey_config_refused_certificates 2\n"));
    let reloaded = run_command(&balancer, "reload").stdout;
    assert!(reloaded.contains("certificates/a.pem is refused; the log has the reason"), "{reloaded}");
    assert!(!balancer.log().contains("contains no networks now"), "{}", balancer.log());
    // A start would refuse them.
    let check = run(binary().arg("check").arg("--config").arg(lab.directory().join("config.toml")));
    assert!(check.code != Some(0) && check.stderr.contains("it has no certificate"), "{}", check.stderr);
    // Once it is fixed, no error is reported any more.
    let mended = issue("a");
    fs::remove_file(folder.join("c.pem")).unwrap();
    wait_for("the mended one", || (shown("a") == mended).then_some(()));
    wait_for("nothing to be refused", || {
        balancer.stat("/config").get("refused_certificates").is_none().then_some(())
    });
}

fn a_key_that_others_may_read_is_refused() {
    let lab = Loopback::new();
    authority(&lab);
    let (key, config) = (lab.directory().join("site.key"), lab.directory().join("convey.toml"));
    fs::write(&config, https(&lab, "").to_string()).unwrap();
    let check = || run(binary().arg("check").arg("--config").arg(&config));
    assert_eq!(check().code, Some(0), "{}", check().stderr);
    fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
    let refused = check();
    assert_ne!(refused.code, Some(0));
    assert!(refused.stderr.contains("so all users can read it; `chmod 640` fixes it"), "{}", refused.stderr);
}

fn operators_are_told_of_certificates_that_expire() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    authority.issue_for(&["site.example"], 5).save(lab.directory(), "site");
    authority.issue_for(&["old.example"], -2).save(lab.directory(), "old");
    authority.issue_for(&["new.example"], 80).save(lab.directory(), "new");
    let at = lab.directory().display();
    let tls = ["certificate", "key"].map(|key| {
        let ending = if key == "key" { "key" } else { "pem" };
        let files = ["site", "old", "new"].map(|name| format!("\"{at}/{name}.{ending}\""));
        format!("{key} = [{}]", files.join(", "))
    });
    let tls = format!("mode = \"http\"\n[frontends.web.tls]\n{}", tls.join("\n"));
    let balancer =
        BalancerProcess::start(&lab, &Setup::new(&lab).frontend(&tls).server("a", lab.server(1), ""));
    balancer.wait_for_log("site.pem of frontend web expires in 5 days");
    balancer.wait_for_log("old.pem of frontend web has expired");
    assert!(!balancer.log().contains("new.pem of"), "{}", balancer.log());
    let events = balancer.page("/v1/events").1;
    assert!(events.contains("\"certificate\""), "{events}");
}

fn expired_certificate_is_named_and_keeps_the_frontend_ready() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let authority = authority(&lab);
    authority.issue_for(&["site.example"], -2).save(lab.directory(), "site");
    let balancer = BalancerProcess::start(&lab, &https(&lab, ""));
    let named = "NO VALID CERTIFICATE: frontend web: certificate ";
    let status = run(balancer.command().arg("status"));
    assert!(status.code == Some(3) && status.stdout.contains(named), "{status:?}");
    assert!(status.stdout.contains("site.pem expired 1 day ago"), "{status:?}");
    let metric = |value: &str| {
        let line = format!("convey_frontend_certificate_valid{{frontend=\"web\"}} {value}");
        assert!(balancer.page("/metrics").1.contains(&line), "{line}");
    };
    metric("0");
    wait_for("readiness", || (balancer.page("/readyz").0 == 200).then_some(()));
    let doctor = run(balancer.command().arg("doctor").arg("--config").arg(balancer.config()));
    assert!(doctor.stdout.contains("error [certificate]: frontend web: "), "{doctor:?}");

    authority.issue(&["site.example"]).save(lab.directory(), "site");
    wait_for("the renewed certificate", || {
        (run(balancer.command().arg("status")).code == Some(0)).then_some(())
    });
    metric("1");
}
