//! Overlays of mode `http`: weights of routes, and maintenance, which operators set at run time. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use convey_model::{
    BackendConfig, FrontendConfig, HttpOverlay, HttpOverlayValue, HttpTarget, Maintenance, RouteAction,
    override_weights,
};

/// Maximum number of overlays. Scripts may create many by mistake.
const MAX_OVERLAYS: usize = 1_000;

/// Maximum number of bytes that the pages of all maintenances have together.
const MAX_PAGES: usize = 4 << 20;

/// Name of the default route, which takes requests without another route.
pub(crate) const DEFAULT_ROUTE: &str = "default";

/// All overlays of mode `http`, by target and field. A target has one overlay for each field.
#[derive(Debug, Clone, Default)]
pub(crate) struct HttpOverlays(BTreeMap<(HttpTarget, HttpField), HttpOverlay>);

/// Field that an overlay sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum HttpField {
    Weights,
    Maintenance,
}

impl HttpField {
    fn of(value: &HttpOverlayValue) -> HttpField {
        match value {
            HttpOverlayValue::Weights(_) => HttpField::Weights,
            HttpOverlayValue::Maintenance(_) => HttpField::Maintenance,
        }
    }
}

impl HttpOverlays {
    /// Adds an overlay. Weights of a route are added to those that an earlier overlay has set; a
    /// maintenance replaces an earlier one. Returns whether a stored overlay changed.
    ///
    /// # Errors
    /// There are [`MAX_OVERLAYS`] overlays, or the pages have more than [`MAX_PAGES`] bytes;
    /// operator-facing message.
    pub(crate) fn set(&mut self, overlay: HttpOverlay) -> Result<bool, String> {
        let merged = self.merged(overlay);
        let key = (merged.target.clone(), HttpField::of(&merged.value));
        match self.0.get(&key) {
            Some(before) if before.value == merged.value => return Ok(false),
            None if self.0.len() >= MAX_OVERLAYS => {
                return Err(format!(
                    "the limit of {MAX_OVERLAYS} runtime overrides of mode http is reached; remove some with `convey reset`"
                ));
            }
            _ => {}
        }
        let others = self.0.iter().filter(|(other, _)| **other != key);
        let pages = others.map(|(_, overlay)| page_size(overlay)).sum::<usize>() + page_size(&merged);
        if page_size(&merged) > 0 && pages > MAX_PAGES {
            return Err(format!(
                "the pages of all maintenances would have {pages} bytes, allowed: {MAX_PAGES}; use shorter pages"
            ));
        }
        self.0.insert(key, merged);
        Ok(true)
    }

    /// The overlay together with the weights that an earlier overlay of the target has set.
    fn merged(&self, mut overlay: HttpOverlay) -> HttpOverlay {
        if let HttpOverlayValue::Weights(weights) = &mut overlay.value {
            for (name, weight) in self.weights_of(&overlay.target).into_iter().flatten() {
                weights.entry(name.clone()).or_insert(*weight);
            }
        }
        overlay
    }

    /// Weights that an operator has set for a route.
    pub(crate) fn weights_of(&self, route: &HttpTarget) -> Option<&BTreeMap<String, u32>> {
        match self.value_of(route, HttpField::Weights)? {
            HttpOverlayValue::Weights(weights) => Some(weights),
            HttpOverlayValue::Maintenance(_) => None,
        }
    }

    /// Maintenance that an operator has set for exactly this target.
    pub(crate) fn maintenance_of(&self, target: &HttpTarget) -> Option<&Arc<Maintenance>> {
        match self.value_of(target, HttpField::Maintenance)? {
            HttpOverlayValue::Maintenance(maintenance) => Some(maintenance),
            HttpOverlayValue::Weights(_) => None,
        }
    }

    fn value_of(&self, target: &HttpTarget, field: HttpField) -> Option<&HttpOverlayValue> {
        Some(&self.0.get(&(target.clone(), field))?.value)
    }

    /// Ends the maintenance of exactly this target. Returns whether there was one.
    pub(crate) fn end_maintenance(&mut self, target: &HttpTarget) -> bool {
        self.0.remove(&(target.clone(), HttpField::Maintenance)).is_some()
    }

    /// Removes and returns the overlays of a target and of its routes; with `None`, all overlays.
    pub(crate) fn reset(&mut self, target: Option<&HttpTarget>) -> Vec<HttpOverlay> {
        let is_meant = |of: &HttpTarget| target.is_none_or(|target| target.contains(of));
        let (gone, kept) = std::mem::take(&mut self.0).into_iter().partition(|((of, _), _)| is_meant(of));
        self.0 = kept;
        BTreeMap::into_values(gone).collect()
    }

    /// All overlays, ordered by target.
    pub(crate) fn all(&self) -> impl Iterator<Item = &HttpOverlay> {
        self.0.values()
    }

    /// Takes over the overlays of another process. Several of one route are parts of one overlay.
    pub(crate) fn expect(&mut self, overlays: Vec<HttpOverlay>) {
        for overlay in overlays {
            // Above the limit, overlays are left out.
            let _ = self.set(overlay);
        }
    }

