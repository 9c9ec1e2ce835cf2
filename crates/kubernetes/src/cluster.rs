//! The API server of a cluster: where it is, and who we are to it.

use std::env;
use std::error::Error;
use std::time::Duration;

use crate::watch::WATCH_SECONDS;
use convey_model::KubernetesCluster;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

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
    Client::try_from(config).map_err(|error| chain(&error))
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
    let line = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    line.take(MAX_TEXT).collect()
}
