//! The API server of a cluster: where it is, and who we are to it.

use std::env;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::bounds::bounded_client;
use crate::watch::WATCH_SECONDS;
use convey_model::{KubernetesCluster, one_line};
use http::Uri;
use http::header::{HOST, HeaderName, HeaderValue};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::time::timeout;

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an API server may be silent: longer than a watch lasts, and not by much. Then a list has to be answered, and both are over
/// within 65 s.
const READ_TIMEOUT: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 3);

/// A client of this cluster. Reads what it needs of files anew: credentials change.
///
/// # Errors
/// What is missing or wrong: words for an operator.
pub(crate) async fn connect(cluster: &KubernetesCluster) -> Result<Client, String> {
    let mut config = config(cluster).await?;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    // What waits and asks again is the watch.
    config.default_retry = false;
    by_address(&mut config).await?;
    let has_token = config.auth_info.token.is_some() || config.auth_info.username.is_some();
    let token = config.auth_info.token_file.take().filter(|_| !has_token);
    let client = Client::try_from(config).map_err(|error| chain(&error))?;
    Ok(bounded_client(client, token.map(Into::into)))
}

/// Replaces the name of the API server by an address that accepts connections: the library would look the name up in a thread, and
/// panics where none can be made. TLS and the request go on with the name.
async fn by_address(config: &mut Config) -> Result<(), String> {
    let Some(host) = config.cluster_url.host().map(str::to_owned) else { return Ok(()) };
    if host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
        return Ok(());
    }
    let is_tls = config.cluster_url.scheme_str() == Some("https");
    let port = config.cluster_url.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let connected = timeout(CONNECT_TIMEOUT, convey_resolver::connect(&host, port)).await;
    let connected = connected.map_err(|_| format!("{host}: no connection within {CONNECT_TIMEOUT:?}"))?;
    let address = connected.and_then(|stream| stream.peer_addr());
    let address = address.map_err(|error| format!("{host}: {error}"))?;
    config.headers.push(host_header(&config.cluster_url)?);
    config.cluster_url = at_address(&config.cluster_url, address)?;
    config.tls_server_name.get_or_insert(host);
    Ok(())
}

fn host_header(url: &Uri) -> Result<(HeaderName, HeaderValue), String> {
    let authority = url.authority().map_or("", |authority| authority.as_str());
    let named = authority.rsplit('@').next().unwrap_or_default();
    Ok((HOST, HeaderValue::from_str(named).map_err(|error| error.to_string())?))
}

/// The same URL with an address in place of the host.
fn at_address(url: &Uri, address: SocketAddr) -> Result<Uri, String> {
    let mut parts = url.clone().into_parts();
    parts.authority = Some(address.to_string().parse().map_err(|_| format!("{address} is no authority"))?);
    Uri::from_parts(parts).map_err(|error| error.to_string())
}

async fn config(cluster: &KubernetesCluster) -> Result<Config, String> {
    let KubernetesCluster { kubeconfig, context } = cluster;
    let is_in_pod = env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    if kubeconfig.is_none() && context.is_none() && is_in_pod {
        return Config::incluster().map_err(|error| format!("the pod's service account: {}", chain(&error)));
    }
    let found = match kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
    let found = found.map_err(|error| chain(&error))?;
    let config = Config::from_custom_kubeconfig(found, &options).await;
    config.map_err(|error| format!("the kubeconfig: {}", chain(&error)))
}

/// The longest text of an error: API servers may say anything.
const MAX_TEXT: usize = 300;

/// An error and what led to it, in one line.
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

/// One line of bounded length.
pub(crate) fn bounded(text: &str) -> String {
    one_line(text).chars().take(MAX_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn named_api_server_is_asked_by_address_with_its_name() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut config = Config::new(format!("https://localhost:{port}/base").parse().unwrap());
        by_address(&mut config).await.unwrap();
        assert_eq!(config.cluster_url, format!("https://127.0.0.1:{port}/base").as_str());
        assert_eq!(config.tls_server_name.as_deref(), Some("localhost"));
        assert_eq!(
            config.headers,
            [host_header(&format!("https://localhost:{port}").parse().unwrap()).unwrap()]
        );

        let mut by_ip = Config::new("https://[::1]:6443".parse().unwrap());
        by_address(&mut by_ip).await.unwrap();
        assert_eq!((by_ip.tls_server_name, by_ip.headers.len()), (None, 0));
    }
}
