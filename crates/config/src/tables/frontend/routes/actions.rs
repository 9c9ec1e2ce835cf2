//! Keys for the action of a route.

use bytes::Bytes;
use toml::de::DeValue;

use super::super::headers;
use crate::problem::{Place, Placed, Report};
use crate::reader::TomlTable;
use crate::values::{choice, found, http_host, integer, not_allowed, port, string};
use convey_http_core::{
    FieldRules, PathPattern, PathRewrite, PathView, Redirect, RedirectPath, Template, UrlScheme,
};
use convey_model::{FixedReply, RouteAction};

/// Keys for actions. A route has exactly one of them.
const ACTIONS: [&str; 4] = ["backend", "backends", "redirect", "respond"];

/// What happens to the requests of a route.
#[derive(Debug, Clone, Default)]
pub(crate) struct ParsedAction {
    /// Names of backends.
    pub(crate) backends: Vec<Placed<String>>,
    /// Weights of the backends; empty: there is one backend, without a weight.
    pub(crate) weights: Vec<u32>,
    redirect: Option<ParsedRedirect>,
    respond: Option<FixedReply>,
}

/// A redirect before the pattern of its route is known.
#[derive(Debug, Clone)]
pub(crate) struct ParsedRedirect {
    redirect: Redirect,
    /// Replacement for the part of the path that the route matches.
    rewrite: Option<Placed<String>>,
    pub(crate) place: Place,
}

impl ParsedAction {
    /// Reads the keys from the table of a route.
    pub(super) fn read(table: &mut TomlTable<'_>, report: &Report<'_>) -> ParsedAction {
        let mut set = ACTIONS.iter().filter_map(|key| Some((*key, table.place_of(key)?)));
        if let (Some((first, at)), Some((_, place))) = (set.next(), set.next()) {
            let line = report.line(&at, &place);
            report.error(&place, format!("{first} is also set ({line}); keep one of them"));
        }
        let (mut backends, weights) = read_weights(table, report);
        backends.extend(table.optional("backend", string).filter(|_| weights.is_empty()));
        ParsedAction {
            backends,
            weights,
            redirect: ParsedRedirect::read(table, report),
            respond: read_reply(table, report),
        }
    }

    /// Whether convey answers the requests of the route by itself.
    pub(super) fn is_local(&self) -> bool {
        self.redirect.is_some() || self.respond.is_some()
    }

    /// Redirect of the route.
    pub(crate) fn redirect(&self) -> Option<&Redirect> {
        self.redirect.as_ref().map(|parsed| &parsed.redirect)
    }

    /// Redirect of the route, before the pattern of the route is known.
    pub(crate) fn parsed_redirect(&self) -> Option<&ParsedRedirect> {
        self.redirect.as_ref()
    }

    /// Model of the action; `None`: no key is set, or its value is wrong. `path` is the pattern of
    /// the route.
    pub(super) fn model(&self, path: &PathPattern, view: PathView) -> Option<RouteAction> {
        if let Some(redirect) = &self.redirect {
            return Some(RouteAction::Redirect(redirect.model(path, view)));
        }
        if let Some(reply) = &self.respond {
            return Some(RouteAction::Respond(reply.clone()));
        }
        let names = self.backends.iter().map(|backend| backend.value.clone());
        match self.weights.is_empty() {
            true => names.into_iter().next().map(RouteAction::Backend),
            false => Some(RouteAction::Split(names.zip(self.weights.iter().copied()).collect())),
        }
    }

    /// Reports a rewrite of the redirect that does not fit the pattern of the route.
    pub(super) fn check(&self, path: &PathPattern, report: &Report<'_>) {
        let rewrite = self.redirect.as_ref().and_then(|redirect| redirect.rewrite.as_ref());
        if let Some(Placed { value, place }) = rewrite {
            super::check_groups(value, path, place, report);
        }
    }
}

impl ParsedRedirect {
    /// Reads `redirect` of a route or a frontend: `"https"` or a table.
    pub(crate) fn read(table: &mut TomlTable<'_>, report: &Report<'_>) -> Option<ParsedRedirect> {
        let Some(place) = table.place_of("redirect") else {
            table.allow("redirect");
            return None;
        };
        if !table.has_table("redirect") {
            let https = table.optional("redirect", to_https)?;
            return Some(ParsedRedirect { redirect: https.value, rewrite: None, place });
        }
        let mut own = table.table("redirect");
        let scheme = own.optional("scheme", choice(&UrlScheme::ALL, UrlScheme::name));
        let host = own.optional("host", redirect_host);
        let (whole, rewrite) =
            (own.optional("path", redirect_path), own.optional("rewrite_path", super::rewrite_path));
        if let (Some(_), Some(rewrite)) = (&whole, &rewrite) {
            report.error(&rewrite.place, "path is also set; keep one of them");
        }
        let redirect = Redirect {
            scheme: scheme.map(|scheme| scheme.value),
            host: host.map(|host| host.value),
            port: own.optional("port", port).map(|port| port.value),
            path: whole.map_or(RedirectPath::Same, |path| RedirectPath::Whole(path.value)),
            status: own.or("status", Redirect::default().status, status_of_redirect),
        };
        if !["scheme", "host", "port", "path", "rewrite_path"].iter().any(|key| own.has(key)) {
            report.error(
                &place,
                "a redirect needs scheme, host, port, path or rewrite_path, or it leads to the same URL",
            );
        }
        own.finish();
        Some(ParsedRedirect { redirect, rewrite, place })
    }

