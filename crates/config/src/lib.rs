//! Configuration: reading from a file or a list of servers, validation, comparison and watching.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod annotations;
mod describe;
mod diff;
mod document;
mod duplicates;
mod encoding;
mod file;
pub mod files;
#[cfg(feature = "test-util")]
pub mod fixture;
mod hint;
mod include;
mod keys;
mod list;
mod loops;
mod mode;
mod pairs_before;
mod problem;
mod reader;
pub mod reference;
mod reload;
mod resolved;
mod rights;
mod roots;
mod steered;
mod tables;
mod texts;
mod token;
mod validate;
mod values;
mod variables;
pub mod watch;

pub use annotations::Annotations;
pub use convey_model::LogLevel;
pub use describe::describe;
pub use file::access::find_network;
pub use hint::{did_you_mean, listed};
pub use list::{ListSettings, load_list};
pub use mode::{HostNetwork, validate_mode, validate_without_host};
pub use pairs_before::PairsBefore;
pub use problem::{LoadError, Problem};
pub use reload::Diff;
pub use resolved::{FoundBySource, FoundServers, LeftOut, Resolved};
pub use rights::lower_rights;
pub use steered::{ServerChange, check_server_address};
pub use tables::access_log::AccessLogConfig;
pub use tables::dns::DnsConfig;
pub use tables::logs::{LogConfig, LogFormat, LogOutput, parse_log_level};
pub use tables::privileges::Privileges;
pub use tables::stats::Stats;
pub use tables::syslog::{SyslogAddress, SyslogFacility, SyslogTarget};
pub use token::AdminToken;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::document::Document;
use self::file::ParsedFile;
use self::files::{ReadFile, ReadFiles};
use self::problem::Report;
use self::texts::Texts;
use convey_model::{
    AcmeConfig, AnnounceConfig, BackendConfig, FrontendConfig, Mode, PacketSettings, Timeouts,
};

/// A validated configuration. It contains no unchecked strings, and no defaults that depend on a
/// mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Frontends, sorted by name.
    pub frontends: Vec<FrontendConfig>,
    /// Backends, sorted by name, including unused ones.
    pub backends: Vec<BackendConfig>,
    /// Number of threads that serve modes `proxy` and `http`; `None`: one for each core.
    pub workers: Option<u16>,
    /// Log settings.
    pub log: LogConfig,
    /// Access log settings.
    pub access_log: AccessLogConfig,
    /// Privileges to drop once the file is read.
    pub privileges: Privileges,
    /// Settings for certificates that convey orders itself; `None` without `[acme]`.
    pub acme: Option<Arc<AcmeConfig>>,
    /// Settings for announcing the addresses of frontends; `None` without `[announce]`.
    pub announce: Option<Arc<AnnounceConfig>>,
    /// Statistics endpoint.
    pub stats: Stats,
    /// Timeouts of the proxy.
    pub timeouts: Timeouts,
    /// Settings of the packet modes.
    pub passthrough: PacketSettings,
    /// DNS settings for the lookups of servers' host names.
    pub dns: DnsConfig,
}

impl Config {
    /// Frontends in modes of this kind, such as [`Mode::is_proxied`].
    pub fn frontends_where(&self, kind: fn(Mode) -> bool) -> impl Iterator<Item = &FrontendConfig> {
        self.frontends.iter().filter(move |frontend| kind(frontend.mode))
    }

    /// Names of the backends of frontends in modes of this kind.
    pub fn backends_in(&self, kind: fn(Mode) -> bool) -> BTreeSet<&str> {
        self.frontends_where(kind).flat_map(FrontendConfig::backends).collect()
    }

    /// SNAT addresses from the file, possibly empty; `None` if no frontend uses SNAT.
    pub fn snat_addresses(&self) -> Option<&[IpAddr]> {
        let has_snat = self.frontends_where(Mode::has_snat).next().is_some();
        has_snat.then_some(&self.passthrough.snat_addresses)
    }

    /// Backend of this name; `None` if the configuration has none.
    pub fn backend(&self, name: &str) -> Option<&BackendConfig> {
        let found = self.backends.binary_search_by(|backend| backend.name.as_str().cmp(name));
        found.ok().map(|index| &self.backends[index])
    }

    /// Addresses that convey adds to an interface while it can serve.
    pub fn announced(&self) -> BTreeSet<IpAddr> {
        let announced = self.announce.iter().flat_map(|_| AnnounceConfig::addresses(&self.frontends));
        announced.collect()
    }
}

/// A configuration that is valid by itself, with warnings. [`validate_mode`] checks whether this
/// host can run it.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// Configuration from the file, with defaults filled in.
    pub config: Config,
    /// Warnings about settings that work but are probably mistakes; in the order of the file.
    pub warnings: Vec<Problem>,
    /// Certificate chains of unusable pairs in a folder of certificates. Empty except after a
    /// reload: at the start, an unusable pair is an error.
    pub refused_certificates: Vec<PathBuf>,
    source: Source,
}

/// Texts of a configuration and the parsed file. They give the places of problems that later checks
/// find.
#[derive(Debug, Clone)]
struct Source {
    texts: Texts,
    file: ParsedFile,
}

