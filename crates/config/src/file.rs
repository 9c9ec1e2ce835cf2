//! Schema of the file: tables and keys, allowed values, and defaults. `validate` checks constraints
//! between several values.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;

use toml::Spanned;
use toml::de::DeTable;

use super::document::INCLUDE;
use super::include;
use super::problem::{Placed, Report};
use super::reader::TomlTable;
use super::tables::acme::ParsedAcme;
use super::tables::announce::{self, ParsedAnnounce};
use super::tables::backend::checked;
pub(super) use super::tables::frontend::access;
use super::tables::frontend::by_backend;
use super::tables::passthrough::ParsedPassthrough;
use super::tables::timeouts::{self, TimeoutKeys};
use super::tables::{ParsedBackend, ParsedFrontend, ParsedServer, access_log, dns, logs, privileges, stats};
use super::values::{ServerAddress, choice, integer, string};
use super::{AccessLogConfig, Config, DnsConfig, LogConfig, Privileges, Stats};
use convey_model::{self as model, AcmeConfig, CertificatePair, Mode, Timeouts};

/// Maximum number of threads of a data path.
const MAX_WORKERS: u16 = 1024;

/// A parsed file, in which each value is valid by itself. A required value that is missing or wrong
/// is `None`, and its error is reported.
#[derive(Debug, Clone)]
pub(super) struct ParsedFile {
    pub(super) mode: Mode,
    pub(super) workers: Option<Placed<u16>>,
    pub(super) frontends: Vec<ParsedFrontend>,
    pub(super) backends: Vec<ParsedBackend>,
    pub(super) stats: Stats,
    pub(super) timeouts: TimeoutKeys,
    pub(super) passthrough: ParsedPassthrough,
    dns: DnsConfig,
    log: LogConfig,
    access_log: AccessLogConfig,
    privileges: Privileges,
    acme: Option<ParsedAcme>,
    pub(super) announce: Option<ParsedAnnounce>,
}

