//! Tables and times of `convey status`. Pure.

use std::time::{Duration, SystemTime};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use convey_api::{EjectedReport, WallTime};

/// Number of spaces between two cells.
const GAP: u16 = 2;

/// Creates a table whose columns from index `numbers` on are numbers. It wraps cells to fit
/// `width`, if given.
pub(super) fn table<const N: usize>(titles: [&str; N], numbers: usize, width: Option<usize>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(titles);
    if let Some(width) = width {
        // The gap after the last column is trimmed.
        let width = u16::try_from(width).unwrap_or(u16::MAX).saturating_add(GAP);
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, GAP));
        if column.index >= numbers {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

pub(super) fn trimmed(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// Reason of an ejection, and the remaining time.
pub(super) fn until_when(ejected: &EjectedReport) -> String {
    let left = time(Duration::from_secs_f64(ejected.remaining_seconds.max(0.0).ceil()));
    format!("{}; the server returns in {left}", ejected.reason)
}

/// Time since `then`.
pub(super) fn age(WallTime(then): WallTime, now: SystemTime) -> String {
    time(now.duration_since(then).unwrap_or_default())
}

/// Duration in its two largest units.
pub(super) fn time(length: Duration) -> String {
    let all = humantime::format_duration(Duration::from_secs(length.as_secs())).to_string();
    all.split(' ').take(2).collect::<Vec<_>>().join(" ")
}
