//! Warnings about certificates that expire soon.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use convey_config::Config;
use convey_control::{EventKind, EventLevel, EventLog, LogLine};
use convey_model::FrontendTls;
use convey_snapshot::{NewestSnapshot, Snapshot};
use convey_tls::{Expiry, ExpiryWatch, TlsAcceptor, Validity};
use log::{error, warn};

use super::clock;

/// Interval between checks. A reload may bring other certificates.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Warns about the frontends' certificates as long as the program runs.
pub(super) async fn watch(snapshot: Arc<NewestSnapshot>, events: Arc<EventLog>) {
    let mut watch = ExpiryWatch::default();
    loop {
        let certificates = certificates(&snapshot.load());
        for expiry in watch.due_warnings(&certificates, clock::unix_seconds()) {
            let LogLine { level, text } = warning(&expiry);
            match level {
                EventLevel::Error => error!("{text}"),
                EventLevel::Info | EventLevel::Warn => warn!("{text}"),
            }
            events.record(EventKind::Certificate, level, clock::now(), &text);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Warnings about certificates that expire soon or have expired, one per line.
pub(super) fn expiring(config: &Config) -> Vec<String> {
    expiries(config).iter().map(|expiry| warning(expiry).text).collect()
}

/// Warnings about certificates that have expired, one per line.
pub(super) fn expired(config: &Config) -> Vec<String> {
    expiries(config)
        .iter()
        .filter(|expiry| expiry.days_left.is_none())
        .map(|expiry| warning(expiry).text)
        .collect()
}

fn expiries(config: &Config) -> Vec<Expiry> {
    let acceptors = config.frontends.iter().filter_map(|frontend| {
        let settings = frontend.tls.as_deref()?;
        Some((frontend.name.as_str(), settings, TlsAcceptor::new(settings, None).ok()?))
    });
    let all: Vec<_> =
        acceptors.flat_map(|(name, settings, acceptor)| named(name, settings, &acceptor)).collect();
    ExpiryWatch::default().due_warnings(&all, clock::unix_seconds())
}

/// Warning about an expiry.
fn warning(Expiry { name, days_left }: &Expiry) -> LogLine {
    match days_left {
        None => LogLine::error(format!("{name} has expired: clients do not trust it")),
        Some(0) => LogLine::warn(format!("{name} expires within a day")),
        Some(1) => LogLine::warn(format!("{name} expires in 1 day")),
        Some(days) => LogLine::warn(format!("{name} expires in {days} days")),
    }
}

/// All certificates of a snapshot, each with its name for log lines.
fn certificates(snapshot: &Snapshot) -> Vec<(String, Validity)> {
    let frontends = snapshot.frontends.iter().filter_map(|frontend| {
        let (settings, acceptor) = frontend.config.tls.as_deref().zip(frontend.tls.as_deref())?;
        Some(named(&frontend.config.name, settings, acceptor))
    });
    frontends.flatten().collect()
}

/// Certificates of a frontend, each with its file for log lines.
fn named(frontend: &str, settings: &FrontendTls, acceptor: &TlsAcceptor) -> Vec<(String, Validity)> {
    let pairs = settings.certificates.iter().zip(&acceptor.certificates);
    let name = |path: &Path| format!("certificate {} of frontend {frontend}", path.display());
    pairs.map(|(pair, certificate)| (name(&pair.chain_path), certificate.validity)).collect()
}
