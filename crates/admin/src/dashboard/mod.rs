//! The dashboard, a single page for browsers. The binary contains its files, and the page sends
//! requests only to convey.
//!
//! `main.js` reads `/v1/status` and `/v1/events` every two seconds and passes them to the other
//! scripts. `history.js`, `health.js` and `format.js` are pure.

use axum::Router;
use axum::extract::Path;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::api::failure;

/// File of the page.
struct Asset {
    name: &'static str,
    kind: &'static str,
    body: &'static str,
}

macro_rules! assets {
    ($($name:literal: $kind:expr),* $(,)?) => {
        [$(Asset { name: $name, kind: $kind, body: include_str!($name) }),*]
    };
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// All files of the page. The first file is the page itself.
static ASSETS: [Asset; 17] = assets!(
    "index.html": HTML,
    "style.css": CSS,
    "icon.svg": "image/svg+xml",
    "api.js": SCRIPT,
    "backends.js": SCRIPT,
    "controls.js": SCRIPT,
    "dom.js": SCRIPT,
    "drawing.js": SCRIPT,
    "events.js": SCRIPT,
    "format.js": SCRIPT,
    "frontends.js": SCRIPT,
    "health.js": SCRIPT,
    "history.js": SCRIPT,
    "main.js": SCRIPT,
    "packets.js": SCRIPT,
    "requests.js": SCRIPT,
    "server.js": SCRIPT,
);

/// Content security policy of the page. It prevents that text in names and reasons runs as a
/// script.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 4] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    // An upgrade may change the page.
    (CACHE_CONTROL, "no-cache"),
];

/// Routes of the page and its files.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let page = || async { send(&ASSETS[0]) };
    Router::new()
        .route("/", get(page))
        .route("/dashboard", get(page))
        .route("/dashboard/{file}", get(async |Path(name): Path<String>| file(&name)))
}

fn file(name: &str) -> Response {
    match ASSETS.iter().find(|asset| asset.name == name) {
        Some(asset) => send(asset),
        None => failure(StatusCode::NOT_FOUND, "the dashboard has no such file; its page is /"),
    }
}

fn send(asset: &'static Asset) -> Response {
    (HEADERS, [(CONTENT_TYPE, asset.kind)], asset.body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGEST: usize = 100_000;

    fn scripts() -> impl Iterator<Item = &'static Asset> {
        ASSETS.iter().filter(|asset| asset.kind == SCRIPT)
    }

    #[test]
    fn the_page_with_all_its_files_is_small() {
        let size: usize = ASSETS.iter().map(|asset| asset.body.len()).sum();
        assert!(size < LARGEST, "{size} bytes");
    }

    #[test]
    fn every_file_that_is_named_is_there_and_every_file_is_named() {
        let all: String = ASSETS.iter().map(|asset| asset.body).collect();
        for Asset { name, .. } in &ASSETS[1..] {
            let named = [format!("\"dashboard/{name}\""), format!("\"./{name}\"")];
            assert!(named.iter().any(|named| all.contains(named)), "nobody uses {name}");
        }
        let named =
            all.split('"').filter_map(|text| text.strip_prefix("./").or(text.strip_prefix("dashboard/")));
        for name in named {
            assert_eq!(file(name).status(), StatusCode::OK, "{name}");
        }
    }

    #[test]
    fn dashboard_inserts_no_markup_and_loads_nothing_from_other_sites() {
        for Asset { name, body, .. } in scripts() {
            for danger in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("]
            {
                assert!(!body.contains(danger), "{name} has {danger}");
            }
        }
        let page = ASSETS[0].body;
        assert_eq!(page.matches("<script").count(), page.matches("<script type=\"module\" src=").count());
        for inline in ["<style", " style=", " onclick=", " onload=", "javascript:"] {
            assert!(!page.contains(inline), "{inline}");
        }
        for Asset { name, body, .. } in &ASSETS {
            let outside = body.replace("http://www.w3.org/2000/svg", "");
            assert!(!outside.contains("http://") && !outside.contains("https://"), "{name}");
        }
    }
}
