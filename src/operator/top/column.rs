//! The columns of the table, and which of them fit. Pure.

use super::rates::TopRates;

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TopColumn {
    /// Of a frontend, a backend or a server.
    #[default]
    Name,
    /// Health, or what an operator has said.
    State,
    /// Connections open now.
    Open,
    /// Connections begun a second.
    New,
    /// Requests a second (mode http).
    Requests,
    /// Bytes from clients a second.
    In,
    /// Bytes to clients a second.
    Out,
    /// Half of the connects took at most this long.
    Connect50,
    /// 99 of 100 connects took at most this long.
    Connect99,
    /// The same of sessions, from accepting a client to its end.
    Session50,
    /// The same of sessions.
    Session99,
    /// Half of the responses took at most this long (mode http).
    Response50,
    /// 99 of 100 responses took at most this long (mode http).
    Response99,
    /// Handshakes begun a second (packet modes).
    Begun,
    /// Handshakes completed a second (packet modes).
    Completed,
    /// Responses with a status of 5xx a second (mode http).
    ServerErrors,
    /// What went wrong a second.
    Errors,
    /// Share of new connections, in percent.
    Share,
    /// Connections since the start.
    Total,
}

use TopColumn::*;

/// A name needs this much.
const MIN_NAME: u16 = 16;

/// Who gives way last where there is no room for all.
const BY_IMPORTANCE: [TopColumn; TopColumn::COUNT - 1] = [
    State,
    New,
    Open,
    Requests,
    ServerErrors,
    Response99,
    Errors,
    Out,
    In,
    Connect99,
    Completed,
    Response50,
    Connect50,
    Begun,
    Session99,
    Session50,
    Share,
    Total,
];

impl TopColumn {
    /// How many there are.
    pub(super) const COUNT: usize = 19;

    /// All, from left to right.
    pub const ALL: [TopColumn; TopColumn::COUNT] = [
        Name,
        State,
        Open,
        New,
        Requests,
        In,
        Out,
        Connect50,
        Connect99,
        Session50,
        Session99,
        Response50,
        Response99,
        Begun,
        Completed,
        ServerErrors,
        Errors,
        Share,
        Total,
    ];

    /// What `--sort` calls it.
    pub fn word(self) -> &'static str {
        self.texts().0
    }

    /// What stands above it.
    pub(super) fn title(self) -> &'static str {
        self.texts().1
    }

    /// What it says, for the help.
    pub(super) fn meaning(self) -> &'static str {
        self.texts().2
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

    fn texts(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Name => ("name", "NAME", "frontend, backend, server"),
            State => ("state", "STATE", "health, drain, maint"),
            Open => ("open", "OPEN", "connections open now"),
            New => ("new", "NEW/S", "connections begun a second"),
            Requests => ("requests", "REQ/S", "requests a second"),
            In => ("in", "IN/S", "bytes from clients a second"),
            Out => ("out", "OUT/S", "bytes to clients a second"),
            Connect50 => ("conn50", "CONN50", "half of the connects to servers took at most this"),
            Connect99 => ("conn99", "CONN99", "99 of 100 connects to servers took at most this"),
            Session50 => ("sess50", "SESS50", "half of the sessions took at most this"),
            Session99 => ("sess99", "SESS99", "99 of 100 sessions took at most this"),
            Response50 => ("resp50", "RESP50", "half of the responses began (frontends: ended) within this"),
            Response99 => ("resp99", "RESP99", "99 of 100 responses began (frontends: ended) within this"),
            Begun => ("syn", "SYN/S", "handshakes begun a second"),
            Completed => ("done", "DONE/S", "handshakes completed a second"),
            ServerErrors => ("5xx", "5XX/S", "responses with a status of 5xx a second"),
            Errors => ("errors", "ERR/S", "failed connects, repeated SYNs, 5xx; of frontends: drops"),
            Share => ("share", "SHARE", "percent of new connections"),
            Total => ("total", "TOTAL", "connections since the start"),
        }
    }

    /// What fits, from left to right: the name, then by importance.
    pub(super) fn fitting(width: u16, rates: &TopRates) -> Vec<TopColumn> {
        let mut left = width.saturating_sub(MIN_NAME);
        let mut fits = vec![Name];
        for column in BY_IMPORTANCE {
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
