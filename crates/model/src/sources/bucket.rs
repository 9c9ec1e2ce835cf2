//! A token bucket in one number. Pure.

use std::num::NonZeroU32;

use super::Timestamp;

const SECOND: u64 = 1_000_000_000;

/// When it will be full again: the generic cell rate algorithm (ITU-T I.371, annex A). The default is full.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Bucket(Timestamp);

impl Bucket {
    /// How many tokens there are in a bucket that gets `rate` a second and holds `burst`.
    pub(super) fn tokens(self, rate: NonZeroU32, burst: NonZeroU32, now: Timestamp) -> u32 {
        let (each, whole) = measures(rate, burst);
        ((whole - self.missing(whole, now)) / each) as u32
    }

    /// Takes one token, if there is one, of a bucket that gets `rate` a second and holds `burst`.
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

    /// What is missing to a `whole` bucket, in nanoseconds. A slower rate of before may have left more.
    fn missing(self, whole: u64, now: Timestamp) -> u64 {
        self.0.0.saturating_sub(now.0).min(whole)
    }

    /// Puts one back that was taken at this rate.
    pub(super) fn give_back(&mut self, rate: NonZeroU32) {
        self.0 = Timestamp(self.0.0.saturating_sub(SECOND.div_ceil(rate.get().into())));
    }

    /// When it is full, if nothing is taken.
    pub(super) fn is_full_at(&self) -> Timestamp {
        self.0
    }
}

/// What one token takes, and what a full bucket has, in nanoseconds. Rounded up, so that it is never more than the rate.
fn measures(rate: NonZeroU32, burst: NonZeroU32) -> (u64, u64) {
    let each = SECOND.div_ceil(rate.get().into());
    (each, each.saturating_mul(burst.get().into()))
}
