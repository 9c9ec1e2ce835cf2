use super::*;
use crate::{PathPattern, PathPrefix, PathView};

const ALL: ReversedFields = ReversedFields { locations: true, cookies: true };

/// Translation for a route of `path` with this rewrite. `= /a` is one path, `~ ^/a` an expression.
fn rules(path: &str, to: &str, changes_host: bool) -> ReverseRewrite {
    let pattern = match path.split_at(path.len().min(2)) {
        ("= ", exact) => PathPattern::Exact(crate::ExactPath::parse(exact).unwrap()),
        ("~ ", regex) => PathPattern::regex(regex).unwrap(),
        _ => PathPattern::Prefix(PathPrefix::parse(path).unwrap()),
    };
    let rewrite = PathRewrite::new(&pattern, PathView::Normalized, to).unwrap();
    ReverseRewrite::new(ALL, Some(&rewrite), changes_host).unwrap()
}

/// A client of `http://pub.example:8080`, whose server is `http://10.0.0.7:81`.
fn reversal<'a>(rules: &'a ReverseRewrite, server_host: &'a str) -> ResponseReversal<'a> {
    ResponseReversal {
        rules,
        client_host: b"pub.example:8080",
        client_scheme: UrlScheme::Http,
        server_host: server_host.as_bytes(),
        server: "10.0.0.7:81".parse().unwrap(),
        server_scheme: UrlScheme::Http,
    }
}

fn applied(reversal: &ResponseReversal<'_>, name: &str, value: &str) -> String {
    String::from_utf8(reversed(Some(reversal), name.as_bytes(), value.as_bytes()).into_owned()).unwrap()
}

#[test]
fn location_gets_the_path_that_leads_to_the_same_place() {
    let cases = [
        ("/v1", "/", "/items/3?a=/b#c", "/v1/items/3?a=/b#c"),
        ("/v1", "/", "/", "/v1/"),
        ("/v1", "/", "/?a", "/v1/?a"),
        ("/v1", "/xyz", "/xyz", "/v1"),
        ("/v1", "/xyz", "/xyz?a=/xyz", "/v1?a=/xyz"),
        ("/v1", "/xyz/", "/xyz/a", "/v1/a"),
        // Never beyond the segment.
        ("/v1", "/api", "/apix", "/apix"),
        ("/v1", "/api", "/apix/a", "/apix/a"),
        ("/v1", "/api", "/b", "/b"),
        // The application knows its outer prefix.
        ("/v1", "/", "/v1/login", "/v1/login"),
        ("/v1", "/", "/v10", "/v1/v10"),
        ("/api", "/api/v2", "/api/v2/a", "/api/a"),
        ("/api", "/api/v2", "/api/a", "/api/a"),
        ("/", "/app", "/app/a", "/a"),
        ("/", "/app", "/app", "/"),
        ("/", "/app", "/app?a", "/?a"),
        ("/", "/app", "/other", "/other"),
        // Relative URLs need no translation.
        ("/v1", "/", "items/3", "items/3"),
        ("/v1", "/", "../a", "../a"),
        ("/v1", "/", "?a", "?a"),
        ("/v1", "/", "", ""),
        // One path, and regular expressions.
        ("= /a", "/b", "/b?c", "/a?c"),
        ("= /a", "/b", "/b/c", "/b/c"),
        (r"~ ^/app\.d/(.*)$", "/in/$1", "/in/a?b", "/app.d/a?b"),
        ("~ ^/app/(.*)", "/$1", "/login", "/app/login"),
        ("~ ^/app/(.+)$", "/$1", "/app/login", "/app/login"),
        ("~ ^/app(.*)$", "/in$1", "/in/a", "/in/a"),
        (r"~ ^/v(\d+)/(.*)$", "/api/$2/$1", "/api/a/3", "/api/a/3"),
        // Browsers would read a path that begins with two slashes as a host.
        ("/", "/app", "/app//evil.example", "/app//evil.example"),
        ("/", "/app", r"/app/\evil.example", r"/app/\evil.example"),
        ("/", "/app", "/app/\t/evil.example", "/app/\t/evil.example"),
        ("/", "/app", "/app/\t\t\\evil.example", "/app/\t\t\\evil.example"),
        ("/v1", "/", "//evil.example/a", "//evil.example/a"),
        ("/v1", "/", "/\t/evil.example/a", "/\t/evil.example/a"),
    ];
    for (path, to, location, expected) in cases {
        let rules = rules(path, to, false);
        let reversal = reversal(&rules, "pub.example:8080");
        assert_eq!(applied(&reversal, "location", location), expected, "{path} -> {to}: {location}");
        assert_eq!(applied(&reversal, "Content-Location", location), expected, "{path} -> {to}: {location}");
        assert_eq!(applied(&reversal, "X-Location", location), location);
    }
}

