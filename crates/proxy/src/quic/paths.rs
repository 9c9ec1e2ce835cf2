//! Byte counts of a connection's packets, and its budget for unproven addresses.
//!
//! A client can forge the address that it moves to. The library sends at most three times the bytes
//! that came from there (RFC 9000, section 9.3.1), with three exceptions: the datagram that crosses
//! the limit, probes of the MTU, and answers to PATH_CHALLENGE frames that come from other
//! addresses. The connection's budget covers these: at most three times the bytes of its packets.
//! Answers to a real client's moves are padded to 1200 bytes (section 8.2.2) and earn more than a
//! move costs.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics, CubicConfig};
use quinn_proto::RttEstimator;
use tokio::sync::watch;

use super::observed_key::PacketObserver;
use crate::ConnectionBytes;

/// Bytes of budget for each byte that was received.
const FACTOR: u64 = 3;

/// Lower bound of the bytes in the two datagrams of a client that end its handshake (RFC 9000,
/// section 14.1).
const HANDSHAKE_BYTES: u64 = 2 * 1200;

/// Longest datagram: the library looks for no larger MTU.
pub(super) const MAX_DATAGRAM: u16 = 1452;

/// Length of datagrams with PATH_CHALLENGE or PATH_RESPONSE. Probes of the MTU are longer.
const PADDED: usize = 1200;

/// Types of frames (RFC 9000, section 19).
const PING: u8 = 0x01;
const PATH_RESPONSE: u8 = 0x1b;

/// Paths between one connection and its client.
#[derive(Debug)]
pub(crate) struct ClientPaths {
    /// Bytes of the client's packets.
    received: AtomicU64,
    /// Bytes of packets that the client has acknowledged.
    acknowledged: AtomicU64,
    /// Bytes sent to unproven addresses beyond the library's own limit.
    drawn: AtomicU64,
    is_proven: AtomicBool,
    is_overdrawn: watch::Sender<bool>,
}

impl ClientPaths {
    /// Creates the path of a handshake, which ends with a proof.
    pub(crate) fn new() -> Arc<ClientPaths> {
        Arc::new(ClientPaths {
            received: AtomicU64::new(HANDSHAKE_BYTES),
            acknowledged: AtomicU64::new(0),
            drawn: AtomicU64::new(0),
            is_proven: AtomicBool::new(true),
            is_overdrawn: watch::Sender::new(false),
        })
    }

    /// Whether the client has proved its current address.
    pub(crate) fn is_proven(&self) -> bool {
        self.is_proven.load(Ordering::Relaxed)
    }

    /// Waits until the connection has exceeded its budget.
    pub(crate) async fn overdrawn(&self) {
        // The sender lives as long as `self`.
        let _ = self.is_overdrawn.subscribe().wait_for(|is_overdrawn| *is_overdrawn).await;
    }

    /// Bytes of packets after the handshake.
    pub(crate) fn bytes(&self) -> ConnectionBytes {
        ConnectionBytes {
            received: self.received.load(Ordering::Relaxed),
            acknowledged: self.acknowledged.load(Ordering::Relaxed),
        }
    }

    fn is_overdrawn(&self) -> bool {
        self.drawn.load(Ordering::Relaxed) > FACTOR * self.received.load(Ordering::Relaxed)
    }

    fn draw(&self, bytes: usize) {
        self.drawn.fetch_add(bytes as u64, Ordering::Relaxed);
        if self.is_overdrawn() {
            self.is_overdrawn.send_replace(true);
        }
    }

    /// Called when a packet came from another address: the library begins to validate the path.
    fn on_moved(&self) {
        self.is_proven.store(false, Ordering::Relaxed);
        self.draw(MAX_DATAGRAM.into());
    }

    /// Called when the path is valid, or the connection has gone back to a valid one.
    fn on_proven(&self) {
        self.is_proven.store(true, Ordering::Relaxed);
    }
}

/// Observes packets with keys of the time after the handshake.
impl PacketObserver for Arc<ClientPaths> {
    /// Charges a packet by its first frame.
    fn on_sent(&self, payload: &[u8], bytes: usize) {
        let is_charged = match payload.first() {
            Some(&PATH_RESPONSE) => true,
            Some(&PING) => bytes > PADDED && !self.is_proven(),
            _ => false,
        };
        if is_charged {
            self.draw(bytes);
        }
    }

    /// Packets of an overdrawn connection are refused until it is closed, so that they cause no
    /// further sends.
    fn refuses_packets(&self) -> bool {
        self.is_overdrawn()
    }

    fn on_decrypted(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Congestion control of one connection. For each address of the client the library creates a new
/// controller, or copies the previous one.
pub(super) struct PathControllers {
    paths: Arc<ClientPaths>,
    /// Whether the path of the handshake has a controller.
    has_begun: AtomicBool,
    usual: Arc<CubicConfig>,
}

impl PathControllers {
    pub(super) fn new(paths: Arc<ClientPaths>) -> PathControllers {
        PathControllers { paths, has_begun: AtomicBool::new(false), usual: Arc::default() }
    }
}

impl ControllerFactory for PathControllers {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        if self.has_begun.swap(true, Ordering::Relaxed) {
            self.paths.on_moved();
        }
        let controller = self.usual.clone().build(now, current_mtu);
        Box::new(PathController { controller, paths: self.paths.clone() })
    }
}

struct PathController {
    controller: Box<dyn Controller>,
    paths: Arc<ClientPaths>,
}

impl Controller for PathController {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.controller.on_sent(now, bytes, last_packet_number);
    }

