//! `convey flows`: turns arguments into a request path, and the response into a table. Pure except
//! for [`kill`].

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use convey_api::{FlowGroupReport, FlowListReport, FlowReport, KilledFlow};
use humantime::format_duration;
use hyper::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::{Client, Refused};
use crate::FlowsArgs;

/// Column of the table. If the line is too short for all columns, the columns with the highest
/// number in `goes` are hidden first. Columns with 0 are never hidden.
struct Column {
    title: &'static str,
    goes: u8,
    is_number: bool,
    cell: fn(&FlowReport) -> String,
}

const COLUMNS: [Column; 12] = [
    Column { title: "ID", goes: 0, is_number: false, cell: |flow| flow.id.clone() },
    Column {
        title: "MODE",
        goes: 3,
        is_number: false,
        cell: |flow| format!("{} {}", flow.mode, flow.protocol),
    },
    Column { title: "FRONTEND", goes: 5, is_number: false, cell: |flow| flow.frontend.clone() },
    Column { title: "CLIENT", goes: 0, is_number: false, cell: |flow| flow.client.clone() },
    Column { title: "SERVER", goes: 0, is_number: false, cell: server },
    Column {
        title: "SNAT",
        goes: 6,
        is_number: false,
        cell: |flow| flow.snat_addr.clone().unwrap_or_else(none),
    },
    Column { title: "STATE", goes: 1, is_number: false, cell: |flow| flow.state.to_string() },
    Column { title: "AGE", goes: 2, is_number: true, cell: |flow| flow.age_seconds.map_or_else(none, time) },
    Column {
        title: "IDLE",
        goes: 0,
        is_number: true,
        cell: |flow| flow.idle_seconds.map_or_else(none, time),
    },
    Column { title: "IN", goes: 0, is_number: true, cell: |flow| flow.bytes_rx.map_or_else(none, size) },
    Column { title: "OUT", goes: 0, is_number: true, cell: |flow| flow.bytes_tx.map_or_else(none, size) },
    Column {
        title: "KERNEL",
        goes: 4,
        is_number: false,
        cell: |flow| if flow.kernel { "yes".to_owned() } else { none() },
    },
];

fn server(flow: &FlowReport) -> String {
    match (&flow.backend, &flow.server) {
        (Some(backend), Some(server)) => format!("{backend}/{server}"),
        _ => none(),
    }
}

/// Path of the request in the control API.
pub fn path(args: &FlowsArgs) -> String {
    let time = |time: Duration| format_duration(time).to_string();
    let limit = if args.count { 0 } else { args.limit };
    let parts = [
        ("client", args.client.clone()),
        ("server", args.server.as_ref().map(ToString::to_string).map(without_kind)),
        ("frontend", args.frontend.clone()),
        ("backend", args.backend.clone()),
        ("state", args.state.clone()),
        ("older_than", args.older_than.map(time)),
        ("idle", args.idle.map(time)),
        ("min_bytes", args.min_bytes.map(|bytes| bytes.to_string())),
        ("count_by", args.count_by.clone()),
        ("sort", (args.sort != "age").then(|| args.sort.clone())),
        ("limit", Some(limit.to_string())),
    ];
    let parts = parts
        .into_iter()
        .filter_map(|(key, value)| Some(format!("{key}={}", utf8_percent_encode(&value?, NON_ALPHANUMERIC))));
    format!("/v1/flows?{}", parts.collect::<Vec<_>>().join("&"))
}

/// Removes the first word of a target, as in `server web/a`.
fn without_kind(target: String) -> String {
    target.split_once(' ').map_or(target.clone(), |(_, name)| name.to_owned())
}

/// Lines to print, at most `width` characters wide if there is a limit.
pub fn shown(list: &FlowListReport, args: &FlowsArgs, width: Option<usize>) -> String {
    if args.count {
        let [rx, tx] = [list.bytes_rx, list.bytes_tx].map(|bytes| bytes.map_or_else(none, size));
        return format!("{}, {rx} in, {tx} out\n", flows(list.matching));
    }
    match &args.count_by {
        Some(by) => groups(list, by),
        None => table(list, width),
    }
}

