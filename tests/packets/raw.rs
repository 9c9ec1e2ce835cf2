//! Frames that no ordinary socket sends.

use convey::demo::lab::INTERFACE;
use pnet_datalink::{Channel, Config, DataLinkSender};

/// Where the interface of the machine whose namespace the calling thread is in takes frames.
pub(crate) struct Wire(Box<dyn DataLinkSender>);

impl Wire {
    pub(crate) fn open() -> Wire {
        let interfaces = pnet_datalink::interfaces();
        let interface = interfaces.iter().find(|interface| interface.name == INTERFACE).unwrap();
        match pnet_datalink::channel(interface, Config::default()).unwrap() {
            Channel::Ethernet(sender, _) => Wire(sender),
            _ => panic!("{INTERFACE} is no Ethernet interface"),
        }
    }

    pub(crate) fn send(&mut self, frame: &[u8]) {
        match self.0.send_to(frame, None).unwrap() {
            // A queue on the way is full: the wire has lost it.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
            sent => sent.unwrap(),
        }
    }
}
