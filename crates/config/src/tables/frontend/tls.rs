//! `[frontends.NAME.tls]`: certificates, and TLS with clients.

mod changes;
mod checks;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use self::changes::{both, certificate_changes};
pub(super) use self::changes::{changes, describe};
pub(crate) use self::checks::check as check_mode;
use super::sni::protocol;
use crate::acme::ParsedAcme;
use crate::file::value;
use crate::pairs_before::PairsBefore;
use crate::problem::{Place, Placed, Report};
use crate::reader::TomlTable;
use crate::values::{MILLISECOND, boolean, choice, integer, seconds, string};
use convey_model::{CertificatePair, ClientCa, FrontendTls, Mode, TlsVersion};
use convey_tls::{Certificate, CertificateFault, TlsAcceptor, TlsFault};

/// Most certificates of a folder.
const MAX_CERTIFICATES: usize = 10_000;

/// The table, with the places of its keys.
#[derive(Debug, Clone)]
pub(crate) struct ParsedTls {
    pub(crate) place: Place,
    /// Whether the frontend uses the certificates that convey orders.
    pub(crate) acme: bool,
    /// Settings; in mode `http` the default protocols apply unless `alpn` is set.
    tls: FrontendTls,
    /// Protocols from the file.
    pub(crate) alpn: Option<Vec<Placed<String>>>,
    pub(crate) http3: Option<Placed<bool>>,
}

/// Policy for client certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientCertificate {
    Required,
    Optional,
}

impl ClientCertificate {
    const ALL: [ClientCertificate; 2] = [ClientCertificate::Required, ClientCertificate::Optional];

    fn name(self) -> &'static str {
        match self {
            ClientCertificate::Required => "required",
            ClientCertificate::Optional => "optional",
        }
    }
}

/// A pair of files with their content, and their place in the configuration.
struct ReadPair {
    pair: CertificatePair,
    chain_place: Place,
    key_place: Place,
}

impl ParsedTls {
    /// Reads the table and the files that it names; `None` without one.
    pub(super) fn read(
        frontend: &mut TomlTable<'_>,
        acme: Option<&ParsedAcme>,
        report: &Report<'_>,
    ) -> Option<ParsedTls> {
        let is_there = frontend.has("tls");
        let mut table = frontend.table("tls");
        if !is_there {
            return None;
        }
        let place = table.place.clone();
        let acme = takes_of_acme(&mut table, acme, report);
        let mut pairs = pairs(&mut table, report);
        pairs.extend(acme.into_iter().flat_map(|acme| of_acme(acme, &place, report)));
        let has_alpn = table.has("alpn");
        let alpn = table.any_number("alpn", protocol);
        let http3 = table.optional("http3", boolean);
        let early_data = table.optional("early_data", boolean);
        let tls = FrontendTls {
            acme: acme.is_some(),
            certificates: pairs.iter().map(|read| read.pair.clone()).collect(),
            refuse_unknown_names: table.or("refuse_unknown_names", false, boolean),
            min_version: table.or(
                "min_version",
                TlsVersion::default(),
                choice(&TlsVersion::ALL, TlsVersion::name),
            ),
            cipher_suites: table
                .any_number("cipher_suites", choice(&TlsAcceptor::CIPHER_SUITES, |suite| suite))
                .into_iter()
                .map(|suite| suite.value.to_owned())
                .collect(),
            alpn: Vec::new(),
            client_ca: client_ca(&mut table, report),
            session_tickets: table.or("session_tickets", true, boolean),
            handshake_timeout: handshake_timeout(&mut table),
            max_handshakes_per_source: table.or(
                "max_handshakes_per_source",
                FrontendTls::MAX_HANDSHAKES_PER_SOURCE,
                integer(1..=u32::MAX),
            ),
            http3: value(&http3).unwrap_or_default(),
            early_data: value(&early_data).unwrap_or_default(),
        };
        table.finish();
        check(&tls, &pairs, &place, report);
        if let Some(early_data) = early_data.filter(|early_data| early_data.value) {
            check_early_data(&tls, &early_data.place, report);
        }
        Some(ParsedTls { place, acme: acme.is_some(), tls, alpn: has_alpn.then_some(alpn), http3 })
    }

    pub(super) fn model(&self, mode: Mode) -> FrontendTls {
        let usual = if mode.is_http() { &TlsAcceptor::HTTP[..] } else { &[] };
        let usual = || usual.iter().map(|protocol| (*protocol).to_owned()).collect();
        let said = |alpn: &Vec<Placed<String>>| alpn.iter().map(|protocol| protocol.value.clone()).collect();
        FrontendTls { alpn: self.alpn.as_ref().map_or_else(usual, said), ..self.tls.clone() }
    }
}

