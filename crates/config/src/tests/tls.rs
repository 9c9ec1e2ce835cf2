//! Tests of `[frontends.NAME.tls]`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rcgen::{CertificateParams, KeyPair};

use crate::{Loaded, Problem, describe, load, validate_without_host};

const SERVED: &str = "backends.site.servers.a.addr = '10.0.0.2:80'\n";

/// Saves a certificate for the host `name` in `FILE.pem`, and its key in `FILE.key`.
pub(super) fn save(folder: &Path, file: &str, name: &str) {
    let key = KeyPair::generate().unwrap();
    let chain = CertificateParams::new(vec![name.to_owned()]).unwrap().self_signed(&key).unwrap().pem();
    fs::write(folder.join(format!("{file}.pem")), chain).unwrap();
    save_secret(&folder.join(format!("{file}.key")), &key.serialize_pem());
}

pub(super) fn save_secret(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

fn loaded(folder: &Path, frontend: &str, tls: &str) -> Result<Loaded, String> {
    let path = folder.join("c.toml");
    let frontend = format!("[frontends.web]\nlisten_addr = '10.0.0.1:443'\nbackend = 'site'\n{frontend}\n");
    fs::write(&path, format!("{SERVED}{frontend}[frontends.web.tls]\n{tls}\n")).unwrap();
    load(&path).map_err(|error| error.to_string().replace(&format!("{}/", folder.display()), ""))
}

#[test]
fn certificates_are_read_beside_the_file_and_in_folders() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    save(folder, "site", "site.example");
    fs::create_dir(folder.join("more")).unwrap();
    save(&folder.join("more"), "b", "b.example");
    save(&folder.join("more"), "a", "a.example");
    // The key is in the same file as the certificate; hidden files and other files are ignored.
    let both =
        ["pem", "key"].map(|ending| fs::read_to_string(folder.join(format!("more/b.{ending}"))).unwrap());
    save_secret(&folder.join("more/both.crt"), &both.concat());
    fs::write(folder.join("more/README"), "").unwrap();
    fs::write(folder.join("more/.hidden.pem"), "").unwrap();
    let tls = "certificate = 'site.pem'\nkey = 'site.key'\ncertificate_dir = 'more'";
    let loaded = loaded(folder, "mode = 'http'", tls).unwrap();
    let tls = loaded.config.frontends[0].tls.clone().unwrap();
    let files = tls.certificates.iter().map(|pair| {
        let name = |path: &Path| path.strip_prefix(folder).unwrap().display().to_string();
        (name(&pair.chain_path), name(&pair.key_path))
    });
    let expected = [
        ("site.pem", "site.key"),
        ("more/a.pem", "more/a.key"),
        ("more/b.pem", "more/b.key"),
        ("more/both.crt", "more/both.crt"),
    ];
    assert_eq!(files.collect::<Vec<_>>(), expected.map(|(chain, key)| (chain.to_owned(), key.to_owned())));
    assert_eq!(tls.alpn, ["h2", "http/1.1"]);
    assert!(!format!("{tls:?}").contains("PRIVATE"), "keys are in no log");
    assert!(
        describe(&loaded.config).contains("; tls 1.2 and later, 4 certificates"),
        "{}",
        describe(&loaded.config)
    );
}