    /// Applies the overlays of a frontend and its routes.
    pub(crate) fn apply(&self, frontend: &mut FrontendConfig) {
        let Some(http) = frontend.http.as_mut().filter(|_| !self.0.is_empty()) else { return };
        let route = |name: &str| HttpTarget::route(&frontend.name, name);
        http.maintenance = self.maintenance_of(&HttpTarget::Frontend(frontend.name.clone())).cloned();
        http.default_maintenance = self.maintenance_of(&route(DEFAULT_ROUTE)).cloned();
        for one in &mut http.routes {
            let target = route(&one.name);
            one.maintenance = self.maintenance_of(&target).cloned();
            if let RouteAction::Split(split) = &mut one.action
                && let Some(weights) = self.weights_of(&target)
            {
                override_weights(split, weights);
            }
        }
    }

    /// Applies the overlays of backends.
    pub(crate) fn apply_to_backends(&self, backends: &mut [BackendConfig]) {
        if self.0.is_empty() {
            return;
        }
        for backend in backends {
            let target = HttpTarget::Backend(backend.name.clone());
            backend.maintenance = self.maintenance_of(&target).cloned();
        }
    }
}

fn page_size(overlay: &HttpOverlay) -> usize {
    match &overlay.value {
        HttpOverlayValue::Weights(_) => 0,
        HttpOverlayValue::Maintenance(maintenance) => maintenance.page_size(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_model::{MaintenancePage, Timestamp};

    fn overlay(route: &str, weights: &[(&str, u32)]) -> HttpOverlay {
        let weights = weights.iter().map(|(name, weight)| ((*name).to_owned(), *weight)).collect();
        let (since, by) = (Timestamp(1), "root".to_owned());
        HttpOverlay {
            target: HttpTarget::route("web", route),
            value: HttpOverlayValue::Weights(weights),
            since,
            by,
        }
    }

    fn texts(overlays: &HttpOverlays) -> Vec<String> {
        overlays.all().map(|one| format!("{}: {}", one.target, one.value)).collect()
    }

    #[test]
    fn later_weights_are_added_to_earlier_ones() {
        let mut overlays = HttpOverlays::default();
        assert!(overlays.set(overlay("a", &[("v2", 5)])).unwrap());
        assert!(overlays.set(overlay("a", &[("v1", 3)])).unwrap());
        assert!(!overlays.set(overlay("a", &[("v2", 5)])).unwrap(), "it was set before");
        assert!(overlays.set(overlay("a", &[("v2", 0)])).unwrap());
        assert_eq!(texts(&overlays), ["route web/a: weights v1=3, v2=0"]);
    }

    #[test]
    fn reset_removes_overlays_of_a_frontend_or_one_route() {
        let mut overlays = HttpOverlays::default();
        overlays.expect(vec![
            overlay("a", &[("v2", 5)]),
            overlay("b", &[("v2", 5)]),
            overlay("a", &[("v1", 1)]),
        ]);
        assert_eq!(texts(&overlays), ["route web/a: weights v1=1, v2=5", "route web/b: weights v2=5"]);
        assert_eq!(overlays.reset(Some(&HttpTarget::route("web", "a"))).len(), 1);
        assert_eq!(overlays.reset(Some(&HttpTarget::Frontend("other".into()))), []);
        assert_eq!(overlays.reset(Some(&HttpTarget::Frontend("web".into()))).len(), 1);
        assert_eq!(overlays.reset(None), []);
    }

    fn maintenance(target: HttpTarget, bytes: usize) -> HttpOverlay {
        let page = MaintenancePage { content_type: "text/html".into(), body: vec![b'a'; bytes].into() };
        let value = Arc::new(Maintenance { page: Some(page), ..Maintenance::default() });
        let value = HttpOverlayValue::Maintenance(value);
        HttpOverlay { target, value, since: Timestamp(1), by: "root".to_owned() }
    }

    #[test]
    fn maintenance_ends_without_the_weights_of_its_route() {
        let mut overlays = HttpOverlays::default();
        let route = HttpTarget::route("web", "a");
        overlays.set(overlay("a", &[("v2", 5)])).unwrap();
        assert!(overlays.set(maintenance(route.clone(), 1)).unwrap());
        assert!(!overlays.set(maintenance(route.clone(), 1)).unwrap(), "it is the same page");
        assert!(overlays.set(maintenance(route.clone(), 2)).unwrap(), "another page replaces it");
        assert!(overlays.end_maintenance(&route) && !overlays.end_maintenance(&route));
        assert_eq!(texts(&overlays), ["route web/a: weights v2=5"]);
    }

    #[test]
    fn pages_of_all_maintenances_are_limited_together() {
        let mut overlays = HttpOverlays::default();
        let of = |n: usize| maintenance(HttpTarget::Backend(n.to_string()), Maintenance::MAX_PAGE);
        let most = MAX_PAGES / Maintenance::MAX_PAGE;
        (0..most).for_each(|n| assert!(overlays.set(of(n)).unwrap()));
        assert!(overlays.set(of(most)).unwrap_err().contains("use shorter pages"));
        assert!(overlays.set(maintenance(HttpTarget::Backend("0".into()), 1)).unwrap(), "one may change");
    }

    #[test]
    fn number_of_overlays_is_limited() {
        let mut overlays = HttpOverlays::default();
        let set = |overlays: &mut HttpOverlays, n: usize, weight| {
            overlays.set(overlay(&n.to_string(), &[("v2", weight)]))
        };
        (0..MAX_OVERLAYS).for_each(|n| assert!(set(&mut overlays, n, 5).unwrap()));
        assert!(set(&mut overlays, MAX_OVERLAYS, 5).unwrap_err().contains("limit of 1000"));
        assert!(set(&mut overlays, 0, 6).unwrap(), "existing ones may change");
    }
}
