//! Health checks over HTTP and HTTPS: their requests, and the certificates that they accept.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use convey_testkit::{
    BalancerProcess, Loopback, Need, Process, Setup, TestHttpServer, binary, run, tests, tool, wait_for,
};

tests!("checks":
    http_check_sends_configured_headers_and_accepts_listed_statuses,
    server_with_an_unexpected_check_body_gets_no_clients,
    https_check_accepts_certificates_for_its_host_only [Need::OPENSSL],
);

fn http_check_sends_configured_headers_and_accepts_listed_statuses() {
    let lab = Loopback::new();
    answer_as_asked(lab.server(1));
    let health = |statuses: &str| {
        format!(
            "kind = \"http\"\npath = \"/up?deep=1\"\nhost = \"app.internal:81\"\ninterval = \"50ms\"\nrise = 1\nfall = 1\n\
             headers = {{ X-Token = \"s3cret\", User-Agent = \"probe\" }}\nexpected_status = {statuses}"
        )
    };
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup.clone().health(&health("[204, \"418-420\"]")));
    balancer.wait_for_stat("/backends/pool/servers/a/health/reason", "HTTP status 418");
    balancer.wait_for_health("a", true);
    balancer.save(&setup.clone().health(&health("[204, 417]")));
    balancer.wait_for_stat("/backends/pool/servers/a/health/reason", "HTTP status 418, expected 204, 417");
    balancer.save(&setup.clone().health(&health("418")));
    balancer.wait_for_stat("/backends/pool/servers/a/health/reason", "HTTP status 418");
    balancer.save(&setup.health(&health("418").replace("s3cret", "other")));
    let refused = "HTTP status 400, expected 418";
    balancer.wait_for_stat("/backends/pool/servers/a/health/reason", refused);
    assert!(!balancer.log().contains("s3cret"), "{}", balancer.log());
}

/// A server that answers 418 to the expected request, and 400 to any other.
fn answer_as_asked(addr: SocketAddr) {
    const ASKED: [&str; 4] =
        ["GET /up?deep=1 HTTP/1.1", "host: app.internal:81", "x-token: s3cret", "user-agent: probe"];
    let listener = TcpListener::bind(addr).unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                match stream.read(&mut byte) {
                    Ok(1..) => request.push(byte[0]),
                    _ => break,
                }
            }
            let request = String::from_utf8(request).unwrap();
            let is_asked =
                ASKED.iter().all(|line| request.lines().any(|found| found.eq_ignore_ascii_case(line)));
            let status = if is_asked { 418 } else { 400 };
            let _ = write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
}

fn server_with_an_unexpected_check_body_gets_no_clients() {
    let lab = Loopback::new();
    let is_in_maintenance = Arc::new(AtomicBool::new(false));
    let seen = is_in_maintenance.clone();
    let _server = TestHttpServer::start(lab.server(1), move |_, stream| {
        let body = if seen.load(Ordering::Relaxed) { "b\r\nmaintenance" } else { "8\r\nall good" };
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n{body}\r\n0\r\n\r\n"
        )
    });
    let health =
        "kind = \"http\"\ninterval = \"50ms\"\nrise = 1\nfall = 1\nexpected_body = \"(?i)^ALL GOOD$\"";
    let setup = Setup::new(&lab).server("a", lab.server(1), "").health(health);
    let balancer = BalancerProcess::start(&lab, &setup);
    let reason = "/backends/pool/servers/a/health/reason";
    balancer.wait_for_health("a", true);
    balancer.wait_for_stat(reason, "HTTP status 200");

    is_in_maintenance.store(true, Ordering::Relaxed);
    balancer.wait_for_health("a", false);
    let why = "HTTP status 200, but the body does not match \"(?i)^ALL GOOD$\"";
    balancer.wait_for_stat(reason, why);
    let line = balancer.wait_for_log("is down");
    assert!(line.contains(why), "{line}");

    is_in_maintenance.store(false, Ordering::Relaxed);
    balancer.wait_for_health("a", true);
}

