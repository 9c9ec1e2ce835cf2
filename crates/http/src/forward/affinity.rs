//! Cookie of session affinity in the response of a server.

use std::sync::Arc;

use convey_http_core::FieldRules;
use convey_snapshot::{Pool, WorkerArc};
use convey_upstream::{Attempts, Permit};

use super::Forwarding;

impl Forwarding<'_, '_> {
    /// Rules for the fields of a response from the server of the permit, with the cookie that names
    /// the server. `None`: the rules of the request, because the client needs no cookie.
    pub(super) fn rules_with_affinity(
        &self,
        permit: &Permit,
        attempts: &Attempts,
    ) -> Option<Box<FieldRules>> {
        let pool = permit.pool();
        pool.config.affinity.as_ref()?;
        if self.client_has_server_in(pool, attempts) {
            return None;
        }
        let cookie = pool.affinity_cookie(permit.index(), self.request.is_https())?;
        let mut added = FieldRules::default();
        // Cannot fail: the configuration has checked the parts of the cookie.
        added.add_affinity_cookie(&cookie).ok()?;
        Some(Box::new(self.request.response_changes(self.route).then(&added)))
    }

    /// Whether a cookie of the request names a server of this pool that gets requests. It is the
    /// client's server also if another one serves this request.
    ///
    /// The first pick has parsed the cookies, unless a service chose the server. A pool that is
    /// newer than the first pick may have other servers.
    fn client_has_server_in(&self, pool: &Arc<Pool>, attempts: &Attempts) -> bool {
        let is_of_pick = |(_, picked): (_, &WorkerArc<Pool>)| Arc::ptr_eq(picked.shared(), pool);
        match self.request.chosen().is_none() && self.request.way().is_some_and(is_of_pick) {
            true => attempts.are_of_returning_client(),
            false => pool.named_in(self.request.head()).is_some(),
        }
    }
}
