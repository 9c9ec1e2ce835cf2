//! Cookie of session affinity in the response of a server.

use convey_http_core::FieldRules;
use convey_upstream::Permit;

use super::Forwarding;

impl Forwarding<'_, '_> {
    /// Rules for the fields of a response from the server of the permit, with the cookie that names
    /// the server. `None`: the rules of the request, because the client needs no cookie.
    pub(super) fn rules_with_affinity(&self, permit: &Permit) -> Option<Box<FieldRules>> {
        let (head, pool) = (self.request.head(), permit.pool());
        pool.config.affinity.as_ref()?;
        let cookie = pool.affinity_cookie(permit.index(), head, self.request.is_https())?;
        let mut added = FieldRules::default();
        // Cannot fail: the configuration has checked the parts of the cookie.
        added.add("Set-Cookie", &cookie).ok()?;
        Some(Box::new(self.request.response_changes(self.route).then(&added)))
    }
}