#[test]
fn location_with_the_client_s_host_keeps_its_scheme_and_host() {
    let rules = rules("/v1", "/", false);
    let reversal = reversal(&rules, "pub.example:8080");
    let cases = [
        ("http://pub.example:8080/a?b", "http://pub.example:8080/v1/a?b"),
        ("HTTP://PUB.example:8080", "HTTP://PUB.example:8080/v1/"),
        ("//pub.example:8080/a", "//pub.example:8080/v1/a"),
        ("https://pub.example/a", "https://pub.example/a"),
        ("http://pub.example/a", "http://pub.example/a"),
        ("http://other.example/a", "http://other.example/a"),
        ("http://pub.example:8080.evil.example/a", "http://pub.example:8080.evil.example/a"),
        ("http://u@pub.example:8080/a", "http://u@pub.example:8080/a"),
        // The server's own address, as nginx treats the URL of proxy_pass.
        ("http://10.0.0.7:81/a", "/v1/a"),
        ("http://10.0.0.7/a", "http://10.0.0.7/a"),
        ("ftp://pub.example:8080/a", "ftp://pub.example:8080/a"),
        ("mailto:a@b", "mailto:a@b"),
    ];
    for (location, expected) in cases {
        assert_eq!(applied(&reversal, "Location", location), expected, "{location}");
    }
}

#[test]
fn location_with_the_rewritten_host_leads_to_the_client_s() {
    let host_alone = ReverseRewrite::new(ALL, None, true).unwrap();
    let both = rules("/v1", "/app", true);
    let cases = [
        (&host_alone, "http://api.internal/a?b", "/a?b"),
        (&host_alone, "http://API.internal:80", "/"),
        (&host_alone, "http://api.internal#c", "/#c"),
        (&host_alone, "//api.internal/a", "/a"),
        (&host_alone, "http://api.internal:8080/a", "http://api.internal:8080/a"),
        (&host_alone, "http://pub.example:8080/a", "http://pub.example:8080/a"),
        (&host_alone, "/a", "/a"),
        // A path alone would be read as a host.
        (&host_alone, "http://api.internal//x", "http://pub.example:8080//x"),
        (&host_alone, "//api.internal//x", "http://pub.example:8080//x"),
        (&host_alone, "http://api.internal/\t/evil.example", "http://pub.example:8080/\t/evil.example"),
        (&both, "http://api.internal/app//x", "/v1//x"),
        // A redirect to HTTPS stays one.
        (&host_alone, "https://api.internal/a", "https://pub.example/a"),
        (&host_alone, "https://api.internal:444/a", "https://api.internal:444/a"),
        (&both, "http://api.internal/app/a", "/v1/a"),
        (&both, "http://api.internal/v1/a", "/v1/a"),
        (&both, "http://api.internal/apple", "http://api.internal/apple"),
        (&both, "http://10.0.0.7:81/app", "/v1"),
        (&both, "/app/a", "/v1/a"),
    ];
    for (rules, location, expected) in cases {
        assert_eq!(applied(&reversal(rules, "api.internal"), "Location", location), expected, "{location}");
    }
    let v6 = ResponseReversal {
        server: "[2001:db8::7]:80".parse().unwrap(),
        ..reversal(&host_alone, "[2001:db8::1]:8080")
    };
    assert_eq!(applied(&v6, "Location", "http://[2001:db8::1]:8080/a"), "/a");
    assert_eq!(applied(&v6, "Location", "http://[2001:DB8:0::7]/a"), "/a");
}

