//! Changes that operators make to frontends, routes and backends of mode `http` at run time. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::steer::unknown;
use super::{ControlState, Unsteerable};
use crate::http_overlays::DEFAULT_ROUTE;
use convey_model::{
    FrontendConfig, HttpOverlay, HttpOverlayValue, HttpTarget, Maintenance, RouteAction, Target, Timestamp,
    override_weights,
};

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
            self.rebuild_http(false, now);
        }
        Ok(has_changed)
    }

    /// Puts a frontend, a route or a backend into maintenance: convey answers requests with a page.
    /// Returns whether a stored overlay changed. `take_update` returns a snapshot with the change.
    ///
    /// # Errors
    /// The target does not exist, or no request in mode `http` reaches it, or there are too many
    /// changes.
    pub fn set_maintenance(
        &mut self,
        target: HttpTarget,
        maintenance: Arc<Maintenance>,
        by: String,
        now: Timestamp,
    ) -> Result<bool, Unsteerable> {
        self.find_http(&target)?;
        let is_of_backend = matches!(target, HttpTarget::Backend(_));
        let value = HttpOverlayValue::Maintenance(maintenance);
        let overlay = HttpOverlay { target, value, since: now, by };
        let has_changed = self.operators.http_mut().set(overlay).map_err(Unsteerable::Refused)?;
        if has_changed {
            self.rebuild_http(is_of_backend, now);
        }
        Ok(has_changed)
    }

    /// Ends a maintenance. Returns whether there was one.
    ///
    /// # Errors
    /// The target does not exist, and has no maintenance.
    pub fn end_maintenance(&mut self, target: &HttpTarget, now: Timestamp) -> Result<bool, Unsteerable> {
        let has_ended = self.operators.http_mut().end_maintenance(target);
        if has_ended {
            self.rebuild_http(matches!(target, HttpTarget::Backend(_)), now);
        } else {
            self.find_http(target)?;
        }
        Ok(has_ended)
    }

    /// Removes and returns the overlays of a frontend with its routes, of one route, or of one
    /// backend; with `None`, those of all. `take_update` returns a snapshot with the change.
    pub fn reset_http(&mut self, target: Option<&HttpTarget>, now: Timestamp) -> Vec<HttpOverlay> {
        let gone = self.operators.http_mut().reset(target);
        if !gone.is_empty() {
            let is_of_backend = gone.iter().any(|overlay| matches!(overlay.target, HttpTarget::Backend(_)));
            self.rebuild_http(is_of_backend, now);
        }
        gone
    }

    /// Makes the next snapshot rebuild the frontends, and the backends if one has changed.
    fn rebuild_http(&mut self, has_backend_changed: bool, now: Timestamp) {
        self.frontends.discard_built();
        self.is_stale = true;
        if has_backend_changed {
            self.resolve_again(now);
        }
    }

    /// Checks that a target exists, and that requests in mode `http` reach it.
    fn find_http(&self, target: &HttpTarget) -> Result<(), Unsteerable> {
        match target {
            HttpTarget::Frontend(name) => self.http_frontend(name).map(|_| ()),
            HttpTarget::Route { frontend, route } => {
                let frontend = self.http_frontend(frontend)?;
                let http = frontend.http.as_ref();
                let is_default =
                    || http.is_some_and(|http| http.default_action(frontend.backend.as_deref()).is_some());
                let mut routes = http.iter().flat_map(|http| &http.routes);
                match routes.any(|one| one.name == *route) || (route == DEFAULT_ROUTE && is_default()) {
                    true => Ok(()),
                    false => Err(unknown_route(frontend, route)),
                }
            }
            HttpTarget::Backend(name) => {
                self.find(&Target::backend(name)).map_err(Unsteerable::Unknown)?;
                let mut all = self.config.iter().flat_map(|config| &config.frontends);
                match all.any(|frontend| frontend.http.is_some() && frontend.uses(name)) {
                    true => Ok(()),
                    false => Err(Unsteerable::Refused(format!(
                        "no frontend of mode http uses backend {name}, so no client would get a page; \
                         `convey backend maint {name}` takes its servers out"
                    ))),
                }
            }
        }
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
    let http = frontend.http.as_ref();
    let names = http.into_iter().flat_map(|http| &http.routes).map(|route| route.name.as_str());
    let default = http.and_then(|http| http.default_action(frontend.backend.as_deref()));
    let names = names.chain(default.map(|_| DEFAULT_ROUTE)).collect();
    Unsteerable::Unknown(unknown(&format!("route of frontend {}", frontend.name), route, names))
}
