//! Overlays of mode `http`: weights of routes that operators set at run time. Pure.

use std::collections::BTreeMap;

use convey_model::{
    FrontendConfig, HttpOverlay, HttpOverlayValue, HttpTarget, RouteAction, override_weights,
};

/// Maximum number of overlays. Scripts may create many by mistake.
const MAX_OVERLAYS: usize = 1_000;

/// All overlays of mode `http`, by target.
#[derive(Debug, Clone, Default)]
pub(crate) struct HttpOverlays(BTreeMap<HttpTarget, HttpOverlay>);

impl HttpOverlays {
    /// Adds an overlay. Weights of a route are added to those that an earlier overlay has set.
    /// Returns whether a stored overlay changed.
    ///
    /// # Errors
    /// There are [`MAX_OVERLAYS`] overlays; operator-facing message.
    pub(crate) fn set(&mut self, overlay: HttpOverlay) -> Result<bool, String> {
        let merged = self.merged(overlay);
        match self.0.get(&merged.target) {
            Some(before) if before.value == merged.value => return Ok(false),
            None if self.0.len() >= MAX_OVERLAYS => {
                return Err(format!(
                    "the limit of {MAX_OVERLAYS} runtime overrides of routes is reached; remove some with `convey reset`"
                ));
            }
            _ => {}
        }
        self.0.insert(merged.target.clone(), merged);
        Ok(true)
    }

    /// The overlay together with the weights that an earlier overlay of the target has set.
    fn merged(&self, mut overlay: HttpOverlay) -> HttpOverlay {
        let HttpOverlayValue::Weights(weights) = &mut overlay.value;
        for (name, weight) in self.weights_of(&overlay.target).into_iter().flatten() {
            weights.entry(name.clone()).or_insert(*weight);
        }
        overlay
    }

    /// Weights that an operator has set for a route.
    pub(crate) fn weights_of(&self, route: &HttpTarget) -> Option<&BTreeMap<String, u32>> {
        let HttpOverlayValue::Weights(weights) = &self.0.get(route)?.value;
        Some(weights)
    }

    /// Removes and returns the overlays of a target and of its routes; with `None`, all overlays.
    pub(crate) fn reset(&mut self, target: Option<&HttpTarget>) -> Vec<HttpOverlay> {
        let is_meant = |of: &HttpTarget| target.is_none_or(|target| target.contains(of));
        let (gone, kept) = std::mem::take(&mut self.0).into_iter().partition(|(of, _)| is_meant(of));
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

    /// Applies the overlays to the routes of a frontend.
    pub(crate) fn apply(&self, frontend: &mut FrontendConfig) {
        let Some(http) = frontend.http.as_mut().filter(|_| !self.0.is_empty()) else { return };
        for route in &mut http.routes {
            if let RouteAction::Split(split) = &mut route.action
                && let Some(weights) = self.weights_of(&HttpTarget::route(&frontend.name, &route.name))
            {
                override_weights(split, weights);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_model::Timestamp;

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