/// Ends a flow. Returns the text to print.
///
/// # Errors
/// The flow was not ended.
pub async fn kill(client: &Client, id: &str) -> Result<String, Refused> {
    let path = format!("/v1/flows/{}", utf8_percent_encode(id, NON_ALPHANUMERIC));
    let KilledFlow { killed } = client.change(Method::DELETE, &path, None).await?;
    Ok(format!("{id}: ended, {} of {}, server {}\n", killed.client, killed.frontend, server(&killed)))
}

fn table(list: &FlowListReport, width: Option<usize>) -> String {
    if list.flows.is_empty() && list.more == 0 {
        return "no flows\n".to_owned();
    }
    let cells: Vec<Vec<String>> =
        list.flows.iter().map(|flow| COLUMNS.iter().map(|column| (column.cell)(flow)).collect()).collect();
    let shown = fitting(&cells, width);
    let mut table =
        plain(shown.iter().map(|index| &COLUMNS[*index]).map(|column| (column.title, column.is_number)));
    for row in &cells {
        table.add_row(shown.iter().map(|index| &row[*index]));
    }
    let mut text = trimmed(&table);
    let hidden: Vec<&str> =
        (0..COLUMNS.len()).filter(|index| !shown.contains(index)).map(|index| COLUMNS[index].title).collect();
    if !hidden.is_empty() {
        text += &format!("hidden columns: {} (--json has all)\n", hidden.join(", "));
    }
    if list.more > 0 {
        text += &format!("and {} more (raise --limit, or filter)\n", list.more);
    }
    text
}

/// Indexes of the columns that fit into the width.
fn fitting(cells: &[Vec<String>], width: Option<usize>) -> Vec<usize> {
    const GAP: usize = 2;
    let widths: Vec<usize> = COLUMNS
        .iter()
        .enumerate()
        .map(|(index, column)| {
            let longest = cells.iter().map(|row| row[index].chars().count()).max().unwrap_or(0);
            longest.max(column.title.len()) + GAP
        })
        .collect();
    let mut shown: Vec<usize> = (0..COLUMNS.len()).collect();
    while width.is_some_and(|width| shown.iter().map(|index| widths[*index]).sum::<usize>() > width + GAP)
        && let Some(last) = shown.iter().copied().max_by_key(|index| COLUMNS[*index].goes)
        && COLUMNS[last].goes > 0
    {
        shown.retain(|index| *index != last);
    }
    shown
}

fn groups(list: &FlowListReport, by: &str) -> String {
    let title = by.to_uppercase();
    let mut table = plain([(title.as_str(), false), ("FLOWS", true), ("IN", true), ("OUT", true)]);
    for FlowGroupReport { name, flows, bytes_rx, bytes_tx } in &list.groups {
        let [rx, tx] = [bytes_rx, bytes_tx].map(|bytes| bytes.map_or_else(none, size));
        table.add_row([name.clone(), flows.to_string(), rx, tx]);
    }
    let mut text = trimmed(&table);
    if list.more_flows > 0 {
        let more = match list.more_groups {
            0 => "others".to_owned(),
            more => format!("{more} more"),
        };
        text += &format!("and {more}, with {}\n", flows(list.more_flows));
    }
    text + &format!("{} in all\n", flows(list.matching))
}

