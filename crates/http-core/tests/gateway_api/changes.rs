//! Rewrites and header modifiers.

use convey_http_core::{
    ClientIdentity, FieldRules, ForwardedFields, OutgoingRequest, OutgoingResponse, PathPattern, PathPrefix,
    PathRewrite, PathView, RequestChanges, RequestHead, ResponseBuilder,
};

/// Rules in words: `set X-A=1`, `add X-A=1`, `remove X-A`.
fn rules(words: &[&str]) -> FieldRules {
    let mut rules = FieldRules::default();
    for word in words {
        let (action, field) = word.split_once(' ').unwrap();
        let (name, value) = field.split_once('=').unwrap_or((field, ""));
        match action {
            "set" => rules.set(name, value),
            "add" => rules.add(name, value),
            _ => rules.remove(name),
        }
        .unwrap();
    }
    rules
}

/// Fields in lower case, in the order of their names. Values of one name are joined.
fn joined<'a>(fields: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut all: Vec<(String, String)> = Vec::new();
    for (name, value) in fields {
        let name = name.to_lowercase();
        match all.iter_mut().find(|(other, _)| *other == name) {
            Some((_, values)) => *values += &format!(",{value}"),
            None => all.push((name, value.to_owned())),
        }
    }
    all.sort();
    all.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

fn head(path: &str, fields: &[&str]) -> RequestHead {
    let fields: String = fields.iter().map(|field| format!("{}\r\n", field.replacen('=', ":", 1))).collect();
    RequestHead::of_text(&format!("GET {path} HTTP/1.1\r\nHost: rewrite.example\r\n{fields}\r\n")).unwrap()
}

fn changes(fields: &FieldRules) -> RequestChanges<'_> {
    RequestChanges {
        client: ClientIdentity {
            ip: [192, 0, 2, 1].into(),
            scheme: "http",
            subject: None,
            is_trusted: false,
        },
        forwarded: ForwardedFields { x_forwarded: false, ..ForwardedFields::default() },
        server: ([10, 0, 0, 1], 80).into(),
        host: None,
        path: None,
        fields,
    }
}

/// Fields of a request after the rules.
fn requested(words: &[&str], fields: &[&str]) -> String {
    let (head, rules) = (head("/", fields), rules(words));
    let mut found = Vec::new();
    OutgoingRequest::new(&head, &changes(&rules)).each_field(|name, value| {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        found.push((text(name), text(value)));
    });
    joined(found.iter().map(|(name, value)| (&**name, &**value)))
}

/// Fields of a response after the rules.
fn responded(words: &[&str], fields: &[&str]) -> String {
    let mut response = ResponseBuilder::new(200);
    for (name, value) in fields.iter().map(|field| field.split_once('=').unwrap()) {
        response.field(name, value);
    }
    let (head, rules) = (response.build(convey_http_core::BodyFraming::Empty), rules(words));
    let outgoing = OutgoingResponse::new(&head, &rules);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let found: Vec<_> = outgoing.fields().map(|(name, value)| (text(name), text(&value))).collect();
    joined(found.iter().map(|(name, value)| (&**name, &**value)))
}

#[test]
fn header_rules_set_add_and_remove_whatever_the_case() {
    let multiple = [
        "set X-Set-1=set-1",
        "set X-Set-2=set-2",
        "add X-Add-1=add-1",
        "add X-Add-2=add-2",
        "add X-Add-3=add-3",
        "remove X-Remove-1",
        "remove X-Remove-2",
    ];
    let cases: [(&[&str], &[&str], &str); 8] = [
        (&["set X-Set=new"], &["Other=val"], "other=val x-set=new"),
        (&["set X-Set=new"], &["Other=val", "X-Set=old"], "other=val x-set=new"),
        (&["add X-Add=new"], &["Other=val"], "other=val x-add=new"),
        (&["add X-Add=new"], &["Other=val", "X-Add=old"], "other=val x-add=old,new"),
        (&["remove X-Remove"], &["X-Remove=val"], ""),
        (
            &multiple,
            &["X-Set-2=old", "X-Add-2=old", "X-Remove-2=old", "Another=val", "X-Remove-1=old"],
            "another=val x-add-1=add-1 x-add-2=old,add-2 x-add-3=add-3 x-set-1=set-1 x-set-2=set-2",
        ),
        (
            &["set X-Set=new", "add X-Add=new", "remove X-Remove"],
            &["x-set=old", "x-add=old", "x-remove=old", "Another=val"],
            "another=val x-add=old,new x-set=new",
        ),
        (
            &["add x-lower=1", "add x-Mixed-CASE=2", "add X-UPPER=3"],
            &[],
            "x-lower=1 x-mixed-case=2 x-upper=3",
        ),
    ];
    for (rules, fields, expected) in cases {
        assert_eq!(requested(rules, fields), expected, "{rules:?}");
        assert_eq!(responded(rules, fields), expected, "{rules:?}");
    }
}

#[test]
fn rewrite_replaces_host_and_path_beside_header_rules() {
    let prefix = |from: &str| PathPattern::Prefix(PathPrefix::parse(from).unwrap());
    // The whole path is replaced by an expression for it.
    let whole = |from: &str| PathPattern::regex(&format!("^{from}(/.*)?$")).unwrap();
    let cases = [
        (prefix("/prefix/one"), "/one", "/prefix/one/two", "/one/two"),
        (prefix("/strip-prefix"), "/", "/strip-prefix/three", "/three"),
        (prefix("/strip-prefix"), "/", "/strip-prefix", "/"),
        (whole("/full/one"), "/one", "/full/one/two", "/one"),
        (whole("/full/rewrite"), "/test", "/full/rewrite/test", "/test"),
        (prefix("/prefix/rewrite"), "/prefix", "/prefix/rewrite/one", "/prefix/one"),
    ];
    let rules = rules(&["set X-Set=new", "add X-Add=1", "add X-Append=2", "remove X-Remove"]);
    for (from, to, path, expected) in cases {
        let rewrite = PathRewrite::new(&from, PathView::default(), to).unwrap();
        let head = head(path, &["X-Remove=val", "X-Append=1", "X-Set=old"]);
        let changes =
            RequestChanges { host: Some(b"one.example.org"), path: Some(&rewrite), ..changes(&rules) };
        let mut out = Vec::new();
        OutgoingRequest::new(&head, &changes).write(&mut out);
        let fields = "X-Append:1\r\nX-Set: new\r\nX-Add: 1\r\nX-Append: 2\r\n";
        let wanted = format!("GET {expected} HTTP/1.1\r\nHost: one.example.org\r\n{fields}\r\n");
        let written = String::from_utf8(out).unwrap().replace("X-Append: 1", "X-Append:1");
        assert_eq!(written, wanted, "{path}");
    }
}
