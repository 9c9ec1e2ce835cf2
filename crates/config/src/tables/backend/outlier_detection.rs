//! `[backends.NAME.outlier_detection]`: ejection of servers whose connections or requests fail. The
//! table turns ejection on, even if it is empty.

use std::time::Duration;

use crate::diff::change;
use crate::keys::keys;
use crate::problem::{Placed, Report};
use crate::reader::TomlTable;
use crate::reference::TableDoc;
use crate::values::{MILLISECOND, integer, seconds};
use convey_model::{BackendConfig, Mode, OutlierDetection};

/// `[backends.NAME.outlier_detection]` in the reference.
pub(crate) const DOC: TableDoc =
    TableDoc { name: "[backends.NAME.outlier_detection]", docs: OutlierKeys::DOCS };

keys! {
    /// The keys of `[backends.NAME.outlier_detection]`.
    pub(super) struct OutlierKeys => OutlierDetection, from (_unused: (), default);

    key "consecutive_failures" => consecutive_failures: u32 {
        read: integer(1..=u32::MAX),
        describe: |outlier, _| format!("; ejected after {} failures", outlier.consecutive_failures),
        kind: "1 to 4294967295",
        default: "5",
        sample: "#consecutive_failures = 5               # failed clients in a row, counted over all threads",
        example: "7",
    };

    key "base_ejection_time" => base_ejection_time: Duration {
        read: seconds(MILLISECOND),
        describe: |outlier, _| format!(" for {:?}", outlier.base_ejection_time),
        kind: "seconds from 0.001",
        default: "30",
        sample: "#base_ejection_time = 30                # the first ejection; the second in a row takes twice as long, and so on",
        example: "7",
    };

    key "max_ejection_time" => max_ejection_time: Duration {
        read: seconds(MILLISECOND),
        describe: |outlier, _| format!(" to {:?}", outlier.max_ejection_time),
        kind: "seconds from `base_ejection_time`",
        default: "300",
        sample: "#max_ejection_time = 300                # the longest ejection. After this time in service the count starts again",
        example: "700",
    };

    key "max_ejection_percent" => max_ejection_percent: u8 {
        read: integer(1..=100),
        describe: |outlier, _| format!(", at most {} % of servers", outlier.max_ejection_percent),
        kind: "1 to 100",
        default: "50",
        sample: "#max_ejection_percent = 50              # of the backend's servers at once; one may be ejected in any case",
        example: "7",
    };
}

/// Reads `[backends.NAME.outlier_detection]`; `None` if the backend does not have the table.
pub(super) fn read(backend: &mut TomlTable<'_>, report: &Report<'_>) -> Option<Placed<OutlierDetection>> {
    let is_there = backend.has("outlier_detection");
    let mut table = backend.table("outlier_detection");
    let place = table.place.clone();
    let keys = OutlierKeys::read(&mut table);
    table.finish();
    let mut value = keys.model((), OutlierDetection::default());
    match &keys.max_ejection_time {
        None => value.max_ejection_time = value.max_ejection_time.max(value.base_ejection_time),
        Some(max) if max.value < value.base_ejection_time => {
            let [found, base] = [max.value, value.base_ejection_time].map(|time| time.as_secs_f64());
            report.error(
                &max.place,
                format!("found {found} s; allowed: at least base_ejection_time, {base} s"),
            );
        }
        Some(_) => {}
    }
    is_there.then_some(Placed { value, place })
}

/// Changes of outlier detection for the log of a reload.
pub(super) fn changes(old: &BackendConfig, new: &BackendConfig) -> Vec<String> {
    match (&old.outlier_detection, &new.outlier_detection) {
        (Some(old), Some(new)) => {
            let changes = OutlierKeys::changes(old, new).into_iter();
            changes.map(|change| format!("outlier detection {change}")).collect()
        }
        (old, new) => {
            let [old, new] = [old, new].map(|detection| if detection.is_some() { "on" } else { "off" });
            change("outlier detection", old, new).into_iter().collect()
        }
    }
}

/// Text such as `; ejected after 5 failures for 30s to 300s, at most 50 % of servers`.
pub(super) fn describe(backend: &BackendConfig, modes: &[Mode]) -> String {
    let outlier = backend.outlier_detection.as_ref();
    outlier.map_or(String::new(), |outlier| OutlierKeys::describe(outlier, modes))
}
