//! Finds the address of a cluster's API server and convey's credentials for it.

use std::env;
use std::error::Error;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};

use crate::client::ApiClient;
use crate::credentials::{Credentials, PluginToken, TokenFile, bearer};
use crate::exec::CredentialPlugin;
use crate::kubeconfig::{
    AuthProvider, Cluster, Exec, Flag, Kubeconfig, KubeconfigUser, SelectedContext, Text, aside, read_file,
};
use crate::proxies::ProxyVariables;
use crate::server::{ApiAccess, ApiServer, PemIdentity, authority};
use convey_model::{KubernetesCluster, one_line};

/// Files of a pod's service account.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
const AUTHORITY: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

/// Header fields for impersonation (Kubernetes API).
const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");
const IMPERSONATE_GROUP: HeaderName = HeaderName::from_static("impersonate-group");

/// Name of the cluster extension that is passed to a credential plugin.
const PLUGIN_EXTENSION: &str = "client.authentication.k8s.io/exec";

/// Prepares the connection to a cluster. Reads all files again, because credentials change.
///
/// # Errors
/// Operator-facing message: a file or a setting is missing or wrong.
pub(crate) async fn connect(cluster: &KubernetesCluster) -> Result<ApiClient<ApiServer>, String> {
    let access = access(cluster).await.map_err(|why| bounded(&why))?;
    ApiServer::new(access).map(ApiClient::new).map_err(|why| bounded(&why))
}

async fn access(cluster: &KubernetesCluster) -> Result<ApiAccess, String> {
    let KubernetesCluster { kubeconfig, context } = cluster;
    let pod_host = env::var("KUBERNETES_SERVICE_HOST").ok();
    if let (None, None, Some(host)) = (kubeconfig, context, pod_host) {
        let access = aside(move || of_pod(&host)).await;
        return access.map_err(|why| format!("the pod's service account: {why}"));
    }
    let kubeconfig = kubeconfig.clone();
    let found = aside(move || match kubeconfig {
        Some(path) => Kubeconfig::read(&path),
        None => Kubeconfig::of_environment(),
    });
    let (found, context) = (found.await?, context.as_deref());
    let access = of_kubeconfig(&found, context, &ProxyVariables::of_environment()).await;
    access.map_err(|why| format!("the kubeconfig: {why}"))
}

/// Access to the API server from a pod, with the pod's service account.
fn of_pod(host: &str) -> Result<ApiAccess, String> {
    let port =
        env::var("KUBERNETES_SERVICE_PORT").map_err(|error| format!("KUBERNETES_SERVICE_PORT: {error}"))?;
    let port = port.parse::<u16>().map_err(|error| format!("KUBERNETES_SERVICE_PORT: {error}"))?;
    let authority = authority(host.trim_matches(['[', ']']), port);
    let authorities = read_file(Path::new(AUTHORITY)).map_err(|why| format!("{AUTHORITY}: {why}"))?;
    Ok(ApiAccess {
        url: format!("https://{authority}").parse().map_err(|error| format!("{authority}: {error}"))?,
        authorities: Some(authorities),
        server_name: None,
        skip_verify: false,
        identity: None,
        credentials: Credentials::File(TokenFile::new(TOKEN.into(), None)),
        fields: HeaderMap::new(),
    })
}

