//! Address validation tokens: with a token, a client proves that its next connection comes from the
//! same address (RFC 9000, section 8.1.3).

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use quinn::crypto::HandshakeTokenKey;
use quinn::{ServerConfig, TokenLog, TokenReuseError, ValidationTokenConfig};
use ring::hkdf::{HKDF_SHA256, Salt};

/// Lifetime of a token, which equals the lifetime of TLS sessions for early data.
const LIFETIME: Duration = Duration::from_secs(12 * 60 * 60);

/// Number of tokens that each connection receives.
const SENT: u32 = 2;

/// Upper bound of the used tokens in the log.
const MAX_USED: usize = 16 * 1024;

/// Key and log of used tokens. All workers share them, because a client's next connection may reach
/// another worker.
static TOKENS: LazyLock<Tokens> = LazyLock::new(|| {
    let secret: [u8; 32] = convey_random::secret();
    let key = Arc::new(Salt::new(HKDF_SHA256, &[]).extract(&secret));
    Tokens { key, used: Arc::new(UsedTokens::default()) }
});

struct Tokens {
    key: Arc<dyn HandshakeTokenKey>,
    used: Arc<UsedTokens>,
}

/// Configures a server so that its connections issue tokens and accept the tokens of all workers.
pub(super) fn apply(config: &mut ServerConfig) {
    let Tokens { key, used } = &*TOKENS;
    let mut tokens = ValidationTokenConfig::default();
    tokens.lifetime(LIFETIME).log(used.clone()).sent(SENT);
    config.token_key(key.clone()).validation_token_config(tokens);
}

/// Log of used tokens, so that each token is accepted only once.
#[derive(Default)]
struct UsedTokens(Mutex<Used>);

#[derive(Default)]
struct Used {
    /// Time of issue and nonce of each used token.
    tokens: BTreeSet<(SystemTime, u128)>,
    /// Tokens that were issued until this time are refused, because the log has evicted some of
    /// them and cannot recognize their reuse.
    refused_until: Option<SystemTime>,
}

impl TokenLog for UsedTokens {
    fn check_and_insert(&self, nonce: u128, issued: SystemTime, _: Duration) -> Result<(), TokenReuseError> {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_forgotten = used.refused_until.is_some_and(|until| issued <= until);
        if is_forgotten || !used.tokens.insert((issued, nonce)) {
            return Err(TokenReuseError);
        }
        if used.tokens.len() > MAX_USED {
            used.refused_until = used.tokens.pop_first().map(|(issued, _)| issued);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_good_once_even_if_the_log_has_forgotten_it() {
        let log = UsedTokens::default();
        let at = |second: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        let is_good = |nonce, second| log.check_and_insert(nonce, at(second), LIFETIME).is_ok();
        assert!(is_good(1, 10) && !is_good(1, 10) && is_good(2, 10));
        for nonce in 0..MAX_USED as u128 {
            assert!(is_good(nonce, 11));
        }
        assert!(!is_good(1, 10) && !is_good(2, 10) && !is_good(3, 10));
        assert!(is_good(MAX_USED as u128, 12));
        assert!(log.0.lock().unwrap().tokens.len() <= MAX_USED);
    }
}
