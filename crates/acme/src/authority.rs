//! ACME authority, and all steps of an order up to the certificate.

use std::sync::Arc;
use std::time::Duration;

use convey_model::{AcmeChallenge, AcmeConfig, one_line};
use convey_tls::{AcmeChallenges, Validity};
use instant_acme::{
    Account, AuthorizationStatus, ChallengeType, Error, Identifier, NewOrder, Order, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use tokio::time::sleep;

use crate::account;
use crate::client::{AskedToWait, OrderFault};
use crate::proof::SharedProof;
use crate::{PendingOrder, Store};

/// Intervals and time limit for polling an order: up to five minutes for the validation, and up to
/// five minutes for the certificate. An order that takes longer continues at the next attempt.
const POLLS: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(500))
    .backoff(1.3)
    .timeout(Duration::from_secs(300));

/// Maximum number of attempts of a step if the authority refuses the nonce of the request. In each
/// attempt, the ACME library itself repeats the step three times.
const NONCE_TRIES: u32 = 6;

/// ACME authority of a configuration.
#[derive(Debug, Clone)]
pub struct Authority {
    config: Arc<AcmeConfig>,
    store: Store,
    challenges: Arc<AcmeChallenges>,
}

impl Authority {
    /// Creates the authority of a configuration. Frontends present the `challenges`.
    pub fn new(config: Arc<AcmeConfig>, store: Store, challenges: Arc<AcmeChallenges>) -> Authority {
        Authority { config, store, challenges }
    }

    /// Orders a certificate for a name, or continues a pending order, and saves the certificate.
    /// Only the node that holds the lock may call this function. `until_all_show` is the time after
    /// which all nodes present a challenge that this node has shared.
    ///
    /// # Errors
    /// The reason why the order failed. Its progress is kept for the next attempt.
    pub async fn order(&self, name: &str, until_all_show: Duration) -> Result<Validity, OrderFault> {
        let asked_to_wait = AskedToWait::default();
        let ordered = self.try_order(name, until_all_show, &asked_to_wait).await;
        // Challenges are no longer needed after an order, whatever its outcome.
        let _ = (self.store.forget_proofs(), self.challenges.show(Vec::new()));
        ordered.map_err(|error| OrderFault { what: told(&error), retry_after: asked_to_wait.take() })
    }

    async fn try_order(
        &self,
        name: &str,
        until_all_show: Duration,
        wait: &AskedToWait,
    ) -> Result<Validity, Error> {
        self.store.forget_proofs().map_err(io)?;
        let account = account::open(&self.config, &self.store, wait).await?;
        let begun = self.begin(&account, name).await;
        let (mut order, key) = match begun {
            Err(error) if is_of_kind(&error, "accountDoesNotExist") => {
                // The authority does not have the account: a test authority was reset, or the
                // account was removed. The next attempt creates another account.
                self.store.forget_account().map_err(io)?;
                return Err(error);
            }
            begun => begun?,
        };
        let carried_out = self.carry_out(&mut order, &key, name, until_all_show).await;
        if carried_out.is_err() && order.state().status == OrderStatus::Invalid {
            self.store.forget_order(name).map_err(io)?;
        }
        let chain = carried_out?;
        let validity = self.store.save_certificate(name, &chain, &key.serialize_pem()).map_err(io)?;
        self.store.forget_order(name).map_err(io)?;
        Ok(validity)
    }

    /// Continues the pending order if it can still succeed, or creates a new order. A new order is
    /// saved before any other step.
    async fn begin(&self, account: &Account, name: &str) -> Result<(Order, KeyPair), Error> {
        if let Some(PendingOrder { url, key }) = self.store.order(name)
            && let Ok(key) = KeyPair::from_pem(&key)
            && let Ok(mut order) = persist(async || account.order(url.clone()).await).await
            && order.state().status != OrderStatus::Invalid
        {
            return Ok((order, key));
        }
        let names = [Identifier::Dns(name.to_owned())];
        let wanted = NewOrder::new(&names);
        let order = persist(async || account.new_order(&wanted).await).await?;
        let key = KeyPair::generate().map_err(other)?;
        let pending = PendingOrder { url: order.url().to_owned(), key: key.serialize_pem() };
        self.store.save_order(name, &pending).map_err(io)?;
        Ok((order, key))
    }

