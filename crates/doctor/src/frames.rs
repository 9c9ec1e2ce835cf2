//! Frames of a link, past the host's own stack.

use std::time::Duration;

use pnet_datalink::{Channel, Config, DataLinkReceiver, DataLinkSender, NetworkInterface};

/// How often a capture looks whether it is over.
pub(crate) const CAPTURE_TIMEOUT: Duration = Duration::from_millis(50);

/// Both ends of the interface with this number; `None` without CAP_NET_RAW.
pub(crate) fn open(interface: u32) -> Option<(Box<dyn DataLinkSender>, Box<dyn DataLinkReceiver>)> {
    // pnet reads nothing else of it.
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

/// What cannot be sent is sent again, or is no answer.
pub(crate) fn send(sender: &mut Box<dyn DataLinkSender>, frame: &[u8]) {
    let _ = sender.send_to(frame, None);
}
