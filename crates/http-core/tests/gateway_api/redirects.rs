//! Redirects: the parts that a rule sets, and those of the request.

use convey_http_core::{
    FieldTrust, PathPattern, PathPrefix, PathRewrite, PathView, Redirect, RedirectPath, RequestFacts,
    RequestHead, Template, UrlScheme,
};

fn host(name: &str) -> Option<Template> {
    Some(Template::parse(name).unwrap())
}

fn prefix(from: &str, to: &str) -> RedirectPath {
    let from = PathPattern::Prefix(PathPrefix::parse(from).unwrap());
    RedirectPath::Rewrite(PathRewrite::new(&from, PathView::default(), to).unwrap())
}

fn whole(path: &str) -> RedirectPath {
    RedirectPath::Whole(Template::parse(path).unwrap())
}

/// URL to which a redirect leads a request for `a.example` with this path.
fn location(redirect: &Redirect, scheme: UrlScheme, path: &str) -> String {
    location_at("a.example", redirect, scheme, path)
}

fn location_at(host: &str, redirect: &Redirect, scheme: UrlScheme, path: &str) -> String {
    let head = RequestHead::of_text(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")).unwrap();
    let facts = RequestFacts::new(&head, FieldTrust::default(), scheme, ([192, 0, 2, 1], 9).into());
    redirect.location(&head, scheme, &facts).unwrap()
}

#[test]
fn redirect_replaces_host_and_path_and_has_status_302() {
    let org = || Redirect { host: host("example.org"), ..Redirect::default() };
    let to = |path| Redirect { path, ..Redirect::default() };
    let cases = [
        (org(), "/hostname-redirect", "http://example.org/hostname-redirect"),
        (
            to(prefix("/original-prefix", "/replacement-prefix")),
            "/original-prefix/lemon",
            "http://a.example/replacement-prefix/lemon",
        ),
        (
            to(whole("/full-path-replacement")),
            "/full/path/original",
            "http://a.example/full-path-replacement",
        ),
        (
            Redirect { path: prefix("/path-and-host", "/replacement-prefix"), ..org() },
            "/path-and-host",
            "http://example.org/replacement-prefix",
        ),
        (
            Redirect { path: whole("/replacement-full"), ..org() },
            "/full-path-and-host",
            "http://example.org/replacement-full",
        ),
    ];
    for (redirect, path, expected) in cases {
        assert_eq!(location(&redirect, UrlScheme::Http, path), expected);
        assert_eq!(redirect.status, 302);
    }
}

#[test]
fn redirect_leaves_out_the_usual_port_of_its_scheme() {
    use UrlScheme::{Http, Https};
    let cases = [
        (Http, None, None, "http://example.org/x"),
        (Http, None, Some(80), "http://example.org/x"),
        (Http, None, Some(8080), "http://example.org:8080/x"),
        (Http, Some(Https), None, "https://example.org/x"),
        (Http, Some(Https), Some(443), "https://example.org/x"),
        (Http, Some(Https), Some(8443), "https://example.org:8443/x"),
        (Https, None, None, "https://example.org/x"),
        (Https, None, Some(443), "https://example.org/x"),
        (Https, None, Some(8443), "https://example.org:8443/x"),
        (Https, Some(Http), None, "http://example.org/x"),
        (Https, Some(Http), Some(80), "http://example.org/x"),
        (Https, Some(Http), Some(8080), "http://example.org:8080/x"),
    ];
    for (from, scheme, port, expected) in cases {
        let redirect = Redirect { scheme, host: host("example.org"), port, ..Redirect::default() };
        assert_eq!(location(&redirect, from, "/x"), expected, "{from:?} {scheme:?} {port:?}");
    }
    // A listener at another port, which the host of the request has, too.
    let cases = [
        (Http, "a.example:8080", None, None, "http://example.org:8080/x"),
        (Http, "a.example:8080", None, Some(80), "http://example.org/x"),
        (Http, "a.example:8080", None, Some(8080), "http://example.org:8080/x"),
        (Http, "a.example:8080", Some(Https), None, "https://example.org/x"),
        (Http, "a.example:8080", Some(Https), Some(443), "https://example.org/x"),
        (Http, "a.example:8080", Some(Https), Some(8443), "https://example.org:8443/x"),
    ];
    for (from, at, scheme, port, expected) in cases {
        let redirect = Redirect { scheme, host: host("example.org"), port, ..Redirect::default() };
        assert_eq!(location_at(at, &redirect, from, "/x"), expected, "{at} {scheme:?} {port:?}");
    }
    let port = Redirect { port: Some(8083), ..Redirect::default() };
    assert_eq!(location(&port, Http, "/port"), "http://a.example:8083/port");
    let scheme = Redirect { scheme: Some(Https), ..Redirect::default() };
    assert_eq!(location(&scheme, Http, "/scheme"), "https://a.example/scheme");
}