fn handshake_timeout(table: &mut TomlTable<'_>) -> Duration {
    table.or("handshake_timeout", FrontendTls::HANDSHAKE_TIMEOUT, seconds(MILLISECOND))
}

/// Whether the frontend uses certificates that convey orders: if it names no certificates, or sets
/// `acme`.
fn takes_of_acme<'a>(
    table: &mut TomlTable<'_>,
    acme: Option<&'a ParsedAcme>,
    report: &Report<'_>,
) -> Option<&'a ParsedAcme> {
    let has_own = table.has("certificate") || table.has("certificate_dir");
    let said = table.optional("acme", boolean);
    let wants = said.as_ref().map_or(!has_own, |said| said.value);
    if let Some(said) = said.as_ref().filter(|said| said.value && acme.is_none()) {
        report.error(&said.place, "needs [acme], which names the certificate authority");
    } else if !has_own && (acme.is_none() || !wants) {
        table.require(
            "certificate",
            "required, but missing: certificate and key, or certificate_dir, or [acme]",
        );
    }
    acme.filter(|_| wants)
}

/// Pairs that convey has ordered. An unusable one is ordered again, and does not stop the frontend
/// from serving.
fn of_acme(acme: &ParsedAcme, place: &Place, report: &Report<'_>) -> Vec<ReadPair> {
    let provider = rustls::crypto::ring::default_provider();
    let mut pairs = Vec::new();
    for (path, read) in report.read_pairs(&acme.certificates()) {
        let usable = read.map_err(|error| error.to_string()).and_then(|pem| {
            let certificate = Certificate::from_pem(&pem, &pem, &provider);
            certificate.map(|_| pem).map_err(|fault| fault.to_string())
        });
        match usable {
            Ok(pem) => {
                let (chain, key) = (pem.clone().into(), pem.into());
                let pair = CertificatePair { chain_path: path.clone(), key_path: path, chain, key };
                pairs.push(ReadPair { pair, chain_place: place.clone(), key_place: place.clone() });
            }
            Err(why) => report.warning(place, format!("{} is left out: {why}", path.display())),
        }
    }
    pairs
}

/// Pairs of the files and of the folder in the table.
fn pairs(table: &mut TomlTable<'_>, report: &Report<'_>) -> Vec<ReadPair> {
    let folder = table.optional("certificate_dir", string);
    let chains = table.any_number("certificate", string);
    let keys = table.any_number("key", string);
    if let Some(key) = keys.first().filter(|_| keys.len() != chains.len()) {
        let message = format!(
            "found {}; allowed: one for each certificate ({}), or none if each file includes its key",
            keys.len(),
            chains.len()
        );
        report.error(&key.place, message);
        return Vec::new();
    }
    let mut pairs = Vec::new();
    for (index, Placed { value: chain, place }) in chains.iter().enumerate() {
        let key = keys.get(index).map_or((&**chain, place), |key| (&*key.value, &key.place));
        pairs.extend(pair((chain, place), key, report));
    }
    if let Some(Placed { value, place }) = folder {
        pairs.extend(of_folder(&value, &place, report));
    }
    pairs
}

/// Pairs of a folder, sorted by name: `NAME.pem` or `NAME.crt`, and the key in `NAME.key` or in the
/// same file.
fn of_folder(folder: &str, place: &Place, report: &Report<'_>) -> Vec<ReadPair> {
    let Some(names) = report.list_folder(place, folder) else { return Vec::new() };
    let is_chain = |name: &&String| {
        let ending = Path::new(name).extension().and_then(|ending| ending.to_str());
        !name.starts_with('.') && matches!(ending, Some("pem" | "crt"))
    };
    let chains: Vec<&String> = names.iter().filter(is_chain).collect();
    let has_chains = !chains.is_empty();
    if !has_chains {
        report.error(place, format!("there is no certificate in {folder}: no file NAME.pem or NAME.crt"));
    }
    if chains.len() > MAX_CERTIFICATES {
        report
            .error(place, format!("{folder} has {} certificates; allowed: {MAX_CERTIFICATES}", chains.len()));
        return Vec::new();
    }
    let pairs = chains.into_iter().filter_map(|name| {
        let key = Path::new(name).with_extension("key");
        let key = key.to_str().filter(|key| names.iter().any(|name| name == key)).unwrap_or(name);
        let within = |name: &str| Path::new(folder).join(name).to_string_lossy().into_owned();
        match report.before {
            None => pair((&within(name), place), (&within(key), place), report),
            Some(before) => usable_pair((&within(name), &within(key)), place, before, report),
        }
    });
    let pairs: Vec<ReadPair> = pairs.collect();
    if report.before.is_some() && has_chains && pairs.is_empty() {
        report.error(place, format!("no certificate in {folder} can be used"));
    }
    pairs
}

