//! TLS settings of a client of etcd, from the address.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use convey_model::{Authorities, BackendTls, CertificatePair, TlsVersion};
use convey_tls::{SpokenWithin, TlsConnector, authorities_of_host, certificates_of};
use rustls::ClientConfig;

use crate::{EtcdCertificate, EtcdTls};

/// Builds the TLS settings from the files in the address.
///
/// # Errors
/// Operator-facing message: a file cannot be read, or has the wrong content.
pub(crate) fn client_config(tls: &EtcdTls) -> Result<Arc<ClientConfig>, String> {
    let certificate = tls.certificate.as_ref().map(|EtcdCertificate { chain_path, key_path }| {
        let (chain, key) = (read(chain_path)?.into(), read(key_path)?.into());
        Ok::<_, String>(CertificatePair {
            chain_path: chain_path.clone(),
            key_path: key_path.clone(),
            chain,
            key,
        })
    });
    let connector = TlsConnector::new(&BackendTls {
        authorities: authorities(tls.ca.as_deref())?,
        server_name: None,
        certificate: certificate.transpose()?,
        skip_verify: false,
        min_version: TlsVersion::default(),
    });
    Ok(connector.map_err(|fault| format!("TLS with etcd: {fault}"))?.config(SpokenWithin::Http1))
}

fn authorities(ca: Option<&Path>) -> Result<Authorities, String> {
    let certificates = match ca {
        Some(path) => {
            certificates_of(&read(path)?).map_err(|fault| format!("{}: {fault}", path.display()))?
        }
        None => authorities_of_host().map_err(|errors| {
            format!("this host trusts no certificate authority; set ca=FILE {errors}").trim_end().to_owned()
        })?,
    };
    Ok(Authorities { path: ca.map(Path::to_owned), certificates: certificates.into() })
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}
