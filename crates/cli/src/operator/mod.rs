//! Commands for the running convey: each sends a request to its control socket, and prints the
//! response.

mod client;
mod flows;
mod pcap;
mod requests;
mod status;
mod steering;
mod times;
mod top;
mod trace;

pub use client::{Client, Refused};
pub use flows::{FlowPage, kill, path, shown};
pub use pcap::PacketFile;
pub use status::{PastEvent, Status, StatusScreen, other_than_file, past};
pub use steering::{Change, Wanted, carry_out, explain_path, wait_until_idle};
pub use top::{TopColumn, TopEvent, TopKey, TopSample, TopState, TopStatus, draw, top_text};
pub use trace::{ShownEvent, trace_path};
