//! `[frontends.NAME.tls]`: certificates of a frontend, and TLS with its clients.

mod changes;
mod checks;

use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::DeValue;

use self::changes::ca;
pub(crate) use self::changes::{both, certificate_changes};
pub(super) use self::changes::{changes, describe};
pub(crate) use self::checks::check as check_mode;
use super::sni::protocol;
use crate::diff::{change, list_or};
use crate::file::value;
use crate::keys::keys;
use crate::pairs_before::PairsBefore;
use crate::problem::{Place, Placed, Report};
use crate::reader::TomlTable;
use crate::reference::{Docs, KeyDoc, TableDoc};
use crate::tables::acme::ParsedAcme;
use crate::values::{MILLISECOND, boolean, choice, integer, seconds, string};
use convey_model::{CertificatePair, ClientCa, FrontendTls, Mode, TlsVersion};
use convey_tls::{Certificate, CertificateFault, TlsAcceptor, TlsFault};

/// Maximum number of certificates in a folder.
const MAX_CERTIFICATES: usize = 10_000;

/// `[frontends.NAME.tls]` in the reference.
pub(crate) const DOC: TableDoc = TableDoc { name: "[frontends.NAME.tls]", docs: TlsKeys::DOCS };

/// Parsed `[frontends.NAME.tls]`, with the places of its values.
#[derive(Debug, Clone)]
pub(crate) struct ParsedTls {
    pub(crate) place: Place,
    /// Whether the frontend uses the certificates that convey orders.
    pub(crate) acme: bool,
    pub(crate) keys: TlsKeys,
    /// TLS settings. In mode `http`, default protocols apply unless `alpn` is set.
    tls: FrontendTls,
    /// Value of `alpn` in the file; `None` if the key is not set.
    pub(crate) alpn: Option<Vec<Placed<String>>>,
}

keys! {
    /// The keys of `[frontends.NAME.tls]` with plain values.
    pub(crate) struct TlsKeys => FrontendTls, from (_unused: (), default);

    also certificates = default.certificates, acme = default.acme; {
        changes: |old, new| {
            let mut changes = certificate_changes(&old.certificates, &new.certificates);
            changes.extend(change("acme", old.acme, new.acme));
            changes
        },
        docs: CERTIFICATE_DOCS,
    };

    key "refuse_unknown_names" => refuse_unknown_names: bool {
        read: boolean,
        kind: "boolean: whether convey refuses a client whose server name (SNI) matches no certificate. Otherwise the client gets the first certificate",
        default: "false",
        sample: "#refuse_unknown_names = false",
        example: "true",
    };

    key "min_version" => min_version: TlsVersion {
        read: choice(&TlsVersion::ALL, TlsVersion::name),
        kind: r#"`"1.2"` or `"1.3"`"#,
        default: r#"`"1.2"`"#,
        sample: r#"#min_version = "1.2"                    # or "1.3""#,
        example: "'1.3'",
    };

    list "cipher_suites" => cipher_suites: String {
        read: cipher_suite,
        unset: "all",
        kind: r#"one or several of `"TLS13_AES_256_GCM_SHA384"`, `"TLS13_AES_128_GCM_SHA256"`, `"TLS13_CHACHA20_POLY1305_SHA256"`, `"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"`, `"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"`, `"TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"`, `"TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"`, `"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"`, `"TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"`"#,
        default: "all",
        sample: r#"#cipher_suites = ["TLS13_AES_128_GCM_SHA256"] # example; by default all secure ones"#,
        example: "'TLS13_AES_128_GCM_SHA256'",
    };

    also alpn = default.alpn; {
        changes: |old, new| change("alpn", list_or(&old.alpn, "none"), list_or(&new.alpn, "none")),
        docs: ALPN_DOCS,
    };

    also client_ca = default.client_ca; {
        changes: |old, new| change("client_ca", ca(old.client_ca.as_ref()), ca(new.client_ca.as_ref())),
        docs: CLIENT_DOCS,
    };

    key "session_tickets" => session_tickets: bool {
        read: boolean,
        kind: "boolean: whether clients may resume an earlier session",
        default: "true",
        sample: "#session_tickets = true",
        example: "false",
    };

    key "handshake_timeout" => handshake_timeout: Duration {
        read: seconds(MILLISECOND),
        kind: "seconds from 0.001: how long a handshake may take",
        default: "10",
        sample: "#handshake_timeout = 10",
        example: "7",
    };

    key "max_handshakes_per_source" => max_handshakes_per_source: u32 {
        read: integer(1..=u32::MAX),
        kind: "1 to 4294967295 handshakes at once of one address (IPv6: one /64). None for `trusted_clients`",
        default: "256",
        sample: "#max_handshakes_per_source = 256        # at once",
        example: "7",
    };

    key "http3" => http3: bool {
        read: boolean,
        kind: "boolean: whether convey speaks [HTTP/3](../guides/http3.md) too, over UDP at the same addresses. Mode http; not with `accept_proxy`",
        default: "false",
        sample: "#http3 = false                          # true: also HTTP/3, over UDP at the same addresses (mode http)",
        example: "true",
    };

    key "early_data" => early_data: bool {
        read: boolean,
        kind: "boolean: whether convey takes requests of safe methods before the handshake is over (0-RTT). Needs `http3` and `session_tickets`; not with `client_ca`",
        default: "false",
        sample: "#early_data = false                     # true: with http3, safe methods in the first packet (0-RTT)",
        example: "true\nhttp3 = true",
    };
}

