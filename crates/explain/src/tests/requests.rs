//! Tests of requests whose route depends on the scheme.

use super::*;

use convey_http_core::{CorsRules, NamedCondition, OriginPattern, Redirect, ValueCondition};
use convey_model::{
    AffinityConfig, FrontendConfig, FrontendTls, HttpConfig, HttpLimits, RouteAction, RouteConfig,
    TlsVersion, TotalRate,
};

/// Frontend in mode `http` that redirects all requests to https, by a route or by default.
fn redirecting(by_default: bool) -> FrontendConfig {
    let mut config = convey_model::fixture::frontend("web", &["192.0.2.1:80"], "app");
    let route = RouteConfig::new(None, "/", RouteAction::Redirect(Redirect::to_https()));
    let http = match by_default {
        true => HttpConfig { redirect: Some(Redirect::to_https()), ..HttpConfig::default() },
        false => HttpConfig { routes: vec![route], ..HttpConfig::default() },
    };
    config.backend = (!by_default).then(|| "app".into());
    (config.mode, config.http) = (Mode::Http, Some(Box::new(http)));
    config
}

fn with_tls(config: FrontendConfig) -> FrontendConfig {
    let tls = FrontendTls {
        acme: true,
        certificates: Vec::new(),
        refuse_unknown_names: false,
        min_version: TlsVersion::default(),
        cipher_suites: Vec::new(),
        alpn: Vec::new(),
        client_ca: None,
        session_tickets: false,
        handshake_timeout: FrontendTls::HANDSHAKE_TIMEOUT,
        max_handshakes_per_source: 1,
        http3: false,
        early_data: false,
    };
    FrontendConfig { tls: Some(Arc::new(tls)), ..config }
}

fn behind_proxy(config: FrontendConfig) -> FrontendConfig {
    FrontendConfig { trusted_proxies: ["10.0.0.0/8".parse().unwrap()].into_iter().collect(), ..config }
}

/// Returns the reason, and the text of the step `route`, for a request with this URL.
fn routed(config: FrontendConfig, url: Option<&str>) -> (Option<String>, String) {
    let pool = fixture::pool("app", vec![(fixture::server("a", "10.0.0.11:80"), fixture::up())]);
    let snapshot = fixture::snapshot(vec![fixture::frontend_of(config, &pool)], vec![pool]);
    let request: Option<AskedRequest> = url.map(|url| url.parse().unwrap());
    let sources = ExplainSources { request: request.as_ref(), ..of(&snapshot) };
    let explanation = explain_client(sources, "198.51.100.7:4242".parse().unwrap());
    let step = explanation.steps.iter().find(|step| step.subject == "route").unwrap();
    (explanation.reason.map(Into::into), step.message.to_string())
}

#[test]
fn redirect_to_https_is_skipped_for_requests_by_https() {
    let to_backend = (None, "a request for a/ over https takes route default to backend app".to_owned());
    let redirect =
        (Some("redirect".into()), "a request for a/ takes route */, and is redirected to https".into());
    let route = || redirecting(false);
    assert_eq!(routed(behind_proxy(route()), Some("https://a/")), to_backend);
    assert_eq!(routed(behind_proxy(route()), Some("http://a/")), redirect);
    // With TLS, all requests arrive by https. Without TLS and without trusted proxies, none does.
    assert_eq!(routed(with_tls(route()), Some("http://a/")), to_backend);
    assert_eq!(routed(route(), Some("https://a/")), redirect);
}

#[test]
fn steps_of_a_request_name_their_phases() {
    let pool = fixture::pool("app", vec![(fixture::server("a", "10.0.0.11:80"), fixture::up())]);
    let config = with_tls(redirecting(false));
    let snapshot = fixture::snapshot(vec![fixture::frontend_of(config, &pool)], vec![pool]);
    let request: AskedRequest = "https://a/".parse().unwrap();
    let client: SocketAddr = "198.51.100.7:4242".parse().unwrap();
    let explanation = explain_client(ExplainSources { request: Some(&request), ..of(&snapshot) }, client);
    let phases: Vec<(&str, Option<&str>)> =
        explanation.steps.iter().map(|step| (&*step.subject, step.phase.as_deref())).collect();
    for step in [
        ("access", None),
        ("route", Some("route")),
        ("algorithm", Some("pick")),
        ("server", Some("pick")),
        ("way", Some("connect")),
    ] {
        assert!(phases.contains(&step), "{step:?}: {phases:?}");
    }
    assert!(as_text(&explanation).contains(" to backend app (phase route)\n"));
    let without_request = explain_client(of(&snapshot), client);
    assert!(without_request.steps.iter().all(|step| step.phase.is_none()));
}

