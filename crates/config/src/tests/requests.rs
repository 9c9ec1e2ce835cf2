//! Settings of requests in mode http: paths, headers, redirects and timeouts.

use super::super::{describe, parse};
use super::http::{BACKENDS, FRONTEND, config, of_frontend};
use super::{modes, warnings};
use convey_http_core::PathView;
use convey_model::Mode;

#[test]
fn paths_and_underscores_are_normalized_unless_the_file_says_otherwise() {
    let http =
        |lines: &str| config(&format!("{FRONTEND}{lines}\n{BACKENDS}")).frontends[0].http.clone().unwrap();
    assert_eq!(http("").path_view, PathView::Normalized);
    assert_eq!(http("normalize = false").path_view, PathView::AsSent);
    let rule =
        |more: &str| http(&format!("headers.request = {{ set = {{ X-A = 'b' }}{more} }}")).headers.request;
    assert!(!rule("").keeps(b"x_a"));
    assert!(rule(", keep_underscores = true").keeps(b"x_a"));
    // Both spellings of the path are one route.
    let routes = "[[frontends.web.routes]]\npath = '/a//b'\nbackend = 'api'\n\
                  [[frontends.web.routes]]\npath = '/a%2Fb'\nbackend = 'api'";
    assert_eq!(of_frontend(routes).len(), 1, "{:?}", of_frontend(routes));
    assert!(parse("c", &format!("{FRONTEND}normalize = false\n{routes}\n{BACKENDS}")).is_ok());
    let diagnostics = describe(&config(&format!("{FRONTEND}normalize = false\n{BACKENDS}")));
    assert!(diagnostics.contains("matches paths as sent"), "{diagnostics}");
}

#[test]
fn time_of_an_answer_is_for_mode_http() {
    let diagnostics = warnings(&format!("{FRONTEND}timeouts.response = 5\n{BACKENDS}"));
    assert!(!diagnostics.iter().any(|line| line.contains("timeouts")), "{diagnostics:?}");
    let text =
        format!("{FRONTEND}timeouts.response = 5\n{BACKENDS}").replace("mode = 'http'", "mode = 'proxy'");
    let diagnostics = modes::diagnostics(&text, Mode::Proxy).unwrap();
    assert!(
        diagnostics.iter().any(|line| line.contains("timeouts.response: has no effect in proxy mode")),
        "{diagnostics:?}"
    );
}

#[test]
fn https_redirect_leaves_trusted_https_requests_to_the_backend() {
    let route = "[[frontends.web.routes]]\npath = '/'\nredirect = 'https'";
    assert!(of_frontend(route)[0].contains("is unreachable"));
    let trusting = format!("{FRONTEND}trusted_proxies = '10.0.0.5'\n{route}\n{BACKENDS}");
    assert!(parse("c", &trusting).is_ok());
}

#[test]
fn value_of_a_header_that_looks_like_a_variable_is_named() {
    let diagnostics = |value: &str| {
        let text = format!(
            "{FRONTEND}headers.request = {{ set = {{ X-A = '{value}' }} }}\nroutes = [{{ path = '/a', backend = 'api' }}]\n{BACKENDS}"
        );
        warnings(&text)
    };
    for (value, variable) in [("a %[src] b", "%[src]"), ("é $remote_addr", "$remote_addr")] {
        let expected = format!(
            "config.toml:5:35: frontends.web.headers.request.set.X-A: convey sends `{variable}` literally: its own variables have the form {{client_ip}}"
        );
        assert_eq!(diagnostics(value), [expected]);
    }
    for value in ["{}", "{\"a\":1}", "100%", "$5 {A}", "default-src *", "{client_ip}", "{header:X-A}"] {
        assert_eq!(diagnostics(value), [""; 0], "{value}");
    }
    let unknown = of_frontend("headers.request = { set = { X-A = '{remote_addr}' } }");
    let expected = "config.toml:5:35: frontends.web.headers.request.set.X-A: there is no variable {remote_addr}; there are client_ip, ";
    assert!(unknown.len() == 1 && unknown[0].starts_with(expected), "{unknown:?}");
}
