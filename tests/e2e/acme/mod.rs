//! Certificates that convey orders itself from a real authority: Pebble.

mod pebble;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use convey_testkit::{
    BalancerProcess, Loopback, Need, Setup, TestAuthority, TestHttpServer, TlsClient, TlsSettings,
    in_namespace, run, tests, wait_for,
};

use self::pebble::{Habits, NAMES, PEBBLE, Pebble};
use crate::curl::curl;

tests!("acme":
    a_site_gets_its_certificate_by_http_and_serves_it_at_once [PEBBLE, NAMES, Need::CURL],
    site_gets_a_tls_alpn_certificate_in_modes_http_and_proxy [PEBBLE, NAMES, Need::CURL],
    a_certificate_is_renewed_while_clients_are_served [PEBBLE, NAMES, Need::CURL],
    an_authority_may_be_slow_and_refuse_nonces [PEBBLE, NAMES, Need::CURL],
    failed_order_is_logged_and_retried_when_its_settings_change [PEBBLE, NAMES, Need::CURL],
    retry_after_of_a_busy_authority_is_respected,
    nodes_that_share_a_folder_order_once_and_answer_for_each_other [PEBBLE, NAMES, Need::CURL],
    a_node_that_is_killed_goes_on_with_its_order [PEBBLE, NAMES, Need::CURL],
    an_account_is_bound_to_one_elsewhere [PEBBLE, NAMES, Need::CURL],
    a_confined_user_orders_and_renews [PEBBLE, NAMES, Need::CURL, Need::Other(not_root)],
    first_order_arrives_at_an_announced_address_and_failed_orders_withdraw_it
        [PEBBLE, NAMES, Need::CURL, Need::Namespaces, Need::Kernel(5, 18, "marks of addresses")],
    unwritable_state_dir_prevents_the_start,
    world_writable_state_dir_is_refused,
);

/// A site at the first VIP, and its plain door at `plain`.
fn site(lab: &Loopback, state: &Path, plain: std::net::SocketAddr, acme: &str) -> String {
    let (stats, server) = (lab.stats(), lab.server(1));
    format!(
        "state_dir = \"{}\"\n[stats]\nlisten_addr = \"{}\"\nport = {}\n{acme}
[frontends.plain]\nlisten_addr = \"{plain}\"\nmode = \"http\"\nredirect = \"https\"
[frontends.web]\nlisten_addr = \"{}\"\nmode = \"http\"\n[frontends.web.tls]
[[frontends.web.routes]]\nhost = \"site.example\"\nbackend = \"pool\"
[backends.pool]\nhealth_check.kind = \"none\"\nservers.a.addr = \"{server}\"\n",
        state.display(),
        stats.ip(),
        stats.port(),
        lab.vip(),
    )
}

fn state(lab: &Loopback) -> PathBuf {
    lab.directory().join("state")
}

/// Folder with the state of the authority.
fn kept(state: &Path) -> PathBuf {
    let folder = fs::read_dir(state.join("acme")).unwrap().next().unwrap().unwrap();
    folder.path()
}

/// Requests a page of the site, as a browser does that trusts the authority.
fn fetch(lab: &Loopback, pebble: &Pebble) -> String {
    let (vip, root) = (lab.vip(), pebble.root().display().to_string());
    let resolve = format!("site.example:{}:{}", vip.port(), vip.ip());
    curl(&["--cacert", &root, "--resolve", &resolve, &format!("https://site.example:{}/x", vip.port())])
}

fn wait_for_certificate(balancer: &BalancerProcess) {
    balancer.wait_for_log("acme: site.example has a certificate until");
    balancer.wait_for_log("tls.+ certificate");
}

fn a_site_gets_its_certificate_by_http_and_serves_it_at_once() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let pebble = Pebble::start(&lab, &Habits::default());
    let acme = pebble.table("challenge = \"http-01\"\nemail = \"ops@example.com\"");
    let balancer = BalancerProcess::start(&lab, &site(&lab, &state(&lab), lab.second_vip(), &acme));
    wait_for_certificate(&balancer);
    assert!(fetch(&lab, &pebble).starts_with("a GET /x"));
    assert_eq!(pebble.orders(), 1);
    assert!(balancer.stat("/frontends/plain/requests/local_replies/acme_challenge").as_u64().unwrap() >= 1);
    assert_eq!(balancer.stat("/acme/names/site.example/failures"), 0);
    assert!(balancer.stat("/acme/names/site.example/next_order").is_string());
    // Unknown tokens reach the routes.
    let answer = curl(&[
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        &format!("http://{}/.well-known/acme-challenge/x", lab.second_vip()),
    ]);
    assert_eq!(answer, "308");
    let folder = kept(&state(&lab));
    for (file, mode) in [("", 0o700), ("account.json", 0o600), ("certificates/site.example.pem", 0o600)] {
        let found = fs::metadata(folder.join(file)).unwrap().permissions().mode() & 0o777;
        assert_eq!(found, mode, "{file}");
    }
    let status = convey_testkit::run(balancer.command().arg("status"));
    assert!(status.stdout.contains("site.example"), "{}", status.stdout);
}

