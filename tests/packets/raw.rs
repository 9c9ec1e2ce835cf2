//! Frames that no ordinary socket sends, and captured frames of an interface.

use std::time::Duration;

use convey_lab::INTERFACE;
use pnet_datalink::{Channel, Config, DataLinkReceiver, DataLinkSender};

/// Sends frames on the interface of the calling thread's namespace.
pub(crate) struct Wire(Box<dyn DataLinkSender>);

impl Wire {
    pub(crate) fn open() -> Wire {
        Wire::open_on(INTERFACE)
    }

    /// Opens a wire on another interface.
    pub(crate) fn open_on(interface: &str) -> Wire {
        Wire(open(interface).0)
    }

    pub(crate) fn send(&mut self, frame: &[u8]) {
        match self.0.send_to(frame, None).unwrap() {
            // A queue on the way is full: the wire has lost it.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
            sent => sent.unwrap(),
        }
    }
}

/// Captures the packets of an interface from now on.
pub(crate) struct Tap(Box<dyn DataLinkReceiver>);

impl Tap {
    pub(crate) fn open() -> Tap {
        Tap(open(INTERFACE).1)
    }

    /// Waits for a frame for which `read` returns a value.
    pub(crate) fn find<T>(&mut self, mut read: impl FnMut(&[u8]) -> Option<T>) -> T {
        loop {
            if let Some(found) = read(self.0.next().unwrap()) {
                return found;
            }
        }
    }
}

fn open(name: &str) -> (Box<dyn DataLinkSender>, Box<dyn DataLinkReceiver>) {
    let interface = pnet_datalink::interfaces().into_iter().find(|interface| interface.name == name);
    let config = Config { read_timeout: Some(Duration::from_secs(10)), ..Config::default() };
    match pnet_datalink::channel(&interface.unwrap(), config).unwrap() {
        Channel::Ethernet(sender, receiver) => (sender, receiver),
        _ => panic!("{name} is no Ethernet interface"),
    }
}
