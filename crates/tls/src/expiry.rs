//! Warnings for operators about certificates that are about to expire. Pure.

use foldhash::{HashMap, HashMapExt};

use crate::Validity;

/// Thresholds of the warnings, in days before the expiry. A warning is due as soon as fewer days
/// are left than its threshold.
const WARNINGS: [i64; 3] = [30, 7, 1];

/// Tracks the warnings about expiring certificates, so that each warning is returned once.
#[derive(Debug, Default)]
pub struct ExpiryWatch {
    /// Last warning about each certificate, by the certificate's name and time of expiry. The value
    /// is the threshold in `WARNINGS`, or -1 after the expiry.
    last_warnings: HashMap<(String, i64), i64>,
}

/// Warning that a certificate is about to expire, or has expired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expiry {
    /// Name of the certificate, as the caller passed it to `ExpiryWatch::due_warnings`.
    pub name: String,
    /// Number of whole days that are left; `None` if the certificate has expired.
    pub days_left: Option<i64>,
}

impl ExpiryWatch {
    /// Checks all certificates, each with a name. Returns the warnings that are due now and were
    /// not returned before. `now` is in seconds since 1970.
    pub fn due_warnings(&mut self, certificates: &[(String, Validity)], now: i64) -> Vec<Expiry> {
        let mut told = HashMap::new();
        let mut new = Vec::new();
        for (name, validity) in certificates {
            let key = (name.clone(), validity.until);
            let before = self.last_warnings.get(&key).or(told.get(&key)).copied();
            let Some(due) = due(validity.days_left(now)) else { continue };
            if before.is_none_or(|before| due < before) {
                let days_left = (due >= 0).then(|| validity.days_left(now));
                new.push(Expiry { name: name.clone(), days_left });
            }
            told.insert(key, due);
        }
        // Forgets certificates that the caller no longer passes.
        self.last_warnings = told;
        new
    }
}

/// Returns the threshold of the warning that is due with this number of days left: the smallest of
/// `WARNINGS` that is greater than `days_left`, or -1 after the expiry. `None` if no warning is
/// due.
fn due(days_left: i64) -> Option<i64> {
    if days_left < 0 { Some(-1) } else { WARNINGS.into_iter().rev().find(|days| days_left < *days) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 60 * 60;

    #[test]
    fn each_warning_is_told_once_and_a_new_certificate_begins_anew() {
        let mut watch = ExpiryWatch::default();
        let mut look = |until: i64, now: i64| {
            let all = [("site".to_owned(), Validity { from: 0, until: until * DAY })];
            watch
                .due_warnings(&all, now * DAY + 1)
                .into_iter()
                .map(|expiry| expiry.days_left)
                .collect::<Vec<_>>()
        };
        assert_eq!(look(90, 0), []);
        assert_eq!(look(90, 59), []);
        assert_eq!(look(90, 60), [Some(29)]);
        assert_eq!(look(90, 61), []);
        assert_eq!(look(90, 84), [Some(5)]);
        assert_eq!(look(90, 85), []);
        assert_eq!(look(90, 89), [Some(0)]);
        assert_eq!(look(90, 90), [None]);
        assert_eq!(look(90, 91), []);
        assert_eq!(look(180, 91), []);
        assert_eq!(look(180, 179), [Some(0)], "one warning, not three");
    }

    #[test]
    fn certificates_are_told_apart_by_their_names() {
        let certificates = ["a", "b"].map(|name| (name.to_owned(), Validity { from: 0, until: 0 }));
        let told = ExpiryWatch::default().due_warnings(&certificates, DAY);
        assert_eq!(told.iter().map(|expiry| &*expiry.name).collect::<Vec<_>>(), ["a", "b"]);
    }
}