#[test]
fn certificate_and_key_errors_are_reported_with_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    save(folder, "site", "site.example");
    save(folder, "other", "site.example");
    save_secret(&folder.join("no.key"), "nothing");
    fs::create_dir(folder.join("empty")).unwrap();
    save_secret(&folder.join("open.key"), &fs::read_to_string(folder.join("site.key")).unwrap());
    fs::set_permissions(folder.join("open.key"), Permissions::from_mode(0o644)).unwrap();
    for (tls, expected) in [
        (
            "",
            "c.toml:6:1: frontends.web.tls.certificate: required, but missing: certificate and key, or certificate_dir",
        ),
        (
            "certificate = 'site.pem'",
            "c.toml:7:15: frontends.web.tls.certificate: site.pem: it has no private key",
        ),
        (
            "certificate = 'gone.pem'\nkey = 'site.key'",
            "c.toml:7:15: frontends.web.tls.certificate: cannot read gone.pem: No such file",
        ),
        (
            "certificate = 'site.pem'\nkey = 'open.key'",
            "c.toml:8:7: frontends.web.tls.key: cannot read open.key: its mode is 0644",
        ),
        (
            "certificate = 'site.pem'\nkey = 'other.key'",
            "8:7: frontends.web.tls.key: other.key: the private key does not match the first certificate",
        ),
        ("certificate = 'site.pem'\nkey = 'no.key'", "no.key: it has no private key"),
        (
            "certificate = 'no.key'\nkey = 'site.key'",
            "c.toml:7:15: frontends.web.tls.certificate: no.key: it has no certificate",
        ),
        (
            "certificate = ['site.pem', 'other.pem']\nkey = 'site.key'",
            "found 1 for 2 certificates; allowed: one for each certificate",
        ),
        (
            "certificate = 'site.pem'\nkey = 'site.key'\nalpn = 'http/2'",
            "tls.alpn: found \"http/2\"; clients offer HTTP/2 as \"h2\"",
        ),
        ("certificate_dir = 'empty'", "there is no certificate in empty: no file NAME.pem or NAME.crt"),
        ("certificate_dir = 'gone'", "cannot read gone: No such file"),
        (
            "certificate = 'site.pem'\nkey = 'site.key'\nmin_version = '1.1'",
            "found \"1.1\"; allowed: 1.2, 1.3",
        ),
        (
            "certificate = 'site.pem'\nkey = 'site.key'\nmin_version = 1.2",
            "found 1.2; allowed: \"1.2\", \"1.3\"",
        ),
        (
            "certificate = 'site.pem'\nkey = 'site.key'\ncipher_suites = 'AES128-SHA'",
            "found \"AES128-SHA\"; allowed: TLS13_AES_256_GCM_SHA384",
        ),
        (
            "certificate = 'site.pem'\nkey = 'site.key'\nmin_version = '1.3'\ncipher_suites = 'TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256'",
            "frontends.web.tls: cipher_suites: no listed suite is for an enabled TLS version",
        ),
        (
            "certificate = 'site.pem'\nkey = 'site.key'\ncipher_suites = 'TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256'",
            "frontends.web.tls: cipher_suites: the listed suites need a certificate with an RSA key, and there is none; add ECDSA or TLS 1.3 suites",
        ),
        ("certificate = 'site.pem'\nkey = 'site.key'\nclient_certificate = 'required'", "needs client_ca"),
        (
            "certificate = 'site.pem'\nkey = 'site.key'\nclient_ca = 'no.key'",
            "client_ca: no.key: no root trust anchors",
        ),
    ] {
        let refused = loaded(folder, "mode = 'http'", tls).map(drop).unwrap_err();
        assert!(refused.contains(expected), "{tls}:\n{refused}");
    }
}

#[test]
fn folder_of_certificates_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("many")).unwrap();
    for n in 0..10_001 {
        std::fs::write(folder.path().join(format!("many/{n}.pem")), "").unwrap();
    }
    let refused = loaded(folder.path(), "", "certificate_dir = 'many'").unwrap_err();
    assert!(refused.contains("many has 10001 certificates; allowed: at most 10000"), "{refused}");
}

#[test]
fn cipher_suites_usable_with_the_key_type_are_accepted() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), "site", "site.example");
    for suites in [
        "'TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256'",
        "['TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256', 'TLS13_AES_128_GCM_SHA256']",
        "['TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256', 'TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384']",
    ] {
        let tls = format!("certificate = 'site.pem'\nkey = 'site.key'\ncipher_suites = {suites}");
        loaded(folder.path(), "mode = 'http'", &tls).map(drop).unwrap();
    }
}

#[test]
fn tls_is_for_modes_that_end_connections() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), "site", "site.example");
    let tls = "certificate = 'site.pem'\nkey = 'site.key'";
    let file = folder.path().join("c.toml").display().to_string();
    let at = |line: u32, column: u32, key: &str, message: &str| {
        format!("{file}:{line}:{column}: frontends.web.tls{key}: {message}")
    };
    let refused = |frontend: &str, more: &str| {
        let loaded = loaded(folder.path(), frontend, &format!("{tls}\n{more}")).unwrap();
        let diagnostics = super::modes::diagnostics_of(&loaded).unwrap_or_else(|errors| errors);
        diagnostics.into_iter().filter(|line| line.contains("tls")).collect::<Vec<_>>()
    };
    assert_eq!(refused("mode = 'http'", ""), [""; 0]);
    assert_eq!(refused("mode = 'proxy'", "alpn = 'xmpp-client'"), [""; 0]);
    assert_eq!(
        refused("protocol = 'udp'", ""),
        [at(6, 1, "", "needs protocol = \"tcp\"; the frontend has \"udp\"")]
    );
    assert_eq!(
        refused("mode = 'http'", "alpn = ['h2', 'xmpp-client']"),
        [at(9, 15, ".alpn", "found \"xmpp-client\"; allowed in http mode: \"h2\", \"http/1.1\"")]
    );
    let in_dsr = refused("mode = 'dsr'", "");
    assert!(
        in_dsr.iter().any(|message| message.contains("needs mode = \"http\" or \"proxy\"; frontend")),
        "{in_dsr:?}"
    );
    // The error does not depend on the host, so it is found on any host.
    let on_any_host = |frontend: &str, more: &str| {
        let loaded = loaded(folder.path(), frontend, &format!("{tls}\n{more}")).unwrap();
        let keys = |errors: Vec<Problem>| errors.into_iter().map(|error| error.key).collect::<Vec<_>>();
        validate_without_host(&loaded).map(drop).map_err(keys)
    };
    assert_eq!(on_any_host("mode = 'http'", "http3 = true"), Ok(()));
    for (frontend, more, key) in [
        ("mode = 'proxy'", "http3 = true", "frontends.web.tls.http3"),
        ("mode = 'http'", "alpn = 'h3'", "frontends.web.tls.alpn"),
        ("mode = 'dsr'", "", "frontends.web.tls"),
    ] {
        let keys = on_any_host(frontend, more).unwrap_err();
        assert!(keys.iter().any(|found| found == key), "{keys:?}");
    }
}