    /// Replacement for a part of the path, if the redirect changes nothing else.
    pub(crate) fn rewrite_of_path_alone(&self) -> Option<&Placed<String>> {
        let is_alone = Redirect { status: self.redirect.status, ..Redirect::default() } == self.redirect;
        self.rewrite.as_ref().filter(|_| is_alone)
    }

    /// Model of the redirect. `path` is the pattern of its route.
    pub(crate) fn model(&self, path: &PathPattern, view: PathView) -> Redirect {
        let rewrite = self.rewrite.as_ref().and_then(|to| PathRewrite::new(path, view, &to.value).ok());
        match rewrite {
            Some(rewrite) => Redirect { path: RedirectPath::Rewrite(rewrite), ..self.redirect.clone() },
            None => self.redirect.clone(),
        }
    }
}

/// Reads `backends`, a table of weights: the names, and their weights.
fn read_weights(table: &mut TomlTable<'_>, report: &Report<'_>) -> (Vec<Placed<String>>, Vec<u32>) {
    let none = (Vec::new(), Vec::new());
    let Some(place) = table.place_of("backends") else {
        table.allow("backends");
        return none;
    };
    if !table.has_table("backends") {
        let wrong =
            |value: &DeValue<'_>| Err::<(), _>(not_allowed(value, "a table such as { v1 = 90, v2 = 10 }"));
        table.optional("backends", wrong);
        return none;
    }
    let weights = table.table("backends").values(integer(0..=RouteAction::MAX_WEIGHT)).into_iter();
    let (names, weights): (Vec<_>, Vec<u32>) =
        weights.filter_map(|(name, weight)| Some((name, weight?.value))).unzip();
    if names.is_empty() {
        report.error(&place, "needs at least one backend with its weight, such as { v1 = 90, v2 = 10 }");
    } else if weights.iter().all(|weight| *weight == 0) {
        report.error(&place, "a weight must be above 0, or no backend gets requests");
    }
    (names, weights)
}

/// Reads `respond`.
fn read_reply(table: &mut TomlTable<'_>, report: &Report<'_>) -> Option<FixedReply> {
    if !table.has("respond") {
        table.allow("respond");
        return None;
    }
    let mut own = table.table("respond");
    let status = own.or("status", 200, integer(200..=599));
    let body = own.optional("body", |value| match value.as_str() {
        Some(text) if text.len() <= FixedReply::MAX_BODY => Ok(text.to_owned()),
        Some(text) => Err(format!("found {} bytes; allowed: at most {}", text.len(), FixedReply::MAX_BODY)),
        None => Err(not_allowed(value, "a text")),
    });
    if let Some(body) = body.as_ref().filter(|_| matches!(status, 204 | 205 | 304)) {
        report.error(&body.place, format!("a response with status {status} has no body"));
    }
    let fields = headers::read_set(own.table("headers"), FieldRules::default(), report);
    own.finish();
    let body = body.map_or_else(Bytes::new, |body| Bytes::from(body.value));
    Some(FixedReply { status, body, fields })
}

fn to_https(value: &DeValue<'_>) -> Result<Redirect, String> {
    match value.as_str() {
        Some("https") => Ok(Redirect::to_https()),
        _ => Err(not_allowed(
            value,
            "\"https\", or a table such as { host = \"www.example.com\", status = 301 }",
        )),
    }
}

fn status_of_redirect(value: &DeValue<'_>) -> Result<u16, String> {
    let is_redirect = |status: &u16| Redirect::STATUSES.contains(status);
    let status = integer(0..=u16::MAX)(value).ok().filter(is_redirect);
    status.ok_or_else(|| not_allowed(value, "one of 301, 302, 303, 307, 308"))
}

/// Parses the host of a redirect: a template without a port.
fn redirect_host(value: &DeValue<'_>) -> Result<Template, String> {
    let template = template(value, "a host without a port, such as www.example.com")?;
    match template.as_text() {
        Some(text) => {
            http_host(value)?;
            let has_port = text.rfind(':').is_some_and(|colon| !text[colon..].contains(']'));
            if has_port {
                Err(format!("found {}; set the port with port = ...", found(value)))
            } else {
                Ok(template)
            }
        }
        None => Ok(template),
    }
}

fn redirect_path(value: &DeValue<'_>) -> Result<Template, String> {
    let template = template(value, "a path that begins with `/`, such as /new")?;
    let text = value.as_str().unwrap_or_default();
    let is_path = text.starts_with('/') && !text.contains('#') || text.starts_with('{');
    if is_path { Ok(template) } else { Err(not_allowed(value, "a path that begins with `/`, such as /new")) }
}

fn template(value: &DeValue<'_>, allowed: &str) -> Result<Template, String> {
    let text = value.as_str().filter(|text| text.bytes().all(|byte| byte.is_ascii_graphic()));
    let Some(text) = text else { return Err(not_allowed(value, allowed)) };
    Template::parse(text).map_err(|unknown| unknown.to_string())
}
