//! Readiness of frontends and addresses, as `/readyz` and `[announce]` go by it. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::certificates::{CertificateView, UnusableCertificates};
use crate::model::{AdminState, AnnounceConfig, Target};
use crate::snapshot::{Frontend, Pool, Server, Snapshot};

/// State from which readiness follows.
#[derive(Clone, Copy)]
pub struct ReadinessInput<'a> {
    /// The frontends with their servers.
    pub snapshot: &'a Snapshot,
    /// The certificates that frontends lack.
    pub certificates: &'a CertificateView,
}

/// Readiness of all frontends.
pub(super) struct FrontendReadiness<'a> {
    snapshot: &'a Snapshot,
    pub(super) frontends: Vec<(&'a Frontend, Unserved<'a>)>,
}

impl<'a> FrontendReadiness<'a> {
    pub(super) fn of(input: ReadinessInput<'a>) -> FrontendReadiness<'a> {
        FrontendReadiness::without(input, None, 0)
    }

    /// Readiness as if the servers of `without` were gone. A backend with fewer than `min_servers`
    /// servers counts as one without.
    fn without(
        input: ReadinessInput<'a>,
        without: Option<&Target>,
        min_servers: usize,
    ) -> FrontendReadiness<'a> {
        let frontends = input.snapshot.frontends.iter().map(|frontend| {
            let unserved = Unserved::of(frontend, min_servers, without, input.certificates);
            (&**frontend, unserved)
        });
        FrontendReadiness { snapshot: input.snapshot, frontends: frontends.collect() }
    }

    /// A line for each reason why this convey should get no traffic; none if it should get some.
    ///
    /// One backend that cannot serve is no reason, unless a frontend needs it or no other backend can serve.
    pub(super) fn obstacles(&self, is_draining: bool) -> Vec<String> {
        if is_draining || self.snapshot.stopping {
            return draining();
        }
        if self.frontends.is_empty() {
            return vec!["starting: no frontend serves yet".to_owned()];
        }
        obstacles_of(self.frontends.iter())
    }
}

/// The line of a convey that drains.
pub(super) fn draining() -> Vec<String> {
    vec!["draining: convey is about to stop".to_owned()]
}

/// The addresses that are to be announced, each with the reason why not now, if there is one.
pub(crate) type AnnouncedAddresses = BTreeMap<IpAddr, Option<String>>;

/// The addresses that this convey announces while frontends at them can serve. A backend with fewer
/// than `announce.min_servers` servers counts as one without.
pub(crate) fn announced_addresses(input: ReadinessInput<'_>) -> AnnouncedAddresses {
    announced_without(input, None)
}

/// The announced addresses as if the servers of `without` were gone.
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

/// Part of the readiness that convey would lose without some servers.
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

/// The backend of the target, if this takes out the last servers of it that can serve.
pub(super) fn backend_left_without<'a>(snapshot: &Snapshot, target: &'a Target) -> Option<&'a str> {
    let pool = snapshot.pools.iter().find(|pool| pool.config.name == target.backend)?;
    let left = |without| pool.servers.iter().filter(|server| stays(server, pool, without)).count();
    (left(None) > 0 && left(Some(target)) == 0).then_some(&*target.backend)
}

/// Whether a server may get clients, and is not one of `without`.
fn stays(server: &Server, pool: &Pool, without: Option<&Target>) -> bool {
    let has_share = server.admin == AdminState::Ready && server.config.settings.weight > 0;
    let is_gone = without.is_some_and(|target| target.includes(&pool.config.name, &server.config.name));
    has_share && server.health.up && !is_gone
}

/// A line for each frontend that lacks a backend it needs; else one for each, if no backend of any of them can serve.
fn obstacles_of<'a, 'b: 'a>(
    all: impl Iterator<Item = &'a (&'b Frontend, Unserved<'b>)> + Clone,
) -> Vec<String> {
    let line = |frontend: &Frontend, why: String| format!("frontend {}: {why}", frontend.config.name);
    let needed = all.clone().filter_map(|(frontend, of)| Some(line(frontend, of.needed(frontend)?)));
    let needed: Vec<String> = needed.collect();
    // A frontend that only redirects serves nobody by itself.
    let with_backend = all.filter(|(frontend, _)| frontend.config.backends().next().is_some());
    if !needed.is_empty() || with_backend.clone().any(|(_, of)| of.serves) {
        return needed;
    }
    with_backend.filter_map(|(frontend, of)| Some(line(frontend, of.whole()?))).collect()
}

/// The part of a frontend that cannot be served.
pub(super) struct Unserved<'a> {
    backends: Vec<(&'a str, String)>,
    /// Reason why no client accepts a certificate of it.
    certificate: Option<UnusableCertificates>,
    /// Whether another backend can serve.
    serves: bool,
}

