//! Readiness of frontends and addresses, for `/readyz` and `[announce]`. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use convey_explain::PacketFacts;
use convey_model::{AdminState, AnnounceConfig, Target};
use convey_snapshot::{Frontend, Pool, Server, Snapshot};

use super::certificates::{CertificateView, UnusableCertificates};

/// Input from which readiness is derived.
#[derive(Clone, Copy)]
pub struct ReadinessInput<'a> {
    /// The frontends with their servers.
    pub snapshot: &'a Snapshot,
    /// State of the frontends' certificates.
    pub certificates: &'a CertificateView,
    /// State of packet modes since the start. `None` without packet modes.
    pub packets: Option<&'a PacketFacts>,
    /// Whether the program no longer accepts new connections.
    pub is_draining: bool,
}

/// Readiness of all frontends.
pub(super) struct FrontendReadiness<'a> {
    is_draining: bool,
    pub(super) frontends: Vec<(&'a Frontend, Unserved<'a>)>,
}

impl<'a> FrontendReadiness<'a> {
    pub(super) fn of(input: ReadinessInput<'a>) -> FrontendReadiness<'a> {
        FrontendReadiness::without(input, None, 0)
    }

    /// Readiness as if the servers in `without` were gone. A backend with fewer than `min_servers`
    /// servers that can serve counts as a backend without servers.
    fn without(
        input: ReadinessInput<'a>,
        without: Option<&Target>,
        min_servers: usize,
    ) -> FrontendReadiness<'a> {
        let lost_snat = LostSnat::of(input);
        let frontends = input.snapshot.frontends.iter().map(|frontend| {
            let lost = lost_snat.at(frontend);
            (&**frontend, Unserved::of(frontend, min_servers, without, (lost, input.certificates)))
        });
        let is_draining = input.is_draining || input.snapshot.stopping;
        FrontendReadiness { is_draining, frontends: frontends.collect() }
    }

    /// Reasons why this convey should get no traffic, one per line. Empty if it should get traffic.
    ///
    /// A backend that cannot serve is only a reason if a frontend needs it, or if no other backend
    /// can serve.
    pub(super) fn obstacles(&self) -> Vec<String> {
        if self.is_draining {
            return vec!["draining: convey is about to stop".to_owned()];
        }
        if self.frontends.is_empty() {
            return vec!["starting: no frontend serves yet".to_owned()];
        }
        obstacles_of(self.frontends.iter())
    }
}

/// Addresses that are configured to be announced. The value is the reason why the address must not
/// be announced now; `None` if it may be announced.
pub type AnnouncedAddresses = BTreeMap<IpAddr, Option<String>>;

/// Addresses that this convey announces while their frontends can serve. A backend with fewer than
/// `announce.min_servers` servers that can serve counts as a backend without servers.
pub fn announced_addresses(input: ReadinessInput<'_>) -> AnnouncedAddresses {
    announced_without(input, None)
}

/// Announced addresses as if the servers in `without` were gone.
fn announced_without(input: ReadinessInput<'_>, without: Option<&Target>) -> AnnouncedAddresses {
    let Some(config) = &input.snapshot.announce else { return BTreeMap::new() };
    let readiness = FrontendReadiness::without(input, without, config.min_servers as usize);
    let mut frontends: BTreeMap<IpAddr, Vec<&(&Frontend, Unserved<'_>)>> = BTreeMap::new();
    for one in &readiness.frontends {
        for ip in AnnounceConfig::addresses([&one.0.config]) {
            frontends.entry(ip).or_default().push(one);
        }
    }
    frontends.into_iter().map(|(ip, at)| (ip, obstacles_of(at.into_iter()).into_iter().next())).collect()
}

/// Addresses and frontends that a change would make unready.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LostReadiness {
    /// Announced addresses that convey would withdraw.
    pub(super) addresses: Vec<IpAddr>,
    /// Frontends that would lack a backend of `ready_needs`: `/readyz` would answer 503.
    pub(super) frontends: Vec<String>,
}