#[test]
fn http3_is_for_mode_http_and_early_data_goes_with_it() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), "site", "site.example");
    let pair = "certificate = 'site.pem'\nkey = 'site.key'";
    let load = |frontend: &str, tls: &str| loaded(folder.path(), frontend, &format!("{pair}\n{tls}"));
    let config = load("mode = 'http'", "http3 = true\nearly_data = true").unwrap().config;
    let places: Vec<String> = config.frontends[0].endpoints().map(|at| at.to_string()).collect();
    assert_eq!(places.len(), 2, "TCP and UDP: {places:?}");
    assert!(describe(&config).contains(", 1 certificate, HTTP/3"), "{}", describe(&config));
    for (frontend, tls, expected) in [
        ("mode = 'proxy'", "http3 = true", "tls.http3: needs mode = \"http\"; the frontend is in proxy mode"),
        (
            "mode = 'http'\naccept_proxy = true\ntrusted_proxies = '10.0.0.1'",
            "http3 = true",
            "tls.http3: HTTP/3 clients cannot send",
        ),
        ("mode = 'http'", "early_data = true", "tls.early_data: needs http3 = true"),
        (
            "mode = 'http'",
            "http3 = true\nearly_data = true\nsession_tickets = false",
            "tls.early_data: needs session_tickets",
        ),
        (
            "mode = 'http'",
            "http3 = true\nearly_data = true\nclient_ca = 'site.pem'",
            "tls.early_data: skips the check of client certificates",
        ),
        (
            "mode = 'http'",
            "http3 = true\ncipher_suites = 'TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256'",
            "http3: HTTP/3 needs a TLS 1.3 suite in cipher_suites",
        ),
    ] {
        let diagnostics =
            load(frontend, tls).map(|loaded| super::modes::diagnostics_of(&loaded).unwrap_err().join("\n"));
        let error = diagnostics.unwrap_or_else(|error| error);
        assert!(error.contains(expected), "{expected} in {error}");
    }
    load("mode = 'http'", "early_data = false").unwrap();
}

#[test]
fn a_reload_says_what_changes() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), "site", "site.example");
    let read = |tls: &str| {
        loaded(folder.path(), "mode = 'http'", &format!("certificate = 'site.pem'\nkey = 'site.key'\n{tls}"))
            .unwrap()
    };
    let before = read("");
    let diff = |after: Loaded| {
        let (_, diff) = after.reload(&before.config);
        assert!(diff.needs_restart.is_empty());
        diff.changes.join("\n").replace(&format!("{}/", folder.path().display()), "")
    };
    let all = "refuse_unknown_names = true\nmin_version = '1.3'\nalpn = 'h2'\nclient_ca = 'site.pem'\n\
        client_certificate = 'optional'\nsession_tickets = false\nhandshake_timeout = '2s'\nmax_handshakes_per_source = 7\n\
        http3 = true";
    assert_eq!(
        diff(read(all)),
        "frontend web: tls.refuse_unknown_names false -> true, tls.min_version 1.2 -> 1.3, tls.alpn h2, http/1.1 -> h2, \
         tls.client_ca none -> site.pem (optional), tls.session_tickets true -> false, tls.handshake_timeout 10s -> 2s, \
         tls.max_handshakes_per_source 256 -> 7, tls.http3 false -> true"
    );
    save(folder.path(), "site", "site.example");
    assert_eq!(diff(read("")), "frontend web: tls.certificate site.pem: replaced");
}
