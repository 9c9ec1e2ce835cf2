//! Changes of a frontend's request settings, for the log of a reload.

use super::HttpKeys;
use crate::diff::{change, or, pair};
use crate::tables::timeouts::own_changes;
use crate::tables::total_rate;
use convey_http_core::{CorsRules, FieldRules, PathRewrite, RetryRules, ReversedFields};
use convey_model::{ErrorPage, ErrorPages, HeaderRules, HttpConfig, RequestRate, RouteConfig, RouteLimits};

/// Changes of a frontend's request settings for the log of a reload. `None` means a mode other than
/// `http`, and is compared like default settings.
pub(crate) fn changes(old: Option<&HttpConfig>, new: Option<&HttpConfig>) -> Vec<String> {
    let none = HttpConfig::default();
    let (old, new) = (old.unwrap_or(&none), new.unwrap_or(&none));
    HttpKeys::changes(old, new)
}

/// Routes that were added, removed or changed, for the log of a reload.
pub(super) fn routes(old: &[RouteConfig], new: &[RouteConfig]) -> Vec<String> {
    let mut changes = Vec::new();
    for routes in pair(old, new, |a, b| a.name == b.name) {
        match routes {
            (Some(before), Some(after)) => changes.extend(route(before, after)),
            (None, Some(after)) => changes.push(format!("+ route {} to {}", after.name, after.action)),
            (Some(before), None) => changes.push(format!("- route {}", before.name)),
            (None, None) => {}
        }
    }
    let names = |routes: &[RouteConfig]| routes.iter().map(|route| route.name.clone()).collect::<Vec<_>>();
    let (before, after) = (names(old), names(new));
    let have_moved =
        before.len() == after.len() && before != after && before.iter().all(|name| after.contains(name));
    changes.extend(have_moved.then(|| "routes: another order".to_owned()));
    changes
}

/// Error pages that were added, removed or changed, for the log of a reload.
pub(super) fn pages(old: &ErrorPages, new: &ErrorPages) -> Vec<String> {
    let told = ErrorPages::STATUSES.into_iter().filter_map(|status| {
        let (before, after) = (old.get(status), new.get(status));
        let path = |page: Option<&ErrorPage>| or(page.map(|page| page.path.display()), "none");
        let what = format!("error_pages.{status}");
        change(&what, path(before), path(after))
            .or_else(|| (before != after).then(|| format!("{what}: content changed")))
    });
    told.collect()
}

/// Changes of the request rate limit of sources. `whose` is the prefix of the keys.
pub(super) fn rate(whose: &str, old: Option<RequestRate>, new: Option<RequestRate>) -> Vec<String> {
    let per_source = |rate: Option<RequestRate>| or(rate.map(|rate| rate.per_source), "none");
    let burst = |rate: Option<RequestRate>| or(rate.and_then(|rate| rate.burst), "automatic");
    let changes = [
        change(&format!("{whose}requests_per_source"), per_source(old), per_source(new)),
        change(&format!("{whose}request_burst"), burst(old), burst(new)),
    ];
    changes.into_iter().flatten().collect()
}

fn route(old: &RouteConfig, new: &RouteConfig) -> Vec<String> {
    let RouteConfig {
        name,
        hosts,
        path,
        conditions,
        sources,
        action,
        rewrite_path,
        rewrite_host,
        reversed,
        headers,
        rate,
        total,
        compression,
        limits,
        cors,
        retry,
        // A file sets no maintenance.
        maintenance: _,
    } = old;
    let of = |what: &str| format!("route {name} {what}").trim_end().to_owned();
    let rewritten = |to: &Option<String>| or(to.clone(), "none");
    let path_becomes = |to: &Option<PathRewrite>| or(to.as_ref(), "none");
    let mut changes = Vec::new();
    if (hosts, path, conditions, sources) != (&new.hosts, &new.path, &new.conditions, &new.sources) {
        changes.push(of("matches other requests"));
    }
    let of_action = change(&of(""), action.to_string(), new.action.to_string());
    changes.extend(of_action.or_else(|| (*action != new.action).then(|| of("has another response"))));
    changes.extend(change(&of("rewrite_path"), path_becomes(rewrite_path), path_becomes(&new.rewrite_path)));
    changes.extend(change(&of("rewrite_host"), rewritten(rewrite_host), rewritten(&new.rewrite_host)));
    let ReversedFields { locations, cookies } = reversed;
    changes.extend(change(&of("rewrite_location"), locations, &new.reversed.locations));
    changes.extend(change(&of("rewrite_cookies"), cookies, &new.reversed.cookies));
    changes.extend(self::headers(&of(""), headers, &new.headers));
    changes.extend(self::rate(&format!("{} ", of("")), *rate, new.rate));
    changes.extend(total_rate::changes(&format!("{} ", of("")), *total, new.total));
    changes.extend(change(&of("compression"), compression.to_string(), new.compression.to_string()));
    changes.extend(self::cors(&of("cors"), cors, &new.cors));
    changes.extend(self::retry(&of("retry"), retry, &new.retry));
    let RouteLimits { timeouts, body, access } = limits;
    changes.extend(own_changes(timeouts, &new.limits.timeouts).into_iter().map(|text| of(&text)));
    changes.extend(change(
        &of("max_body_size"),
        or(*body, "as the frontend"),
        or(new.limits.body, "as the frontend"),
    ));
    if *access != new.limits.access {
        let (added, gone) = new.limits.access.changes_since(access);
        changes.push(of(&format!("access networks: {added} added and {gone} removed")));
    }
    changes
}

/// Change of the rules for retries. `None` means the usual ones, or those of the frontend.
pub(super) fn retry(what: &str, old: &Option<RetryRules>, new: &Option<RetryRules>) -> Option<String> {
    change(what, or(old.as_ref(), "unset"), or(new.as_ref(), "unset"))
}

/// Change of the rules for pages of other origins.
pub(super) fn cors(what: &str, old: &Option<CorsRules>, new: &Option<CorsRules>) -> Option<String> {
    let shown = |rules: &Option<CorsRules>| or(rules.as_ref(), "off");
    change(what, shown(old), shown(new)).or_else(|| (old != new).then(|| format!("{what}: rules changed")))
}

pub(super) fn headers(whose: &str, old: &HeaderRules, new: &HeaderRules) -> Vec<String> {
    let HeaderRules { request, response } = old;
    let changes = [("request", request, &new.request), ("response", response, &new.response)];
    let told = changes.into_iter().filter_map(|(what, old, new)| {
        let what = format!("{whose} {what} headers").trim_start().to_owned();
        field_changes(&what, old, new)
    });
    told.collect()
}

/// Changes of header rules. Values are not shown, because they may be secrets.
fn field_changes(what: &str, old: &FieldRules, new: &FieldRules) -> Option<String> {
    let shown = |rules: &FieldRules| match rules.is_empty() {
        true => "none".to_owned(),
        false => format!("({rules})"),
    };
    let have_changed = old != new && !(old.is_empty() && new.is_empty());
    change(what, shown(old), shown(new)).or_else(|| have_changed.then(|| format!("{what}: values changed")))
}
