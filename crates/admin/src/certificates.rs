//! Detects frontends without a certificate that clients accept, for readiness, status and metrics.
//! Pure.

use std::time::Duration;

use convey_model::AnnounceConfig;
use convey_snapshot::{Frontend, Snapshot};

use super::AcmeName;

/// Time before the next order at which a frontend counts as ready again, in addition to twice
/// `hold`. The certificate authority has to reach the frontend during the order.
const BEFORE_ORDER: Duration = Duration::from_secs(30);

/// State of ACME orders at one time, in seconds since 1970. It decides whether a missing
/// certificate counts as a lasting fault.
pub struct CertificateView {
    names: Vec<AcmeName>,
    now: i64,
    /// Number of seconds for which orders must have failed before the fault counts as lasting.
    hold: i64,
    /// Number of seconds before the next order at which the order already counts as under way.
    lead: i64,
}

/// Reason why clients refuse every certificate of a frontend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnusableCertificates {
    pub(super) why: String,
    /// Whether orders have failed for `hold`, and no order is about to begin.
    pub(super) is_lasting: bool,
}

impl CertificateView {
    /// View for readiness. A fault counts as lasting once orders have failed for `hold`.
    pub fn of_readiness(names: Vec<AcmeName>, now: i64, snapshot: &Snapshot) -> CertificateView {
        let hold = snapshot.announce.as_ref().map_or_else(|| AnnounceConfig::default().hold, |one| one.hold);
        let lead = seconds(hold.saturating_mul(2).saturating_add(BEFORE_ORDER));
        CertificateView { names, now, hold: seconds(hold), lead }
    }

    /// View for announced addresses. A fault counts as lasting immediately, because an address is
    /// withdrawn only after `hold` anyway.
    pub fn of_addresses(names: Vec<AcmeName>, now: i64, snapshot: &Snapshot) -> CertificateView {
        CertificateView { hold: 0, ..CertificateView::of_readiness(names, now, snapshot) }
    }

    /// Certificate fault of a frontend. `None` if the frontend has a certificate that is valid now,
    /// or no TLS.
    pub(super) fn fault(&self, frontend: &Frontend) -> Option<UnusableCertificates> {
        let settings = frontend.config.tls.as_deref()?;
        let certificates = &frontend.tls.as_deref()?.certificates;
        let is_valid = |from: i64, until: i64| from <= self.now && self.now <= until;
        if certificates.iter().any(|one| is_valid(one.validity.from, one.validity.until)) {
            return None;
        }
        let names = || self.names.iter().filter(|_| settings.acme);
        let failed = names().find_map(|name| Some((&name.name, name.error.as_ref()?)));
        let order = match failed {
            Some((name, why)) => format!("; the last order for {name} failed: {why}"),
            None if settings.acme => "; the first ACME order is not finished yet".to_owned(),
            None => String::new(),
        };
        let own = match (certificates.first(), settings.certificates.first()) {
            (Some(one), Some(pair)) => {
                let path = pair.chain_path.display();
                let (word, days) = match one.validity.until < self.now {
                    true => ("expired", self.now.saturating_sub(one.validity.until) / DAY),
                    false => ("becomes valid", one.validity.from.saturating_sub(self.now) / DAY),
                };
                let unit = if days == 1 { "day" } else { "days" };
                let when = if word == "expired" {
                    format!("{days} {unit} ago")
                } else {
                    format!("in {days} {unit}")
                };
                format!("certificate {path} {word} {when}")
            }
            _ => "it has no certificate".to_owned(),
        };
        let mut of_acme = names().peekable();
        let is_lasting = of_acme.peek().is_some() && of_acme.all(|name| self.has_failed(name));
        Some(UnusableCertificates { why: format!("{own}{order}"), is_lasting })
    }

    fn has_failed(&self, name: &AcmeName) -> bool {
        let has_failed_for_long =
            name.failing_since.is_some_and(|since| self.now.saturating_sub(since) >= self.hold);
        let is_under_way = name.next_order.is_some_and(|at| at <= self.now.saturating_add(self.lead));
        has_failed_for_long && !is_under_way
    }
}

const DAY: i64 = 24 * 60 * 60;

fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

/// Certificate states of frontends, for tests.
#[cfg(test)]
pub(super) mod fixture {
    use std::sync::Arc;

    use super::*;
    use convey_model::{FrontendTls, TlsVersion};
    use convey_snapshot::{Pool, fixture};

    pub(super) const NOW: i64 = 1_000_000;

    /// A frontend at this address without a certificate, for which all orders fail.
    pub(crate) fn without_certificate(listen: &str, pool: &Arc<Pool>) -> (Arc<Frontend>, CertificateView) {
        let config = convey_model::fixture::frontend("secure", &[listen], &pool.config.name);
        let tls = Some(Arc::new(settings()));
        let frontend = fixture::frontend_of(convey_model::FrontendConfig { tls, ..config }, pool);
        (frontend, ordered(Some(0), NOW + 300))
    }

    pub(super) fn settings() -> FrontendTls {
        FrontendTls {
            acme: true,
            certificates: Vec::new(),
            refuse_unknown_names: false,
            min_version: TlsVersion::default(),
            cipher_suites: Vec::new(),
            alpn: Vec::new(),
            client_ca: None,
            session_tickets: false,
            handshake_timeout: FrontendTls::HANDSHAKE_TIMEOUT,
            max_handshakes_per_source: 1,
            http3: false,
            early_data: false,
        }
    }

    pub(super) fn ordered(failing_since: Option<i64>, next_order: i64) -> CertificateView {
        let name = AcmeName {
            name: "site.example".to_owned(),
            not_after: None,
            next_order: Some(next_order),
            failures: u32::from(failing_since.is_some()),
            failing_since,
            error: failing_since.map(|_| "no route".to_owned()),
        };
        CertificateView::of_readiness(vec![name], NOW, &Snapshot::empty(1))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::fixture::{NOW, ordered, settings};
    use super::*;
    use convey_model::FrontendTls;
    use convey_snapshot::fixture;

    fn frontend(tls: Option<FrontendTls>) -> Arc<Frontend> {
        let pool = fixture::pool("app", vec![(fixture::server("a", "127.0.0.1:81"), fixture::up())]);
        let config = convey_model::fixture::frontend("web", &["127.0.0.1:80"], "app");
        fixture::frontend_of(convey_model::FrontendConfig { tls: tls.map(Arc::new), ..config }, &pool)
    }

    #[test]
    fn frontend_without_certificate_is_lacking_between_failed_orders_alone() {
        let site = frontend(Some(settings()));
        let lasts = |view: CertificateView| view.fault(&site).map(|fault| fault.is_lasting);
        let hold = seconds(AnnounceConfig::default().hold);
        assert_eq!(lasts(ordered(None, NOW)), Some(false), "the first order");
        assert_eq!(lasts(ordered(Some(NOW - hold + 1), NOW + 300)), Some(false), "it has just failed");
        assert_eq!(lasts(ordered(Some(NOW - hold), NOW + 300)), Some(true));
        assert_eq!(lasts(ordered(Some(NOW - hold), NOW + 30)), Some(false), "the next order");
        assert_eq!(lasts(ordered(Some(NOW - hold), NOW - 1)), Some(false), "an order under way");
        let why = ordered(Some(NOW), NOW + 300).fault(&site).unwrap().why;
        assert_eq!(why, "it has no certificate; the last order for site.example failed: no route");
        assert_eq!(ordered(None, NOW).fault(&frontend(None)), None);
    }
}
