//! The columns of the table, and which of them fit. Pure.

use super::rates::TopRates;

/// A name needs this much.
const MIN_NAME: u16 = 16;

/// The text of a column.
struct ColumnTexts {
    word: &'static str,
    title: &'static str,
    meaning: &'static str,
    /// Of the columns that have values and do not all fit, those with the highest figures go.
    rank: u8,
}

macro_rules! columns {
    ($($(#[$about:meta])* $column:ident = $rank:literal, $word:literal, $title:literal, $meaning:literal;)+) => {
        /// A column.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub enum TopColumn {
            $($(#[$about])* $column,)+
        }

        use TopColumn::*;

        impl TopColumn {
            /// All, from left to right.
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
    /// Of a frontend, a backend or a server.
    #[default]
    Name = 0, "name", "NAME", "frontend, backend, server";
    /// Health, or what an operator has said.
    State = 1, "state", "STATE", "health, drain, maint";
    /// Connections open now.
    Open = 3, "open", "OPEN", "connections open now";
    /// Connections begun a second.
    New = 2, "new", "NEW/S", "connections begun a second";
    /// Requests a second (mode http).
    Requests = 4, "requests", "REQ/S", "requests a second";
    /// Bytes from clients a second.
    In = 9, "in", "IN/S", "bytes from clients a second";
    /// Bytes to clients a second.
    Out = 8, "out", "OUT/S", "bytes to clients a second";
    /// Half of the connects took at most this long.
    Connect50 = 13, "conn50", "CONN50", "half of the connects to servers took at most this";
    /// 99 of 100 connects took at most this long.
    Connect99 = 10, "conn99", "CONN99", "99 of 100 connects to servers took at most this";
    /// The same of sessions, from accepting a client to its end.
    Session50 = 16, "sess50", "SESS50", "half of the sessions took at most this";
    /// The same of sessions.
    Session99 = 15, "sess99", "SESS99", "99 of 100 sessions took at most this";
    /// Half of the responses took at most this long (mode http).
    Response50 = 12, "resp50", "RESP50", "half of the responses began (frontends: ended) within this";
    /// 99 of 100 responses took at most this long (mode http).
    Response99 = 6, "resp99", "RESP99", "99 of 100 responses began (frontends: ended) within this";
    /// Handshakes begun a second (packet modes).
    Begun = 14, "syn", "SYN/S", "handshakes begun a second";
    /// Handshakes completed a second (packet modes).
    Completed = 11, "done", "DONE/S", "handshakes completed a second";
    /// Responses with a status of 5xx a second (mode http).
    ServerErrors = 5, "5xx", "5XX/S", "responses with a status of 5xx a second";
    /// What went wrong a second.
    Errors = 7, "errors", "ERR/S", "failed connects, repeated SYNs, 5xx; of frontends: drops";
    /// Share of new connections, in percent.
    Share = 17, "share", "SHARE", "percent of new connections";
    /// Connections since the start.
    Total = 18, "total", "TOTAL", "connections since the start";
}

impl TopColumn {
    /// What `--sort` calls it.
    pub fn word(self) -> &'static str {
        self.texts().word
    }

    /// What stands above it.
    pub(super) fn title(self) -> &'static str {
        self.texts().title
    }

    /// What it says, for the help.
    pub(super) fn meaning(self) -> &'static str {
        self.texts().meaning
    }

    /// How wide it is.
    pub(super) fn width(self) -> u16 {
        match self {
            Name => MIN_NAME,
            State => 9,
            Share => 5,
            _ => 6,
        }
    }

    /// What fits, from left to right: the name, then by importance.
    pub(super) fn fitting(width: u16, rates: &TopRates) -> Vec<TopColumn> {
        let mut left = width.saturating_sub(MIN_NAME);
        let mut fits = vec![Name];
        let mut by_rank = TopColumn::ALL;
        by_rank.sort_unstable_by_key(|column| column.texts().rank);
        for column in by_rank.into_iter().filter(|column| *column != Name) {
            let has_values = match column {
                Connect50 | Connect99 | Session50 | Session99 => rates.has_times,
                Begun | Completed => rates.has_handshakes,
                Requests | ServerErrors | Response50 | Response99 => rates.has_requests,
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
