//! DNS lookups of servers' host names. A lookup is repeated when the time to live of the answer has
//! passed.

mod pace;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::time::sleep;

use self::pace::LookupPace;
use crate::{DiscoveryRegistry, Resolver};
use convey_config::Config;
use convey_model::{Lookup, ServerSource};

/// Registry of servers' host names, and their latest lookups.
pub type NameRegistry = DiscoveryRegistry<NameQuestion, Lookup>;

/// Host name to look up, with the settings of the lookup.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NameQuestion {
    /// The host name.
    pub host: String,
    /// Name servers to query; if empty, convey queries the name servers of the system.
    pub name_servers: Vec<SocketAddr>,
    /// Whether loopback and link-local addresses may be servers.
    pub allow_local: bool,
}

impl NameQuestion {
    /// Host names of a configuration.
    pub(crate) fn all(config: &Config) -> BTreeSet<NameQuestion> {
        let question = |host: &str| NameQuestion {
            host: host.to_owned(),
            name_servers: config.dns.name_servers.clone(),
            allow_local: config.dns.allow_local,
        };
        config.hosts().into_iter().map(question).collect()
    }
}

impl NameRegistry {
    /// Creates a registry of host names. `resolver` looks up the names, in tasks of the calling
    /// runtime.
    pub fn of(resolver: Resolver) -> Arc<NameRegistry> {
        let resolver = Lookups(resolver);
        let registry = Arc::<NameRegistry>::default();
        tokio::spawn(registry.clone().follow(move |question, registry| {
            let resolver = resolver.clone();
            async move {
                resolver
                    .watch(question.clone(), |lookup| registry.post_after(&question, lookup, Lookup::join))
                    .await
            }
        }));
        registry
    }
}

/// Resolver whose lookups are posted to the registry.
#[derive(Clone)]
struct Lookups(Resolver);

impl ServerSource for Lookups {
    type Wanted = NameQuestion;
    type Said = Lookup;

    async fn watch(&self, wanted: NameQuestion, mut tell: impl FnMut(Lookup) + Send) -> Infallible {
        let mut pace = LookupPace::default();
        loop {
            let lookup = self.0.look_up(wanted.host.clone(), &wanted.name_servers).await;
            let lookup = if wanted.allow_local { lookup } else { lookup.without_local() };
            let wait = pace.wait(&lookup, fastrand::f64());
            tell(lookup);
            sleep(wait).await;
        }
    }
}
