//! The `Authorization` of requests to an API server.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::HeaderValue;

use crate::bounds::MAX_TOKEN;
use crate::exec::CredentialPlugin;

/// A token is fetched anew so long before it expires.
const EXPIRY_MARGIN: Duration = Duration::from_secs(60);

/// Credentials of requests.
pub(crate) enum Credentials {
    /// None, or a client certificate.
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
            Credentials::File(file) => file.authorization().map(Some),
            Credentials::Plugin(token) => token.authorization().await.map(Some),
        }
    }

    pub(crate) fn basic(name: &str, password: &str) -> Result<Credentials, String> {
        secret_value(&format!("Basic {}", STANDARD.encode(format!("{name}:{password}"))))
            .map(Credentials::Fixed)
    }
}

/// The value of `Authorization` for a token. Whitespace around it does not count.
pub(crate) fn bearer(token: &str) -> Result<HeaderValue, String> {
    secret_value(&format!("Bearer {}", token.trim()))
}

fn secret_value(text: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(text).map_err(|_| "it holds no token")?;
    value.set_sensitive(true);
    Ok(value)
}

/// A token that another program writes anew from time to time.
pub(crate) struct TokenFile {
    path: PathBuf,
    /// Used while the file cannot be read.
    last: Option<HeaderValue>,
}

impl TokenFile {
    pub(crate) fn new(path: PathBuf) -> TokenFile {
        TokenFile { path, last: None }
    }

    fn authorization(&mut self) -> Result<HeaderValue, String> {
        match (self.read(), &self.last) {
            (Ok(value), _) => Ok(self.last.insert(value).clone()),
            (Err(_), Some(last)) => Ok(last.clone()),
            (Err(why), None) => Err(format!("tokenFile {}: {why}", self.path.display())),
        }
    }

    fn read(&self) -> Result<HeaderValue, String> {
        let (mut text, file) = (String::new(), File::open(&self.path).map_err(|error| error.to_string())?);
        file.take(MAX_TOKEN).read_to_string(&mut text).map_err(|error| error.to_string())?;
        bearer(&text)
    }
}

/// A token of a credential plugin.
pub(crate) struct PluginToken {
    pub(crate) plugin: CredentialPlugin,
    pub(crate) value: HeaderValue,
    /// `None`: the token does not expire.
    pub(crate) expires: Option<SystemTime>,
}

impl PluginToken {
    async fn authorization(&mut self) -> Result<HeaderValue, String> {
        #[expect(clippy::disallowed_methods, reason = "requests are this crate's shell")]
        let now = SystemTime::now();
        if self.expires.is_some_and(|expires| now + EXPIRY_MARGIN >= expires) {
            let fetched = self.plugin.fetch().await?;
            let token = fetched.token.ok_or_else(|| self.plugin.fault("it has written no token"))?;
            (self.value, self.expires) = (bearer(&token)?, fetched.expires);
        }
        Ok(self.value.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_file_may_end_with_a_newline_and_disappear() {
        let folder = std::env::temp_dir().join(format!("convey-token-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("token");
        std::fs::write(&path, "secret\n").unwrap();
        let mut token = TokenFile::new(path.clone());
        let mut sent = || token.authorization();
        assert_eq!(sent().unwrap(), "Bearer secret");
        std::fs::write(&path, "other\r\n").unwrap();
        assert_eq!(sent().unwrap(), "Bearer other");
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(sent().unwrap(), "Bearer other");
        assert!(TokenFile::new(path).authorization().is_err());
    }

    #[tokio::test]
    async fn basic_credentials_are_encoded() {
        let mut basic = Credentials::basic("Aladdin", "open sesame").unwrap();
        let value = basic.authorization().await.unwrap().unwrap();
        assert_eq!(value, "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        assert!(value.is_sensitive() && bearer("a\nb").is_err());
    }
}
