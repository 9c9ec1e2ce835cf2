//! Frontends, backends and routes with reference counts of one worker's own. Pure.
//!
//! All workers share the objects of a snapshot. If each request cloned their `Arc`s, the reference
//! counts would move between the caches of the cores with each request, at 30 to 100 ns each time.
//! The clones of a [`WorkerArc`] count in memory that only one worker writes.

use std::net::IpAddr;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use foldhash::HashMap;

use super::{Frontend, HttpAction, HttpRoute, Pool, Snapshot};
use convey_http_core::RequestFacts;

/// `Arc` whose clones share a reference count of their own. Each worker has its own `WorkerArc` of
/// an object that all workers share.
#[derive(Debug)]
pub struct WorkerArc<T>(Arc<OwnLine<Arc<T>>>);

/// Value that begins a cache line, so that the reference counts before it have a line of their own.
/// Otherwise they could share a line with memory that another worker writes.
#[derive(Debug)]
#[repr(align(64))]
struct OwnLine<T>(T);

/// Version of a frontend, as one worker refers to it.
#[derive(Debug)]
#[repr(align(64))] // as `OwnLine`
pub struct WorkerFrontend {
    frontend: Arc<Frontend>,
    pool: WorkerArc<Pool>,
    /// Routes of requests, in the order of the frontend. Each is created with its first request.
    routes: Box<[OnceLock<Arc<WorkerRoute>>]>,
}

/// Route of HTTP requests, as one worker refers to it.
#[derive(Debug)]
#[repr(align(64))] // as `OwnLine`
pub struct WorkerRoute {
    route: Arc<HttpRoute>,
    /// Backends, with their weights; of a route without weights, one with the weight 1.
    pools: Vec<(WorkerArc<Pool>, u32)>,
}

/// Frontends that one worker uses, in their newest versions.
#[derive(Debug, Default)]
pub struct WorkerFrontends(Mutex<KnownFrontends>);

#[derive(Debug, Default)]
struct KnownFrontends {
    by_id: HashMap<u32, Arc<WorkerFrontend>>,
    /// Generation of the snapshot of the last [`WorkerFrontends::retain`].
    generation: u64,
}

impl<T> WorkerArc<T> {
    /// The `Arc` that all workers share.
    pub fn shared(&self) -> &Arc<T> {
        &self.0.0
    }
}

impl<T> From<Arc<T>> for WorkerArc<T> {
    fn from(shared: Arc<T>) -> WorkerArc<T> {
        WorkerArc(Arc::new(OwnLine(shared)))
    }
}

impl<T> Clone for WorkerArc<T> {
    fn clone(&self) -> WorkerArc<T> {
        WorkerArc(self.0.clone())
    }
}

impl<T> Deref for WorkerArc<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.0
    }
}

impl WorkerFrontend {
    /// Refers to a frontend.
    pub fn new(frontend: Arc<Frontend>) -> WorkerFrontend {
        let routes = frontend.http.iter().flat_map(|http| http.routes()).map(|_| OnceLock::new()).collect();
        WorkerFrontend { pool: frontend.pool.clone().into(), frontend, routes }
    }

    /// The frontend that all workers share.
    pub fn shared(&self) -> &Arc<Frontend> {
        &self.frontend
    }

    /// Backend of connections and requests that match no route ([`Frontend::pool`]).
    pub fn default_pool(&self) -> &WorkerArc<Pool> {
        &self.pool
    }

    /// Route of a request ([`HttpFrontend::route`](super::HttpFrontend::route)).
    pub fn route(&self, facts: &RequestFacts<'_>) -> Option<&Arc<WorkerRoute>> {
        let route = self.frontend.http.as_ref()?.route(facts)?;
        Some(self.routes.get(route.place)?.get_or_init(|| WorkerRoute::new(route).into()))
    }
}

impl Deref for WorkerFrontend {
    type Target = Frontend;

    fn deref(&self) -> &Frontend {
        &self.frontend
    }
}

impl WorkerRoute {
    fn new(route: &Arc<HttpRoute>) -> WorkerRoute {
        let pools = match &route.action {
            HttpAction::Forward(pool) => vec![(pool.clone().into(), 1)],
            HttpAction::Split(all) => {
                all.iter().map(|backend| (backend.pool.clone().into(), backend.weight)).collect()
            }
            HttpAction::Redirect(_) | HttpAction::Respond(_) => Vec::new(),
        };
        WorkerRoute { route: route.clone(), pools }
    }

