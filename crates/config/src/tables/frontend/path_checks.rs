//! Checks of the paths that routes and header rules match, and of those that redirects lead to.

use super::ParsedFrontend;
use super::routes::{ParsedRedirect, ParsedRoute};
use crate::file::value;
use crate::problem::Report;
use convey_http_core::{PathPattern, PathPrefix, PathView};

/// Reports redirects without end, and regular expressions for paths that no request has.
pub(super) fn check(frontend: &ParsedFrontend, report: &Report<'_>) {
    let view: PathView = value(&frontend.http.keys.path_view).unwrap_or_default();
    for route in &frontend.http.routes {
        regex(route, view, report);
        let Some(matches) = route.matches() else { continue };
        if let Some(redirect) = route.action.parsed_redirect() {
            endless(redirect, &matches.path(), frontend, report);
        }
    }
    if let Some(redirect) = &frontend.http.redirect {
        endless(redirect, &PathPattern::any(), frontend, report);
    }
}

/// Reports a redirect whose path becomes longer with each request, because it leads to a path below
/// the one that it replaces.
fn endless(redirect: &ParsedRedirect, from: &PathPattern, frontend: &ParsedFrontend, report: &Report<'_>) {
    let (Some(rewrite), PathPattern::Prefix(from)) = (redirect.rewrite_of_path_alone(), from) else { return };
    let Ok(to) = PathPrefix::parse(&rewrite.value) else { return };
    let view = value(&frontend.http.keys.path_view).unwrap_or_default();
    let (from, to) = (from.in_view(view), to.in_view(view));
    let takes_the_target = |route: &ParsedRoute| match route.path() {
        PathPattern::Prefix(other) => other.len() > from.len() && other.in_view(view).includes(&to),
        PathPattern::Exact(_) | PathPattern::Regex(_) => true,
    };
    if from.includes(&to) && from.len() < to.len() && !frontend.http.routes.iter().any(takes_the_target) {
        let (from, to) = (PathPattern::Prefix(from), PathPattern::Prefix(to));
        let message = format!(
            "is a redirect without end, because {to} is below {from}, and is redirected again; use path_exact, or add a route \
             for {to}"
        );
        report.error(&rewrite.place, message);
    }
}

/// Warns about a regular expression that has a character in another form than the paths that it is
/// matched against, or that demands a path without a slash at its beginning.
fn regex(route: &ParsedRoute, view: PathView, report: &Report<'_>) {
    let (PathPattern::Regex(pattern), Some(place)) = (route.path(), route.place_of_path()) else { return };
    let text = pattern.as_str();
    let warn = |message: String| report.warning(place, message);
    if let Some(rest) = text.strip_prefix('^')
        && rest.starts_with(|first: char| first.is_ascii_alphanumeric() || "-_~@%".contains(first))
        && !rest.contains('|')
        && !rest[1..].starts_with(['?', '*', '{'])
    {
        warn(format!("matches no path, because a path begins with `/`: write ^/{rest}"));
    }
    if view == PathView::Normalized && demands_two_slashes(text) {
        warn(
            "has //, which no path has: slashes in a row count as one; use /, or set normalize = false"
                .to_owned(),
        );
    }
    for (at, first) in text.char_indices() {
        let form = match first {
            '%' => text.get(at..at + 3).filter(|escape| is_escape(escape)).map(str::to_owned),
            first if first.is_ascii() => None,
            first => Some(first.to_string()),
        };
        let Some(form) = form else { continue };
        let seen = path_form(&form, view);
        let is_same = seen == form || text.contains("(?i") && seen.eq_ignore_ascii_case(&form);
        if !is_same {
            warn(format!("has {form}, which no path has: a path_regex sees it as {seen}"));
        }
    }
}

/// Whether an expression has two slashes in a row, neither of which is optional.
fn demands_two_slashes(text: &str) -> bool {
    let text = text.replace("\\/", "/");
    text.match_indices("//").any(|(at, _)| !text[at + 2..].starts_with(['?', '*', '{']))
}

/// Messages about a `path_glob` that has characters in another form than the paths that it is matched
/// against, or that no path can match.
pub(super) fn faults_of_glob(glob: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let has_segment = |segment: &str| glob.split('/').any(|one| one == segment);
    if glob.contains("//") {
        faults.push("matches no path, because convey merges slashes in a row: write `/`".to_owned());
    }
    if has_segment(".") || has_segment("..") {
        faults.push("matches no path, because convey resolves the segments `.` and `..`".to_owned());
    }
    let braces = glob.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    if let Some((inside, _)) = braces.filter(|(inside, _)| inside.contains(',')) {
        faults
            .push(format!("has {{{inside}}}, which is plain text in a glob: write a list of several globs"));
    }
    let mut all: Vec<String> = Vec::new();
    for (at, first) in glob.char_indices() {
        let form = match first {
            '%' => glob.get(at..at + 3).filter(|escape| is_escape(escape)).map(str::to_owned),
            first if first.is_ascii_graphic() => None,
            first => Some(first.to_string()),
        };
        all.extend(form.filter(|form| !all.contains(form)));
    }
    for form in all {
        let seen = path_form(&form, PathView::Normalized);
        if seen != form {
            faults.push(format!("has {form:?}, which no path has: a path_glob sees it as {seen}"));
        }
    }
    faults
}

fn is_escape(text: &str) -> bool {
    text.bytes().skip(1).all(|byte| byte.is_ascii_hexdigit())
}

/// Form in which a regular expression or a glob sees a character.
fn path_form(text: &str, view: PathView) -> String {
    let encoded: String = match text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => text.to_owned(),
        false => text.bytes().map(|byte| format!("%{byte:02X}")).collect(),
    };
    String::from_utf8_lossy(&view.of(encoded.as_bytes())).into_owned()
}