/// Keys of certificates in the reference.
const CERTIFICATE_DOCS: &[Docs] = &[
    Docs::Key(KeyDoc {
        name: "certificate",
        kind: "a file in PEM, or several: certificate chains, the server's own certificate first",
        default: "required without `certificate_dir` and `[acme]`",
        sample: r##"
#certificate = "site.pem"               # example; the chain in PEM, or several: ["a.pem", "b.pem"]. A client gets the
                                        # certificate for the name that it asks for, else the first one
"##,
        example: "'OTHER.pem'\nkey = 'OTHER.key'",
        ..KeyDoc::USUAL
    }),
    Docs::Key(KeyDoc {
        name: "key",
        kind: "a file in PEM for each `certificate`, in the same order. Others must not be able to read it",
        default: "the file of the certificate",
        sample: r#"#key = "site.key"                       # example; the key of each certificate. By default it is in the file of the certificate"#,
        example: "'OTHER.key'\ncertificate = 'OTHER.pem'",
        ..KeyDoc::USUAL
    }),
    Docs::Key(KeyDoc {
        name: "certificate_dir",
        kind: "a folder: `NAME.pem` or `NAME.crt`, each with its key in `NAME.key` or in the same file; at most 10,000 certificates",
        default: "none",
        sample: r#"#certificate_dir = "certificates"       # example; also use all certificates of a folder: NAME.pem with NAME.key"#,
        example: "'FOLDER'",
        ..KeyDoc::USUAL
    }),
    Docs::Key(KeyDoc {
        name: "acme",
        kind: "boolean: whether the frontend uses the certificates of `[acme]`",
        default: "if the frontend names no certificate",
        sample: "#acme = true                            # example; also use the certificates of [acme]. Default if no certificate is named",
        example: "true",
        ..KeyDoc::USUAL
    }),
];

/// `alpn` in the reference.
const ALPN_DOCS: &[Docs] = &[Docs::Key(KeyDoc {
    name: "alpn",
    kind: r#"one or several names of protocols, the preferred one first. Mode http: of `"h2"` and `"http/1.1"`"#,
    default: "both in mode http; none in mode proxy",
    sample: r#"#alpn = ["h2", "http/1.1"]              # mode proxy: none"#,
    example: "'h2'",
    ..KeyDoc::USUAL
})];

/// Keys of client certificates in the reference.
const CLIENT_DOCS: &[Docs] = &[
    Docs::Key(KeyDoc {
        name: "client_ca",
        kind: "a file in PEM: the authorities that issue the certificates of clients",
        default: "none",
        sample: r#"#client_ca = "clients.pem"              # example; clients then need a certificate of these authorities"#,
        example: "'SITE.pem'",
        ..KeyDoc::USUAL
    }),
    Docs::Key(KeyDoc {
        name: "client_certificate",
        kind: r#"`"required"` or `"optional"`: needs `client_ca`"#,
        default: r#"`"required"`"#,
        sample: r#"#client_certificate = "optional"        # example; with client_ca; by default "required""#,
        example: "'optional'",
        ..KeyDoc::USUAL
    }),
];

/// Policy for client certificates: whether the handshake needs one.
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

/// Contents of a certificate chain and its key, with their places in the configuration.
struct ReadPair {
    pair: CertificatePair,
    chain_place: Place,
    key_place: Place,
}

