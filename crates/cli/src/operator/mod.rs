//! Commands for the running convey: each sends a request to its control socket, and prints the
//! response.

mod client;
mod flows;
mod pcap;
mod requests;
mod status;
mod steering;
#[cfg(test)]
mod testing;
mod times;
mod top;
mod trace;

pub use client::{Client, Refused, read};
pub use flows::{kill, path, shown};
pub use pcap::PacketFile;
pub use status::{StatusScreen, certificate_faults, other_than_file, past};
pub use steering::{Change, Wanted, carry_out, explain_path, wait_until_idle};
pub use top::{TopColumn, TopKey, TopSample, TopState, draw, is_restarted, top_text};
pub use trace::{ShownLine, trace_path};

use convey_api::ServerReport;

/// State of a server in one word: `up`, `down`, `ejected`, `drain` or `maint`. An administrative
/// state takes precedence.
fn server_state(server: &ServerReport) -> &str {
    match (&*server.state, server.up) {
        (state @ ("drain" | "maint"), _) => state,
        (_, false) => "down",
        (_, true) if server.ejected.is_some() => "ejected",
        (_, true) => "up",
    }
}