    /// Backend of a request: the only one, or the one at this position; `None`: the route answers
    /// by itself.
    pub fn pool(&self, place: usize) -> Option<&WorkerArc<Pool>> {
        Some(&self.pools.get(place)?.0)
    }

    /// Position of the backend of a client's request. Backends are chosen in proportion to their
    /// weights, among those that have an eligible server or serve files, and are not in
    /// maintenance; without one, among those in maintenance, whose clients get its page; without
    /// one, among all. `random` returns a number below its argument.
    pub fn choose_pool(&self, client: IpAddr, random: impl FnOnce(u64) -> u64) -> usize {
        if self.pools.len() < 2 {
            return 0;
        }
        let is_maintained = |pool: &Pool| {
            pool.config.maintenance.as_ref().is_some_and(|maintenance| maintenance.applies_to(client))
        };
        let serves =
            |pool: &Pool| (pool.config.files.is_some() || pool.eligible() > 0) && !is_maintained(pool);
        let has = |is_chosen: &dyn Fn(&Pool) -> bool| {
            self.pools.iter().any(|(pool, weight)| *weight > 0 && is_chosen(pool))
        };
        let (any_serves, any_maintained) = (has(&serves), has(&is_maintained));
        let is_candidate = |pool: &Pool| match (any_serves, any_maintained) {
            (true, _) => serves(pool),
            (false, true) => is_maintained(pool),
            (false, false) => true,
        };
        let share = |(pool, weight): &(WorkerArc<Pool>, u32)| match is_candidate(pool) {
            true => u64::from(*weight),
            false => 0,
        };
        let total: u64 = self.pools.iter().map(share).sum();
        if total == 0 {
            return 0;
        }
        let mut rest = random(total);
        let chosen = self.pools.iter().position(|pool| {
            let share = share(pool);
            let is_chosen = rest < share;
            rest = rest.saturating_sub(share);
            is_chosen
        });
        chosen.unwrap_or(0)
    }
}

impl Deref for WorkerRoute {
    type Target = HttpRoute;

    fn deref(&self) -> &HttpRoute {
        &self.route
    }
}

impl WorkerFrontends {
    /// This version of a frontend, as the worker refers to it. Replaces the version that the worker
    /// used before.
    pub fn get(&self, frontend: &Arc<Frontend>) -> Arc<WorkerFrontend> {
        let mut known = self.lock();
        let kept = known.by_id.get(&frontend.live.id).filter(|kept| Arc::ptr_eq(&kept.frontend, frontend));
        if let Some(kept) = kept {
            return kept.clone();
        }
        let new = Arc::new(WorkerFrontend::new(frontend.clone()));
        known.by_id.insert(frontend.live.id, new.clone());
        new
    }

    /// Drops the frontends that are not in this snapshot, if the snapshot is new. Connections may
    /// still hold the frontends.
    pub fn retain(&self, snapshot: &Snapshot) {
        let mut known = self.lock();
        if std::mem::replace(&mut known.generation, snapshot.generation) == snapshot.generation {
            return;
        }
        let newest: HashMap<u32, &Arc<Frontend>> =
            snapshot.frontends.iter().map(|frontend| (frontend.live.id, frontend)).collect();
        let is_newest = |id: &u32, kept: &mut Arc<WorkerFrontend>| {
            newest.get(id).is_some_and(|newest| Arc::ptr_eq(newest, &kept.frontend))
        };
        known.by_id.retain(is_newest);
    }

    fn lock(&self) -> MutexGuard<'_, KnownFrontends> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use convey_model::{BackendConfig, HttpConfig, Maintenance, Mode};

    fn web() -> Arc<Frontend> {
        let pool = fixture::pool("site", Vec::new());
        let mut config = convey_model::fixture::frontend("web", &["10.0.0.1:80"], "site");
        (config.mode, config.http) = (Mode::Http, Some(Box::new(HttpConfig::default())));
        fixture::frontend_of(config, &pool)
    }