impl LostReadiness {
    pub(super) fn without(input: ReadinessInput<'_>, target: &Target) -> LostReadiness {
        let now = announced_addresses(input);
        let is_withdrawn = |(ip, obstacle): (IpAddr, Option<String>)| {
            (obstacle.is_some() && now.get(&ip).is_some_and(Option::is_none)).then_some(ip)
        };
        let addresses = announced_without(input, Some(target)).into_iter().filter_map(is_withdrawn);
        let (now, without) =
            (FrontendReadiness::of(input), FrontendReadiness::without(input, Some(target), 0));
        let lacks = |of: &(&Frontend, Unserved<'_>)| of.1.needed(of.0).is_some();
        let both = now.frontends.iter().zip(&without.frontends);
        let lost = both.filter(|(now, without)| !lacks(now) && lacks(without));
        let frontends = lost.map(|((frontend, _), _)| frontend.config.name.clone()).collect();
        LostReadiness { addresses: addresses.collect(), frontends }
    }
}

/// Name of the target's backend, if no server of the backend could serve after the removal of the
/// target. `None` if another server can serve, or if no server can serve now.
pub(super) fn backend_left_without<'a>(snapshot: &Snapshot, target: &'a Target) -> Option<&'a str> {
    let pool = snapshot.pools.iter().find(|pool| pool.config.name == target.backend)?;
    let left = |without| pool.servers.iter().filter(|server| stays(server, pool, without)).count();
    (left(None) > 0 && left(Some(target)) == 0).then_some(&*target.backend)
}

/// Whether the server can serve (ready, up, weight above 0) and does not belong to `without`.
fn stays(server: &Server, pool: &Pool, without: Option<&Target>) -> bool {
    let has_share = server.admin == AdminState::Ready && server.config.settings.weight > 0;
    let is_gone = without.is_some_and(|target| target.includes(&pool.config.name, &server.config.name));
    has_share && server.health.up && !is_gone
}

/// Reasons why frontends are not ready, one line per frontend that lacks a backend of its
/// `ready_needs`. If no frontend lacks such a backend, but no backend at all can serve, the lines
/// are about all frontends that have a backend.
fn obstacles_of<'a, 'b: 'a>(
    all: impl Iterator<Item = &'a (&'b Frontend, Unserved<'b>)> + Clone,
) -> Vec<String> {
    let line = |frontend: &Frontend, why: String| format!("frontend {}: {why}", frontend.config.name);
    let needed = all.clone().filter_map(|(frontend, of)| Some(line(frontend, of.needed(frontend)?)));
    let needed: Vec<String> = needed.collect();
    // Frontends that only redirect are ignored.
    let with_backend = all.filter(|(frontend, _)| frontend.config.backends().next().is_some());
    if !needed.is_empty() || with_backend.clone().any(|(_, of)| of.serves) {
        return needed;
    }
    with_backend.filter_map(|(frontend, of)| Some(line(frontend, of.whole()?))).collect()
}

/// Reasons why replies of servers in passthrough mode cannot reach this host, for IPv4 and IPv6
/// frontends. `None` if the replies reach this host.
struct LostSnat {
    v4: Option<String>,
    v6: Option<String>,
}

impl LostSnat {
    fn of(input: ReadinessInput<'_>) -> LostSnat {
        let Snapshot { announce, frontends, network, .. } = input.snapshot;
        let announced = announce.iter().flat_map(|_| frontends.iter().map(|frontend| &frontend.config));
        // convey adds these addresses itself once a frontend can serve.
        let announced = AnnounceConfig::addresses(announced);
        let is_there = |ip| network.is_own(ip) || announced.contains(&ip);
        let lost = |is_ipv4| {
            let lost = input.packets?.lost_snat_addresses(is_ipv4, is_there)?;
            let lost: Vec<String> = lost.iter().map(IpAddr::to_string).collect();
            Some(format!(
                "this host has lost its SNAT addresses ({}); restart convey to choose other addresses",
                lost.join(", ")
            ))
        };
        LostSnat { v4: lost(true), v6: lost(false) }
    }

    fn at(&self, frontend: &Frontend) -> Option<&str> {
        let listen = frontend.config.listen.first().filter(|_| frontend.config.mode.has_snat())?;
        if listen.is_ipv4() { self.v4.as_deref() } else { self.v6.as_deref() }
    }
}

/// Parts of a frontend that cannot serve now.
pub(super) struct Unserved<'a> {
    backends: Vec<(&'a str, String)>,
    /// Reason why clients accept none of the frontend's certificates.
    certificate: Option<UnusableCertificates>,
    /// Whether at least one backend can serve, and certificates do not prevent it.
    serves: bool,
}