    /// Carries out the remaining steps of an order. Returns the certificate chain in PEM.
    async fn carry_out(
        &self,
        order: &mut Order,
        key: &KeyPair,
        name: &str,
        until_all_show: Duration,
    ) -> Result<String, Error> {
        if order.state().status == OrderStatus::Pending {
            self.prove(order, name, until_all_show).await?;
            let status = persist(async || order.poll_ready(&POLLS).await).await?;
            if status == OrderStatus::Invalid {
                return Err(why_invalid(order).await);
            }
        }
        if order.state().status == OrderStatus::Ready {
            let mut params = CertificateParams::new([name.to_owned()]).map_err(other)?;
            params.distinguished_name = DistinguishedName::new();
            let request = params.serialize_request(key).map_err(other)?;
            persist(async || order.finalize_csr(request.der()).await).await?;
        }
        persist(async || order.poll_certificate(&POLLS).await).await
    }

    /// Presents the challenges, and then requests their validation by the authority.
    async fn prove(&self, order: &mut Order, name: &str, until_all_show: Duration) -> Result<(), Error> {
        let (kind, wanted) = (self.config.challenge, challenge_type(self.config.challenge));
        persist(async || read_authorizations(order).await).await?;
        let mut shown = false;
        for is_told in [false, true] {
            let mut authorizations = order.authorizations();
            while let Some(authorization) = authorizations.next().await {
                let mut authorization = authorization?;
                if authorization.status != AuthorizationStatus::Pending {
                    continue;
                }
                let offered: Vec<String> =
                    authorization.challenges.iter().map(|other| format!("{:?}", other.r#type)).collect();
                let Some(mut challenge) = authorization.challenge(wanted.clone()) else {
                    let (kind, offered) = (kind.name(), offered.join(", "));
                    return Err(Error::Other(
                        format!("the authority does not offer {kind} for {name} (offered: {offered})").into(),
                    ));
                };
                if is_told {
                    persist(async || challenge.set_ready().await).await?;
                } else {
                    let proof =
                        SharedProof::new(kind, name, &challenge.token, &challenge.key_authorization());
                    self.store.share_proof(name, &proof).map_err(io)?;
                    shown = true;
                }
            }
            if !is_told && shown {
                self.challenges.show(self.store.proofs()).map_err(other)?;
                sleep(until_all_show).await;
            }
        }
        Ok(())
    }
}

/// Fetches all authorizations of an order, so that later reads need no request.
async fn read_authorizations(order: &mut Order) -> Result<(), Error> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        authorization?;
    }
    Ok(())
}

fn challenge_type(challenge: AcmeChallenge) -> ChallengeType {
    match challenge {
        AcmeChallenge::Http01 => ChallengeType::Http01,
        AcmeChallenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
    }
}

/// Repeats a step while the authority refuses the nonce of the request (RFC 8555, section 6.5), up
/// to `NONCE_TRIES` times.
pub(crate) async fn persist<T>(mut step: impl AsyncFnMut() -> Result<T, Error>) -> Result<T, Error> {
    let mut tries = 1;
    loop {
        match step().await {
            Err(error) if tries < NONCE_TRIES && is_of_kind(&error, "badNonce") => tries += 1,
            done => return done,
        }
    }
}

fn is_of_kind(error: &Error, kind: &str) -> bool {
    let Error::Api(problem) = error else { return false };
    problem.r#type.as_deref().and_then(|found| found.strip_prefix("urn:ietf:params:acme:error:"))
        == Some(kind)
}

/// Error with the authority's reason for rejecting a name.
async fn why_invalid(order: &mut Order) -> Error {
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        if persist(async || authorization.refresh().await.map(drop)).await.is_err() {
            continue;
        }
        if let Some(problem) = authorization.challenges.iter().find_map(|challenge| challenge.error.clone()) {
            return Error::Api(problem);
        }
    }
    Error::Str("the authority refused the order without a reason")
}

/// Operator-facing message about an error, on one line.
fn told(error: &Error) -> String {
    let text = match error {
        Error::Api(problem) => {
            let kind = problem.r#type.as_deref().unwrap_or_default();
            let kind = kind.rsplit(':').next().unwrap_or_default();
            let details = problem.subproblems.iter().filter_map(|sub| sub.detail.clone());
            let details: Vec<String> = problem.detail.clone().into_iter().chain(details).collect();
            format!("{kind}: {}", details.join("; "))
        }
        Error::Timeout(_) => {
            "the authority did not answer in time; the next attempt continues the order".to_owned()
        }
        other => other.to_string(),
    };
    one_line(&text).chars().take(500).collect()
}

fn io(error: std::io::Error) -> Error {
    Error::Other(error.into())
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Other(Box::new(error))
}