#[test]
fn default_redirect_to_https_is_no_route_at_frontend_with_tls() {
    let with_tls = || with_tls(redirecting(true));
    let (reason, message) = routed(with_tls(), Some("https://a/"));
    assert_eq!(reason.as_deref(), Some("no_route"));
    assert_eq!(message, "a request for a/ over https has no route, and gets a 404");
    let (reason, message) = routed(with_tls(), None);
    assert_eq!(reason.as_deref(), Some("no_route"));
    assert!(message.ends_with("a request without a route gets a 404"), "{message}");
    let (reason, message) = routed(redirecting(true), None);
    assert_eq!(reason.as_deref(), Some("redirect"));
    assert!(message.ends_with("a request without a route gets a redirect to https"), "{message}");
}

#[test]
fn total_rates_are_explained_and_the_used_one_ends_the_request() {
    let rate = |burst| TotalRate { per_second: NonZeroU32::MIN, burst: NonZeroU32::new(burst) };
    let mut backend = fixture::backend("app", vec![fixture::server("a", "10.0.0.11:80")]);
    backend.total = Some(rate(1));
    let pool = fixture::pool_of(backend);
    let mut config = convey_model::fixture::frontend("web", &["192.0.2.1:80"], "app");
    let http = HttpConfig { total: Some(rate(5)), ..HttpConfig::default() };
    (config.mode, config.http) = (Mode::Http, Some(Box::new(http)));
    let snapshot = fixture::snapshot(vec![fixture::frontend_of(config, &pool)], vec![pool.clone()]);
    let request: AskedRequest = "http://a/".parse().unwrap();
    let explain = || {
        let sources = ExplainSources { request: Some(&request), ..of(&snapshot) };
        let explanation = explain_client(sources, "198.51.100.7:4242".parse().unwrap());
        let steps = explanation.steps.iter().filter(|step| step.subject == "requests");
        let steps: Vec<String> = steps.map(|step| step.message.to_string()).collect();
        (explanation.reason.map(String::from), steps)
    };
    let message = |left, of: &str| {
        format!(
            "all clients together: {left} requests are allowed immediately, further ones at 1 per second (limit of {of})"
        )
    };
    assert_eq!(explain(), (None, vec![message(5, "frontend web"), message(1, "backend app")]));
    assert!(pool.live.requests.take(rate(1), 0, Timestamp(1_000_000_000)));
    let used = vec![message(5, "frontend web"), message(0, "backend app")];
    assert_eq!(explain(), (Some("backend_rate_limit".to_owned()), used));
}

#[test]
fn affinity_cookie_of_a_request_decides_its_server() {
    let servers = ["10.0.0.11:80", "10.0.0.12:80"].map(|addr| fixture::server(addr, addr)).to_vec();
    let affinity = Some(Arc::new(AffinityConfig::new("server")));
    let pool = fixture::pool_of(BackendConfig { affinity, ..fixture::backend("app", servers) });
    let config = with_tls(redirecting(false));
    let snapshot = fixture::snapshot(vec![fixture::frontend_of(config, &pool)], vec![pool.clone()]);
    let request: AskedRequest = "https://a/".parse().unwrap();
    let client: SocketAddr = "198.51.100.7:4242".parse().unwrap();
    let explained = |headers: Vec<String>| {
        let request = request.clone().with(None, headers).unwrap();
        let sources = ExplainSources { request: Some(&request), ..of(&snapshot) };
        as_text(&explain_client(sources, client))
    };
    for (index, server) in pool.servers.iter().enumerate() {
        let cookie = pool.affinity_cookie(index, true).unwrap();
        let text = explained(vec![format!("Cookie: {}", cookie.split(';').next().unwrap())]);
        assert!(text.contains(&format!("app/{}: the cookie server names it", server.config.name)), "{text}");
    }
    let text = explained(vec!["Cookie: server=forged".to_owned()]);
    assert!(text.contains("no cookie server names a server that serves"), "{text}");
}

