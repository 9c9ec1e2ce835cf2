//! Settings of a health check over HTTP. Pure.

use std::fmt;
use std::ops::RangeInclusive;

use crate::BodyPattern;

/// HTTP health check: the `GET` request, and the responses that count as up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpCheck {
    /// Path and query, beginning with `/`.
    pub path: String,
    /// `Host` of the request, and name that the certificate must match; `None`: the server's
    /// address.
    pub host: Option<String>,
    /// Further headers, by name.
    pub headers: Vec<(String, String)>,
    /// Status codes that count as up; at least one range.
    pub expected_status: Vec<RangeInclusive<u16>>,
    /// Pattern that the beginning of the body must match; `None`: any body.
    pub expected_body: Option<BodyPattern>,
    /// TLS settings; `None`: the check does not use TLS.
    pub tls: Option<TlsCheck>,
}

/// Certificate verification of a check over TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TlsCheck {
    /// Whether the check accepts any certificate.
    pub skip_verify: bool,
}

impl HttpCheck {
    /// Default path of an HTTP check.
    pub const DEFAULT_PATH: &str = "/";
    /// Default status codes that count as up.
    pub const DEFAULT_STATUS: RangeInclusive<u16> = 200..=399;

    /// Whether this status counts as up.
    pub fn expects(&self, status: u16) -> bool {
        self.expected_status.iter().any(|range| range.contains(&status))
    }

    /// Status codes that count as up: `200-399` or `200, 301-302`.
    pub fn statuses(&self) -> String {
        let one = |range: &RangeInclusive<u16>| match range.clone().into_inner() {
            (from, to) if from == to => from.to_string(),
            (from, to) => format!("{from}-{to}"),
        };
        self.expected_status.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

impl Default for HttpCheck {
    fn default() -> Self {
        HttpCheck {
            path: HttpCheck::DEFAULT_PATH.to_owned(),
            host: None,
            headers: Vec::new(),
            expected_status: vec![HttpCheck::DEFAULT_STATUS],
            expected_body: None,
            tls: None,
        }
    }
}

/// Formats the settings other than path and status, as a list that begins with a comma. Omits the
/// values of headers, which may be secret.
impl fmt::Display for HttpCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(host) = &self.host {
            write!(f, ", host {host}")?;
        }
        for (name, _) in &self.headers {
            write!(f, ", header {name}")?;
        }
        if let Some(pattern) = &self.expected_body {
            write!(f, ", body matching {pattern}")?;
        }
        let skips = self.tls.is_some_and(|tls| tls.skip_verify);
        f.write_str(if skips { ", certificate not verified" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_single_ones_and_ranges() {
        let check = HttpCheck { expected_status: vec![200..=200, 301..=302], ..HttpCheck::default() };
        assert_eq!(check.statuses(), "200, 301-302");
        assert!([200, 301, 302].into_iter().all(|status| check.expects(status)));
        assert!([199, 201, 300, 303].into_iter().all(|status| !check.expects(status)));
        assert_eq!(HttpCheck::default().statuses(), "200-399");
    }
}