impl<'a> Unserved<'a> {
    fn of(
        frontend: &'a Frontend,
        min_servers: usize,
        without: Option<&Target>,
        certificates: &CertificateView,
    ) -> Unserved<'a> {
        let pools = frontend.pools();
        let too_few = |pool: &Arc<Pool>| {
            let left = known_to_serve(pool);
            let backend = &pool.config.name;
            (left < min_servers).then(|| {
                format!("{left} servers of backend {backend} can be chosen, and announce.min_servers is {min_servers}")
            })
        };
        let too_few_left = |pool: &Arc<Pool>| {
            let backend = &pool.config.name;
            let target = without.filter(|target| target.backend == *backend)?;
            let is_left = |server: &&Arc<Server>| server.health.proven && stays(server, pool, Some(target));
            let left = pool.servers.iter().filter(is_left).count();
            (left < min_servers.max(1)).then(|| format!("{left} servers of backend {backend} are left"))
        };
        let why = |pool: &'a Arc<Pool>| {
            let why = obstacle_of(pool).or_else(|| too_few(pool)).or_else(|| too_few_left(pool))?;
            Some((&*pool.config.name, why))
        };
        let backends: Vec<_> = pools.iter().filter_map(why).collect();
        let is_file = |name: &str| !pools.iter().any(|pool| pool.config.name == name);
        let certificate = certificates.fault(frontend);
        let has_certificate = certificate.as_ref().is_none_or(|fault| !fault.is_lasting);
        let can_serve = backends.len() < pools.len() || frontend.config.backends().any(is_file);
        Unserved { backends, serves: can_serve && has_certificate, certificate }
    }

    /// The backends that cannot serve, each with the reason.
    pub(super) fn backends(&self) -> BTreeMap<String, String> {
        self.backends.iter().map(|(name, why)| ((*name).to_owned(), why.clone())).collect()
    }

    /// Why clients accept no certificate of the frontend now.
    pub(super) fn certificate_fault(&self) -> Option<&str> {
        self.certificate.as_ref().map(|fault| &*fault.why)
    }

    /// Why the frontend can serve none of its clients, or lacks a backend of `ready_needs`.
    pub(super) fn obstacle(&self, frontend: &Frontend) -> Option<String> {
        self.needed(frontend).or_else(|| self.whole())
    }

    fn needed(&self, frontend: &Frontend) -> Option<String> {
        let is_needed = |name: &str| frontend.config.ready_needs.iter().any(|needed| needed == name);
        self.backends.iter().find(|(name, _)| is_needed(name)).map(|(_, why)| why.clone())
    }

    /// Why no backend can serve.
    fn whole(&self) -> Option<String> {
        let backend = self.backends.first().filter(|_| !self.serves).map(|(_, why)| why);
        let certificate = self.certificate.as_ref().filter(|fault| fault.is_lasting).map(|fault| &fault.why);
        certificate.or(backend).cloned()
    }
}

/// Servers that can be chosen, and of which a check has found that they answer.
fn known_to_serve(pool: &Arc<Pool>) -> usize {
    let proven = |(index, server): &(usize, &Arc<Server>)| server.health.proven && pool.is_eligible(*index);
    pool.servers.iter().enumerate().filter(proven).count()
}

/// Why a backend cannot serve, if it cannot.
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
            None => format!("backend {backend} has no server: no name has an address"),
        },
        _ => format!("no server of backend {backend} can be chosen ({})", why_none(&pool.servers)),
    })
}

