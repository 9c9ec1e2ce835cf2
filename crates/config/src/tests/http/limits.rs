//! Limits of requests.

use super::*;

#[test]
fn request_rates_are_set_for_frontend_and_route() {
    let limited = |of_frontend: &str, of_route: &str| {
        let routes = format!("routes = [{{ path = '/a', backend = 'api'{of_route} }}]\n");
        format!("{FRONTEND}{routes}{of_frontend}{BACKENDS}")
    };
    let limits = "limits = { requests_per_source = 20, request_burst = 50, ipv4_prefix = 24 }\n";
    let text = limited(limits, ", requests_per_source = 5");
    assert_eq!(warnings(&text), [""; 0]);
    let (before, after) = (config(&limited("", "")), config(&text));
    let http = after.frontends[0].http.as_ref().unwrap();
    let number = std::num::NonZeroU32::new;
    let of = |rate, burst: u32| Some(RequestRate { per_source: number(rate).unwrap(), burst: number(burst) });
    assert_eq!((http.rate, http.routes[0].rate), (of(20, 50), of(5, 0)));
    assert_eq!(
        parse("config.toml", &text).unwrap().reload(&before).1.changes,
        ["frontend web: limits.ipv4_prefix 32 -> 24, route */a requests_per_source none -> 5, \
          limits.requests_per_source none -> 20, limits.request_burst automatic -> 50"]
    );
    let shown = describe(&after);
    assert!(shown.contains("-> backend site; per source 20 requests per second\n"), "{shown}");
    assert!(shown.contains("-> backend api; per source 5 requests per second\n"), "{shown}");
    let only_of_route = limited("limits.ipv4_prefix = 24\n", ", requests_per_source = 5");
    assert_eq!(warnings(&only_of_route), [""; 0]);
}

#[test]
fn a_limit_of_requests_without_effect_is_named() {
    let lines = "routes = [{ redirect = 'https', path = '/a', requests_per_source = 5 }]\n\
        limits = { request_burst = 5, ipv6_prefix = 48 }\n";
    let diagnostics = warnings(&format!("{FRONTEND}{lines}{BACKENDS}"));
    assert_eq!(
        diagnostics,
        [
            "config.toml:5:68: frontends.web.routes.requests_per_source: has no effect with redirect or respond",
            "config.toml:6:28: frontends.web.limits.request_burst: has no effect without requests_per_source",
            "config.toml:6:45: frontends.web.limits.ipv6_prefix: has no effect without connections_per_source or rate_per_source",
            "config.toml:7:11: backends.api: no frontend uses this backend",
        ]
    );
    let proxied =
        format!("{FRONTEND}limits.requests_per_source = 5\n{BACKENDS}").replace("mode = 'http'\n", "");
    assert_eq!(
        errors(&proxied),
        [
            "config.toml:4:30: frontends.web.limits.requests_per_source: needs mode = \"http\"; the frontend is in proxy mode"
        ]
    );
}

#[test]
fn total_rates_are_set_for_frontend_route_and_backend() {
    let text = |of_frontend: &str, of_route: &str, of_backend: &str| {
        let routes = format!("routes = [{{ path = '/a', backend = 'api'{of_route} }}]\n");
        format!("{FRONTEND}{routes}{of_frontend}{BACKENDS}[backends.api]\n{of_backend}")
    };
    let limits = "limits = { requests_per_second = 20, requests_per_second_burst = 50 }\n";
    let whole = text(limits, ", requests_per_second = 5", "requests_per_second = 9\n");
    assert_eq!(warnings(&whole), [""; 0]);
    let (before, after) = (config(&text("", "", "")), config(&whole));
    let number = std::num::NonZeroU32::new;
    let of = |rate, burst: u32| Some(TotalRate { per_second: number(rate).unwrap(), burst: number(burst) });
    let http = after.frontends[0].http.as_ref().unwrap();
    let api = after.backends.iter().find(|backend| backend.name == "api").unwrap();
    assert_eq!((http.total, http.routes[0].total, api.total), (of(20, 50), of(5, 0), of(9, 0)));
    let changes = parse("config.toml", &whole).unwrap().reload(&before).1.changes;
    assert_eq!(
        changes,
        [
            "frontend web: route */a requests_per_second none -> 5, limits.requests_per_second none -> 20, \
          limits.requests_per_second_burst automatic -> 50",
            "backend api: requests_per_second none -> 9"
        ]
    );
    let shown = describe(&after);
    for part in [
        "-> backend site; in total 20 requests per second\n",
        "-> backend api; in total 5 requests per second\n",
        "; in total 9 requests per second)\n",
    ] {
        assert!(shown.contains(part), "{part:?}: {shown}");
    }
}

