//! Comparisons: a mode of convey, HTTP within TLS, HTTP/3, or files that balancers serve
//! themselves.

use convey_model::Mode;

/// Comparison of peers, with a table of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compared {
    Mode(Mode),
    /// Mode http for clients that speak TLS.
    Tls,
    /// Mode http for clients that speak HTTP/3.
    Http3,
    /// Mode http with files in place of servers.
    Files,
}

impl Compared {
    /// All comparisons.
    pub(crate) const ALL: [Compared; 7] = [
        Compared::Mode(Mode::Proxy),
        Compared::Mode(Mode::Http),
        Compared::Tls,
        Compared::Http3,
        Compared::Files,
        Compared::Mode(Mode::Passthrough),
        Compared::Mode(Mode::Dsr),
    ];

    /// Name on the command line, and of the result files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Compared::Mode(mode) => mode.name(),
            Compared::Tls => "tls",
            Compared::Http3 => "http3",
            Compared::Files => "files",
        }
    }

    /// Title of the table.
    pub(crate) fn title(self) -> String {
        match self {
            Compared::Mode(mode) => format!("convey in mode {}", mode.name()),
            Compared::Tls => "convey in mode http, within TLS,".to_owned(),
            Compared::Http3 => "convey in mode http, over HTTP/3,".to_owned(),
            Compared::Files => "convey with files".to_owned(),
        }
    }

    /// Mode of convey in this comparison.
    pub(crate) fn mode(self) -> Mode {
        match self {
            Compared::Mode(mode) => mode,
            Compared::Tls | Compared::Http3 | Compared::Files => Mode::Http,
        }
    }

    /// Whether clients use TLS. Clients of HTTP/3 do, within QUIC.
    pub(crate) fn is_tls(self) -> bool {
        matches!(self, Compared::Tls | Compared::Http3)
    }

    /// Whether clients use HTTP/3.
    pub(crate) fn is_http3(self) -> bool {
        self == Compared::Http3
    }

    /// Whether balancers serve files themselves.
    pub(crate) fn is_files(self) -> bool {
        self == Compared::Files
    }
}
