//! Credentials for the `Authorization` header of requests to an API server.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::HeaderValue;
use tokio::time::timeout;

use crate::bounds::MAX_TOKEN;
use crate::exec::CredentialPlugin;
use crate::kubeconfig::{aside, read_file};

/// Time before the expiry of a token at which convey fetches a new token.
const EXPIRY_MARGIN: Duration = Duration::from_secs(60);
/// Time limit for reading a token file. Before the next attempt, convey has to read all files of
/// the cluster again. So only one thread at a time waits for a file system that does not answer.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Credentials for requests to an API server.
pub(crate) enum Credentials {
    /// Requests have no `Authorization` header: they are anonymous, or a client certificate
    /// identifies convey.
    Anonymous,
    Fixed(HeaderValue),
    File(TokenFile),
    Plugin(PluginToken),
}

impl Credentials {
    /// Returns the value of `Authorization` for the next request.
    pub(crate) async fn authorization(&mut self) -> Result<Option<HeaderValue>, String> {
        match self {
            Credentials::Anonymous => Ok(None),
            Credentials::Fixed(value) => Ok(Some(value.clone())),
            Credentials::File(file) => file.authorization().await.map(Some),
            Credentials::Plugin(token) => {
                #[expect(clippy::disallowed_methods, reason = "requests are this crate's shell")]
                let now = SystemTime::now();
                token.authorization(now).await.map(Some)
            }
        }
    }

    pub(crate) fn basic(name: &str, password: &str) -> Result<Credentials, String> {
        secret_value(&format!("Basic {}", STANDARD.encode(format!("{name}:{password}"))))
            .map(Credentials::Fixed)
    }
}

/// Value of `Authorization` for a token. Surrounding whitespace is ignored.
pub(crate) fn bearer(token: &str) -> Result<HeaderValue, String> {
    match token.trim() {
        "" => Err("the token is empty".to_owned()),
        token => secret_value(&format!("Bearer {token}")),
    }
}

fn secret_value(text: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(text).map_err(|_| "the token contains invalid characters")?;
    value.set_sensitive(true);
    Ok(value)
}

/// Token file that another program rewrites from time to time.
pub(crate) struct TokenFile {
    path: PathBuf,
    /// Last token that was read; used while the file cannot be read.
    last: Option<HeaderValue>,
}

impl TokenFile {
    /// Creates a token file. `first` is the token to use until the file can be read.
    pub(crate) fn new(path: PathBuf, first: Option<HeaderValue>) -> TokenFile {
        TokenFile { path, last: first }
    }

    async fn authorization(&mut self) -> Result<HeaderValue, String> {
        let path = self.path.clone();
        let fault = |why: &str| format!("tokenFile {}: {why}", self.path.display());
        let read = timeout(READ_TIMEOUT, aside(move || read_token(&path))).await;
        let read = read.map_err(|_| fault(&format!("the file was not read within {READ_TIMEOUT:?}")))?;
        match (read, &self.last) {
            (Ok(value), _) => Ok(self.last.insert(value).clone()),
            (Err(_), Some(last)) => Ok(last.clone()),
            (Err(why), None) => Err(fault(&why)),
        }
    }
}

fn read_token(path: &Path) -> Result<HeaderValue, String> {
    let bytes = read_file(path)?;
    if bytes.len() > MAX_TOKEN {
        return Err(format!("the token is longer than {} KiB", MAX_TOKEN >> 10));
    }
    bearer(std::str::from_utf8(&bytes).map_err(|_| "the token is not UTF-8")?)
}

/// Token from a credential plugin, which is run again before the token expires.
pub(crate) struct PluginToken {
    pub(crate) plugin: CredentialPlugin,
    pub(crate) value: HeaderValue,
    /// Expiry of the token; `None` means that the token does not expire.
    pub(crate) expires: Option<SystemTime>,
}

impl PluginToken {
    async fn authorization(&mut self, now: SystemTime) -> Result<HeaderValue, String> {
        if let Some(expires) = self.expires.filter(|expires| now + EXPIRY_MARGIN >= *expires) {
            match self.fetch().await {
                Ok((value, next)) => (self.value, self.expires) = (value, next),
                Err(why) if now >= expires => return Err(why),
                Err(_) => {}
            }
        }
        Ok(self.value.clone())
    }

    async fn fetch(&self) -> Result<(HeaderValue, Option<SystemTime>), String> {
        let fetched = self.plugin.fetch().await?;
        let token = fetched.token.ok_or_else(|| self.plugin.fault("its output contains no token"))?;
        let value = bearer(&token).map_err(|why| self.plugin.fault(&why))?;
        Ok((value, fetched.expires))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn token_file_may_end_with_a_newline_and_disappear() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "secret\n").unwrap();
        let mut token = TokenFile::new(path.clone(), None);
        let mut sent = async || token.authorization().await;
        assert_eq!(sent().await.unwrap(), "Bearer secret");
        std::fs::write(&path, "other\r\n").unwrap();
        assert_eq!(sent().await.unwrap(), "Bearer other");
        for useless in ["", " \n", &"x".repeat(MAX_TOKEN + 1)] {
            std::fs::write(&path, useless).unwrap();
            assert_eq!(sent().await.unwrap(), "Bearer other", "the last good token");
            assert!(TokenFile::new(path.clone(), None).authorization().await.is_err());
        }
        folder.close().unwrap();
        assert_eq!(sent().await.unwrap(), "Bearer other");
        assert!(TokenFile::new(path, None).authorization().await.is_err());
    }

    #[tokio::test]
    async fn token_of_a_plugin_that_fails_holds_until_it_expires() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        for (script, why) in [
            ("exit 1", "exec sh: exit status: 1: "),
            ("echo '{status: {token: \"\"}}'", "exec sh: its output contains no token"),
        ] {
            let exec = serde_json::json!({ "command": "sh", "args": ["-c", script] });
            let plugin = CredentialPlugin::new(serde_json::from_value(exec).unwrap(), None).unwrap();
            let value = HeaderValue::from_static("Bearer old");
            let mut token = PluginToken { plugin, value, expires: Some(at(1_000)) };
            assert_eq!(token.authorization(at(999)).await.unwrap(), "Bearer old");
            assert_eq!(token.authorization(at(1_000)).await.unwrap_err(), why);
        }
    }

    #[tokio::test]
    async fn basic_credentials_are_encoded() {
        let mut basic = Credentials::basic("Aladdin", "open sesame").unwrap();
        let value = basic.authorization().await.unwrap().unwrap();
        assert_eq!(value, "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        assert!(value.is_sensitive() && bearer("a\nb").is_err());
    }
}