    /// Not called while the path is validated.
    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.paths.on_proven();
        self.paths.acknowledged.fetch_add(bytes, Ordering::Relaxed);
        self.controller.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.controller.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost_bytes: u64) {
        self.controller.on_congestion_event(now, sent, is_persistent, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.controller.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.controller.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.controller.metrics()
    }

    /// The library calls this when the client comes from another port.
    fn clone_box(&self) -> Box<dyn Controller> {
        self.paths.on_moved();
        Box::new(PathController { controller: self.controller.clone_box(), paths: self.paths.clone() })
    }

    fn initial_window(&self) -> u64 {
        self.controller.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self.controller.into_any()
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests of a shell: they go by the library's clock")]
mod tests {
    use bytes::BytesMut;
    use futures_util::FutureExt;
    use proptest::prelude::*;
    use quinn::crypto::{CryptoError, PacketKey};

    use super::super::observed_key::ObservedKey;
    use super::*;

    /// Packet key that does not encrypt.
    struct PlainKey;

    impl PacketKey for PlainKey {
        fn encrypt(&self, _: u64, _: &mut [u8], _: usize) {}

        fn decrypt(&self, _: u64, _: &[u8], _: &mut BytesMut) -> Result<(), CryptoError> {
            Ok(())
        }

        fn tag_len(&self) -> usize {
            16
        }

        fn confidentiality_limit(&self) -> u64 {
            u64::MAX
        }

        fn integrity_limit(&self) -> u64 {
            u64::MAX
        }
    }

    type CountingKey = ObservedKey<Arc<ClientPaths>>;

    fn key(paths: &Arc<ClientPaths>) -> CountingKey {
        ObservedKey { key: Box::new(PlainKey), observer: paths.clone() }
    }

    /// Sends a packet of this many bytes, which begins with this frame.
    fn send(key: &CountingKey, frame: u8, bytes: usize) {
        let mut packet = vec![0; bytes];
        packet[9] = frame;
        key.encrypt(0, &mut packet, 9);
    }

    fn receive(key: &CountingKey, bytes: usize) -> Result<(), CryptoError> {
        key.decrypt(0, &[0; 9], &mut BytesMut::zeroed(bytes - 9))
    }

    #[test]
    fn moves_draw_at_most_three_times_the_bytes_of_the_connection() {
        let paths = ClientPaths::new();
        let (key, now) = (key(&paths), Instant::now());
        let controllers = Arc::new(PathControllers::new(paths.clone()));
        let first = controllers.clone().build(now, 1200);
        assert!(paths.is_proven());
        let mut moves = 0;
        while receive(&key, 41).is_ok() {
            // Another port, or another address.
            drop(if moves % 2 == 0 { first.clone_box() } else { controllers.clone().build(now, 1200) });
            assert!(!paths.is_proven());
            moves += 1;
        }
        assert_eq!(moves, 6);
        assert_eq!(paths.overdrawn().now_or_never(), Some(()));
    }

    #[test]
    fn answers_to_challenges_from_elsewhere_are_charged() {
        let paths = ClientPaths::new();
        let key = key(&paths);
        for _ in 0..1_000 {
            // Data, acknowledgements and, on a proven path, probes of the MTU.
            [0x08, 0x02, PING].into_iter().for_each(|frame| send(&key, frame, 1452));
        }
        assert_eq!(paths.overdrawn().now_or_never(), None);
        let mut answers = 0;
        while receive(&key, 41).is_ok() {
            send(&key, PATH_RESPONSE, 1200);
            answers += 1;
        }
        assert_eq!(answers, 7);
    }

    #[test]
    fn probes_of_the_mtu_are_charged_until_the_path_is_proven() {
        let paths = ClientPaths::new();
        let key = key(&paths);
        paths.on_moved();
        let mut probes = 0;
        while receive(&key, 41).is_ok() {
            send(&key, PING, 50);
            send(&key, PING, 1326);
            probes += 1;
        }
        assert_eq!(probes, 5);
    }

    #[test]
    fn real_moves_are_never_too_many() {
        let paths = ClientPaths::new();
        let key = key(&paths);
        for _ in 0..10_000 {
            assert!(receive(&key, 41).is_ok());
            paths.on_moved();
            send(&key, PING, 1326);
            // Its answer to a challenge.
            assert!(receive(&key, 1200).is_ok());
            paths.on_proven();
        }
        assert_eq!(paths.overdrawn().now_or_never(), None);
    }

    proptest! {
        #[test]
        fn amplification_of_a_path_stays_near_three_in_any_event_order(
            events in prop::collection::vec((0..4_u8, 30..1_453_usize), 0..300)
        ) {
            let paths = ClientPaths::new();
            let key = key(&paths);
            let (mut received, mut drawn, mut is_proven) = (HANDSHAKE_BYTES as usize, 0, true);
            for (kind, bytes) in events {
                // The library acts on a packet that it can read.
                if receive(&key, bytes).is_err() {
                    prop_assert_eq!(paths.overdrawn().now_or_never(), Some(()));
                    break;
                }
                received += bytes;
                match kind {
                    0 => {
                        paths.on_moved();
                        (drawn, is_proven) = (drawn + usize::from(MAX_DATAGRAM), false);
                    }
                    1 => {
                        paths.on_proven();
                        is_proven = true;
                    }
                    2 => {
                        send(&key, PATH_RESPONSE, 1200);
                        drawn += 1200;
                    }
                    _ => {
                        send(&key, PING, 1326);
                        drawn += if is_proven { 0 } else { 1326 };
                    }
                }
                prop_assert!(drawn <= FACTOR as usize * received + usize::from(MAX_DATAGRAM));
            }
        }
    }
}
