//! TLS between clients and convey: handshakes, certificates, sessions, and refusals.

mod agreements;
mod certificates;
mod clients;
mod refused;
mod servers;
mod termination;

use std::path::Path;

use convey_testkit::{Loopback, Setup, TestAuthority};
use libtest_mimic::Trial;

pub(crate) fn tests() -> Vec<Trial> {
    let all = [
        termination::tests(),
        certificates::tests(),
        clients::tests(),
        refused::tests(),
        agreements::tests(),
        servers::tests(),
    ];
    all.into_iter().flatten().collect()
}

/// A frontend in mode `http` with the certificate `site` from this network's directory, and these
/// lines in its table `tls`.
pub(crate) fn https(lab: &Loopback, lines: &str) -> Setup {
    let tls = format!("mode = \"http\"\n{}", tls(lab.directory(), lines));
    Setup::new(lab).frontend(&tls).server("a", lab.server(1), "")
}

/// Setup of TLS in mode `proxy`.
fn within_tls(lab: &Loopback, lines: &str) -> Setup {
    Setup::new(lab).frontend(&tls(lab.directory(), lines)).server("a", lab.server(1), "")
}

fn tls(directory: &Path, lines: &str) -> String {
    let at = directory.display();
    format!("[frontends.web.tls]\ncertificate = \"{at}/site.pem\"\nkey = \"{at}/site.key\"\n{lines}")
}

/// An authority whose certificate for `site.example` is in this network's directory.
pub(crate) fn authority(lab: &Loopback) -> TestAuthority {
    let authority = TestAuthority::new("The authority");
    authority.issue(&["site.example"]).save(lab.directory(), "site");
    authority.save(lab.directory());
    authority
}