#[test]
fn full_server_of_an_affinity_cookie_is_passed_over() {
    let mut servers = ["10.0.0.11:80", "10.0.0.12:80"].map(|addr| fixture::server(addr, addr)).to_vec();
    servers[0].settings.max_connections = Some(1);
    let affinity = Some(Arc::new(AffinityConfig::new("server")));
    let pool = fixture::pool_of(BackendConfig { affinity, ..fixture::backend("app", servers) });
    let snapshot = fixture::snapshot(
        vec![fixture::frontend_of(with_tls(redirecting(false)), &pool)],
        vec![pool.clone()],
    );
    let cookie = pool.affinity_cookie(0, false).unwrap();
    let headers = vec![format!("Cookie: {}", cookie.split(';').next().unwrap())];
    let request = "http://a/".parse::<AskedRequest>().unwrap().with(None, headers).unwrap();
    let server = || {
        let sources = ExplainSources { request: Some(&request), ..of(&snapshot) };
        let explanation = explain_client(sources, "198.51.100.7:4242".parse().unwrap());
        (explanation.server.clone(), as_text(&explanation))
    };
    assert_eq!(server().0.as_deref(), Some("10.0.0.11:80"));
    assert!(pool.servers[0].live.slots.try_take(Some(1)));
    let (other, text) = server();
    assert_eq!(other.as_deref(), Some("10.0.0.12:80"), "{text}");
    assert!(text.contains("names app/10.0.0.11:80, which is at its max_connections"), "{text}");
}

#[test]
fn client_that_a_trusted_proxy_names_is_the_one_explained() {
    let mut config = behind_proxy(redirecting(false));
    let http = config.http.as_mut().unwrap();
    http.routes[0].sources = vec!["203.0.113.0/24".parse().unwrap()];
    http.routes[0].action = RouteAction::Backend("app".into());
    config.access = Access::new([], ["203.0.113.66/32".parse().unwrap()]);
    let servers = ["10.0.0.11:80", "10.0.0.12:80"].map(|addr| fixture::server(addr, addr)).to_vec();
    let pool = fixture::pool_of(BackendConfig {
        algorithm: Algorithm::Maglev,
        hash: HashOn::Source,
        ..fixture::backend("app", servers)
    });
    let snapshot = fixture::snapshot(vec![fixture::frontend_of(config, &pool)], vec![pool.clone()]);
    let explained = |peer: &str, header: &str| {
        let headers = if header.is_empty() { Vec::new() } else { vec![header.to_owned()] };
        let request = "http://a/".parse::<AskedRequest>().unwrap().with(None, headers).unwrap();
        let sources = ExplainSources { request: Some(&request), ..of(&snapshot) };
        let explanation = explain_client(sources, peer.parse().unwrap());
        let step = |subject: &str| {
            let found = explanation.steps.iter().find(|step| step.subject == subject);
            found.map(|step| step.message.to_string()).unwrap_or_default()
        };
        (explanation.client.clone(), step("client"), step("route"), step("access"), explanation.server)
    };
    let server = |client: &str| match pool.pick(client.parse().unwrap(), "192.0.2.1:80".parse().unwrap(), &[])
    {
        Pick::Server(index) => Some(pool.servers[index].config.name.clone()),
        Pick::Busy | Pick::Nobody => None,
    };
    let (proxy, stranger) = ("10.0.0.5:4242", "198.51.100.7:4242");
    for client in (1..20).map(|n| format!("203.0.113.{n}")) {
        let found = explained(proxy, &format!("X-Forwarded-For: 203.0.113.66, {client}, 10.0.0.9"));
        assert_eq!(found.0, proxy);
        assert_eq!(
            found.1,
            format!("{client} is the client: named in X-Forwarded-For by trusted proxy 10.0.0.5")
        );
        assert!(found.2.contains("takes route */ to backend app"), "{found:?}");
        assert!(found.3.starts_with(&format!("{client} is in no network of")), "{found:?}");
        assert_eq!(found.4, server(&format!("{client}:0")));
    }
    let denied = explained(proxy, "X-Forwarded-For: 203.0.113.66");
    assert!(
        denied.3.starts_with("203.0.113.66 is in 203.0.113.66/32 of frontends.web.access.deny"),
        "{denied:?}"
    );
    assert_eq!(denied.4, None);
    let missing = "10.0.0.5 is a trusted proxy, and the client: the request has no X-Forwarded-For";
    assert_eq!(explained(proxy, "").1, missing);
    let unknown = "10.0.0.5 is a trusted proxy, and the client: X-Forwarded-For does not end with an address";
    assert_eq!(explained(proxy, "X-Forwarded-For: unknown").1, unknown);
    let (_, client, route, ..) = explained(stranger, "X-Forwarded-For: 203.0.113.1");
    assert_eq!((&*client, route.contains("route default")), ("", true), "{route}");
}

