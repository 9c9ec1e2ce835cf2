//! Columns of the table, and their selection by width. Pure.

use super::rates::TopRates;

/// Minimum width of the name column.
const MIN_NAME: u16 = 16;

/// Maximum width of the name column that takes the place of other columns, so that the names of
/// routes stay readable.
const MAX_NAME: u16 = 30;

/// Texts and rank of a column.
struct ColumnTexts {
    word: &'static str,
    title: &'static str,
    meaning: &'static str,
    /// Order in which columns are hidden: if the columns with values do not all fit, the columns
    /// with the highest rank are hidden first.
    rank: u8,
}

macro_rules! columns {
    ($($(#[$about:meta])* $column:ident = $rank:literal, $word:literal, $title:literal, $meaning:literal;)+) => {
        /// Column of the table.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub enum TopColumn {
            $($(#[$about])* $column,)+
        }

        use TopColumn::*;

        impl TopColumn {
            /// All columns, from left to right.
            pub const ALL: [TopColumn; [$($rank),+].len()] = [$($column),+];

            fn texts(self) -> ColumnTexts {
                match self {
                    $($column => ColumnTexts { word: $word, title: $title, meaning: $meaning, rank: $rank },)+
                }
            }
        }
    };
}

columns! {
    /// Name of a frontend, a route, a backend or a server.
    #[default]
    Name = 0, "name", "NAME", "frontend, route, backend, server";
    /// Health, or the administrative state set by an operator.
    State = 1, "state", "STATE", "health, drain, maint";
    /// Connections open now.
    Open = 3, "open", "OPEN", "connections open now";
    /// New connections a second.
    New = 2, "new", "NEW/S", "new connections a second";
    /// Requests a second (mode http).
    Requests = 4, "requests", "REQ/S", "requests a second";
    /// Bytes from clients a second.
    In = 9, "in", "IN/S", "bytes from clients a second";
    /// Bytes to clients a second.
    Out = 8, "out", "OUT/S", "bytes to clients a second";
    /// Half of the connects took at most this long.
    Connect50 = 15, "conn50", "CONN50", "half of the connects to servers took at most this";
    /// 99 of 100 connects took at most this long.
    Connect99 = 13, "conn99", "CONN99", "99 of 100 connects to servers took at most this";
    /// Half of the sessions took at most this long, from the accept to the end.
    Session50 = 18, "sess50", "SESS50", "half of the sessions took at most this";
    /// 99 of 100 sessions took at most this long.
    Session99 = 17, "sess99", "SESS99", "99 of 100 sessions took at most this";
    /// Half of the responses took at most this long (mode http).
    Response50 = 11, "resp50", "RESP50", "50 % of responses begin (frontends: end) within this";
    /// 90 of 100 responses took at most this long (mode http).
    Response90 = 12, "resp90", "RESP90", "90 % of responses begin (frontends: end) within this";
    /// 99 of 100 responses took at most this long (mode http).
    Response99 = 6, "resp99", "RESP99", "99 % of responses begin (frontends: end) within this";
    /// Handshakes started a second (packet modes).
    Started = 16, "syn", "SYN/S", "handshakes started a second";
    /// Handshakes completed a second (packet modes).
    Completed = 14, "done", "DONE/S", "handshakes completed a second";
    /// Responses with a status of 4xx a second (mode http).
    ClientErrors = 10, "4xx", "4XX/S", "responses with a status of 4xx a second";
    /// Responses with a status of 5xx a second (mode http).
    ServerErrors = 5, "5xx", "5XX/S", "responses with a status of 5xx a second";
    /// Errors a second.
    Errors = 7, "errors", "ERR/S", "failed connects, repeated SYNs, 5xx; frontends: drops";
    /// Share of new connections, in percent.
    Share = 19, "share", "SHARE", "percent of new connections";
    /// Connections since the start.
    Total = 20, "total", "TOTAL", "connections since the start";
}

impl TopColumn {
    /// Name of the column for `--sort`.
    pub fn name(self) -> &'static str {
        self.texts().word
    }

    /// Title of the column.
    pub(super) fn title(self) -> &'static str {
        self.texts().title
    }

    /// Description of the column, for the help.
    pub(super) fn meaning(self) -> &'static str {
        self.texts().meaning
    }

    /// Width of the column.
    pub(super) fn width(self) -> u16 {
        match self {
            Name => MIN_NAME,
            State => 9,
            Share => 5,
            _ => 6,
        }
    }

    /// Columns that fit into the width, from left to right: the name, and the others selected by
    /// rank.
    pub(super) fn fitting(width: u16, rates: &TopRates) -> Vec<TopColumn> {
        let mut left =
            width.saturating_sub(rates.route_width.clamp(MIN_NAME, MAX_NAME.min(width / 3).max(MIN_NAME)));
        let mut fits = vec![Name];
        let mut by_rank = TopColumn::ALL;
        by_rank.sort_unstable_by_key(|column| column.texts().rank);
        for column in by_rank.into_iter().filter(|column| *column != Name) {
            let has_values = match column {
                Connect50 | Connect99 | Session50 | Session99 => rates.has_times,
                Started | Completed => rates.has_handshakes,
                Requests | ClientErrors | ServerErrors | Response50 | Response90 | Response99 => {
                    rates.has_requests
                }
                _ => true,
            };
            let needs = column.width() + 1;
            if has_values && needs <= left {
                left -= needs;
                fits.push(column);
            }
        }
        fits.sort_by_key(|column| *column as usize);
        fits
    }
}
