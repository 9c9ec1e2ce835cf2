//! Keys of the PROXY protocol.

use super::super::{describe, parse};
use super::modes::diagnostics;
use super::{GOOD, errors, warnings};
use convey_model::{Mode, ProxyVersion};

/// [`GOOD`] with additional lines of its frontend and of its backend.
fn with(frontend: &str, backend: &str) -> String {
    let text = GOOD.replace("backend = \"web\"", &format!("backend = \"web\"\n{frontend}"));
    format!("{text}[backends.web]\n{backend}\n")
}

const ACCEPT: &str = "accept_proxy = true\ntrusted_proxies = [\"10.0.0.5\", \"2001:db8::/32\"]";

#[test]
fn proxy_header_settings_are_read_and_described() {
    let config = parse("c", &with(ACCEPT, "send_proxy = \"v2\"")).unwrap().config;
    let (frontend, backend) = (&config.frontends[0], &config.backends[0]);
    assert!(frontend.accept_proxy && frontend.trusts_proxy("10.0.0.5".parse().unwrap()));
    assert!(frontend.trusts_proxy("2001:db8::9".parse().unwrap()));
    assert!(!frontend.trusts_proxy("10.0.0.6".parse().unwrap()));
    assert_eq!(backend.send_proxy, Some(ProxyVersion::V2));
    let text = describe(&config);
    assert!(text.contains("-> backend web, PROXY header from 10.0.0.5/32, 2001:db8::/32\n"), "{text}");
    assert!(text.contains("on_down keep; PROXY header v2)\n"), "{text}");
}

#[test]
fn health_check_sends_proxy_header_only_to_the_traffic_port() {
    let header = |check: &str, server: &str| {
        let text = with("", &format!("send_proxy = \"v1\"\nhealth_check = {{ {check} }}"));
        let config = parse("c", &text).unwrap().config;
        config.backends[0].health_check.proxy_header_at(server.parse().unwrap())
    };
    assert_eq!(header("", "10.0.0.2:80"), Some(ProxyVersion::V1));
    assert_eq!(header("port = 80", "10.0.0.2:80"), Some(ProxyVersion::V1));
    assert_eq!(header("port = 81", "10.0.0.2:80"), None);
    assert_eq!(header("port = 81", "10.0.0.2:0"), Some(ProxyVersion::V1), "it has every port");
}

#[test]
fn accept_proxy_needs_trusted_proxies() {
    let message = "config.toml:5:16: frontends.web.accept_proxy: needs trusted_proxies, such as [\"10.0.0.5\"]: a host that \
                   may send PROXY headers can pretend to be any client";
    assert_eq!(errors(&with("accept_proxy = true", "")), [message]);
    let message =
        "config.toml:5:19: frontends.web.trusted_proxies: has no effect without accept_proxy = true";
    assert_eq!(warnings(&with("trusted_proxies = \"10.0.0.5\"", "")), [message]);
    assert_eq!(warnings(&with("accept_proxy = false", "")), [""; 0]);
}

#[test]
fn trusted_proxies_that_access_denies_are_a_warning() {
    let denied = |lines: &str, deny: &str| warnings(&with(&format!("{lines}\naccess.deny = {deny}"), ""));
    let message = |place: &str| {
        format!(
            "config.toml:{place}: frontends.web.trusted_proxies: access denies 10.0.0.0/8, but convey admits trusted \
             proxies from there: access applies to the clients whose addresses the proxies report"
        )
    };
    assert_eq!(denied(ACCEPT, "\"10.0.0.0/8\""), [message("6:20")]);
    let http = "mode = \"http\"\ntrusted_proxies = [\"192.0.2.1\", \"10.0.0.5\"]";
    assert_eq!(denied(http, "\"10.0.0.0/8\""), [message("6:33")]);
    assert_eq!(denied(http, "\"10.0.0.6\""), [""; 0]);
    let others = format!("{ACCEPT}\naccess.allow = \"10.0.0.4/30\"");
    assert_eq!(denied(&others, "\"10.0.0.0/8\""), [""; 0]);
}

