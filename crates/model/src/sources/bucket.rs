//! Token bucket in a single number. Pure.

use std::num::NonZeroU32;

use super::Timestamp;

const SECOND: u64 = 1_000_000_000;

/// Token bucket, stored as the time at which it will be full: the generic cell rate algorithm
/// (ITU-T I.371, annex A). By default, the bucket is full.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Bucket(Timestamp);

impl Bucket {
    /// Number of tokens in the bucket, which refills at `rate` tokens a second and holds at most
    /// `burst`.
    pub(super) fn tokens(self, rate: NonZeroU32, burst: NonZeroU32, now: Timestamp) -> u32 {
        let (each, whole) = measures(rate, burst);
        ((whole - self.missing(whole, now)) / each) as u32
    }

    /// Takes a token; returns `false` if the bucket has none. The bucket refills at `rate` tokens a
    /// second and holds at most `burst`.
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

    /// Time until the bucket is full, in nanoseconds, at most `whole`. Without this cap, a slower
    /// rate before a reload could leave a longer time.
    fn missing(self, whole: u64, now: Timestamp) -> u64 {
        self.0.0.saturating_sub(now.0).min(whole)
    }

    /// Returns a token to the bucket. `rate` is the rate at which the token was taken.
    pub(super) fn refund_token(&mut self, rate: NonZeroU32) {
        self.0 = Timestamp(self.0.0.saturating_sub(SECOND.div_ceil(rate.get().into())));
    }

    /// Time at which the bucket will be full if no token is taken.
    pub(super) fn is_full_at(&self) -> Timestamp {
        self.0
    }
}

/// Time to refill one token, and time to refill the whole bucket, in nanoseconds. Both are rounded
/// up, so that the rate is never exceeded.
fn measures(rate: NonZeroU32, burst: NonZeroU32) -> (u64, u64) {
    let each = SECOND.div_ceil(rate.get().into());
    (each, each.saturating_mul(burst.get().into()))
}