async fn of_kubeconfig(
    kubeconfig: &Kubeconfig,
    context: Option<&str>,
    proxies: &ProxyVariables,
) -> Result<ApiAccess, String> {
    let SelectedContext { cluster, user } = kubeconfig.select(context)?;
    let url = url_of(&cluster, &user)?;
    if given(cluster.proxy_url.as_ref()).is_some() {
        return Err("proxy-url is not supported".to_owned());
    }
    proxies.check(&url)?;
    let fields = impersonation(&user)?;
    let read = aside(move || {
        let authorities = data_or_file(
            "certificate-authority",
            cluster.certificate_authority_data.as_ref(),
            cluster.certificate_authority.as_ref(),
        )?;
        let identity = identity(&user)?;
        Ok((cluster, user, authorities, identity))
    });
    let (cluster, mut user, authorities, mut identity) = read.await?;
    let exec = user.exec.take();
    let credentials = match (credentials(user)?, exec) {
        (None, Some(exec)) => {
            let access = run_plugin(exec, &cluster, authorities.as_deref()).await?;
            identity = access.identity.or(identity);
            access.credentials
        }
        (credentials, _) => credentials.unwrap_or(Credentials::Anonymous),
    };
    Ok(ApiAccess {
        url,
        authorities,
        server_name: cluster.tls_server_name.map(|name| name.0).filter(|name| !name.is_empty()),
        skip_verify: cluster.insecure_skip_tls_verify == Some(Flag(true)),
        identity,
        credentials,
        fields,
    })
}

/// URL of the API server.
///
/// # Errors
/// The URL is missing or invalid, or credentials would be sent without TLS.
fn url_of(cluster: &Cluster, user: &KubeconfigUser) -> Result<Uri, String> {
    let server = given(cluster.server.as_ref()).ok_or("the cluster has no server")?;
    let url = server.parse::<Uri>().map_err(|error| format!("server {}: {error}", without_user(server)))?;
    if url.scheme_str() == Some("http") && has_credentials(user) {
        return Err(format!(
            "server {} has an http URL, but convey sends the credentials of the user only over https",
            without_user(server)
        ));
    }
    Ok(url)
}

fn has_credentials(user: &KubeconfigUser) -> bool {
    let is_given = |text: &Option<Text>| given(text.as_ref()).is_some();
    let has_password = is_given(&user.username) && user.password.is_some();
    let has_token = is_given(&user.token) || is_given(&user.token_file);
    has_password || has_token || user.exec.is_some() || user.auth_provider.is_some()
}

/// URL without user and password.
pub(crate) fn without_user(url: &str) -> &str {
    url.rsplit_once('@').map_or(url, |(_, rest)| rest)
}

/// Credentials in the kubeconfig of a user; credentials from a plugin are handled separately.
fn credentials(user: KubeconfigUser) -> Result<Option<Credentials>, String> {
    if let Some(provider) = &user.auth_provider {
        return of_provider(provider).map(Some);
    }
    if let (Some(name), Some(password)) = (given(user.username.as_ref()), user.password) {
        return Credentials::basic(name, &password.0).map(Some);
    }
    let token = given(user.token.as_ref()).map(bearer).transpose().map_err(|why| format!("token: {why}"))?;
    Ok(match given(user.token_file.as_ref()) {
        Some(path) => Some(Credentials::File(TokenFile::new(path.into(), token))),
        None => token.map(Credentials::Fixed),
    })
}

fn of_provider(provider: &AuthProvider) -> Result<Credentials, String> {
    let name = given(provider.name.as_ref()).unwrap_or_default();
    let token = provider.config.as_ref().and_then(|config| config.get("id-token")?.as_ref());
    match (name, given(token)) {
        ("oidc", Some(token)) => bearer(token).map(Credentials::Fixed),
        ("oidc", None) => {
            Err("auth-provider oidc has no id-token, and convey cannot fetch an id-token".to_owned())
        }
        _ => Err(format!("auth-provider {name} is not supported; use exec")),
    }
}

/// Access to an API server that a credential plugin grants.
struct PluginAccess {
    /// Credentials for requests.
    credentials: Credentials,
    /// Client certificate; `None` if the plugin returns only a token.
    identity: Option<PemIdentity>,
}

