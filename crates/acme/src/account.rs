//! ACME account. The account is created once, and then kept in the store.

use convey_model::AcmeConfig;
use convey_tls::TlsFault;
use instant_acme::{Account, AccountCredentials, Error, ExternalAccountKey, NewAccount};
use serde::{Deserialize, Serialize};

use crate::Store;
use crate::authority::persist;
use crate::client::{AskedToWait, DirectoryClient};

/// Saved form of the account.
#[derive(Serialize, Deserialize)]
struct SavedAccount {
    email: Option<String>,
    credentials: AccountCredentials,
}

/// Opens the account in the store, or creates an account.
pub(crate) async fn open(
    config: &AcmeConfig,
    store: &Store,
    asked_to_wait: &AskedToWait,
) -> Result<Account, Error> {
    let client = || -> Result<_, Error> {
        let unfit = |fault: TlsFault| Error::Other(fault.to_string().into());
        let client = DirectoryClient::new(&config.authorities, asked_to_wait.clone()).map_err(unfit)?;
        Ok(Account::builder_with_http(Box::new(client)))
    };
    let contact = config.email.as_ref().map(|email| format!("mailto:{email}"));
    let contact: Vec<&str> = contact.as_deref().into_iter().collect();
    let saved = store.account::<SavedAccount>().map_err(|error| Error::Other(error.into()))?;
    if let Some(SavedAccount { email, credentials }) = saved {
        let account = client()?.from_credentials(credentials).await?;
        if email != config.email {
            persist(async || account.update_contacts(&contact).await).await?;
            // Credentials cannot be copied, so they are read again.
            if let Ok(Some(saved)) = store.account::<SavedAccount>() {
                let saved = SavedAccount { email: config.email.clone(), ..saved };
                store.save_account(&saved).map_err(|error| Error::Other(error.into()))?;
            }
        }
        return Ok(account);
    }
    let wanted = NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
    let external = config.external_account.as_ref();
    let external =
        external.map(|account| ExternalAccountKey::new(account.key_id.clone(), account.key.bytes()));
    let (account, credentials) =
        persist(async || client()?.create(&wanted, config.directory.clone(), external.as_ref()).await)
            .await?;
    let saved = SavedAccount { email: config.email.clone(), credentials };
    store.save_account(&saved).map_err(|error| Error::Other(error.into()))?;
    Ok(account)
}
