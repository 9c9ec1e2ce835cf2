//! Retries of netlink lists that changed while the kernel created them (`NLM_F_DUMP_INTR`): such
//! lists may miss entries or contain duplicates.

use std::io;

/// Maximum number of attempts for a list that changes during each attempt. The kernel creates a
/// list of a few kilobytes without interruption.
const MAX_ATTEMPTS: u32 = 10;

/// Number of attempts for one list so far.
#[derive(Debug, Default)]
pub(super) struct ListAttempts(u32);

impl ListAttempts {
    /// Whether the list of this attempt is complete. If not, the caller requests the list again.
    ///
    /// # Errors
    /// If the list was interrupted in the last permitted attempt.
    pub(super) fn is_last(&mut self, is_interrupted: bool) -> io::Result<bool> {
        self.0 += 1;
        if is_interrupted && self.0 >= MAX_ATTEMPTS {
            let told = format!("the list changed during each of {MAX_ATTEMPTS} attempts to read it");
            return Err(io::Error::new(io::ErrorKind::Interrupted, told));
        }
        Ok(!is_interrupted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupted_list_is_asked_for_ten_times_at_most() {
        let mut attempts = ListAttempts::default();
        assert!(!attempts.is_last(true).unwrap() && attempts.is_last(false).unwrap());
        let mut attempts = ListAttempts::default();
        let asked = (1..).find(|_| attempts.is_last(true).is_err());
        assert_eq!(asked, Some(10));
    }
}