    #[test]
    fn requests_of_a_worker_leave_shared_counts_alone() {
        let frontend = web();
        let head = fixture::head("a", "/");
        let facts = fixture::facts(&head);
        let worker = WorkerFrontends::default().get(&frontend);
        let route = worker.route(&facts).unwrap();
        let shared = frontend.http.as_ref().unwrap().route(&facts).unwrap();
        assert!(Arc::ptr_eq(&route.route, shared));
        let counts = || [&frontend.pool, route.pool(0).unwrap().shared()].map(Arc::strong_count);
        let before = (counts(), Arc::strong_count(&frontend), Arc::strong_count(shared));
        let requests: Vec<_> = (0..9)
            .map(|_| {
                let route = worker.route(&facts).unwrap().clone();
                (worker.clone(), route.pool(0).unwrap().clone(), worker.default_pool().clone(), route)
            })
            .collect();
        assert_eq!(before, (counts(), Arc::strong_count(&frontend), Arc::strong_count(shared)));
        drop(requests);
        assert!(worker.route(&facts).is_some());
    }

    #[test]
    fn counts_of_a_worker_have_a_cache_line_of_their_own() {
        let aligned = [align_of::<OwnLine<Arc<Pool>>>(), align_of::<WorkerFrontend>()];
        assert_eq!((aligned, align_of::<WorkerRoute>()), ([64; 2], 64));
    }

    #[test]
    fn clients_get_the_page_if_no_backend_of_a_route_serves() {
        let pool = |is_maintained: bool, has_server: bool| {
            let mut maintenance = Maintenance::default();
            maintenance.allow.push("192.0.2.0/24".parse().unwrap());
            let servers = if has_server { vec![fixture::server("a", "10.0.0.2:80")] } else { Vec::new() };
            let maintenance = is_maintained.then(|| Arc::new(maintenance));
            fixture::pool_of(BackendConfig { maintenance, ..fixture::backend("site", servers) })
        };
        let frontend = web();
        let head = fixture::head("a", "/");
        let route = frontend.http.as_ref().unwrap().route(&fixture::facts(&head)).unwrap();
        // Maintenance, a server, and weight of two backends; the shares of both for the two clients.
        let cases = [
            ([(true, true, 90), (false, false, 10)], [90, 0], [90, 0]),
            ([(true, true, 90), (false, true, 10)], [0, 10], [90, 10]),
            ([(true, false, 90), (true, false, 10)], [90, 10], [90, 10]),
            ([(true, true, 0), (false, false, 10)], [0, 10], [0, 10]),
            ([(false, false, 90), (false, false, 10)], [90, 10], [90, 10]),
        ];
        for (backends, of_others, of_allowed) in cases {
            let pools = backends.map(|(is_maintained, has_server, weight)| {
                (WorkerArc::from(pool(is_maintained, has_server)), weight)
            });
            let route = WorkerRoute { route: route.clone(), pools: pools.into() };
            for (client, expected) in [("198.51.100.7", of_others), ("192.0.2.7", of_allowed)] {
                let client = client.parse().unwrap();
                let mut total = 0;
                route.choose_pool(client, |sum| {
                    total = sum;
                    0
                });
                let mut shares = [0; 2];
                (0..total).for_each(|nth| shares[route.choose_pool(client, |_| nth)] += 1);
                assert_eq!(shares, expected, "{backends:?}, {client}");
            }
        }
    }

    #[test]
    fn worker_keeps_only_the_newest_version_of_a_frontend() {
        let (frontends, [first, second]) = (WorkerFrontends::default(), [(); 2].map(|()| web()));
        let [of_first, again] = [(); 2].map(|()| frontends.get(&first));
        assert!(Arc::ptr_eq(&of_first, &again));
        let next = Frontend { live: first.live.clone(), ..Arc::into_inner(web()).unwrap() };
        let next = Arc::new(next);
        assert!(Arc::ptr_eq(frontends.get(&next).shared(), &next));
        assert_eq!(Arc::strong_count(&of_first), 2, "only this test holds it");
        frontends.get(&second);
        let snapshot = fixture::snapshot(vec![second.clone()], vec![second.pool.clone()]);
        frontends.retain(&Snapshot { generation: 1, ..snapshot });
        assert_eq!((Arc::strong_count(&next), frontends.lock().by_id.len()), (1, 1));
    }
}