#[test]
fn trusted_proxies_with_every_address_are_a_warning() {
    let warned = |list: &str| warnings(&with(&format!("mode = \"http\"\ntrusted_proxies = {list}"), ""));
    let message = |place: &str| {
        format!(
            "config.toml:{place}: frontends.web.trusted_proxies: trusts every address: each client can then pretend to be any \
             other one"
        )
    };
    assert_eq!(warned("\"0.0.0.0/0\""), [message("6:19")]);
    assert_eq!(warned("[\"10.0.0.5\", \"::/0\"]"), [message("6:32")]);
    assert_eq!(warned("\"0.0.0.0/1\""), [""; 0]);
}

#[test]
fn a_wrong_version_is_told_with_the_right_ones() {
    let found = errors(&with("", "send_proxy = \"v3\""));
    assert_eq!(
        found,
        ["config.toml:9:14: backends.web.send_proxy: found \"v3\"; allowed: v1, v2; did you mean `v1`?"]
    );
    let found = errors(&with("protocol = \"udp\"", "send_proxy = \"v1\""));
    let message = "config.toml:9:14: backends.web.send_proxy: found \"v1\", which is for TCP only, but frontend \"web\" has \
                   protocol = \"udp\"; allowed: \"v2\"";
    assert_eq!(found, [message]);
}

#[test]
fn packet_modes_refuse_them_and_say_why() {
    for mode in [Mode::Passthrough, Mode::Dsr] {
        let name = mode.name();
        let why = format!(
            "PROXY headers need mode = \"proxy\" or \"http\"; frontend \"web\" is in {name} mode, in which convey does not \
             change the data in packets"
        );
        let of = |text: &str| diagnostics(text, mode).unwrap_err();
        let accepts = with(ACCEPT, "");
        assert_eq!(of(&accepts), [format!("config.toml:5:16: frontends.web.accept_proxy: {why}")]);
        let sends = with("", "send_proxy = \"v2\"");
        assert_eq!(of(&sends), [format!("config.toml:9:14: backends.web.send_proxy: {why}")]);
    }
    assert!(diagnostics(&with(ACCEPT, "send_proxy = \"v2\""), Mode::Proxy).is_ok());
}

#[test]
fn client_address_is_read_checked_and_described() {
    let http = |lines: &str| with(&format!("mode = \"http\"\n{lines}"), "");
    let proxies = "trusted_proxies = \"10.0.0.5\"";
    let text = |lines: &str| describe(&parse("c", &http(lines)).unwrap().config);
    assert!(text(proxies).contains("web, X-Forwarded-* trusted from 10.0.0.5/32\n"), "{}", text(proxies));
    let cloudflare = text(&format!("{proxies}\nclient_address = \"header:CF-Connecting-IP\""));
    let expected = "trusted from 10.0.0.5/32, client_address header:CF-Connecting-IP\n";
    assert!(cloudflare.contains(expected), "{cloudflare}");

    let place = "config.toml:6:18: frontends.web.client_address: ";
    let unused = http("client_address = \"forwarded\"");
    assert_eq!(warnings(&unused), [format!("{place}has no effect without trusted_proxies")]);
    assert_eq!(warnings(&http("client_address = \"connection\"")), [""; 0]);
    let allowed = "allowed: x-forwarded-for, forwarded, header:NAME with a header of one address, such as \
                   header:X-Real-IP, or connection";
    for wrong in ["X-Real-IP", "header:", "header:X-Forwarded-For", "header:Host"] {
        let found = errors(&http(&format!("client_address = \"{wrong}\"")));
        assert_eq!(found, [format!("{place}found \"{wrong}\"; {allowed}")]);
    }
    let elsewhere = errors(&with("client_address = \"forwarded\"", ""));
    assert!(elsewhere[0].ends_with("needs mode = \"http\"; the frontend is in proxy mode"), "{elsewhere:?}");
}

#[test]
fn access_that_denies_proxies_without_named_clients_is_no_warning() {
    let lines = "mode = \"http\"\ntrusted_proxies = \"10.0.0.5\"\naccess.deny = \"10.0.0.0/8\"\nclient_address = \"connection\"";
    assert_eq!(warnings(&with(lines, "")), [""; 0]);
}
