//! Comparisons: a mode of convey, HTTP within TLS, HTTP/3, files that balancers serve themselves, or
//! the floor's variants.

use convey_model::Mode;

use crate::floor::Variant;

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
    /// Mode http beside the floor: an HTTP relay that does no more than it must.
    Budget,
}

impl Compared {
    /// All comparisons.
    pub(crate) const ALL: [Compared; 8] = [
        Compared::Mode(Mode::Proxy),
        Compared::Mode(Mode::Http),
        Compared::Tls,
        Compared::Http3,
        Compared::Files,
        Compared::Mode(Mode::Passthrough),
        Compared::Mode(Mode::Dsr),
        Compared::Budget,
    ];

    /// Comparisons that run if the command line names none.
    pub(crate) fn by_default() -> Vec<Compared> {
        Compared::ALL.into_iter().filter(|compared| !compared.is_budget()).collect()
    }

    /// Name on the command line, and of the result files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Compared::Mode(mode) => mode.name(),
            Compared::Tls => "tls",
            Compared::Http3 => "http3",
            Compared::Files => "files",
            Compared::Budget => "budget",
        }
    }

    /// Title of the table.
    pub(crate) fn title(self) -> String {
        match self {
            Compared::Mode(mode) => format!("convey in mode {}", mode.name()),
            Compared::Tls => "convey in mode http, within TLS,".to_owned(),
            Compared::Http3 => "convey in mode http, over HTTP/3,".to_owned(),
            Compared::Files => "convey with files".to_owned(),
            Compared::Budget => "What a request costs at least".to_owned(),
        }
    }

    /// Mode of convey in this comparison.
    pub(crate) fn mode(self) -> Mode {
        match self {
            Compared::Mode(mode) => mode,
            Compared::Tls | Compared::Http3 | Compared::Files | Compared::Budget => Mode::Http,
        }
    }

    /// Whether clients use TLS. Clients of HTTP/3 do, within QUIC.
    pub(crate) fn is_tls(self) -> bool {
        matches!(self, Compared::Tls | Compared::Http3)
    }

    /// Whether this is mode http, for clients that use neither TLS nor HTTP/3.
    pub(crate) fn is_plain_http(self) -> bool {
        self == Compared::Mode(Mode::Http)
    }

    /// Whether clients use HTTP/3.
    pub(crate) fn is_http3(self) -> bool {
        self == Compared::Http3
    }

    /// Whether the floor's variants are compared.
    pub(crate) fn is_budget(self) -> bool {
        self == Compared::Budget
    }

    /// Whether this variant of the floor takes part.
    pub(crate) fn has_floor(self, variant: Variant) -> bool {
        match self {
            Compared::Mode(Mode::Proxy) => variant == Variant::Bytes,
            Compared::Mode(Mode::Http) => variant == Variant::Plain,
            Compared::Budget => variant != Variant::Bytes,
            _ => false,
        }
    }

    /// Whether a variant of the floor takes part.
    pub(crate) fn has_any_floor(self) -> bool {
        self.has_floor(Variant::Plain) || self.has_floor(Variant::Bytes)
    }

    /// Whether balancers serve files themselves.
    pub(crate) fn is_files(self) -> bool {
        self == Compared::Files
    }
}
