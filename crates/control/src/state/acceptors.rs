//! TLS acceptors of frontends. Each acceptor is built once, and kept until its settings change.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use convey_config::Config;
use convey_model::{FrontendConfig, FrontendTls};
use convey_tls::{AcmeChallenges, SessionTickets, TlsAcceptor};

/// TLS acceptors of the frontends.
#[derive(Debug, Default)]
pub(super) struct Acceptors {
    /// Acceptors by the name of the frontend.
    entries: HashMap<String, AcceptorEntry>,
    /// Challenges that ACME authorities request while convey orders a certificate.
    challenges: Arc<AcmeChallenges>,
}

#[derive(Debug)]
struct AcceptorEntry {
    settings: Arc<FrontendTls>,
    /// TLS acceptor; `None`: the settings are unusable, although they were validated with the
    /// configuration.
    acceptor: Option<Arc<TlsAcceptor>>,
    /// Session tickets, which are kept when certificates change. `None`: the host could not supply
    /// random bytes.
    tickets: Option<SessionTickets>,
}

impl Acceptors {
    /// Challenges that frontends present to ACME authorities.
    pub(super) fn challenges(&self) -> &Arc<AcmeChallenges> {
        &self.challenges
    }

    /// TLS acceptor of a frontend; `None`: the frontend has no TLS, or its settings are unusable. A
    /// frontend with certificates that convey orders also presents challenges to ACME authorities.
    pub(super) fn get(&mut self, frontend: &FrontendConfig) -> Option<Arc<TlsAcceptor>> {
        let settings = frontend.tls.as_ref()?;
        let same = |known: &Arc<FrontendTls>| Arc::ptr_eq(known, settings) || known == settings;
        if let Some(known) = self.entries.get_mut(&frontend.name).filter(|known| same(&known.settings)) {
            known.settings = settings.clone();
            return known.acceptor.clone();
        }
        let before = self.entries.remove(&frontend.name);
        // A session proves a client's identity only for the client CA of the session's time. So a
        // changed client CA needs new tickets.
        let kept = before.filter(|before| before.settings.client_ca == settings.client_ca);
        let tickets = kept.and_then(|kept| kept.tickets).or_else(|| SessionTickets::new().ok());
        let used = tickets.as_ref().filter(|_| settings.session_tickets);
        let acceptor = TlsAcceptor::new(settings, used).ok();
        let acceptor = acceptor.map(|acceptor| match settings.acme {
            true => acceptor.with_challenges(self.challenges.clone()),
            false => acceptor,
        });
        let acceptor = acceptor.map(Arc::new);
        let entry = AcceptorEntry { settings: settings.clone(), acceptor: acceptor.clone(), tickets };
        self.entries.insert(frontend.name.clone(), entry);
        acceptor
    }

    /// Removes the acceptors of frontends that are gone or no longer use TLS.
    pub(super) fn retain(&mut self, config: &Config) {
        let with_tls = config.frontends.iter().filter(|frontend| frontend.tls.is_some());
        let with_tls: HashSet<&str> = with_tls.map(|frontend| frontend.name.as_str()).collect();
        self.entries.retain(|name, _| with_tls.contains(name.as_str()));
    }
}