#[test]
fn refresh_has_the_client_s_url() {
    let rules = rules("/v1", "/", false);
    let reversal = reversal(&rules, "pub.example:8080");
    let cases = [
        ("5; url=/a", "5; url=/v1/a"),
        ("0;URL='/a?b'", "0;URL='/v1/a?b'"),
        ("0; url=\"/a\" ", "0; url=\"/v1/a\" "),
        ("5", "5"),
        ("5; url=", "5; url="),
        ("5; url=http://other.example/", "5; url=http://other.example/"),
        ("0;URL=/a", "0;URL=/v1/a"),
        ("0, url=/a", "0, url=/v1/a"),
        ("0 url=/a", "0 url=/v1/a"),
        (" 0.5 ; Url = /a ", " 0.5 ; Url = /v1/a "),
        ("0;/a", "0;/v1/a"),
        ("0; /a?url=/b", "0; /v1/a?url=/b"),
        ("0; url='/a", "0; url='/v1/a"),
        ("url=/a", "url=/a"),
        ("0url=/a", "0url=/a"),
    ];
    for (refresh, expected) in cases {
        assert_eq!(applied(&reversal, "Refresh", refresh), expected, "{refresh}");
    }
}

#[test]
fn cookies_have_the_client_s_path_and_domain() {
    let cases = [
        ("a=/; Path=/; HttpOnly", "a=/; Path=/v1; HttpOnly"),
        ("a=b;path=/x;Secure", "a=b; path=/v1/x;Secure"),
        ("a=b; Path=/v1; SameSite=Lax", "a=b; Path=/v1; SameSite=Lax"),
        ("a=b; Path=; Path", "a=b; Path=; Path"),
        // Browsers take a path in quotes for none (RFC 6265, section 5.2.4).
        ("a=b; Path=\"/x\"", "a=b; Path=\"/x\""),
        ("path=/x", "path=/x"),
        ("a=b; Domain=api.internal; Path=/x", "a=b; Domain=pub.example; Path=/v1/x"),
        ("a=b; domain=.API.internal; Secure", "a=b; domain=pub.example; Secure"),
        ("a=b; Domain=internal", "a=b; Domain=pub.example"),
        ("a=b; Domain=i.internal", "a=b; Domain=i.internal"),
        ("a=b; Domain=pub.example", "a=b; Domain=pub.example"),
        ("a=b; Domain=other.example", "a=b; Domain=other.example"),
        ("a=b; Domain=", "a=b; Domain="),
        ("__Host-a=b; Path=/; Secure", "__Host-a=b; Path=/; Secure"),
        (" __host-a=b; Secure; path=/", " __host-a=b; Secure; path=/"),
        ("__Secure-a=b; Path=/; Secure", "__Secure-a=b; Path=/v1; Secure"),
    ];
    let rules = rules("/v1", "/", true);
    let to_name = reversal(&rules, "api.internal:8080");
    for (cookie, expected) in cases {
        assert_eq!(applied(&to_name, "set-cookie", cookie), expected);
    }
    let to_address = ResponseReversal { client_host: b"192.0.2.1:80", ..to_name };
    assert_eq!(applied(&to_address, "set-cookie", "a=b; Domain=api.internal; Secure"), "a=b; Secure");
}

#[test]
fn route_without_rewrite_or_fields_translates_nothing() {
    let prefix = PathPattern::Prefix(PathPrefix::parse("/v1").unwrap());
    let path = PathRewrite::new(&prefix, PathView::Normalized, "/").unwrap();
    let of = |fields, path, changes_host| ReverseRewrite::new(fields, path, changes_host).is_some();
    let none = ReversedFields { locations: false, cookies: false };
    assert!(!of(ALL, None, false) && !of(none, Some(&path), true));
    assert!(of(ReversedFields::default(), None, true) && of(ReversedFields::default(), Some(&path), false));
    let usual = ReverseRewrite::new(ReversedFields::default(), Some(&path), false).unwrap();
    let cookie = "a=b; Path=/x";
    assert_eq!(applied(&reversal(&usual, "pub.example:8080"), "Set-Cookie", cookie), cookie);
}
