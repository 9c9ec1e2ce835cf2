//! Status line that shows the balancer at work.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use convey_snapshot::stats::Counter;
use convey_snapshot::{Health, NewestSnapshot, Pool, Server, Snapshot};
use tokio::time::MissedTickBehavior;

/// Text of the line: connections and bytes so far, and each server's share of its backend's
/// connections. Pure.
pub fn live_line(snapshot: &Snapshot) -> String {
    let totals = &snapshot.totals;
    let open = totals.current();
    let all = totals.sum(Counter::Opened);
    let plural = if all == 1 { "" } else { "s" };
    let received = human_bytes(totals.sum(Counter::BytesRx));
    let sent = human_bytes(totals.sum(Counter::BytesTx));
    let mut line = format!("{all} connection{plural} ({open} open), {received} in, {sent} out");
    for pool in &snapshot.pools {
        line.push_str(" |");
        if snapshot.pools.len() > 1 {
            line.push_str(&format!(" {}:", pool.config.name));
        }
        line.push_str(&shares(pool));
    }
    line
}

/// Shows the line every second, until dropped or until standard output is closed. A terminal shows
/// one line that changes; other outputs get a new line whenever the text has changed.
pub async fn show_live(snapshot: Arc<NewestSnapshot>) {
    let stdout = io::stdout();
    let mut display = Display { terminal: stdout.is_terminal(), out: stdout, shown: String::new() };
    let mut second = tokio::time::interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        second.tick().await;
        let line = live_line(&snapshot.load());
        if display.show(line).is_err() {
            return;
        }
    }
}

fn shares(pool: &Pool) -> String {
    let opened = |server: &Server| server.live.traffic.sum(Counter::Opened);
    let all: u64 = pool.servers.iter().map(|server| opened(server)).sum();
    let share = |server: &Arc<Server>| {
        let percent = opened(server) as f64 * 100.0 / all.max(1) as f64;
        let note = match server.health {
            Health { up: false, .. } => " (down)",
            Health { ejected: Some(_), .. } => " (ejected)",
            _ => "",
        };
        format!(" {} {percent:.0}%{note}", server.config.name)
    };
    pool.servers.iter().map(share).collect()
}

/// Formats bytes in decimal units, one digit after the point.
fn human_bytes(bytes: u64) -> String {
    if bytes < 1_000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1e3;
    let mut units = ["kB", "MB", "GB", "TB", "PB", "EB"].into_iter();
    let mut unit = units.next();
    // A value of 999.95 or more would be rounded to 1000.0.
    while value >= 999.95 {
        value /= 1e3;
        unit = units.next();
    }
    format!("{value:.1} {}", unit.unwrap_or_default())
}

/// Escape sequence that moves to the beginning of the line and erases the line.
const CLEAR: &str = "\r\x1b[K";

struct Display<W: Write> {
    out: W,
    terminal: bool,
    shown: String,
}

impl<W: Write> Display<W> {
    fn show(&mut self, line: String) -> io::Result<()> {
        if self.terminal {
            // Redraw an unchanged line too, because a log message may have overwritten it. Turn off
            // automatic wrapping meanwhile, because a wrapped line could not be rewritten.
            write!(self.out, "{CLEAR}\x1b[?7l{line}\x1b[?7h")?;
        } else if line != self.shown {
            writeln!(self.out, "{line}")?;
        }
        self.out.flush()?;
        self.shown = line;
        Ok(())
    }
}

impl<W: Write> Drop for Display<W> {
    /// Erases the line from the terminal.
    fn drop(&mut self) {
        if self.terminal && !self.shown.is_empty() {
            let _ = write!(self.out, "{CLEAR}").and_then(|()| self.out.flush());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_model::Timestamp;
    use convey_snapshot::Ejected;
    use convey_snapshot::fixture::{down, pool, server, snapshot, up};

    #[test]
    fn the_line_tells_connections_bytes_and_each_servers_share() {
        let servers = [("a", 6), ("b", 4), ("c", 2)];
        let config = |name: &str| (server(name, "127.0.0.1:8081"), up());
        let web = pool("web", servers.iter().map(|(name, _)| config(name)).collect());
        for (server, (_, opened)) in web.servers.iter().zip(servers) {
            server.live.traffic.add(0, Counter::Opened, opened);
        }
        let snapshot = snapshot(vec![], vec![web]);
        snapshot.totals.add(0, Counter::Opened, 12);
        snapshot.totals.add(0, Counter::Closed, 11);
        snapshot.totals.add(0, Counter::BytesRx, 1_234);
        snapshot.totals.add(0, Counter::BytesTx, 3_400_000);
        assert_eq!(
            live_line(&snapshot),
            "12 connections (1 open), 1.2 kB in, 3.4 MB out | a 50% b 33% c 17%"
        );
    }

    #[test]
    fn live_line_marks_unusable_servers_and_names_backends() {
        let web = pool("web", vec![(server("a", "127.0.0.1:8081"), down("timed out", Duration::ZERO))]);
        let ejected = Some(Ejected { until: Timestamp(9), times: 1, reason: "reset".into() });
        let out = (server("y", "127.0.0.1:8083"), Health { ejected, ..up() });
        let api = pool("api", vec![(server("x", "127.0.0.1:8082"), up()), out]);
        api.servers[0].live.traffic.add(0, Counter::Opened, 1);
        let snapshot = snapshot(vec![], vec![api, web]);
        snapshot.totals.add(0, Counter::Opened, 1);
        let line = live_line(&snapshot);
        assert_eq!(
            line,
            "1 connection (1 open), 0 B in, 0 B out | api: x 100% y 0% (ejected) | web: a 0% (down)"
        );
    }

    #[test]
    fn bytes_are_shown_in_the_unit_that_keeps_them_short() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.0 kB"),
            (999_949, "999.9 kB"),
            (999_950, "1.0 MB"),
            (5_000_000_000, "5.0 GB"),
            (7_300_000_000_000, "7.3 TB"),
            (u64::MAX, "18.4 EB"),
        ] {
            assert_eq!(human_bytes(bytes), text);
        }
    }

    fn shown(terminal: bool, lines: &[&str]) -> String {
        let mut out = Vec::new();
        let mut display = Display { out: &mut out, terminal, shown: String::new() };
        lines.iter().for_each(|line| display.show(line.to_string()).unwrap());
        drop(display);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_log_file_gets_a_line_only_when_something_changed() {
        assert_eq!(shown(false, &["1 open", "1 open", "2 open", "1 open"]), "1 open\n2 open\n1 open\n");
    }

    #[test]
    fn live_line_is_rewritten_on_a_terminal_and_erased_at_the_end() {
        let text = shown(true, &["1 open", "2 open"]);
        let erase = "\r\x1b[K";
        assert_eq!(text, format!("{erase}\x1b[?7l1 open\x1b[?7h{erase}\x1b[?7l2 open\x1b[?7h{erase}"));
    }

    #[test]
    fn a_closed_standard_output_ends_the_display_without_a_panic() {
        let (reader, out) = io::pipe().unwrap();
        drop(reader);
        let mut display = Display { out, terminal: true, shown: "before".into() };
        let error = display.show("after".into()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
