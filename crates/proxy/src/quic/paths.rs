//! Byte counts of a QUIC connection, and its budget of bytes for addresses that the client has not
//! validated.
//!
//! A client can forge the address that it moves to. So the QUIC library sends to a new address at
//! most three times the bytes that came from there (RFC 9000, section 9.3.1). Three kinds of
//! packets are exempt: the datagram that crosses the limit, probes of the MTU, and answers to
//! PATH_CHALLENGE frames from other addresses.
//!
//! The budget of the connection limits these exceptions to three times the bytes of all packets
//! that convey has received from the client. A real client stays below this limit: its answers to
//! path challenges are padded to 1200 bytes (section 8.2.2), so each move adds more to the budget
//! than it costs.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics, CubicConfig};
use quinn_proto::RttEstimator;
use tokio::sync::Notify;

use super::observed_key::PacketObserver;
use crate::ConnectionBytes;

/// Bytes of budget for each received byte.
const FACTOR: u64 = 3;

/// Bytes of the handshake that the budget counts as received: at least two datagrams of 1200 bytes
/// each (RFC 9000, section 14.1).
const HANDSHAKE_BYTES: u64 = 2 * 1200;

/// Upper bound of the MTU discovery in bytes, and so the longest datagram that convey sends.
pub(super) const MAX_DATAGRAM: u16 = 1452;

/// Length of datagrams with PATH_CHALLENGE or PATH_RESPONSE frames, in bytes. Probes of the MTU are
/// longer.
const PADDED: usize = 1200;

/// Types of QUIC frames (RFC 9000, section 19).
const PING: u8 = 0x01;
const PATH_RESPONSE: u8 = 0x1b;

/// Network paths between a QUIC connection and its client: byte counts, and the validation of the
/// current address.
#[derive(Debug)]
pub(crate) struct ClientPaths {
    /// Number of bytes in the packets of the client.
    received: AtomicU64,
    /// Number of bytes in the packets that the client has acknowledged.
    acknowledged: AtomicU64,
    /// Number of bytes that convey has sent to unvalidated addresses beyond the library's own
    /// limit.
    drawn: AtomicU64,
    is_proven: AtomicBool,
    /// Whether the client has moved: since the handshake, it has validated another address.
    has_moved: AtomicBool,
    /// Notifies the task of the connection once it has exceeded its budget.
    overdrawn: Notify,
}

impl ClientPaths {
    /// Creates the paths of a new client. Its first address counts as validated, because the
    /// handshake validates it.
    pub(crate) fn new() -> Arc<ClientPaths> {
        Arc::new(ClientPaths {
            received: AtomicU64::new(HANDSHAKE_BYTES),
            acknowledged: AtomicU64::new(0),
            drawn: AtomicU64::new(0),
            is_proven: AtomicBool::new(true),
            has_moved: AtomicBool::new(false),
            overdrawn: Notify::new(),
        })
    }

    /// Whether the client has validated its current address.
    pub(crate) fn is_proven(&self) -> bool {
        self.is_proven.load(Ordering::Relaxed)
    }

    /// Whether the client has moved since the handshake.
    pub(crate) fn has_moved(&self) -> bool {
        self.has_moved.load(Ordering::Relaxed)
    }

    /// Notes that the client has validated another address since the handshake.
    pub(crate) fn note_move(&self) {
        self.has_moved.store(true, Ordering::Relaxed);
    }

    /// Waits until the connection has exceeded its budget.
    pub(crate) async fn overdrawn(&self) {
        while !self.is_overdrawn() {
            self.overdrawn.notified().await;
        }
    }

    /// Byte counts of the packets that were exchanged after the handshake.
    pub(crate) fn bytes(&self) -> ConnectionBytes {
        ConnectionBytes {
            received: self.received.load(Ordering::Relaxed),
            acknowledged: self.acknowledged.load(Ordering::Relaxed),
        }
    }

    /// Whether the connection has exceeded its budget.
    pub(crate) fn is_overdrawn(&self) -> bool {
        self.drawn.load(Ordering::Relaxed) > FACTOR * self.received.load(Ordering::Relaxed)
    }

    fn draw(&self, bytes: usize) {
        self.drawn.fetch_add(bytes as u64, Ordering::Relaxed);
        if self.is_overdrawn() {
            self.overdrawn.notify_one();
        }
    }

    /// Called when a packet has arrived from another address, so that the library begins to
    /// validate the new path.
    fn on_moved(&self) {
        self.is_proven.store(false, Ordering::Relaxed);
        self.draw(MAX_DATAGRAM.into());
    }

    /// Called when the new path has been validated, or when the connection has returned to a valid
    /// path.
    fn on_proven(&self) {
        self.is_proven.store(true, Ordering::Relaxed);
    }
}

/// Observes packets after the handshake (1-RTT packets).
impl PacketObserver for Arc<ClientPaths> {
    /// Charges a packet to the budget if its first frame and its length show that the packet is
    /// exempt from the library's limit.
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

    /// After the connection has exceeded its budget, refuses all packets until the connection is
    /// closed. Refused packets cannot make the library send more packets.
    fn refuses_packets(&self) -> bool {
        self.is_overdrawn()
    }

    fn on_decrypted(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Congestion control of one connection, which also detects moves of the client. For each new
/// address of the client, the library creates a new controller or copies the previous one.
pub(super) struct PathControllers {
    paths: Arc<ClientPaths>,
    /// Whether the first path already has its controller. The first path is that of the handshake.
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

    /// The library does not call this function during the validation of a path, so a call shows
    /// that the path is valid.
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

    /// The library copies the controller when the client has moved to another port.
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

    /// Packet key that leaves packets unencrypted.
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

    /// Encrypts a packet of this many bytes whose first frame has this type.
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
            // The client moves to another port or to another address, in turn.
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
            // Data, acknowledgements, and probes of the MTU on a validated path.
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
            // The client answers the path challenge.
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
                // The library acts only on packets that it can decrypt.
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