impl ParsedFile {
    /// Reads a file.
    pub(super) fn read<'a>(root: &'a Spanned<DeTable<'a>>, report: &'a Report<'a>) -> ParsedFile {
        const NO_FRONTEND: &str = "no frontend; write [frontends.NAME] with listen_addr and backend";
        let mut root = TomlTable::root(root.get_ref(), report);
        root.require("frontends", NO_FRONTEND);
        root.any_number(INCLUDE, |value| include::check(&string(value)?));
        let acme = ParsedAcme::read(&mut root, report);
        let mode = root.or("mode", Mode::default(), choice(&Mode::ALL, Mode::name));
        let workers = root.optional("workers", integer(1..=MAX_WORKERS));
        let frontends = root.table("frontends");
        if frontends.is_empty() {
            report.missing(&frontends.place, NO_FRONTEND);
        }
        let frontends: Vec<ParsedFrontend> = frontends
            .named()
            .into_iter()
            .map(|(name, t)| ParsedFrontend::read(name, t, (mode, acme.as_ref()), report))
            .collect();
        let of_backend = by_backend(&frontends);
        let read_backend = |(name, table): (String, TomlTable<'_>)| {
            let users = of_backend.get(&*name).map_or(&[][..], Vec::as_slice);
            ParsedBackend::read(name, table, users, report)
        };
        let backends = root.table("backends").named().into_iter().map(read_backend).collect();
        drop(of_backend);
        let file = ParsedFile {
            mode,
            workers,
            backends,
            frontends,
            stats: stats::read(root.table("stats"), report),
            timeouts: timeouts::read(root.table("timeouts")),
            passthrough: ParsedPassthrough::read(root.table("passthrough")),
            dns: dns::read(root.table("dns")),
            log: logs::read(root.table("log")),
            access_log: access_log::read(root.table("access_log"), report),
            privileges: privileges::read(root.table("privileges")),
            acme,
            announce: announce::read(&mut root),
        };
        root.finish();
        file
    }

    /// Equivalent of a file with only these servers, a frontend for them and the statistics
    /// address.
    pub(super) fn of_list(
        listen: Placed<SocketAddr>,
        stats: Stats,
        servers: Vec<Placed<ServerAddress>>,
        report: &Report<'_>,
    ) -> ParsedFile {
        const BACKEND: &str = "servers";
        let nothing = DeTable::new();
        let absent = || TomlTable::root(&nothing, report);
        let frontend = ParsedFrontend::listed(listen, BACKEND);
        let mut servers: Vec<ParsedServer> = servers.into_iter().map(ParsedServer::listed).collect();
        servers.sort_by(|a, b| a.name.cmp(&b.name));
        let backend = ParsedBackend::read(BACKEND.to_owned(), absent(), &[&frontend], report);
        let frontends = vec![frontend];
        ParsedFile {
            mode: Mode::default(),
            workers: None,
            frontends,
            backends: vec![ParsedBackend { servers, ..backend }],
            stats,
            timeouts: TimeoutKeys::default(),
            passthrough: ParsedPassthrough::default(),
            dns: DnsConfig::default(),
            log: LogConfig::default(),
            access_log: AccessLogConfig::default(),
            privileges: Privileges::default(),
            acme: None,
            announce: None,
        }
    }

    /// Reports settings of `[acme]` that do not fit the frontends.
    pub(super) fn check_acme(&self, report: &Report<'_>) {
        let Some(acme) = &self.acme else { return };
        let mode = |frontend: &ParsedFrontend| value(&frontend.mode).unwrap_or(self.mode);
        let frontends: Vec<_> = self.frontends.iter().map(|f| f.model(mode(f))).collect();
        acme.check(&self.frontends, &frontends, report);
    }

    /// Model of the file, with the mode of each frontend. Valid only if no error was reported.
    pub(super) fn config(&self, mode_of: impl Fn(&ParsedFrontend) -> Mode) -> Config {
        let mut frontends: Vec<_> = self.frontends.iter().map(|f| f.model(mode_of(f))).collect();
        let acme = self.acme.as_ref().map(|acme| acme.model(&frontends));
        if let Some(acme) = &acme {
            frontends.iter_mut().for_each(|frontend| retain_configured(acme, frontend));
        }
        let packets = frontends.iter().filter(|frontend| frontend.mode.forwards_packets());
        let gets_packets: HashSet<&str> = packets.flat_map(|frontend| frontend.backends()).collect();
        let model = |backend: &ParsedBackend| {
            let mut model = backend.model(gets_packets.contains(&*backend.name));
            model.health_check.requests = checked(&model, &frontends);
            model
        };
        Config {
            backends: self.backends.iter().map(model).collect(),
            frontends,
            workers: value(&self.workers),
            log: self.log.clone(),
            access_log: self.access_log.clone(),
            privileges: self.privileges.clone(),
            acme,
            announce: self.announce.as_ref().map(|announce| announce.config.clone()),
            stats: self.stats.clone(),
            timeouts: self.timeouts.model((), Timeouts::default()),
            passthrough: self.passthrough.model(),
            dns: self.dns.clone(),
        }
    }
}

/// Removes a frontend's ACME certificates for names that are no longer configured, and sorts the
/// remaining certificates in the order of the configured names.
fn retain_configured(acme: &AcmeConfig, frontend: &mut model::FrontendConfig) {
    let Some(tls) = frontend.tls.as_mut().filter(|tls| tls.acme) else { return };
    let folder = acme.folder.join(AcmeConfig::CERTIFICATES);
    let wanted = |pair: &CertificatePair| match pair.chain_path.parent() == Some(&folder) {
        true => {
            let name = pair.chain_path.file_stem().unwrap_or_default();
            acme.domains.iter().position(|domain| name == domain.as_str()).map(|place| place + 1)
        }
        false => Some(0),
    };
    let certificates = &mut Arc::make_mut(tls).certificates;
    certificates.retain(|pair| wanted(pair).is_some());
    certificates.sort_by_key(wanted);
}

/// Value without its place.
pub(super) fn value<T: Copy>(found: &Option<Placed<T>>) -> Option<T> {
    found.as_ref().map(|found| found.value)
}
