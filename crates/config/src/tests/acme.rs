//! Tests of `[acme]` and `state_dir`.

use std::fs;
use std::path::Path;

use super::tls::save_secret;
use crate::{Loaded, describe, load};
use convey_model::{AcmeChallenge, AcmeConfig};

const SERVED: &str = "[backends.site]\nhealth_check.kind = 'none'\nservers.a.addr = '10.0.0.2:80'\n";

const SITE: &str = "[frontends.site]\nlisten_addr = '10.0.0.1:443'\nmode = 'http'\ntls = {}\n\
                    [[frontends.site.routes]]\nhost = 'B.example'\nbackend = 'site'\n\
                    [[frontends.site.routes]]\nhost = 'a.example'\nbackend = 'site'\n\
                    [[frontends.site.routes]]\nhost = '*.wild.example'\nbackend = 'site'\n\
                    [[frontends.site.routes]]\nhost = '10.0.0.1'\nbackend = 'site'\n";

const PLAIN: &str = "[frontends.plain]\nlisten_addr = '10.0.0.1:80'\nmode = 'http'\nredirect = 'https'\n";

/// Loads a file with this `[acme]` table. The certificate authority is in a file next to it, so
/// that the test does not depend on the authorities of the host.
fn loaded(folder: &Path, acme: &str, frontends: &str) -> Result<Loaded, String> {
    let path = folder.join("c.toml");
    super::tls::save(folder, "ca", "authority.example");
    fs::write(&path, format!("state_dir = 'state'\n[acme]\nca = 'ca.pem'\n{acme}\n{SERVED}{frontends}"))
        .unwrap();
    load(&path).map_err(|error| error.to_string().replace(&format!("{}/", folder.display()), ""))
}

fn acme(loaded: &Loaded) -> &AcmeConfig {
    loaded.config.acme.as_ref().unwrap()
}

#[test]
fn acme_domains_follow_routes_and_the_challenge_follows_ports() {
    let folder = tempfile::tempdir().unwrap();
    let by_http = loaded(folder.path(), "", &format!("{SITE}{PLAIN}")).unwrap();
    assert_eq!(acme(&by_http).domains, ["a.example", "b.example"]);
    assert_eq!(
        (acme(&by_http).challenge, &*acme(&by_http).directory),
        (AcmeChallenge::Http01, AcmeConfig::PRODUCTION)
    );
    assert!(acme(&by_http).folder.ends_with("state/acme/acme-v02.api.letsencrypt.org-directory"));
    let text = describe(&by_http.config);
    assert!(text.contains("no certificate yet") && text.contains("a.example, b.example"), "{text}");
    let by_handshake = loaded(folder.path(), "directory = 'staging'", SITE).unwrap();
    assert_eq!(acme(&by_handshake).challenge, AcmeChallenge::TlsAlpn01);
    assert_eq!(acme(&by_handshake).directory, AcmeConfig::STAGING);
    let said = loaded(folder.path(), "domains = ['C.example.', 'c.example']", SITE).unwrap();
    assert_eq!(acme(&said).domains, ["c.example"]);
}

#[test]
fn stored_acme_certificates_are_loaded_without_broken_or_unwanted_ones() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("state/acme/acme-v02.api.letsencrypt.org-directory/certificates");
    fs::create_dir_all(&kept).unwrap();
    for name in ["b.example", "a.example", "gone.example"] {
        let other = tempfile::tempdir().unwrap();
        super::tls::save(other.path(), "x", name);
        let both =
            ["x.key", "x.pem"].map(|file| fs::read_to_string(other.path().join(file)).unwrap()).concat();
        save_secret(&kept.join(format!("{name}.pem")), &both);
    }
    let taken = |loaded: &Loaded| {
        let site = loaded.config.frontends.iter().find(|frontend| frontend.name == "site").unwrap();
        let pairs = site.tls.as_ref().unwrap().certificates.iter();
        pairs.map(|pair| pair.chain_path.file_stem().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(taken(&loaded(folder.path(), "", SITE).unwrap()), ["a.example", "b.example"]);
    save_secret(&kept.join("a.example.pem"), "nothing");
    let left = loaded(folder.path(), "", SITE).unwrap();
    assert_eq!(taken(&left), ["b.example"]);
    assert!(left.warnings[0].to_string().contains("a.example.pem is not used"), "{:?}", left.warnings);
}

#[test]
fn acme_errors_are_reported_with_their_place() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("open.key"), "c2VjcmV0").unwrap();
    save_secret(&folder.path().join("empty.key"), "?");
    let proxy = "[frontends.site]\nlisten_addr = '10.0.0.1:443'\nbackend = 'site'\ntls = {}\n";
    for (lines, frontends, expected) in [
        ("domains = '*.a.example'", SITE, "a wildcard needs a DNS challenge"),
        ("domains = '10.0.0.1'", SITE, "allowed: a host name in ASCII"),
        ("domains = 'ä.example'", SITE, "allowed: a host name in ASCII"),
        ("email = 'ops'", SITE, "allowed: one address"),
        ("directory = 'http://a.example'", SITE, "or an https URL"),
        ("challenge = 'dns-01'", SITE, "allowed: http-01, tls-alpn-01"),
        ("eab_key_id = '1'", SITE, "needs eab_key_file"),
        ("eab_key_file = 'open.key'", SITE, "needs eab_key_id"),
        ("eab_key_id = '1'\neab_key_file = 'open.key'", SITE, "all users can read it"),
        ("eab_key_id = '1'\neab_key_file = 'empty.key'", SITE, "does not contain a key in base64url"),
        ("", proxy, "no name to order a certificate for"),
        ("challenge = 'http-01'\ndomains = 'a.example'", proxy, "needs a frontend in mode http"),
        ("challenge = 'http-01'", SITE, "mode http, without tls, that the authority reaches"),
        ("", &SITE.replace(":443", ":8443"), "set challenge if another host"),
    ] {
        let diagnostics = loaded(folder.path(), lines, frontends).unwrap_err();
        assert!(diagnostics.contains(expected), "{lines}: {diagnostics}");
    }
    let unused = loaded(folder.path(), "domains = 'a.example'", PLAIN).unwrap();
    assert!(unused.warnings[0].to_string().contains("no frontend uses these certificates"));
    let without = format!("{SERVED}{}", SITE.replace("tls = {}", "tls = { acme = true }"));
    fs::write(folder.path().join("c.toml"), without).unwrap();
    let diagnostics = load(&folder.path().join("c.toml")).unwrap_err().to_string();
    assert!(diagnostics.contains("frontends.site.tls.acme: needs [acme]"), "{diagnostics}");
}