fn site_gets_a_tls_alpn_certificate_in_modes_http_and_proxy() {
    for mode in ["http", "proxy"] {
        let lab = Loopback::new();
        let _server = TestHttpServer::named("a", lab.server(1));
        let pebble = Pebble::start(&lab, &Habits::default());
        let acme = pebble.table("challenge = \"tls-alpn-01\"\ndomains = \"site.example\"");
        let (vip, stats) = (lab.vip(), lab.stats());
        let config = format!(
            "state_dir = \"state\"\n[stats]\nlisten_addr = \"{}\"\nport = {}\n{acme}
[frontends.web]\nlisten_addr = \"{vip}\"\nmode = \"{mode}\"\nbackend = \"pool\"\n[frontends.web.tls]
[backends.pool]\nhealth_check.kind = \"none\"\nservers.a.addr = \"{}\"\n",
            stats.ip(),
            stats.port(),
            lab.server(1)
        );
        let balancer = BalancerProcess::start(&lab, &config);
        // No client gets another certificate until the first one is issued.
        let nobody = TlsSettings::trusting(&TestAuthority::new("nobody")).client();
        let early = TlsClient::connect(vip, "site.example", &nobody).map(drop).unwrap_err().to_string();
        assert!(early.contains("AccessDenied"), "{early}");
        wait_for_certificate(&balancer);
        assert!(fetch(&lab, &pebble).starts_with("a GET /x"));
        assert!(balancer.stat("/frontends/web/ended/acme_challenge").as_u64().unwrap() >= 1);
    }
}

fn a_certificate_is_renewed_while_clients_are_served() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let pebble = Pebble::start(&lab, &Habits { validity: 12, ..Habits::default() });
    let acme = pebble.table("challenge = \"http-01\"");
    let balancer = BalancerProcess::start(&lab, &site(&lab, &state(&lab), lab.second_vip(), &acme));
    wait_for_certificate(&balancer);
    let file = kept(&state(&lab)).join("certificates/site.example.pem");
    let first = fs::read(&file).unwrap();
    balancer.wait_for_log("site.example.pem: replaced");
    assert_ne!(fs::read(&file).unwrap(), first);
    assert!(fetch(&lab, &pebble).starts_with("a GET /x"));
    assert_eq!(balancer.stat("/acme/failures"), 0);
}

fn an_authority_may_be_slow_and_refuse_nonces() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let pebble = Pebble::start(&lab, &Habits { refused_nonces: 50, slow: 3, ..Habits::default() });
    let acme = pebble.table("challenge = \"http-01\"");
    let balancer = BalancerProcess::start(&lab, &site(&lab, &state(&lab), lab.second_vip(), &acme));
    wait_for_certificate(&balancer);
    assert!(fetch(&lab, &pebble).starts_with("a GET /x"));
}

fn failed_order_is_logged_and_retried_when_its_settings_change() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let pebble = Pebble::start(&lab, &Habits::default());
    let acme = pebble.table("challenge = \"http-01\"");
    let elsewhere = std::net::SocketAddr::new(lab.ip(1), 8082);
    let balancer = BalancerProcess::start(&lab, &site(&lab, &state(&lab), elsewhere, &acme));
    let line = balancer.wait_for_log("acme: cannot get a certificate for site.example");
    assert!(line.contains("ERROR") && line.contains("connection refused"), "{line}");
    assert!(line.contains("; next attempt in 3m") || line.contains("; next attempt in 4m"), "{line}");
    balancer.wait_for_stat("/acme/names/site.example/failures", 1);
    let status = convey_testkit::run(balancer.command().arg("status"));
    assert!(status.stdout.contains("connection refused"), "{}", status.stdout);
    // A change of the address alone triggers no order; a change of the order's settings does.
    let acme = pebble.table("challenge = \"http-01\"\nemail = \"ops@example.com\"");
    balancer.save(&site(&lab, &state(&lab), lab.second_vip(), &acme));
    wait_for_certificate(&balancer);
    balancer.wait_for_stat("/acme/names/site.example/failures", 0);
    assert!(fetch(&lab, &pebble).starts_with("a GET /x"));
}