/// Runs a credential plugin, and returns the access that it grants.
async fn run_plugin(
    exec: Exec,
    cluster: &Cluster,
    authorities: Option<&[u8]>,
) -> Result<PluginAccess, String> {
    let is_informed = exec.provide_cluster_info == Some(Flag(true));
    let plugin = CredentialPlugin::new(exec, is_informed.then(|| described(cluster, authorities)))?;
    let fetched = plugin.fetch().await?;
    let identity = fetched
        .certificate
        .map(|(chain, key)| PemIdentity { chain: chain.into_bytes(), key: key.into_bytes() });
    let credentials = match fetched.token {
        Some(token) => {
            let value = bearer(&token).map_err(|why| plugin.fault(&why))?;
            Credentials::Plugin(PluginToken { plugin, value, expires: fetched.expires })
        }
        None if identity.is_some() => Credentials::Anonymous,
        None => return Err(plugin.fault("its output contains neither a token nor a certificate")),
    };
    Ok(PluginAccess { credentials, identity })
}

/// Description of a cluster, in the form that credential plugins expect.
fn described(cluster: &Cluster, authorities: Option<&[u8]>) -> Value {
    let text = |text: &Option<Text>| text.as_ref().map(|text| Value::from(&*text.0));
    let extension = |wanted: &str| {
        let found = cluster
            .extensions
            .iter()
            .flatten()
            .find(|extension| given(extension.name.as_ref()) == Some(wanted));
        found.map(|extension| extension.extension.clone())
    };
    let fields = [
        ("server", text(&cluster.server)),
        ("tls-server-name", text(&cluster.tls_server_name)),
        ("insecure-skip-tls-verify", cluster.insecure_skip_tls_verify.map(|flag| flag.0.into())),
        ("certificate-authority-data", authorities.map(|pem| STANDARD.encode(pem).into())),
        ("config", extension(PLUGIN_EXTENSION)),
    ];
    fields
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect::<Map<_, _>>()
        .into()
}

fn identity(user: &KubeconfigUser) -> Result<Option<PemIdentity>, String> {
    let chain = data_or_file(
        "client-certificate",
        user.client_certificate_data.as_ref(),
        user.client_certificate.as_ref(),
    )?;
    let key = data_or_file("client-key", user.client_key_data.as_ref(), user.client_key.as_ref())?;
    match (chain, key) {
        (Some(chain), Some(key)) => Ok(Some(PemIdentity { chain, key })),
        (None, None) => Ok(None),
        (Some(_), None) => Err("the user has a client-certificate but no client-key".to_owned()),
        (None, Some(_)) => Err("the user has a client-key but no client-certificate".to_owned()),
    }
}

fn data_or_file(key: &str, data: Option<&Text>, file: Option<&Text>) -> Result<Option<Vec<u8>>, String> {
    if let Some(data) = given(data) {
        let data: String = data.split_whitespace().collect();
        return STANDARD.decode(data).map(Some).map_err(|error| format!("{key}-data: {error}"));
    }
    let read = |path| read_file(Path::new(path)).map_err(|why| format!("{key} {path}: {why}"));
    given(file).map(read).transpose()
}

fn impersonation(user: &KubeconfigUser) -> Result<HeaderMap, String> {
    if user.as_uid.is_some() || user.as_user_extra.is_some() {
        return Err("as-uid and as-user-extra are not supported".to_owned());
    }
    let value = |text: &Text| HeaderValue::from_str(&text.0).map_err(|error| format!("as: {error}"));
    let mut fields = HeaderMap::new();
    if let Some(name) = &user.impersonate {
        fields.insert(IMPERSONATE_USER, value(name)?);
    }
    for group in user.as_groups.iter().flatten() {
        fields.append(IMPERSONATE_GROUP, value(group)?);
    }
    Ok(fields)
}

/// The text; `None` if it is missing or empty.
fn given(text: Option<&Text>) -> Option<&str> {
    text.map(|text| &*text.0).filter(|text| !text.is_empty())
}

/// Maximum length of an error text in characters. API servers may send any text.
const MAX_TEXT: usize = 300;

/// Formats an error and its causes in one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    bounded(&text)
}

/// Escapes and truncates a text to one line of bounded length.
pub(crate) fn bounded(text: &str) -> String {
    one_line(text).chars().take(MAX_TEXT).collect()
}

#[cfg(test)]
mod tests;
