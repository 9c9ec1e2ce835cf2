//! Byte budgets of unvalidated client addresses: convey sends to an unvalidated address at most
//! three times the bytes that have come from the address (RFC 9000, section 8.1). The QUIC library
//! also has this limit, but exceeds it: the library sends a whole datagram even if only one byte of
//! its budget is left.
//!
//! An established connection may move to an address that is limited because of another, possibly
//! forged, handshake. So packets with short headers, which only established connections send, are
//! not limited if packets with short headers have arrived from the address, or if the address has
//! no unfinished handshake.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;

/// Minimum length of a client's first datagram in bytes (RFC 9000, section 14.1).
const MIN_INITIAL: u64 = 1200;

/// Number of bytes that convey may send for each received byte.
const FACTOR: u64 = 3;

/// Upper bound of the addresses whose first packets have arrived and whose clients are not admitted
/// yet. If an address is evicted, its client gets the budget of one packet.
const MAX_ARRIVING: NonZeroUsize = NonZeroUsize::new(256).expect("it is not zero");

/// Upper bound of the limited addresses with unfinished handshakes. Further clients must validate
/// their addresses before the handshake.
const MAX_SHAKING: usize = 2048;

/// Upper bound of the addresses that stay limited after their handshakes have ended without a
/// validation.
const MAX_ENDED: NonZeroUsize = NonZeroUsize::new(1024).expect("it is not zero");

/// Form of a QUIC packet header (RFC 9000, section 17). Packets have long headers until the
/// handshake is complete, then short ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PacketHeader {
    Long,
    Short,
}

impl PacketHeader {
    /// Returns the form of the header of the first packet in a datagram.
    pub(super) fn of(datagram: &[u8]) -> PacketHeader {
        const LONG: u8 = 0x80;
        if datagram.first().is_some_and(|first| first & LONG != 0) {
            PacketHeader::Long
        } else {
            PacketHeader::Short
        }
    }
}

/// Unvalidated addresses of the clients of one worker, with their byte budgets.
pub(crate) struct UnprovenAddresses {
    limited: LimitedAddresses,
    addresses: Mutex<Addresses>,
}

/// Approximate set of limited addresses, which works without a lock. So packets of established
/// connections usually take no lock.
struct LimitedAddresses {
    all: AtomicUsize,
    /// Number of limited addresses by hash. The hash has a secret key, so attackers cannot choose
    /// addresses that collide with those of other clients.
    by_hash: Box<[AtomicU16]>,
    keys: RandomState,
}

impl LimitedAddresses {
    /// Number of hash slots: several times the maximum number of limited addresses. A power of two.
    const HASHES: usize = 16 * 1024;

    fn new() -> LimitedAddresses {
        let by_hash = (0..LimitedAddresses::HASHES).map(|_| AtomicU16::new(0)).collect();
        LimitedAddresses { all: AtomicUsize::new(0), by_hash, keys: RandomState::new() }
    }

    fn slot(&self, address: SocketAddr) -> &AtomicU16 {
        let hash = self.keys.hash_one(address) as usize;
        &self.by_hash[hash & (LimitedAddresses::HASHES - 1)]
    }

    /// Whether an address may be limited. Because of hash collisions, also returns `true` for a few
    /// other addresses.
    fn may_contain(&self, address: SocketAddr) -> bool {
        self.all.load(Ordering::Relaxed) > 0 && self.slot(address).load(Ordering::Relaxed) > 0
    }

    fn insert(&self, address: SocketAddr) {
        self.slot(address).fetch_add(1, Ordering::Relaxed);
        self.all.fetch_add(1, Ordering::Relaxed);
    }