fn retry_after_of_a_busy_authority_is_respected() {
    const PROBLEM: &str =
        r#"{"type":"urn:ietf:params:acme:error:rateLimited","detail":"too many orders of late"}"#;
    let (lab, its) = (Loopback::new(), Loopback::new());
    let _busy = TestHttpServer::start(its.server(1), |_, stream| {
        let head =
            "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7200\r\nContent-Type: application/problem+json";
        write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{PROBLEM}", PROBLEM.len())
    });
    let authority = TestAuthority::new("The authority of the authority");
    authority.issue(&[&its.ip(1).to_string()]).save(its.directory(), "site");
    let at = its.directory().display();
    let tls = format!("certificate = \"{at}/site.pem\"\nkey = \"{at}/site.key\"");
    let frontend = format!("mode = \"http\"\n[frontends.web.tls]\n{tls}\n");
    let _door =
        BalancerProcess::start(&its, &Setup::new(&its).frontend(&frontend).server("a", its.server(1), ""));
    let ca = authority.save(its.directory());
    let (directory, ca) = (its.vip(), ca.display());
    let acme =
        format!("[acme]\ndirectory = \"https://{directory}/dir\"\nca = \"{ca}\"\nchallenge = \"http-01\"\n");
    let config = site(&lab, &state(&lab), lab.second_vip(), &acme);
    let balancer = BalancerProcess::start(&lab, &config);
    let line = balancer.wait_for_log("acme: cannot get a certificate for site.example");
    assert!(line.contains("429 Too Many Requests: too many orders of late; next attempt in 2h"), "{line}");
    drop(balancer);
    // A restart does not order sooner.
    let balancer = BalancerProcess::start(&lab, &config);
    balancer.wait_for_stat("/acme/names/site.example/failures", 1);
    assert!(!balancer.log().contains("acme: ordering"));
}

fn nodes_that_share_a_folder_order_once_and_answer_for_each_other() {
    let (lab, other) = (Loopback::new(), Loopback::new());
    let _servers = [&lab, &other].map(|lab| TestHttpServer::named("a", lab.server(1)));
    // An order takes longer than the check whether another node orders.
    let pebble = Pebble::start(&lab, &Habits::default());
    let acme = pebble.table("challenge = \"http-01\"");
    let shared = state(&lab);
    let nodes = [&other, &lab]
        .map(|node| BalancerProcess::start(node, &site(node, &shared, node.second_vip(), &acme)));
    nodes.iter().for_each(|node| {
        node.wait_for_log("tls.+ certificate");
    });
    assert_eq!(pebble.orders(), 1);
    // The authority has found all names at the second node; whichever has ordered.
    assert!(nodes[1].stat("/frontends/plain/requests/local_replies/acme_challenge").as_u64().unwrap() >= 1);
    assert!(fetch(&lab, &pebble).starts_with("a GET /x") && fetch(&other, &pebble).starts_with("a GET /x"));
}

fn a_node_that_is_killed_goes_on_with_its_order() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let pebble = Pebble::start(&lab, &Habits::default());
    let config = site(&lab, &state(&lab), lab.second_vip(), &pebble.table("challenge = \"http-01\""));
    let first = BalancerProcess::start(&lab, &config);
    let shown = kept(&state(&lab)).join("challenges/site.example.json");
    wait_for("an order that runs", || shown.exists().then_some(()));
    // Killed.
    drop(first);
    assert_eq!(pebble.orders(), 1);
    let second = BalancerProcess::start(&lab, &config);
    wait_for_certificate(&second);
    assert_eq!(pebble.orders(), 1, "it is the same order");
    assert!(!shown.exists());
    assert!(fetch(&lab, &pebble).starts_with("a GET /x"));
}

fn an_account_is_bound_to_one_elsewhere() {
    const KEY: &str = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let pebble = Pebble::start(&lab, &Habits { external_account: Some(("kid-1", KEY)), ..Habits::default() });
    let config = |lines: &str| site(&lab, &state(&lab), lab.second_vip(), &pebble.table(lines));
    let balancer = BalancerProcess::start(&lab, &config("challenge = \"http-01\""));
    let line = balancer.wait_for_log("acme: cannot get a certificate for site.example");
    assert!(line.contains("externalAccountRequired"), "{line}");
    let key = lab.directory().join("eab.key");
    fs::write(&key, KEY).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let bound =
        format!("challenge = \"http-01\"\neab_key_id = \"kid-1\"\neab_key_file = \"{}\"", key.display());
    balancer.save(&config(&bound));
    wait_for_certificate(&balancer);
    assert!(fetch(&lab, &pebble).starts_with("a GET /x"));
}

fn not_root() -> Option<String> {
    (!rustix::process::geteuid().is_root()).then(|| "only root can become another user".to_owned())
}

