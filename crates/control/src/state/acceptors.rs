//! How frontends shake hands: made once of their settings, and kept until these change.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use convey_config::Config;
use convey_model::{FrontendConfig, FrontendTls};
use convey_tls::{AcmeChallenges, SessionTickets, TlsAcceptor};

/// Those of the frontends, by name.
#[derive(Debug, Default)]
pub(super) struct Acceptors(HashMap<String, AcceptorEntry>);

#[derive(Debug)]
struct AcceptorEntry {
    settings: Arc<FrontendTls>,
    /// `None`: the settings make none. The configuration is checked before.
    acceptor: Option<Arc<TlsAcceptor>>,
    /// Sessions outlive certificates. `None`: the host has no randomness.
    tickets: Option<SessionTickets>,
}

impl Acceptors {
    /// How this frontend shakes hands; `None`: not at all. One with certificates that convey orders shows authorities what they look for.
    pub(super) fn get(
        &mut self,
        frontend: &FrontendConfig,
        challenges: &Arc<AcmeChallenges>,
    ) -> Option<Arc<TlsAcceptor>> {
        let settings = frontend.tls.as_ref()?;
        let same = |known: &Arc<FrontendTls>| Arc::ptr_eq(known, settings) || known == settings;
        if let Some(known) = self.0.get_mut(&frontend.name).filter(|known| same(&known.settings)) {
            known.settings = settings.clone();
            return known.acceptor.clone();
        }
        let before = self.0.remove(&frontend.name);
        // A session has proved who the client is, to those whom the settings of its time trusted.
        let kept = before.filter(|before| before.settings.client_ca == settings.client_ca);
        let tickets = kept.and_then(|kept| kept.tickets).or_else(|| SessionTickets::new().ok());
        let used = tickets.as_ref().filter(|_| settings.session_tickets);
        let acceptor = TlsAcceptor::new(settings, used).ok();
        let acceptor = acceptor.map(|acceptor| match settings.acme {
            true => acceptor.with_challenges(challenges.clone()),
            false => acceptor,
        });
        let acceptor = acceptor.map(Arc::new);
        let entry = AcceptorEntry { settings: settings.clone(), acceptor: acceptor.clone(), tickets };
        self.0.insert(frontend.name.clone(), entry);
        acceptor
    }

    /// Forgets those of frontends that are gone, or no longer shake hands.
    pub(super) fn retain(&mut self, config: &Config) {
        let with_tls = config.frontends.iter().filter(|frontend| frontend.tls.is_some());
        let with_tls: HashSet<&str> = with_tls.map(|frontend| frontend.name.as_str()).collect();
        self.0.retain(|name, _| with_tls.contains(name.as_str()));
    }
}