    fn remove(&self, address: SocketAddr) {
        self.slot(address).fetch_sub(1, Ordering::Relaxed);
        self.all.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Addresses {
    /// Number of bytes received from each address whose client is not admitted yet.
    arriving: LruCache<SocketAddr, u64>,
    /// Limited addresses with unfinished handshakes.
    shaking: HashMap<SocketAddr, Budget>,
    /// Limited addresses whose handshakes have ended without a validation.
    ended: LruCache<SocketAddr, Budget>,
    /// Validated addresses, with the number of connections that have validated each. Forged
    /// handshakes cannot cause a limit for these addresses.
    proven: HashMap<SocketAddr, usize>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Budget {
    received: u64,
    sent: u64,
    handshakes: usize,
    /// Whether packets with short headers have arrived from the address, so an established
    /// connection may use it.
    has_short: bool,
}

impl Budget {
    fn left(&self) -> u64 {
        (FACTOR * self.received).saturating_sub(self.sent)
    }
}

/// Guard that registers the address of one connection's client until the guard is dropped, at the
/// end of the connection.
pub(crate) struct ClientAddress {
    of: Arc<UnprovenAddresses>,
    address: SocketAddr,
    is_proven: AtomicBool,
}

impl UnprovenAddresses {
    pub(super) fn new() -> Arc<UnprovenAddresses> {
        let addresses = Addresses {
            arriving: LruCache::new(MAX_ARRIVING),
            shaking: HashMap::new(),
            ended: LruCache::new(MAX_ENDED),
            proven: HashMap::new(),
        };
        Arc::new(UnprovenAddresses { limited: LimitedAddresses::new(), addresses: Mutex::new(addresses) })
    }

    /// Counts the bytes of received datagrams for the budget of the address `from`. A datagram with
    /// a long header may be the first one of a new client, so its bytes are counted even if the
    /// address is not limited.
    pub(super) fn received(&self, from: SocketAddr, bytes: usize, header: PacketHeader) {
        let begins = header == PacketHeader::Long;
        if !begins && !self.limited.may_contain(from) {
            return;
        }
        let (mut addresses, bytes) = (self.lock(), bytes as u64);
        let Addresses { arriving, shaking, ended, .. } = &mut *addresses;
        match shaking.get_mut(&from).or_else(|| ended.peek_mut(&from)) {
            Some(budget) => {
                budget.received += bytes;
                budget.has_short |= !begins;
            }
            None if begins => *arriving.get_or_insert_mut(from, || 0) += bytes,
            None => {}
        }
    }

    /// Reserves budget for `len` bytes of datagrams with this form of header. Returns the number of
    /// bytes that convey may send now: `len`, or fewer whole datagrams of `each` bytes.
    pub(super) fn reserve(
        &self,
        to: SocketAddr,
        header: PacketHeader,
        len: usize,
        each: Option<usize>,
    ) -> usize {
        if !self.limited.may_contain(to) {
            return len;
        }
        let mut addresses = self.lock();
        let Addresses { shaking, ended, .. } = &mut *addresses;
        let (budget, has_ended) = match shaking.get_mut(&to) {
            Some(budget) => (budget, false),
            None => match ended.peek_mut(&to) {
                Some(budget) => (budget, true),
                None => return len,
            },
        };
        let fits = match header {
            PacketHeader::Short if has_ended || budget.has_short => len,
            PacketHeader::Long | PacketHeader::Short => whole_datagrams(len, each, budget.left()),
        };
        budget.sent += fits as u64;
        fits
    }

    /// Returns reserved bytes to the budget of an address, because these bytes were not sent.
    pub(super) fn refund(&self, to: SocketAddr, bytes: usize) {
        if !self.limited.may_contain(to) {
            return;
        }
        let mut addresses = self.lock();
        let Addresses { shaking, ended, .. } = &mut *addresses;
        if let Some(budget) = shaking.get_mut(&to).or_else(|| ended.peek_mut(&to)) {
            budget.sent = budget.sent.saturating_sub(bytes as u64);
        }
    }

    /// Takes the number of bytes in a client's first packets. Called when the client is admitted or
    /// refused.
    pub(crate) fn take_arrived(&self, from: SocketAddr) -> u64 {
        self.lock().arriving.pop(&from).unwrap_or(0).max(MIN_INITIAL)
    }

    /// Registers an address that its client has validated before the connection begins.
    pub(super) fn begin_proven(self: &Arc<Self>, address: SocketAddr) -> ClientAddress {
        let address = ClientAddress { of: self.clone(), address, is_proven: AtomicBool::new(false) };
        address.prove();
        address
    }

    /// Registers the address of a client that begins a handshake. convey limits the address from
    /// now on, unless another connection has validated it. Returns `None` if there are too many
    /// unfinished handshakes. `arrived` is the number of bytes that have arrived from the client.
    pub(super) fn begin(self: &Arc<Self>, address: SocketAddr, arrived: u64) -> Option<ClientAddress> {
        let mut addresses = self.lock();
        let Addresses { shaking, ended, proven, .. } = &mut *addresses;
        if !proven.contains_key(&address) {
            if shaking.len() >= MAX_SHAKING {
                return None;
            }
            let budget = shaking.entry(address).or_insert_with(|| {
                ended.pop(&address).unwrap_or_else(|| {
                    self.limited.insert(address);
                    Budget { received: arrived, ..Budget::default() }
                })
            });
            budget.handshakes += 1;
        }
        Some(ClientAddress { of: self.clone(), address, is_proven: AtomicBool::new(false) })
    }

    fn lock(&self) -> MutexGuard<'_, Addresses> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientAddress {
    /// Records that the client has validated its address: it has received packets at this address.
    pub(super) fn prove(&self) {
        if self.is_proven.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut addresses = self.of.lock();
        *addresses.proven.entry(self.address).or_default() += 1;
        let budget = addresses.shaking.remove(&self.address);
        if budget.or_else(|| addresses.ended.pop(&self.address)).is_some() {
            self.of.limited.remove(self.address);
        }
    }
}

impl Drop for ClientAddress {
    fn drop(&mut self) {
        let mut addresses = self.of.lock();
        if *self.is_proven.get_mut() {
            let Some(connections) = addresses.proven.get_mut(&self.address) else { return };
            *connections -= 1;
            if *connections == 0 {
                addresses.proven.remove(&self.address);
            }
            return;
        }
        let Some(budget) = addresses.shaking.get_mut(&self.address) else { return };
        budget.handshakes -= 1;
        if budget.handshakes == 0
            && let Some(budget) = addresses.shaking.remove(&self.address)
            && let Some((evicted, _)) = addresses.ended.push(self.address, budget)
        {
            self.of.limited.remove(evicted);
        }
    }
}

/// Returns the number of bytes that may be sent: `len` if it is at most `most`, otherwise as many
/// whole datagrams of `each` bytes as fit into `most`. Without `each`, `len` bytes are one
/// datagram, so the result is then 0 instead.
fn whole_datagrams(len: usize, each: Option<usize>, most: u64) -> usize {
    match usize::try_from(most) {
        Ok(most) if most < len => each.map_or(0, |each| most / each.max(1) * each),
        _ => len,
    }
}

#[cfg(test)]
mod tests;