/// Why servers cannot be chosen, and how many of them for each reason.
fn why_none(servers: &[Arc<Server>]) -> String {
    let why = |server: &Arc<Server>| match server.admin {
        AdminState::Maint => "in maintenance",
        AdminState::Drain => "drained",
        AdminState::Ready if !server.health.up => "down",
        AdminState::Ready if server.config.settings.weight == 0 => "of weight 0",
        AdminState::Ready => "ejected",
    };
    let count = |word: &&str| servers.iter().filter(|server| why(server) == *word).count();
    let words = ["down", "drained", "in maintenance", "of weight 0", "ejected"];
    let told = words.iter().map(|word| (count(word), word)).filter(|(count, _)| *count > 0);
    let told: Vec<_> = told.map(|(count, word)| format!("{count} of {} are {word}", servers.len())).collect();
    told.join(", ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::snapshot::{Health, fixture};

    #[test]
    fn each_reason_for_which_servers_cannot_be_chosen_is_told_with_its_count() {
        let down = || fixture::down("refused", Duration::ZERO);
        let named = |name: &str| fixture::server(name, "127.0.0.1:81");
        let all = vec![
            (named("a"), down()),
            (named("b"), fixture::up()),
            (named("c"), down()),
            (named("d"), fixture::up()),
        ];
        let admin = [AdminState::Ready, AdminState::Drain, AdminState::Maint, AdminState::Drain];
        let servers: Vec<Arc<Server>> = fixture::pool("app", all)
            .servers
            .iter()
            .zip(admin)
            .map(|(server, admin)| {
                let (config, health, live) =
                    (server.config.clone(), server.health.clone(), server.live.clone());
                Arc::new(Server { config, admin, health, live })
            })
            .collect();
        assert_eq!(why_none(&servers), "1 of 4 are down, 2 of 4 are drained, 1 of 4 are in maintenance");
    }

    fn no_orders() -> CertificateView {
        CertificateView::of_readiness(Vec::new(), 0, &Snapshot::empty(1))
    }

    fn input<'a>(snapshot: &'a Snapshot, certificates: &'a CertificateView) -> ReadinessInput<'a> {
        ReadinessInput { snapshot, certificates }
    }

    /// Why this address is not to be announced.
    fn obstacle_at(frontends: &[Arc<Frontend>], ip: &str, min_servers: u32) -> Option<String> {
        let config = AnnounceConfig { min_servers, ..AnnounceConfig::default() };
        let snapshot =
            Snapshot { announce: Some(Arc::new(config)), ..fixture::snapshot(frontends.to_vec(), vec![]) };
        announced_addresses(input(&snapshot, &no_orders()))[&ip.parse().unwrap()].clone()
    }

    #[test]
    fn address_is_announced_while_a_frontend_has_enough_servers() {
        let named = |name: &str| fixture::server(name, "127.0.0.1:81");
        let down = || fixture::down("refused", Duration::ZERO);
        let half = fixture::pool("half", vec![(named("a"), fixture::up()), (named("b"), down())]);
        let none = fixture::pool("none", vec![(named("a"), down())]);
        let frontends = [
            fixture::frontend("alone", &["10.0.0.1:80"], &half),
            fixture::frontend("beside", &["10.0.0.2:80", "10.0.0.3:80"], &half),
            fixture::frontend("broken", &["10.0.0.3:81"], &none),
        ];
        let at = |ip: &str, min_servers| obstacle_at(&frontends, ip, min_servers);
        assert_eq!(at("10.0.0.1", 1), None);
        assert_eq!(at("10.0.0.2", 1), None);
        assert_eq!(at("10.0.0.3", 1), None);
        let broken = obstacle_at(&frontends[2..], "10.0.0.3", 1);
        assert_eq!(
            broken.as_deref(),
            Some("frontend broken: no server of backend none can be chosen (1 of 1 are down)")
        );
        assert_eq!(
            at("10.0.0.1", 2).as_deref(),
            Some("frontend alone: 1 servers of backend half can be chosen, and announce.min_servers is 2")
        );
    }

    #[test]
    fn withdrawal_is_foreseen_only_for_the_last_servers_of_an_address() {
        let named = |name: &str| fixture::server(name, "127.0.0.1:81");
        let two = fixture::pool("two", vec![(named("a"), fixture::up()), (named("b"), fixture::up())]);
        let one = fixture::pool("one", vec![(named("a"), fixture::up())]);
        let frontends = vec![
            fixture::frontend("two", &["10.0.0.1:80", "10.0.0.2:80"], &two),
            fixture::frontend("one", &["10.0.0.2:81", "10.0.0.3:81"], &one),
        ];
        let snapshot =
            Snapshot { announce: Some(Arc::default()), ..fixture::snapshot(frontends, vec![two, one]) };
        let withdrawn = |target: Target| {
            let lost = LostReadiness::without(input(&snapshot, &no_orders()), &target);
            assert_eq!(lost.frontends, [""; 0], "nothing is needed");
            lost.addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>()
        };
        assert_eq!(withdrawn(Target::server("two", "a")), [""; 0]);
        assert_eq!(withdrawn(Target::backend("two")), ["10.0.0.1"]);
        assert_eq!(withdrawn(Target::server("one", "a")), ["10.0.0.3"]);
        assert_eq!(withdrawn(Target::backend("other")), [""; 0]);
        let left = |target: Target| backend_left_without(&snapshot, &target).map(str::to_owned);
        assert_eq!(left(Target::server("two", "a")), None);
        assert_eq!(left(Target::backend("two")).as_deref(), Some("two"));
        assert_eq!(left(Target::server("one", "a")).as_deref(), Some("one"));
        assert_eq!(left(Target::backend("other")), None);
    }

    #[test]
    fn loss_of_a_needed_backend_is_foreseen() {
        let one =
            |name: &str| fixture::pool(name, vec![(fixture::server("a", "127.0.0.1:81"), fixture::up())]);
        let (app, login) = (one("app"), one("login"));
        let beside = fixture::frontend("beside", &["10.0.0.1:81"], &login);
        let mut web = fixture::frontend("web", &["10.0.0.1:80"], &app);
        Arc::get_mut(&mut web).unwrap().config.ready_needs = vec!["app".to_owned()];
        for announces in [true, false] {
            let frontends = vec![web.clone(), beside.clone()];
            let snapshot = Snapshot {
                announce: announces.then(Arc::default),
                ..fixture::snapshot(frontends, vec![app.clone(), login.clone()])
            };
            let lost = |target| {
                let lost = LostReadiness::without(input(&snapshot, &no_orders()), &target);
                (lost.addresses.len(), lost.frontends)
            };
            assert_eq!(lost(Target::backend("app")), (usize::from(announces), vec!["web".to_owned()]));
            assert_eq!(lost(Target::backend("login")), (0, vec![]));
        }
    }

    #[test]
    fn withdrawal_is_foreseen_where_the_other_frontend_has_no_certificate() {
        let pool = fixture::pool("app", vec![(fixture::server("a", "127.0.0.1:81"), fixture::up())]);
        let other = fixture::pool("other", vec![(fixture::server("a", "127.0.0.1:82"), fixture::up())]);
        let (secure, failing) =
            super::super::certificates::fixture::without_certificate("10.0.0.1:443", &other);
        let frontends = vec![fixture::frontend("web", &["10.0.0.1:80"], &pool), secure];
        let snapshot =
            Snapshot { announce: Some(Arc::default()), ..fixture::snapshot(frontends, vec![pool, other]) };
        let lost = |certificates: &CertificateView| {
            LostReadiness::without(input(&snapshot, certificates), &Target::backend("app")).addresses
        };
        assert_eq!(lost(&failing), ["10.0.0.1".parse::<IpAddr>().unwrap()]);
        assert_eq!(lost(&no_orders()), [] as [IpAddr; 0]);
    }

    #[test]
    fn servers_that_no_check_has_reached_yet_do_not_make_an_address_worth_announcing() {
        let named = |name: &str| fixture::server(name, "127.0.0.1:81");
        let unproven = Health { proven: false, ..fixture::up() };
        let pool = fixture::pool("web", vec![(named("a"), fixture::up()), (named("b"), unproven)]);
        let frontend = fixture::frontend("web", &["10.0.0.1:80"], &pool);
        let at = |min_servers| obstacle_at(std::slice::from_ref(&frontend), "10.0.0.1", min_servers);
        assert_eq!((at(1).is_none(), at(2).is_some()), (true, true));
    }

    #[test]
    fn readiness_fails_only_where_no_backend_serves_or_a_needed_one_is_dead() {
        let up = fixture::pool("up", vec![(fixture::server("a", "127.0.0.1:81"), fixture::up())]);
        let down = fixture::down("refused", Duration::ZERO);
        let down = fixture::pool("app", vec![(fixture::server("a", "127.0.0.1:82"), down)]);
        let named = fixture::pool("named", vec![]);
        let unproven = || Health { proven: false, ..fixture::up() };
        let [a, b] = ["a", "b"].map(|name| fixture::server(name, "127.0.0.1:83"));
        let unprobed = fixture::pool("late", vec![(a.clone(), unproven()), (b.clone(), unproven())]);
        let half_probed = fixture::pool("half", vec![(a, unproven()), (b, fixture::up())]);
        let frontend = |name: &str, pool| fixture::frontend(name, &["127.0.0.1:80"], pool);
        let obstacles = |snapshot: &Snapshot, drains| {
            FrontendReadiness::of(input(snapshot, &no_orders())).obstacles(drains)
        };
        let ready = |frontends| obstacles(&fixture::snapshot(frontends, vec![up.clone()]), false);
        assert_eq!(ready(vec![frontend("web", &up)]), [""; 0]);
        let dead = || vec![frontend("api", &down), frontend("new", &named), frontend("late", &unprobed)];
        let whys = [
            "frontend api: no server of backend app can be chosen (1 of 1 are down)",
            "frontend new: backend named has no server: no name has an address",
            "frontend late: no server of backend late has been probed yet",
        ];
        assert_eq!(ready(dead()), whys);
        assert_eq!(ready([dead(), vec![frontend("half", &half_probed)]].concat()), [""; 0]);
        let mut needed = frontend("api", &down);
        Arc::get_mut(&mut needed).unwrap().config.ready_needs = vec!["app".to_owned()];
        assert_eq!(ready(vec![frontend("web", &up), needed]), whys[..1]);
        let api = frontend("api", &down);
        assert_eq!(Unserved::of(&api, 0, None, &no_orders()).backends().keys().collect::<Vec<_>>(), ["app"]);
        assert_eq!(obstacles(&Snapshot::empty(1), false), ["starting: no frontend serves yet"]);
        let serving = fixture::snapshot(vec![frontend("web", &up)], vec![up.clone()]);
        assert_eq!(obstacles(&serving, true), ["draining: convey is about to stop"]);
    }
}