impl<'a> Unserved<'a> {
    fn of(
        frontend: &'a Frontend,
        min_servers: usize,
        without: Option<&Target>,
        (lost_snat, certificates): (Option<&str>, &CertificateView),
    ) -> Unserved<'a> {
        let pools = frontend.pools();
        let too_few = |pool: &Arc<Pool>| {
            let left = known_to_serve(pool);
            let backend = &pool.config.name;
            (left < min_servers).then(|| {
                format!("only {left} servers of backend {backend} can be chosen: announce.min_servers is {min_servers}")
            })
        };
        let too_few_left = |pool: &Arc<Pool>| {
            let backend = &pool.config.name;
            let target = without.filter(|target| target.backend == *backend)?;
            let is_left = |server: &&Arc<Server>| server.health.proven && stays(server, pool, Some(target));
            let left = pool.servers.iter().filter(is_left).count();
            (left < min_servers.max(1)).then(|| format!("only {left} servers of backend {backend} are left"))
        };
        let why = |pool: &'a Arc<Pool>| {
            let why = lost_snat.map(str::to_owned).or_else(|| obstacle_of(pool));
            let why = why.or_else(|| too_few(pool)).or_else(|| too_few_left(pool))?;
            Some((&*pool.config.name, why))
        };
        let backends: Vec<_> = pools.iter().filter_map(why).collect();
        let is_file = |name: &str| !pools.iter().any(|pool| pool.config.name == name);
        let certificate = certificates.fault(frontend);
        let has_certificate = certificate.as_ref().is_none_or(|fault| !fault.is_lasting);
        let can_serve = backends.len() < pools.len() || frontend.config.backends().any(is_file);
        Unserved { backends, serves: can_serve && has_certificate, certificate }
    }

    /// Backends that cannot serve, with the reason.
    pub(super) fn backends(&self) -> BTreeMap<String, String> {
        self.backends.iter().map(|(name, why)| ((*name).to_owned(), why.clone())).collect()
    }

    /// Reason why clients accept none of the frontend's certificates now.
    pub(super) fn certificate_fault(&self) -> Option<&str> {
        self.certificate.as_ref().map(|fault| &*fault.why)
    }

    /// Reason why the frontend is not ready: it can serve no client, or a backend in `ready_needs`
    /// is unavailable. `None` if it is ready.
    pub(super) fn obstacle(&self, frontend: &Frontend) -> Option<String> {
        self.needed(frontend).or_else(|| self.whole())
    }

    fn needed(&self, frontend: &Frontend) -> Option<String> {
        let is_needed = |name: &str| frontend.config.ready_needs.iter().any(|needed| needed == name);
        self.backends.iter().find(|(name, _)| is_needed(name)).map(|(_, why)| why.clone())
    }

    /// Reason why the frontend can serve no client. `None` if it can serve clients.
    fn whole(&self) -> Option<String> {
        let backend = self.backends.first().filter(|_| !self.serves).map(|(_, why)| why);
        let certificate = self.certificate.as_ref().filter(|fault| fault.is_lasting).map(|fault| &fault.why);
        certificate.or(backend).cloned()
    }
}

/// Number of servers of a pool that can get new connections and whose health a check has confirmed.
fn known_to_serve(pool: &Arc<Pool>) -> usize {
    let proven = |(index, server): &(usize, &Arc<Server>)| server.health.proven && pool.is_eligible(*index);
    pool.servers.iter().enumerate().filter(proven).count()
}

/// Reason why a backend cannot serve. `None` if the backend can serve.
fn obstacle_of(pool: &Pool) -> Option<String> {
    let is_known_to_serve = |server: &Arc<Server>| server.health.up && server.health.proven;
    if pool.eligible() > 0 {
        let unproven = !pool.servers.iter().any(is_known_to_serve);
        let backend = &pool.config.name;
        return unproven.then(|| format!("no server of backend {backend} has been probed yet"));
    }
    let (backend, servers) = (&pool.config.name, pool.servers.len());
    Some(match servers {
        0 => match &pool.config.discovery {
            Some(discovery) => {
                format!("backend {backend} has no server: {} has no endpoint", discovery.source)
            }
            None => format!("backend {backend} has no server: none of its host names has an address"),
        },
        _ => format!("no server of backend {backend} can be chosen ({})", unusable_reasons(&pool.servers)),
    })
}

/// Reasons why servers get no new connections, each with the number of servers.
fn unusable_reasons(servers: &[Arc<Server>]) -> String {
    let why = |server: &Arc<Server>| match server.admin {
        AdminState::Maint => "in maintenance",
        AdminState::Drain => "drained",
        AdminState::Ready if !server.health.up => "down",
        AdminState::Ready if server.config.settings.weight == 0 => "at weight 0",
        AdminState::Ready => "ejected",
    };
    let count = |word: &&str| servers.iter().filter(|server| why(server) == *word).count();
    let words = ["down", "drained", "in maintenance", "at weight 0", "ejected"];
    let told = words.iter().map(|word| (count(word), word)).filter(|(count, _)| *count > 0);
    let told: Vec<_> = told.map(|(count, word)| format!("{count} of {} are {word}", servers.len())).collect();
    told.join(", ")
}

#[cfg(test)]
mod tests;
