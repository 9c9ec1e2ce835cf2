//! Parts of `convey demo`: servers, lab networks, the start text, and a status line that shows the
//! balancer at work.
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