fn https_check_accepts_certificates_for_its_host_only() {
    let lab = Loopback::new();
    let certificate = certificate(lab.directory());
    let _server = Tls::start(lab.directory(), lab.server(1));
    let backend = |name: &str, n: u16, keys: &str| {
        let listen = SocketAddr::new(lab.vip().ip(), lab.vip().port() + n);
        format!(
            "[frontends.{name}]\nlisten_addr = \"{listen}\"\nbackend = \"{name}\"\n[backends.{name}.servers.a]\naddr = \"{}\"\n\
             [backends.{name}.health_check]\nkind = \"https\"\ninterval = \"500ms\"\nrise = 1\nfall = 1\n{keys}\n",
            lab.server(1)
        )
    };
    let more = backend("believed", 1, "host = \"app.internal\"")
        + &backend("other", 2, "host = \"other.internal\"")
        + &backend("address", 3, "")
        + &backend("unverified", 4, "host = \"other.internal\"\ntls_skip_verify = true")
        + &backend("status", 5, "host = \"app.internal\"\nexpected_status = 500");
    let setup = Setup::new(&lab).server("a", lab.server(1), "").and(&more);
    let mut command = binary();
    command.env("SSL_CERT_FILE", &certificate);
    let balancer = BalancerProcess::start_with(&lab, &setup, command);
    let reason = |backend: &str, is_up: bool, message: &str| {
        wait_for(&format!("{backend}: {message}"), || {
            let health = balancer.stat(&format!("/backends/{backend}/servers/a/health"));
            (health["up"] == is_up && health["reason"].as_str()?.contains(message)).then_some(())
        });
    };
    reason("believed", true, "HTTPS status 200");
    reason("unverified", true, "HTTPS status 200");
    reason(
        "other",
        false,
        "TLS failed: invalid peer certificate: certificate not valid for name \"other.internal\"",
    );
    reason("address", false, "TLS failed: invalid peer certificate: certificate not valid for name");
    reason("status", false, "HTTPS status 200, expected 500".trim_start_matches("HTTPS "));
    drop(balancer);

    // With another authority in `SSL_CERT_FILE`, convey refuses the certificate.
    let mut command = binary();
    command.env("SSL_CERT_FILE", other_authority(lab.directory()));
    let balancer = BalancerProcess::start_with(&lab, &setup, command);
    wait_for("the certificate to be refused", || {
        let reason = balancer.stat("/backends/believed/servers/a/health/reason");
        reason.as_str()?.contains("TLS failed: invalid peer certificate: UnknownIssuer").then_some(())
    });
}

/// Makes a certificate for app.internal, with its key beside it.
fn certificate(directory: &Path) -> PathBuf {
    self_signed(directory, "tls", "app.internal")
}

/// Certificate of another authority, to be trusted instead.
fn other_authority(directory: &Path) -> PathBuf {
    self_signed(directory, "authority", "authority.internal")
}

/// A certificate for this name, in `FILE.pem`, and its key, in `FILE.key`.
pub(crate) fn self_signed(directory: &Path, file: &str, name: &str) -> PathBuf {
    let config = directory.join(format!("{file}.cnf"));
    let text = format!(
        "[req]\nprompt = no\ndistinguished_name = name\nx509_extensions = extensions\n[name]\nCN = {name}\n\
         [extensions]\nbasicConstraints = critical, CA:FALSE\nsubjectAltName = DNS:{name}\n"
    );
    fs::write(&config, text).unwrap();
    let [key, certificate] = ["key", "pem"].map(|suffix| directory.join(format!("{file}.{suffix}")));
    let mut openssl = Command::new(tool("openssl").unwrap());
    openssl.args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]);
    openssl.arg("-config").arg(&config).arg("-keyout").arg(key).arg("-out").arg(&certificate);
    let ran = run(&mut openssl);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    certificate
}

/// A server that answers 200 over TLS.
pub(crate) struct Tls(Process);

impl Tls {
    pub(crate) fn start(directory: &Path, addr: SocketAddr) -> Tls {
        let mut openssl = Command::new(tool("openssl").unwrap());
        openssl.args(["s_server", "-www", "-quiet", "-accept", &addr.to_string()]).current_dir(directory);
        openssl.args(["-cert", "tls.pem", "-key", "tls.key"]);
        let server = Process::spawn(openssl.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
        wait_for("openssl s_server", || std::net::TcpStream::connect(addr).ok());
        Tls(server)
    }
}

impl Drop for Tls {
    fn drop(&mut self) {
        self.0.kill();
    }
}
