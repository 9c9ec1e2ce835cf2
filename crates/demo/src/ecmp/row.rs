//! Line of the demo's output, one per second. Pure.

use std::fmt;

use super::client::Seen;

/// Results since the last line.
#[derive(Debug)]
pub(super) struct Row {
    /// Seconds since the first line.
    pub(super) seconds: u64,
    /// Balancers to which the router sends clients.
    pub(super) next_hops: Vec<u8>,
    /// Number of connections that each balancer has begun to forward. `None` if the balancer does
    /// not answer.
    pub(super) by_balancer: Vec<Option<u64>>,
    pub(super) seen: Seen,
}

/// Width of the column for a balancer's connections.
const NUMBER: usize = 5;

impl Row {
    /// Heading of the lines, for this number of balancers.
    pub(super) fn heading(balancers: u8) -> String {
        let width = usize::from(balancers) * NUMBER;
        let announced = usize::from(balancers) * 2 + 3;
        let numbers: String = (1..=balancers).map(|n| format!("{n:>NUMBER$}")).collect();
        format!(
            "      {:announced$}{:width$}   {:18}{}\n time {:announced$}{numbers}   {:18}{}\n",
            "router",
            "new connections",
            "answers on new",
            "connections that",
            "sends to",
            "connections",
            "the client keeps",
        )
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { seconds, next_hops, by_balancer, seen } = self;
        write!(f, "{seconds:>3} s ")?;
        for n in (1_u8..).take(by_balancer.len()) {
            match next_hops.contains(&n) {
                true => write!(f, "{n} ")?,
                false => f.write_str("- ")?,
            }
        }
        f.write_str("   ")?;
        for new in by_balancer {
            match new {
                Some(new) => write!(f, "{new:>NUMBER$}")?,
                None => write!(f, "{:>NUMBER$}", "-")?,
            }
        }
        let servers: Vec<String> =
            seen.by_server.iter().map(|(name, count)| format!("{name} {count}")).collect();
        let (slowest, broken) = (seen.slowest.as_millis(), seen.broken);
        writeln!(
            f,
            "   {:18}{} open, {broken} broken, slowest answer {slowest} ms",
            servers.join("  "),
            seen.kept
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_line_shows_who_is_announced_and_what_became_of_connections() {
        let by_server = [("a".to_owned(), 7), ("b".to_owned(), 12)].into();
        let slowest = Duration::from_millis(1_040);
        let seen = Seen { by_server, kept: 200, opened: 900, broken: 1, slowest };
        let row = Row {
            seconds: 12,
            next_hops: vec![1, 3, 4],
            by_balancer: vec![Some(6), None, Some(120), Some(0)],
            seen,
        };
        assert_eq!(
            format!("{}{row}", Row::heading(4)),
            concat!(
                "      router     new connections        answers on new    connections that\n",
                " time sends to       1    2    3    4   connections       the client keeps\n",
                " 12 s 1 - 3 4        6    -  120    0   a 7  b 12         200 open, 1 broken, slowest answer 1040 ms\n",
            )
        );
    }
}
