//! HTTP/3: requests over QUIC, beside requests over TCP.

mod browser;
pub(crate) mod client;
mod early;
mod forger;
pub(crate) mod hostile;
mod lives_on;
mod malformed;
mod recorder;
mod requests;
mod undecided;
mod uploads;

use convey_testkit::{Loopback, Setup, TestAuthority};
use libtest_mimic::Trial;

pub(crate) fn tests() -> Vec<Trial> {
    let all = [
        requests::tests(),
        uploads::tests(),
        browser::tests(),
        lives_on::tests(),
        early::tests(),
        hostile::tests(),
        malformed::tests(),
        undecided::tests(),
    ];
    all.into_iter().flatten().collect()
}

/// A frontend with HTTP/3, the certificate `site` from this network's directory, these lines in its
/// table `tls`, and the first server.
pub(crate) fn site(lab: &Loopback, lines: &str) -> Setup {
    with(lab, "", lines).server("a", lab.server(1), "")
}

/// A `site` whose server is not checked.
fn unchecked_site(lab: &Loopback) -> Setup {
    with(lab, "", "").health("kind = \"none\"").server("a", lab.server(1), "")
}

/// Setup without a server, with these lines for the frontend and for TLS.
fn with(lab: &Loopback, lines: &str, of_tls: &str) -> Setup {
    let at = lab.directory().display();
    Setup::new(lab).frontend(&format!(
        "mode = \"http\"\n{lines}\n[frontends.web.tls]\nhttp3 = true\ncertificate = \"{at}/site.pem\"\nkey = \"{at}/site.key\"\n{of_tls}"
    ))
}

/// An authority whose certificate for `site.example` is in this network's directory.
pub(crate) fn authority(lab: &Loopback) -> TestAuthority {
    let authority = TestAuthority::new("The authority");
    authority.issue(&["site.example"]).save(lab.directory(), "site");
    authority.save(lab.directory());
    authority
}
