//! Token of the statistics endpoint. Requests need it to change something, so its file must be
//! secret.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use subtle::ConstantTimeEq;
use toml::de::DeValue;

use super::problem::{Placed, Report};
use super::values::not_allowed;

/// Allowed lengths in characters. The shortest token cannot be guessed, and the longest fits into a
/// header.
const LENGTHS: std::ops::RangeInclusive<usize> = 16..=256;

/// A token, and the path of its file.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminToken {
    /// Path of the file.
    pub path: PathBuf,
    secret: Arc<str>,
}

impl AdminToken {
    /// Checks a token that was read from `path`.
    ///
    /// # Errors
    /// Operator-facing message: the token is too short, too long, or cannot be sent in a header.
    pub fn new(path: PathBuf, secret: &str) -> Result<AdminToken, String> {
        let (fewest, most) = LENGTHS.into_inner();
        let length = secret.chars().count();
        if length == 0 {
            return Err("is empty; `openssl rand -hex 32` makes a token".to_owned());
        }
        if !secret.chars().all(|c| c.is_ascii_graphic()) {
            return Err(
                "must contain one line of ASCII letters, digits and punctuation, without spaces".to_owned()
            );
        }
        if !LENGTHS.contains(&length) {
            return Err(format!("has {length} characters; allowed: {fewest} to {most}"));
        }
        Ok(AdminToken { path, secret: secret.into() })
    }

    /// Whether `sent` is the token. The comparison takes constant time for an equal length, so its
    /// duration reveals only the length of the token.
    pub fn matches(&self, sent: &[u8]) -> bool {
        self.secret.as_bytes().ct_eq(sent).into()
    }
}

/// Omits the secret, which must not appear in logs or in the configuration's hash.
impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminToken").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Parses the path of a token file.
pub(super) fn path(value: &DeValue<'_>) -> Result<String, String> {
    let path = value.as_str().filter(|path| !path.is_empty() && !path.ends_with('/'));
    path.map(str::to_owned).ok_or_else(|| not_allowed(value, "the path of a file that has the token"))
}

/// Reads the token file. Returns `None` on an error, which is reported.
pub(super) fn read(file: Placed<String>, report: &Report<'_>) -> Option<AdminToken> {
    let Placed { value, place } = file;
    let (path, text) = report.read_secret(&place, &value)?;
    let token = AdminToken::new(path.clone(), text.trim_ascii());
    token.map_err(|wrong| report.error(&place, format!("{} {wrong}", path.display()))).ok()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use crate::{Config, load};

    const SERVED: &str = "frontends.web = { listen_addr = '10.0.0.1:80', backend = 'web' }\n\
                          backends.web.servers.a.addr = '10.0.0.2:80'\n";

    fn loaded(content: &str, mode: u32) -> Result<Config, String> {
        let folder = tempfile::tempdir().unwrap();
        let (token, config) = (folder.path().join("token"), folder.path().join("config.toml"));
        fs::write(&token, content).unwrap();
        fs::set_permissions(&token, Permissions::from_mode(mode)).unwrap();
        fs::write(&config, format!("{SERVED}[stats]\ntoken_file = 'token'\n")).unwrap();
        load(&config).map(|loaded| loaded.config).map_err(|error| error.to_string())
    }

    #[test]
    fn stats_token_is_read_from_a_relative_file() {
        let token = loaded("correct-horse-battery\n", 0o640).unwrap().stats.token.unwrap();
        assert!(token.matches(b"correct-horse-battery"));
        for wrong in ["", "correct-horse-batterY", "correct-horse-battery\n", "correct-horse-batter"] {
            assert!(!token.matches(wrong.as_bytes()), "{wrong:?}");
        }
    }

    #[test]
    fn a_token_that_is_weak_or_that_others_may_read_is_refused() {
        for (content, mode, told) in [
            ("", 0o600, "token is empty; `openssl rand -hex 32` makes a token"),
            (" \n", 0o600, "token is empty"),
            ("short", 0o600, "token has 5 characters; allowed: 16 to 256"),
            (&"x".repeat(257), 0o600, "token has 257 characters; allowed: 16 to 256"),
            ("two words that are long", 0o600, "without spaces"),
            ("correct-horse-battéry", 0o600, "ASCII letters"),
            ("correct-horse-battery", 0o644, "its mode is 0644, so all users can read it"),
            ("correct-horse-battery", 0o602, "its mode is 0602, so all users can write it"),
        ] {
            let refused = loaded(content, mode).unwrap_err();
            assert!(refused.contains("stats.token_file: ") && refused.contains(told), "{refused}");
        }
    }

    #[test]
    fn missing_or_invalid_token_file_is_refused() {
        let refused =
            crate::parse("c.toml", &format!("{SERVED}[stats]\ntoken_file = '/none'\n")).unwrap_err();
        assert!(
            refused[0].to_string().contains("stats.token_file: cannot read /none: No such file"),
            "{refused:?}"
        );
        let refused = crate::parse("c.toml", &format!("{SERVED}[stats]\ntoken_file = 7\n")).unwrap_err();
        assert!(refused[0].to_string().contains("allowed: the path of a file"), "{refused:?}");
    }

    #[test]
    fn stats_token_is_not_shown_in_descriptions() {
        let config = loaded("correct-horse-battery", 0o600).unwrap();
        assert!(!format!("{config:?}{}", crate::describe(&config)).contains("horse"));
    }
}