fn a_confined_user_orders_and_renews() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    // The user must be able to read the file.
    fs::set_permissions(lab.directory(), fs::Permissions::from_mode(0o755)).unwrap();
    let pebble = Pebble::start(&lab, &Habits { validity: 12, ..Habits::default() });
    let acme = pebble.table("challenge = \"http-01\"");
    let config = site(&lab, &state(&lab), lab.second_vip(), &acme);
    let balancer =
        BalancerProcess::start(&lab, &format!("{config}[privileges]\nuser = \"65533\"\nlandlock = true\n"));
    wait_for_certificate(&balancer);
    let file = kept(&state(&lab)).join("certificates/site.example.pem");
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&fs::metadata(file).unwrap()), 65_533);
    balancer.wait_for_log("site.example.pem: replaced");
    assert!(fetch(&lab, &pebble).starts_with("a GET /x"));
    drop(balancer);
    // A process of another user refuses the folder.
    let other = lab.directory().join("other.toml");
    fs::write(&other, format!("{config}[privileges]\nuser = \"65532\"\n")).unwrap();
    let ran = convey_testkit::run(convey_testkit::binary().arg("check").arg("--config").arg(&other));
    assert!(ran.code != Some(0), "{}", ran.stdout);
    assert!(ran.stderr.contains("has to own it: `chown -R 65532"), "{}", ran.stderr);
}

fn first_order_arrives_at_an_announced_address_and_failed_orders_withdraw_it() {
    const VIP: &str = "10.9.9.1";
    let name = "acme::first_order_arrives_at_an_announced_address_and_failed_orders_withdraw_it";
    in_namespace(name, "", || {
        let lab = Loopback::new();
        let _server = TestHttpServer::named("a", lab.server(1));
        let pebble = Pebble::start(&lab, &Habits { names_are_at: Some(VIP), ..Habits::default() });
        let acme = pebble.table("challenge = \"http-01\"") + "[announce]\nhold = 1\n";
        let plain = format!("{VIP}:{}", lab.second_vip().port()).parse().unwrap();
        let config = site(&lab, &state(&lab), plain, &acme);
        let config = config.replace(&lab.vip().to_string(), &format!("{VIP}:{}", lab.vip().port()));
        let balancer = BalancerProcess::start(&lab, &config);
        wait_for_certificate(&balancer);
        assert!(
            balancer.stat("/frontends/plain/requests/local_replies/acme_challenge").as_u64().unwrap() >= 1
        );
        balancer.wait_for_stat(&format!("/announced/{VIP}/announced"), true);
        assert_eq!(balancer.page("/readyz").0, 200);

        // The next process has no authority, and no state of the last one.
        drop((balancer, pebble));
        fs::remove_dir_all(state(&lab)).unwrap();
        let balancer = BalancerProcess::start(&lab, &config);
        balancer.wait_for_log("acme: cannot get a certificate for site.example");
        balancer.wait_for_stat(&format!("/announced/{VIP}/announced"), false);
        let (code, why) = balancer.page("/readyz");
        let expected = "frontend web: it has no certificate; the last order for site.example failed: ";
        assert!(code == 503 && why.starts_with(expected), "{why}");
        let status = run(balancer.command().arg("status"));
        assert!(status.code == Some(3) && status.stdout.contains(expected), "{status:?}");
        let metrics = balancer.page("/metrics").1;
        assert!(metrics.contains("convey_frontend_certificate_valid{frontend=\"web\"} 0"), "{metrics}");
        let doctor = run(balancer.command().arg("doctor").arg("--config").arg(balancer.config()));
        assert!(doctor.code == Some(3) && doctor.stdout.contains("error [certificate]"), "{doctor:?}");
    });
}

fn unwritable_state_dir_prevents_the_start() {
    let lab = Loopback::new();
    let file = lab.directory().join("file");
    fs::write(&file, "").unwrap();
    let acme = "[acme]\nchallenge = \"http-01\"\n";
    let config = lab.directory().join("convey.toml");
    fs::write(&config, site(&lab, &file, lab.second_vip(), acme)).unwrap();
    let ran = convey_testkit::run(convey_testkit::binary().arg("--config").arg(&config));
    assert_ne!(ran.code, Some(0));
    assert!(ran.stderr.contains("state_dir: cannot create"), "{}", ran.stderr);
}

fn world_writable_state_dir_is_refused() {
    let lab = Loopback::new();
    fs::create_dir(state(&lab)).unwrap();
    fs::set_permissions(state(&lab), fs::Permissions::from_mode(0o777)).unwrap();
    let config = lab.directory().join("convey.toml");
    fs::write(&config, site(&lab, &state(&lab), lab.second_vip(), "[acme]\nchallenge = \"http-01\"\n"))
        .unwrap();
    for check in [&["check"][..], &[]] {
        let ran = convey_testkit::run(convey_testkit::binary().args(check).arg("--config").arg(&config));
        assert_ne!(ran.code, Some(0));
        assert!(ran.stderr.contains("all users can write"), "{}", ran.stderr);
    }
}