#[test]
fn header_about_the_client_decides_only_from_a_trusted_proxy() {
    let mut config = behind_proxy(redirecting(false));
    let route = &mut config.http.as_mut().unwrap().routes[0];
    let value = ValueCondition::Is("https".into());
    route.conditions.headers = vec![NamedCondition { name: "X-Forwarded-Proto".into(), value }];
    route.action = RouteAction::Backend("app".into());
    let pool = fixture::pool("app", vec![(fixture::server("a", "10.0.0.11:80"), fixture::up())]);
    let snapshot = fixture::snapshot(vec![fixture::frontend_of(config, &pool)], vec![pool]);
    let headers = vec!["X-Forwarded-Proto: https".to_owned()];
    let request = "http://a/".parse::<AskedRequest>().unwrap().with(None, headers).unwrap();
    let routed = |client: &str| {
        let sources = ExplainSources { request: Some(&request), ..of(&snapshot) };
        as_text(&explain_client(sources, client.parse().unwrap()))
    };
    let by_proxy = routed("10.0.0.5:4242");
    assert!(by_proxy.contains("a request for a/ over https takes route */ to backend app"), "{by_proxy}");
    let by_stranger = routed("198.51.100.7:4242");
    assert!(by_stranger.contains("a request for a/ takes route default to backend app"), "{by_stranger}");
}

#[test]
fn preflight_without_a_route_is_answered_by_the_rules_of_the_frontend() {
    let cors = CorsRules {
        origins: vec![OriginPattern::Any],
        methods: vec!["PUT".into()],
        headers: Vec::new(),
        expose: Vec::new(),
        credentials: false,
        max_age: 600,
    };
    let mut config = with_tls(redirecting(true));
    config.http.as_mut().unwrap().cors = Some(cors);
    let pool = fixture::pool("app", vec![(fixture::server("a", "10.0.0.11:80"), fixture::up())]);
    let snapshot = fixture::snapshot(vec![fixture::frontend_of(config, &pool)], vec![pool]);
    let reason = |method: &str| {
        let headers = ["Origin: https://a.example", "Access-Control-Request-Method: PUT"];
        let headers = headers.map(str::to_owned).to_vec();
        let request = "https://a/".parse::<AskedRequest>().unwrap().with(Some(method), headers).unwrap();
        let sources = ExplainSources { request: Some(&request), ..of(&snapshot) };
        explain_client(sources, "198.51.100.7:4242".parse().unwrap()).reason.map(String::from)
    };
    assert_eq!(reason("OPTIONS").as_deref(), Some("preflight"));
    assert_eq!(reason("GET").as_deref(), Some("no_route"));
}

#[test]
fn preflight_and_too_long_body_end_at_convey() {
    let cors = CorsRules {
        origins: vec![OriginPattern::Any],
        methods: vec!["PUT".into()],
        headers: Vec::new(),
        expose: Vec::new(),
        credentials: false,
        max_age: 600,
    };
    let http = HttpConfig {
        cors: Some(cors),
        limits: HttpLimits { body: Some(100), ..HttpLimits::default() },
        ..HttpConfig::default()
    };
    let mut config = convey_model::fixture::frontend("web", &["192.0.2.1:80"], "app");
    (config.mode, config.http) = (Mode::Http, Some(Box::new(http)));
    let pool = fixture::pool("app", vec![(fixture::server("a", "10.0.0.11:80"), fixture::up())]);
    let snapshot = fixture::snapshot(vec![fixture::frontend_of(config, &pool)], vec![pool]);
    let reason = |method: &str, headers: &[&str]| {
        let headers = headers.iter().map(|header| (*header).to_owned()).collect();
        let request = "http://a/".parse::<AskedRequest>().unwrap().with(Some(method), headers).unwrap();
        let sources = ExplainSources { request: Some(&request), ..of(&snapshot) };
        explain_client(sources, "198.51.100.7:4242".parse().unwrap()).reason.map(String::from)
    };
    let asked = "Access-Control-Request-Method: PUT";
    let cases: [(&str, &[&str], Option<&str>); 5] = [
        ("OPTIONS", &["Origin: https://a.example", asked], Some("preflight")),
        ("OPTIONS", &["Origin: https://a.example"], None),
        ("GET", &["Origin: https://a.example", asked], None),
        ("POST", &["Content-Length: 100"], None),
        ("POST", &["Content-Length: 101"], Some("body_too_long")),
    ];
    for (method, headers, expected) in cases {
        assert_eq!(reason(method, headers).as_deref(), expected, "{method} {headers:?}");
    }
}
