//! Unpredictable random numbers from the kernel, for seeds, ids and ports that attackers must not
//! guess.
//!
//! Use `fastrand` only for jitter and samples: its seed is the time, and each number reveals the
//! next ones.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Returns random bytes from the kernel's generator (getrandom(2)).
///
/// # Panics
/// The kernel returns no random numbers. In this case, the `HashMap` of the standard library also
/// panics.
pub fn secret<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            // A signal has interrupted the wait for the generator: try again.
            Err(Errno::INTR) => {}
            Err(error) => panic!("the kernel returns no random numbers: {error}"),
        }
    }
    bytes
}

/// Returns a random number from the kernel's generator.
pub fn secret_u64() -> u64 {
    u64::from_ne_bytes(secret())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn secrets_differ_and_have_all_their_bytes() {
        assert_eq!(secret::<0>(), [0; 0]);
        let numbers: BTreeSet<u64> = (0..1_000).map(|_| secret_u64()).collect();
        assert_eq!(numbers.len(), 1_000);
        let long: [[u8; 1_000]; 64] = std::array::from_fn(|_| secret());
        assert!((0..1_000).all(|at| long.iter().any(|bytes| bytes[at] != 0)));
    }
}
