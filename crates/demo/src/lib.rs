//! What `convey demo` adds to the balancer: servers to balance over, a network to do it in, a text that says
//! what runs where, and a line that shows it at work.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod banner;
mod ecmp;
mod live;
mod packets;
mod sample;
mod servers;
mod trace;

pub use banner::banner;
pub use ecmp::EcmpDemo;
pub use live::{live_line, show_live};
pub use packets::PacketDemo;
pub use sample::Sample;
pub use servers::{DemoError, Servers, start_servers};
