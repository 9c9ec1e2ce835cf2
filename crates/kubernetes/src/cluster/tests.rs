//! Access that follows from users and clusters in kubeconfigs, and the requests that use it.

use super::*;

/// Access to an API server by a kubeconfig with this cluster and user.
async fn access_of(cluster: &str, user: &str) -> Result<ApiAccess, String> {
    access_at("https://10.0.0.1:6443", cluster, user).await
}

async fn access_at(server: &str, cluster: &str, user: &str) -> Result<ApiAccess, String> {
    let text = format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: a, user: b}}}}]\n\
         clusters: [{{name: a, cluster: {{server: '{server}', {cluster}}}}}]\n\
         users: [{{name: b, user: {{{user}}}}}]\n"
    );
    of_kubeconfig(&Kubeconfig::parse(&text).unwrap(), None, &ProxyVariables::default()).await
}

async fn authorization(user: &str) -> String {
    let mut access = access_of("", user).await.unwrap();
    let value = access.credentials.authorization().await.unwrap();
    value.map_or("none".to_owned(), |value| value.to_str().unwrap().to_owned())
}

async fn error(cluster: &str, user: &str) -> String {
    access_of(cluster, user).await.err().unwrap()
}

#[tokio::test]
async fn credentials_of_a_user_have_an_order() {
    let token_file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&token_file, "of-file\n").unwrap();
    let file = format!("tokenFile: {}", token_file.path().display());
    let exec = r#"exec: {command: echo, args: ["{status: {token: of-plugin}}"]}"#;
    let basic = "username: a, password: b";
    for (user, expected) in [
        (String::new(), "none"),
        ("token: ''".to_owned(), "none"),
        (exec.to_owned(), "Bearer of-plugin"),
        (format!("{exec}, {file}"), "Bearer of-file"),
        (format!("{exec}, token: of-user"), "Bearer of-user"),
        (format!("{exec}, {file}, token: of-user"), "Bearer of-file"),
        ("tokenFile: /no/token, token: of-user".to_owned(), "Bearer of-user"),
        (format!("username: a, {file}"), "Bearer of-file"),
        (format!("{basic}, {file}, token: of-user"), "Basic YTpi"),
        (format!("auth-provider: {{name: oidc, config: {{id-token: x}}}}, {basic}"), "Bearer x"),
    ] {
        assert_eq!(authorization(&user).await, expected, "{user}");
    }
}

#[tokio::test]
async fn unsupported_or_incomplete_settings_are_named() {
    for (cluster, user, expected) in [
        ("proxy-url: 'http://proxy:3128'", "", "proxy-url is not supported"),
        ("certificate-authority-data: '*'", "", "certificate-authority-data: "),
        (
            "certificate-authority: /no/ca.crt",
            "",
            "certificate-authority /no/ca.crt: No such file or directory",
        ),
        ("", "client-certificate-data: eA==", "the user has a client-certificate but no client-key"),
        ("", "client-key-data: eA==", "the user has a client-key but no client-certificate"),
        ("", "client-key: /no/key", "client-key /no/key: No such file or directory"),
        ("", "token: \"a\\nb\"", "token: the token contains invalid characters"),
        ("", "token: ' '", "token: the token is empty"),
        ("insecure-skip-tls-verify: eyJ", "", "cluster a: insecure-skip-tls-verify: expected true or false"),
        ("", "as: joe, as-uid: 7", "as-uid and as-user-extra are not supported"),
        ("", "as-user-extra: {a: [b]}", "as-uid and as-user-extra are not supported"),
        ("", "auth-provider: {name: gcp}", "auth-provider gcp is not supported; use exec"),
        ("", "auth-provider: {name: oidc}", "auth-provider oidc has no id-token"),
        ("", "exec: {args: [a]}", "exec has no command"),
        ("", "exec: {command: 'true'}", "exec true: its output is not an ExecCredential with a status"),
        (
            "",
            "exec: {command: echo, args: ['{status: {}}']}",
            "exec echo: its output contains neither a token nor",
        ),
    ] {
        let error = error(cluster, user).await;
        assert!(error.starts_with(expected), "{error}");
    }
}

#[tokio::test]
async fn plugin_may_write_a_certificate_and_see_the_cluster() {
    let script = "echo \"{status: {clientCertificateData: chain, clientKeyData: '$KUBERNETES_EXEC_INFO'}}\"";
    let user = format!(
        "exec: {{command: sh, args: [-c, {}], provideClusterInfo: true, apiVersion: v}}",
        serde_json::to_string(script).unwrap()
    );
    let cluster = "tls-server-name: api, certificate-authority-data: eA==, extensions: \
                   [{name: client.authentication.k8s.io/exec, extension: {audience: 7}}]";
    let access = access_of(cluster, &user).await.unwrap();
    let PemIdentity { chain, key } = access.identity.unwrap();
    let expected = serde_json::json!({
        "apiVersion": "v", "kind": "ExecCredential",
        "spec": { "interactive": false, "cluster": {
            "server": "https://10.0.0.1:6443", "tls-server-name": "api",
            "certificate-authority-data": "eA==", "config": { "audience": 7 },
        } },
    });
    assert_eq!(chain, b"chain");
    assert_eq!(serde_json::from_slice::<Value>(&key).unwrap(), expected);
    assert!(matches!(access.credentials, Credentials::Anonymous));
}

#[tokio::test]
async fn plugin_may_write_a_certificate_and_a_token() {
    let written = "{status: {clientCertificateData: chain, clientKeyData: key, token: of-plugin}}";
    let user = format!("exec: {{command: echo, args: ['{written}']}}");
    let mut access = access_of("", &user).await.unwrap();
    assert_eq!(access.credentials.authorization().await.unwrap().unwrap(), "Bearer of-plugin");
    assert_eq!(access.identity.unwrap().chain, b"chain");
}

#[tokio::test]
async fn credentials_are_refused_without_tls() {
    let folder = tempfile::tempdir().unwrap();
    let ran = folder.path().join("ran");
    let exec = format!("exec: {{command: touch, args: [{}]}}", ran.display());
    let oidc = "auth-provider: {name: oidc, config: {id-token: x}}";
    for user in ["token: x", "tokenFile: /no/token", "username: a, password: ''", oidc, &exec] {
        let error = access_at("http://me:secret@10.0.0.1", "", user).await.err().unwrap();
        let expected =
            "server 10.0.0.1 has an http URL, but convey sends the credentials of the user only over https";
        assert_eq!(error, expected, "{user}");
    }
    assert!(!ran.exists(), "the program does not run");
    assert!(access_at("http://10.0.0.1", "", "token: '', as: joe").await.is_ok());
    let error = access_at("https://me:secret@10.0.0.1/ x", "", "").await.err().unwrap();
    assert!(error.starts_with("server 10.0.0.1/ x: "), "{error}");
}

#[tokio::test]
async fn settings_of_tls_and_impersonation_are_taken() {
    let access =
        access_of("insecure-skip-tls-verify: true, tls-server-name: api", "as: joe, as-groups: [a, b]").await;
    let access = access.unwrap();
    assert!(access.skip_verify && access.authorities.is_none());
    assert_eq!(access.server_name.as_deref(), Some("api"));
    assert_eq!(access.fields[IMPERSONATE_USER], "joe");
    assert_eq!(access.fields.get_all(IMPERSONATE_GROUP).iter().collect::<Vec<_>>(), ["a", "b"]);
    let data = access_of("certificate-authority-data: \"eA=\\n =\", certificate-authority: /no", "").await;
    assert_eq!(data.unwrap().authorities.as_deref(), Some(&b"x"[..]), "data goes before a file");
}