fn plain<'a>(titles: impl IntoIterator<Item = (&'a str, bool)>) -> Table {
    let (titles, numbers): (Vec<&str>, Vec<bool>) = titles.into_iter().unzip();
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(titles);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
        if numbers[column.index] {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn trimmed(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn flows(count: u64) -> String {
    if count == 1 { "1 flow".to_owned() } else { format!("{count} flows") }
}

/// Placeholder for a missing or unknown value.
fn none() -> String {
    "-".to_owned()
}

/// Time in its two largest units, such as `1h02m`.
fn time(seconds: f64) -> String {
    let seconds = seconds as u64;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

/// Size in bytes, KiB, MiB and so on, such as `1.5K`.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["K", "M", "G", "T", "P"];
    if bytes < 1_024 {
        return bytes.to_string();
    }
    let mut value = bytes as f64 / 1_024.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1_024.0;
        unit += 1;
    }
    if value < 9.95 { format!("{value:.1}{}", UNITS[unit]) } else { format!("{value:.0}{}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;
    use crate::{Cli, Command};

    fn args(line: &str) -> FlowsArgs {
        let cli =
            Cli::try_parse_from(["convey", "flows"].into_iter().chain(line.split_whitespace())).unwrap();
        match cli.command {
            Some(Command::Flows(args)) => *args,
            other => panic!("{other:?}"),
        }
    }

    fn list() -> FlowListReport {
        let flow = |n: u64, kernel: bool| {
            json!({
                "id": format!("p0.{n}.9a3c2d"), "mode": "passthrough", "protocol": "tcp", "frontend": "www",
                "backend": "web", "server": "a", "client": format!("192.0.2.{n}:4242"), "listen": "192.0.2.9:80",
                "server_addr": "10.0.0.1:80",
                "snat_addr": "10.0.0.254:40000", "state": "established", "age_seconds": 3_725.5,
                "idle_seconds": 2.25, "bytes_rx": 1_536, "bytes_tx": null, "kernel": kernel, "news": 1,
            })
        };
        let flows = [flow(1, true), flow(2, false)].map(|flow| serde_json::from_value(flow).unwrap());
        FlowListReport { matching: 1_002, flows: flows.into(), more: 1_000, ..FlowListReport::default() }
    }

    #[test]
    fn flow_options_become_query_parameters() {
        assert_eq!(path(&args("")), "/v1/flows?limit=100");
        let all = args(
            "--client 10.0.0.0/8:5 --server web/a/10.0.0.3 --state closed --older-than 90s --min-bytes 5",
        );
        assert_eq!(
            path(&all),
            "/v1/flows?client=10%2E0%2E0%2E0%2F8%3A5&server=web%2Fa%2F10%2E0%2E0%2E3&state=closed\
             &older_than=1m%2030s&min_bytes=5&limit=100"
        );
        assert_eq!(path(&args("--count")), "/v1/flows?limit=0");
        let by = args("--count-by client --limit 3 --backend web");
        assert_eq!(path(&by), "/v1/flows?backend=web&count_by=client&limit=3");
    }

    #[test]
    fn narrow_flow_list_keeps_important_columns_and_names_the_missing() {
        let wide = shown(&list(), &args(""), None);
        assert!(wide.contains("10.0.0.254:40000") && wide.contains("and 1000 more"), "{wide}");
        assert!(wide.contains("1h02m") && wide.contains("1.5K") && wide.contains("  yes\n"), "{wide}");
        let narrow = shown(&list(), &args(""), Some(80));
        assert!(narrow.lines().all(|line| line.len() <= 80), "{narrow}");
        assert!(narrow.contains("192.0.2.2:4242") && narrow.contains("web/a"), "{narrow}");
        assert!(narrow.contains("hidden columns: ") && narrow.contains("SNAT"), "{narrow}");
    }

    #[test]
    fn groups_and_counts_are_told_with_what_is_not_shown() {
        let group =
            FlowGroupReport { name: "192.0.2.1".to_owned(), flows: 7, bytes_rx: None, bytes_tx: Some(2_048) };
        let list = FlowListReport {
            matching: 12,
            groups: vec![group],
            more_groups: 3,
            more_flows: 5,
            bytes_tx: Some(9),
            ..FlowListReport::default()
        };
        let text = shown(&list, &args("--count-by client"), None);
        assert_eq!(
            text,
            "CLIENT     FLOWS  IN   OUT\n192.0.2.1      7   -  2.0K\nand 3 more, with 5 flows\n12 flows in all\n"
        );
        assert_eq!(shown(&list, &args("--count"), None), "12 flows, - in, 9 out\n");
        assert_eq!(shown(&FlowListReport::default(), &args(""), Some(80)), "no flows\n");
    }

    #[test]
    fn sizes_and_times_are_short() {
        for (bytes, text) in [
            (0, "0"),
            (1_023, "1023"),
            (1_024, "1.0K"),
            (10_240, "10K"),
            (1 << 20, "1.0M"),
            (5 << 30, "5.0G"),
        ] {
            assert_eq!(size(bytes), text);
        }
        for (seconds, text) in [(0.9, "0s"), (61.0, "1m01s"), (7_260.0, "2h01m"), (90_000.0, "1d01h")] {
            assert_eq!(time(seconds), text);
        }
    }
}