impl Loaded {
    fn new(texts: Texts, file: ParsedFile, warnings: Vec<Problem>) -> Loaded {
        let config = file.config(|frontend| file::value(&frontend.mode).unwrap_or(file.mode));
        Loaded { config, warnings, refused_certificates: Vec::new(), source: Source { texts, file } }
    }

    /// Applies the mode of the command line to frontends without a mode. If all frontends have a
    /// mode of their own, and one differs from `mode`, the result has a warning.
    pub fn with_default_mode(mut self, mode: Mode) -> Loaded {
        let Source { texts, file } = &self.source;
        self.config = file.config(|frontend| file::value(&frontend.mode).unwrap_or(mode));
        let said: Option<Vec<_>> = file.frontends.iter().map(|frontend| frontend.mode.as_ref()).collect();
        if let Some(other) = said.into_iter().flatten().find(|said| said.value != mode) {
            let report = Report::new(texts);
            let message = format!(
                "mode {} of the command line has no effect: every frontend sets its own mode",
                mode.name()
            );
            report.warning(&other.place, message);
            self.warnings.extend(report.finish().unwrap_or_default());
        }
        self
    }
}

/// Reads and validates a configuration file and the files that it includes.
///
/// # Errors
/// [`LoadError::Unreadable`] if there is no text to read, [`LoadError::Invalid`] with all errors in
/// the text.
pub fn load(path: &Path) -> Result<Loaded, LoadError> {
    load_with_lists(path, &mut ReadFiles::default(), None)
}

/// Loads a configuration like [`load`]. `read_files` receives all files that were read, even if
/// they have errors. `before` has the certificates of the previous load, if this is a reload. In a
/// reload, an unusable pair in a folder of certificates is no error: the previous pair stays in
/// use, if there was one.
///
/// # Errors
/// Those of [`load`].
pub fn load_with_lists(
    path: &Path,
    read_files: &mut ReadFiles,
    before: Option<&PairsBefore>,
) -> Result<Loaded, LoadError> {
    let text = read(path, read_files)?;
    let patterns = include::patterns(&text);
    let mut texts = Texts::one(&path.display().to_string(), &text);
    let included = include::files(path, &patterns).map_err(|error| {
        let path = error.path().to_owned();
        let source = rights::explained(&path, error.into());
        LoadError::Unreadable { path, source }
    })?;
    for (count, file) in included.iter().enumerate() {
        let text = read(file, read_files)?;
        if count >= include::MAX_FILES || (texts.len() + text.len()) as u64 > files::MAX_SIZE {
            return Err(LoadError::TooMuch { path: file.clone() });
        }
        texts.push(&file.display().to_string(), &text);
    }
    let loaded = parse_texts(texts, &mut read_files.named, before).map_err(LoadError::Invalid)?;
    roots::check(&loaded).map_err(LoadError::Invalid)?;
    Ok(loaded)
}

/// Directories that contain the file at `path` and its included files. If a symbolic link leads to
/// an included file, the real directory is included, too.
pub fn folders(path: &Path) -> Vec<PathBuf> {
    let read = read(path, &mut ReadFiles::default());
    let patterns = read.map(|text| include::patterns(&text)).unwrap_or_default();
    let own = path.parent().unwrap_or(Path::new("")).to_owned();
    let included = include::files(path, &patterns).unwrap_or_default().into_iter();
    let real = included.filter_map(|file| Some(file.canonicalize().ok()?.parent()?.to_owned()));
    [own].into_iter().chain(include::folders(path, &patterns)).chain(real).collect()
}

fn read(path: &Path, read_files: &mut ReadFiles) -> Result<String, LoadError> {
    let bytes =
        files::read(path).map_err(|source| LoadError::Unreadable { path: path.to_owned(), source })?;
    read_files.texts.push((path.to_owned(), bytes.clone()));
    encoding::decode(&path.display().to_string(), bytes).map_err(|problem| LoadError::Invalid(vec![problem]))
}

/// Validates the text of a file; `file` is its name in problems, and the base of relative paths.
/// Included files are not read.
///
/// # Errors
/// All errors, in the order of the file. After a syntax error the meaning of the remaining text is
/// uncertain: from there on only further syntax errors are reported.
pub fn parse(file: &str, text: &str) -> Result<Loaded, Vec<Problem>> {
    parse_texts(Texts::one(file, text), &mut Vec::new(), None)
}

fn parse_texts(
    texts: Texts,
    lists: &mut Vec<ReadFile>,
    before: Option<&PairsBefore>,
) -> Result<Loaded, Vec<Problem>> {
    let (file, warnings, refused) = {
        let document = Document::parse(&texts, &|name| std::env::var(name));
        let report = Report::of(&texts, &document).with_pairs(before);
        document.report(&report);
        let file = ParsedFile::read(&document.root, &report);
        *lists = report.take_lists();
        let refused = report.take_refused();
        let warnings = check(&file, report)?;
        (file, warnings, refused)
    };
    Ok(Loaded { refused_certificates: refused, ..Loaded::new(texts, file, warnings) })
}

/// Checks constraints between values that are each valid. Returns the warnings.
fn check(file: &ParsedFile, report: Report<'_>) -> Result<Vec<Problem>, Vec<Problem>> {
    validate::check(file, &report);
    report.finish()
}

#[cfg(test)]
mod tests;