/// Pair of a folder, for a reload: an unusable one is replaced by the previous pair. `None` if
/// there was no previous pair: it is left out.
fn usable_pair(
    (chain, key): (&str, &str),
    place: &Place,
    before: &PairsBefore,
    report: &Report<'_>,
) -> Option<ReadPair> {
    let [(key_path, key), (chain_path, chain)] =
        [report.try_key(place, key), report.try_certificates(place, chain)];
    let cannot_read = |path: &Path, error: std::io::Error| format!("cannot read {}: {error}", path.display());
    let read = key.map_err(|error| cannot_read(&key_path, error));
    let read = read.and_then(|key| Ok((key, chain.map_err(|error| cannot_read(&chain_path, error))?)));
    let provider = rustls::crypto::ring::default_provider();
    let usable = read.and_then(|(key, chain)| {
        let certificate = Certificate::from_pem(&chain, &key, &provider);
        certificate.map(|_| (key, chain)).map_err(|fault| fault.to_string())
    });
    let of = |pair| ReadPair { pair, chain_place: place.clone(), key_place: place.clone() };
    let why = match usable {
        Ok((key, chain)) => {
            return Some(of(CertificatePair { chain_path, key_path, chain: chain.into(), key: key.into() }));
        }
        Err(why) => why,
    };
    let found = before.get(&chain_path).cloned();
    let instead = if found.is_some() { "the previous one stays in use" } else { "it is left out" };
    report.warning(place, format!("{} is refused, and {instead}: {why}", chain_path.display()));
    report.refuse(chain_path);
    found.map(of)
}

/// Reads a chain and its key.
fn pair(chain: (&str, &Place), key: (&str, &Place), report: &Report<'_>) -> Option<ReadPair> {
    let (key_path, key_bytes) = report.read_key(key.1, key.0)?;
    let (chain_path, chain_bytes) = report.read_certificates(chain.1, chain.0)?;
    let pair = CertificatePair { chain_path, key_path, chain: chain_bytes.into(), key: key_bytes.into() };
    Some(ReadPair { pair, chain_place: chain.1.clone(), key_place: key.1.clone() })
}

/// Reads a chain and its key, and keeps the names of the files.
pub(crate) fn read_pair(
    chain: &Placed<String>,
    key: &Placed<String>,
    report: &Report<'_>,
) -> Option<CertificatePair> {
    pair((&chain.value, &chain.place), (&key.value, &key.place), report).map(|read| read.pair)
}

fn client_ca(table: &mut TomlTable<'_>, report: &Report<'_>) -> Option<ClientCa> {
    let wanted =
        table.optional("client_certificate", choice(&ClientCertificate::ALL, ClientCertificate::name));
    let ca = table.optional("client_ca", string);
    if let (Some(wanted), None) = (&wanted, &ca) {
        report.error(&wanted.place, "needs client_ca: the authorities that issue the certificates");
    }
    let Placed { value: path, place } = ca?;
    let (path, certificates) = report.read_certificates(&place, &path)?;
    let is_required = value(&wanted) != Some(ClientCertificate::Optional);
    Some(ClientCa { path, certificates: certificates.into(), is_required })
}

/// Reports settings that early data lacks or excludes: it resumes an earlier session over HTTP/3,
/// without a new check of the client's certificate.
fn check_early_data(tls: &FrontendTls, place: &Place, report: &Report<'_>) {
    if !tls.http3 {
        report.error(place, "needs http3 = true: convey accepts early data only over HTTP/3");
    } else if !tls.session_tickets {
        report.error(place, "needs session_tickets: early data needs a resumed session");
    } else if tls.client_ca.is_some() {
        report.error(place, "skips the handshake that client_ca requires; keep one of them");
    }
}

/// Reports settings that would make every handshake fail.
fn check(tls: &FrontendTls, pairs: &[ReadPair], place: &Place, report: &Report<'_>) {
    let fault = match TlsAcceptor::new(tls, None) {
        Ok(_) => return,
        Err(fault) => fault,
    };
    match fault {
        TlsFault::Certificate(index, fault) => {
            let Some(ReadPair { pair, chain_place, key_place }) = pairs.get(index) else { return };
            let of_key = matches!(
                fault,
                CertificateFault::NoKey | CertificateFault::Key(_) | CertificateFault::Mismatch
            );
            let (path, place): (&PathBuf, _) =
                if of_key { (&pair.key_path, key_place) } else { (&pair.chain_path, chain_place) };
            report.error(place, format!("{}: {fault}", path.display()));
        }
        TlsFault::Authorities(fault) => {
            let path = tls.client_ca.as_ref().map(|ca| ca.path.display().to_string()).unwrap_or_default();
            report.error(place, format!("client_ca: {path}: {fault}"));
        }
        TlsFault::Setting(key, fault) => report.error(place, format!("{key}: {fault}")),
    }
}
