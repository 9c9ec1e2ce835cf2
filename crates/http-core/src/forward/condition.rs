//! Conditions of rules for the fields of responses.

use std::fmt;
use std::ops::RangeInclusive;

use super::FieldRules;
use crate::{PathGlob, PathView, Variable, Variables};

/// Responses to which rules apply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResponseCondition {
    /// Statuses of the response; empty: all statuses.
    pub statuses: Vec<RangeInclusive<u16>>,
    /// Paths of the request, in the normalized view; empty: all paths.
    pub paths: Vec<PathGlob>,
}

/// Rules that apply if their condition holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConditionalRules {
    pub(super) condition: ResponseCondition,
    pub(super) rules: FieldRules,
}

impl ConditionalRules {
    /// Returns the rules for a request, with the values of its variables. Their condition keeps only
    /// its statuses. `None`: the path of the request does not match.
    pub(super) fn expanded(&self, variables: &dyn Variables) -> Option<ConditionalRules> {
        let ResponseCondition { statuses, paths } = &self.condition;
        let path = if paths.is_empty() { None } else { variables.value(&Variable::Path) };
        let path = PathView::Normalized.of(path.as_deref().unwrap_or_default());
        let path = String::from_utf8_lossy(&path);
        let is_met = paths.is_empty() || paths.iter().any(|glob| glob.matches(&path));
        is_met.then(|| ConditionalRules {
            condition: ResponseCondition { statuses: statuses.clone(), paths: Vec::new() },
            rules: self.rules.expanded(variables),
        })
    }

    /// Whether the rules apply to a response with this status. Rules for some paths do not, because
    /// the path is unknown.
    pub(super) fn apply_to(&self, status: u16) -> bool {
        let ResponseCondition { statuses, paths } = &self.condition;
        paths.is_empty() && (statuses.is_empty() || statuses.iter().any(|range| range.contains(&status)))
    }
}

impl fmt::Display for ConditionalRules {
    /// Writes, for example, `set X-A for status 404, 500-599 and path *.css`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ResponseCondition { statuses, paths } = &self.condition;
        let range = |range: &RangeInclusive<u16>| match range.start() == range.end() {
            true => range.start().to_string(),
            false => format!("{}-{}", range.start(), range.end()),
        };
        let list =
            |what: &str, all: Vec<String>| (!all.is_empty()).then(|| format!("{what} {}", all.join(", ")));
        let of_status = list("status", statuses.iter().map(range).collect());
        let of_path = list("path", paths.iter().map(ToString::to_string).collect());
        let conditions: Vec<String> = of_status.into_iter().chain(of_path).collect();
        write!(f, "{}", self.rules)?;
        if conditions.is_empty() { Ok(()) } else { write!(f, " for {}", conditions.join(" and ")) }
    }
}
