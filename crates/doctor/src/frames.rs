//! Sends and receives raw frames on a link, without the host's network stack.

use std::time::Duration;

use pnet_datalink::{Channel, Config, DataLinkReceiver, DataLinkSender, NetworkInterface};

/// Interval at which a capture checks whether to stop.
pub(crate) const CAPTURE_TIMEOUT: Duration = Duration::from_millis(50);

/// Opens a sender and a receiver on the interface with this index; `None` without CAP_NET_RAW.
pub(crate) fn open(interface: u32) -> Option<(Box<dyn DataLinkSender>, Box<dyn DataLinkReceiver>)> {
    // pnet reads no other field.
    let interface = NetworkInterface {
        index: interface,
        name: String::new(),
        description: String::new(),
        mac: None,
        ips: Vec::new(),
        flags: 0,
    };
    let config = Config { read_timeout: Some(CAPTURE_TIMEOUT), promiscuous: false, ..Config::default() };
    match pnet_datalink::channel(&interface, config).ok()? {
        Channel::Ethernet(sender, receiver) => Some((sender, receiver)),
        _ => None,
    }
}

/// Sends a frame. Errors are ignored: the caller repeats the frame, or reports a missing answer.
pub(crate) fn send(sender: &mut Box<dyn DataLinkSender>, frame: &[u8]) {
    let _ = sender.send_to(frame, None);
}
