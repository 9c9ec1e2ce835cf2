//! Token bucket in a single number. Pure.

use std::num::NonZeroU32;

use super::Timestamp;

const SECOND: u64 = 1_000_000_000;

/// Token bucket, stored as the time at which it will be full: the generic cell rate algorithm
/// (ITU-T I.371, annex A). The default is full.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Bucket(Timestamp);

impl Bucket {
    /// Number of tokens in a bucket that refills at `rate` a second and holds `burst`.
    pub(super) fn tokens(self, rate: NonZeroU32, burst: NonZeroU32, now: Timestamp) -> u32 {
        let (each, whole) = measures(rate, burst);
        ((whole - self.missing(whole, now)) / each) as u32
    }

    /// Takes a token, if the bucket has one. The bucket refills at `rate` a second and holds
    /// `burst`.
    pub(super) fn take(&mut self, rate: NonZeroU32, burst: NonZeroU32, now: Timestamp) -> bool {
        let ((each, whole), tokens) = (measures(rate, burst), self.tokens(rate, burst, now));
        let missing = self.missing(whole, now);
        self.0 = Timestamp(now.0.saturating_add(missing).min(self.0.0));
        if tokens == 0 {
            return false;
        }
        self.0 = Timestamp(self.0.max(now).0.saturating_add(each));
        true
    }

    /// Missing part of a `whole` bucket, in nanoseconds; capped, as an earlier slower rate may have
    /// left more.
    fn missing(self, whole: u64, now: Timestamp) -> u64 {
        self.0.0.saturating_sub(now.0).min(whole)
    }

    /// Returns a token that was taken at this rate.
    pub(super) fn give_back(&mut self, rate: NonZeroU32) {
        self.0 = Timestamp(self.0.0.saturating_sub(SECOND.div_ceil(rate.get().into())));
    }

    /// Time at which the bucket is full, if no token is taken.
    pub(super) fn is_full_at(&self) -> Timestamp {
        self.0
    }
}

/// Time per token, and for a full bucket, in nanoseconds. Rounded up, so that the rate is never
/// exceeded.
fn measures(rate: NonZeroU32, burst: NonZeroU32) -> (u64, u64) {
    let each = SECOND.div_ceil(rate.get().into());
    (each, each.saturating_mul(burst.get().into()))
}