impl ParsedTls {
    /// Reads `[frontends.NAME.tls]` and the files that it names; `None` if the frontend does not
    /// have the table.
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
        let acme = implied_acme(&mut table, acme, report);
        let mut pairs = pairs(&mut table, report);
        pairs.extend(acme.into_iter().flat_map(|acme| of_acme(acme, &place, report)));
        let has_alpn = table.has("alpn");
        let alpn = table.any_number("alpn", protocol);
        let default = FrontendTls {
            certificates: pairs.iter().map(|read| read.pair.clone()).collect(),
            acme: acme.is_some(),
            refuse_unknown_names: false,
            min_version: TlsVersion::default(),
            cipher_suites: Vec::new(),
            alpn: Vec::new(),
            client_ca: client_ca(&mut table, report),
            session_tickets: true,
            handshake_timeout: FrontendTls::HANDSHAKE_TIMEOUT,
            max_handshakes_per_source: FrontendTls::MAX_HANDSHAKES_PER_SOURCE,
            http3: false,
            early_data: false,
        };
        let keys = TlsKeys::read(&mut table);
        table.finish();
        let tls = keys.model((), default);
        check(&tls, &pairs, &place, report);
        if let Some(early_data) = keys.early_data.as_ref().filter(|early_data| early_data.value) {
            check_early_data(&tls, &early_data.place, report);
        }
        Some(ParsedTls { place, acme: acme.is_some(), keys, tls, alpn: has_alpn.then_some(alpn) })
    }

    pub(super) fn model(&self, mode: Mode) -> FrontendTls {
        let usual = if mode.is_http() { &TlsAcceptor::HTTP[..] } else { &[] };
        let usual = || usual.iter().map(|protocol| (*protocol).to_owned()).collect();
        let said = |alpn: &Vec<Placed<String>>| alpn.iter().map(|protocol| protocol.value.clone()).collect();
        FrontendTls { alpn: self.alpn.as_ref().map_or_else(usual, said), ..self.tls.clone() }
    }
}

fn cipher_suite(value: &DeValue<'_>) -> Result<String, String> {
    choice(&TlsAcceptor::CIPHER_SUITES, |suite| suite)(value).map(str::to_owned)
}

/// Returns `[acme]` if the frontend uses the certificates that convey orders: it sets `acme`, or it
/// names no certificates.
fn implied_acme<'a>(
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

/// Certificates that convey has ordered, with their keys. Warns of an unusable certificate and
/// omits it; convey orders it again.
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
            Err(why) => report.warning(place, format!("{} is not used: {why}", path.display())),
        }
    }
    pairs
}

/// Certificates with their keys, from the files and the folder that the table names.
fn pairs(table: &mut TomlTable<'_>, report: &Report<'_>) -> Vec<ReadPair> {
    let folder = table.optional("certificate_dir", string);
    let chains = table.any_number("certificate", string);
    let keys = table.any_number("key", string);
    if let Some(key) = keys.first().filter(|_| keys.len() != chains.len()) {
        let message = format!(
            "found {} for {} certificates; allowed: one for each certificate, or none if each file includes its key",
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

/// Certificates of a folder with their keys, sorted by name. The certificate is `NAME.pem` or
/// `NAME.crt`; the key is in `NAME.key` or in the same file.
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
        report.error(
            place,
            format!("{folder} has {} certificates; allowed: at most {MAX_CERTIFICATES}", chains.len()),
        );
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

/// Reads a certificate of a folder and its key during a reload. If the pair is unusable, returns
/// the previous pair; `None` if there was none.
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
    let instead =
        if found.is_some() { "the previous certificate stays in use" } else { "convey does not use it" };
    report.warning(place, format!("{} is refused: {why}; {instead}", chain_path.display()));
    report.refuse(chain_path);
    found.map(of)
}

/// Reads a certificate chain and its key. `None` after an error, which is reported.
fn pair(chain: (&str, &Place), key: (&str, &Place), report: &Report<'_>) -> Option<ReadPair> {
    let (key_path, key_bytes) = report.read_key(key.1, key.0)?;
    let (chain_path, chain_bytes) = report.read_certificates(chain.1, chain.0)?;
    let pair = CertificatePair { chain_path, key_path, chain: chain_bytes.into(), key: key_bytes.into() };
    Some(ReadPair { pair, chain_place: chain.1.clone(), key_place: key.1.clone() })
}

/// Reads a certificate chain and its key, without their places in the configuration. `None` after
/// an error, which is reported.
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

/// Reports missing settings that early data needs, and settings that exclude early data. Early data
/// resumes an earlier session over HTTP/3, without a new check of the client's certificate.
fn check_early_data(tls: &FrontendTls, place: &Place, report: &Report<'_>) {
    if !tls.http3 {
        report.error(place, "needs http3 = true: convey accepts early data only over HTTP/3");
    } else if !tls.session_tickets {
        report.error(place, "needs session_tickets = true: early data needs a resumed session");
    } else if tls.client_ca.is_some() {
        report
            .error(place, "skips the check of client certificates that client_ca requires; keep one of them");
    }
}

/// Reports TLS settings that would make every handshake fail.
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
