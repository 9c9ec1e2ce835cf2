//! Runtime overrides of frontends, routes and backends in mode `http`, which take precedence over
//! the file. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::{Maintenance, Timestamp};

/// Object of mode `http` that an override applies to, by names in the file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HttpTarget {
    /// A frontend with all its routes.
    Frontend(String),
    /// One route of a frontend.
    Route {
        /// Name of the frontend.
        frontend: String,
        /// Name of the route.
        route: String,
    },
    /// A backend: requests that frontends in mode `http` send to it.
    Backend(String),
}

/// Value of an override in mode `http`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HttpOverlayValue {
    /// Weights of some of the route's `backends`. Other backends keep the weights of the file.
    Weights(BTreeMap<String, u32>),
    /// convey answers requests with a page.
    Maintenance(Arc<Maintenance>),
}

/// Runtime override in mode `http`. It lasts until an operator clears it or convey stops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpOverlay {
    /// Target of the override.
    pub target: HttpTarget,
    /// Value of the override.
    pub value: HttpOverlayValue,
    /// Time at which the override was set.
    pub since: Timestamp,
    /// Operator-facing name of the person or program that set it.
    pub by: String,
}

impl HttpTarget {
    /// Target of one route.
    pub fn route(frontend: &str, route: &str) -> HttpTarget {
        HttpTarget::Route { frontend: frontend.to_owned(), route: route.to_owned() }
    }

    /// Whether `other` is this target or one of its routes.
    pub fn contains(&self, other: &HttpTarget) -> bool {
        match (self, other) {
            (HttpTarget::Frontend(name), HttpTarget::Route { frontend, .. }) => name == frontend,
            _ => self == other,
        }
    }
}

impl fmt::Display for HttpTarget {
    /// Formats as `frontend FRONTEND`, `route FRONTEND/ROUTE` or `backend BACKEND`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HttpTarget::Frontend(name) => write!(f, "frontend {name}"),
            HttpTarget::Route { frontend, route } => write!(f, "route {frontend}/{route}"),
            HttpTarget::Backend(name) => write!(f, "backend {name}"),
        }
    }
}

impl fmt::Display for HttpOverlayValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HttpOverlayValue::Weights(weights) => {
                let all: Vec<String> =
                    weights.iter().map(|(name, weight)| format!("{name}={weight}")).collect();
                write!(f, "weights {}", all.join(", "))
            }
            HttpOverlayValue::Maintenance(maintenance) => write!(f, "{maintenance}"),
        }
    }
}

/// Replaces weights of a route's backends by the weights that an operator has set. Names that the
/// route does not have are ignored. If no backend would have a weight above 0, nothing changes.
/// Returns whether the weights apply.
pub fn override_weights(split: &mut [(String, u32)], weights: &BTreeMap<String, u32>) -> bool {
    let of = |(name, weight): &(String, u32)| weights.get(name).copied().unwrap_or(*weight);
    let is_named = split.iter().any(|(name, _)| weights.contains_key(name));
    if !is_named || split.iter().all(|backend| of(backend) == 0) {
        return false;
    }
    split.iter_mut().for_each(|backend| backend.1 = of(backend));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overridden(file: &[(&str, u32)], set: &[(&str, u32)]) -> (bool, Vec<u32>) {
        let mut split: Vec<(String, u32)> = file.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        let set = set.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        let applies = override_weights(&mut split, &set);
        (applies, split.into_iter().map(|(_, weight)| weight).collect())
    }

    #[test]
    fn backends_without_an_override_keep_their_weight() {
        let file = [("v1", 90), ("v2", 10)];
        assert_eq!(overridden(&file, &[("v2", 5)]), (true, vec![90, 5]));
        assert_eq!(overridden(&file, &[("v1", 0)]), (true, vec![0, 10]));
        assert_eq!(overridden(&file, &[("v1", 1), ("gone", 7)]), (true, vec![1, 10]));
    }

    #[test]
    fn override_without_effect_leaves_the_weights_of_the_file() {
        let file = [("v1", 90), ("v2", 0)];
        assert_eq!(overridden(&file, &[("v1", 0)]), (false, vec![90, 0]), "no backend would be left");
        assert_eq!(overridden(&file, &[("gone", 7)]), (false, vec![90, 0]));
    }

    #[test]
    fn frontend_contains_its_routes() {
        let [web, checkout] = [HttpTarget::Frontend("web".into()), HttpTarget::route("web", "checkout")];
        assert!(web.contains(&checkout) && web.contains(&web) && checkout.contains(&checkout));
        assert!(!checkout.contains(&web) && !web.contains(&HttpTarget::route("other", "checkout")));
    }
}
