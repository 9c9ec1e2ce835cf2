//! Changes that operators make to routes of mode `http` at run time. Pure.

use std::collections::BTreeMap;

use super::steer::unknown;
use super::{ControlState, Unsteerable};
use convey_model::{
    FrontendConfig, HttpOverlay, HttpOverlayValue, HttpTarget, RouteAction, Timestamp, override_weights,
};

/// Name of the default route, which takes requests without another route.
const DEFAULT_ROUTE: &str = "default";

impl ControlState {
    /// Sets weights of a route's backends, which override the file. Returns whether a stored
    /// overlay changed. `take_update` returns a snapshot with the change.
    ///
    /// # Errors
    /// The frontend, the route or a backend does not exist, the route has no weights, no backend
    /// would have a weight above 0, or there are too many changes.
    pub fn set_weights(
        &mut self,
        target: HttpTarget,
        weights: BTreeMap<String, u32>,
        by: String,
        now: Timestamp,
    ) -> Result<bool, Unsteerable> {
        let mut split = self.split_of(&target)?;
        let known = || split.iter().map(|(name, _)| name.as_str());
        if let Some(name) = weights.keys().find(|name| !known().any(|known| known == *name)) {
            let why = unknown(&format!("backend of {target}"), name, known().collect());
            return Err(Unsteerable::Unknown(why));
        }
        if let Some((name, weight)) = weights.iter().find(|(_, weight)| **weight > RouteAction::MAX_WEIGHT) {
            let most = RouteAction::MAX_WEIGHT;
            return Err(Unsteerable::Refused(format!(
                "weight of {name}: found {weight}, allowed: 0 to {most}"
            )));
        }
        let mut all = self.http_overlays().weights_of(&target).cloned().unwrap_or_default();
        all.extend(weights.clone());
        if !override_weights(&mut split, &all) {
            let why =
                format!("{target}: no backend would have a weight above 0, so no backend would get requests");
            return Err(Unsteerable::Refused(why));
        }
        let overlay = HttpOverlay { target, value: HttpOverlayValue::Weights(weights), since: now, by };
        let has_changed = self.operators.http_mut().set(overlay).map_err(Unsteerable::Refused)?;
        if has_changed {
            self.rebuild_frontends();
        }
        Ok(has_changed)
    }

    /// Removes and returns the overlays of a frontend with its routes, or of one route; with
    /// `None`, those of all. `take_update` returns a snapshot with the change.
    pub fn reset_http(&mut self, target: Option<&HttpTarget>) -> Vec<HttpOverlay> {
        let gone = self.operators.http_mut().reset(target);
        if !gone.is_empty() {
            self.rebuild_frontends();
        }
        gone
    }

    fn rebuild_frontends(&mut self) {
        self.frontends.discard_built();
        self.is_stale = true;
    }

    /// Backends of a route in the file, with their weights.
    fn split_of(&self, target: &HttpTarget) -> Result<Vec<(String, u32)>, Unsteerable> {
        let HttpTarget::Route { frontend, route } = target else {
            return Err(Unsteerable::Refused(format!("{target} has no weights: only routes have them")));
        };
        let frontend = self.http_frontend(frontend)?;
        let http = frontend.http.as_ref();
        let action = match http.and_then(|http| http.routes.iter().find(|one| one.name == *route)) {
            Some(found) => found.action.clone(),
            None if route == DEFAULT_ROUTE => {
                let default = http.and_then(|http| http.default_action(frontend.backend.as_deref()));
                default.ok_or_else(|| unknown_route(frontend, route))?
            }
            None => return Err(unknown_route(frontend, route)),
        };
        let why = match action {
            RouteAction::Split(split) => return Ok(split),
            RouteAction::Backend(name) => format!(
                "{target} has a single backend, {name}; for weights, set `backends = {{ {name} = 90, ... }}` in the file"
            ),
            other => format!("{target} forwards to no backend ({other}), so it has no weights"),
        };
        Err(Unsteerable::Refused(why))
    }

    /// Frontend of mode `http` with this name, as in the file.
    fn http_frontend(&self, name: &str) -> Result<&FrontendConfig, Unsteerable> {
        let all = self.config.iter().flat_map(|config| &config.frontends);
        let Some(found) = all.clone().find(|frontend| frontend.name == name) else {
            let names = all.map(|frontend| frontend.name.as_str()).collect();
            return Err(Unsteerable::Unknown(unknown("frontend", name, names)));
        };
        match found.http {
            Some(_) => Ok(found),
            None => {
                let mode = found.mode.name();
                Err(Unsteerable::Refused(format!(
                    "frontend {name} has mode {mode}; this command is for mode http"
                )))
            }
        }
    }
}

fn unknown_route(frontend: &FrontendConfig, route: &str) -> Unsteerable {
    let names = frontend.http.iter().flat_map(|http| &http.routes).map(|route| route.name.as_str());
    Unsteerable::Unknown(unknown(&format!("route of frontend {}", frontend.name), route, names.collect()))
}