#[test]
fn total_rate_without_effect_is_named() {
    let alone = format!("{FRONTEND}limits = {{ requests_per_second_burst = 5 }}\n{BACKENDS}");
    let found = warnings(&alone);
    assert!(
        found[0].ends_with("requests_per_second_burst: has no effect without requests_per_second"),
        "{found:?}"
    );
    let redirected = format!(
        "{FRONTEND}routes = [{{ redirect = 'https', path = '/a', requests_per_second = 5 }}]\n{BACKENDS}"
    );
    assert!(
        warnings(&redirected)[0]
            .ends_with("routes.requests_per_second: has no effect with redirect or respond")
    );
    let proxied = format!("{FRONTEND}{BACKENDS}[backends.site]\nrequests_per_second = 5\n")
        .replace("mode = 'http'\n", "");
    let message =
        "backends.site.requests_per_second: needs mode = \"http\"; frontend \"web\" is in proxy mode";
    let found = diagnostics(&proxied, Mode::Proxy).unwrap_err();
    assert!(found[0].ends_with(message), "{found:?}");
}

#[test]
fn a_frontend_limits_what_a_request_and_its_connection_may_take() {
    let limited = |keys: &str| {
        format!("{FRONTEND}http = {{ {keys} }}\nroutes = [{{ path = '/a', backend = 'api' }}]\n{BACKENDS}")
    };
    let keys = "max_head_size = 65535, max_head_fields = 256, max_response_head_size = 2000, max_response_head_fields = 1000, head_timeout = 0.5, max_body_size = 1, min_body_rate = 9, \
        keep_alive_timeout = '5m', max_requests = 1, max_streams = 1000";
    let (before, after) = (config(&limited("")), config(&limited(keys)));
    assert_eq!(*before.frontends[0].http_limits(), Default::default());
    let shown = "max_head_size 65535, max_head_fields 256, max_response_head_size 2000, max_response_head_fields 1000, head_timeout 500ms, max_body_size 1, min_body_rate 9, \
        keep_alive_timeout 300s, max_requests 1, max_streams 1000";
    assert!(describe(&after).contains(&format!("-> backend site; http: {shown}\n")), "{}", describe(&after));
    assert_eq!(
        parse("config.toml", &limited(keys)).unwrap().reload(&before).1.changes,
        [
            "frontend web: http.max_head_size 16384 -> 65535, http.max_head_fields 100 -> 256, http.max_response_head_size 65535 -> 2000, http.max_response_head_fields 256 -> 1000, http.head_timeout 10s -> 500ms, \
          http.max_body_size none -> 1, http.min_body_rate none -> 9, http.keep_alive_timeout 60s -> 300s, \
          http.max_requests 10000 -> 1, http.max_streams 100 -> 1000"
        ]
    );
    for (key, allowed) in [
        ("max_head_size = 1023", "an integer from 1024 to 65535"),
        ("max_head_fields = 257", "an integer from 1 to 256"),
        ("max_response_head_size = 65536", "an integer from 1024 to 65535"),
        ("max_response_head_fields = 1001", "an integer from 1 to 1000"),
        ("max_body_size = 0", "an integer from 1 to 9223372036854775807"),
        ("max_streams = 1001", "an integer from 1 to 1000"),
    ] {
        let diagnostics = errors(&limited(key));
        assert!(
            diagnostics.len() == 1 && diagnostics[0].ends_with(&format!("allowed: {allowed}")),
            "{diagnostics:?}"
        );
    }
}
