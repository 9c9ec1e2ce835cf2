//! `convey check`: validates a configuration, and checks whether it would start on this host now.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Display;
use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use convey_cli::Options;
use convey_config::{Config, FoundBySource, FoundServers, LeftOut, LoadError, Problem, Resolved};
use convey_control::{ConfigFile, Resolver, own_addresses};
use convey_dataplane::{Guard, GuardKind, causes};
use convey_doctor::masquerade;
use convey_forward::{ServerSnat, SnatAddresses};
use convey_model::{DiscoverySource, DnsRecords, Lookup, LookupFault, Missing, Mode, ServerAddr};
use futures_util::future::join_all;
use tempfile::TempDir;

use super::confine::{self, Rehearsed};
use super::host::{self, Kernel};
use super::memory::PacketMemory;
use super::ownership::{Ownership, SnatOwnership};
use super::paths::Threads;
use super::sources::Fetched;
use super::{
    Failure, ask, balancer, certificates, cores, limits, offload, packet_plan, paths, print, print_error,
    privileges, proxy_path, resources, runtime, snat_ports, snat_watch, sources, stale_filters,
};

/// Configuration to check.
pub(super) struct Checked {
    file: ConfigFile,
    /// Local copy of a remote configuration; `None` for a local configuration.
    brought: Option<Brought>,
}

/// Local copy of a remote configuration, with its address.
struct Brought {
    folder: TempDir,
    /// The folder of the files in use, within `folder`.
    files: PathBuf,
    address: String,
}

impl Checked {
    /// Loads the configuration that the command line names. A remote configuration is fetched into
    /// a temporary folder; the rest of the host stays unchanged.
    pub(super) fn of(options: &Options) -> anyhow::Result<Checked> {
        let Some(address) = sources::of(options, &options.state_dir).address() else {
            return Ok(Checked { file: super::file(options), brought: None });
        };
        let folder = tempfile::tempdir().context("cannot create a temporary folder for the configuration")?;
        let source = sources::to_check(options, folder.path());
        let file = ConfigFile { mode: options.mode(), ..source.file() };
        let files = file.path.parent().unwrap_or(folder.path()).to_owned();
        let checked = Checked { brought: Some(Brought { folder, files, address }), file };
        let failed = |why: String| anyhow!(checked.at_home(why));
        let Fetched { mut made, .. } = source.fetch(&checked.file).map_err(failed)?;
        made.extend(checked.brought.iter().map(|brought| brought.folder.path().to_owned()));
        // Make the folder readable for the configured user, because convey reads the file again as
        // that user.
        if let Ok(loaded) = checked.file.load()
            && let Some(owner) = confine::owner(&loaded.config)
        {
            source.change_owner(&made, owner).map_err(failed)?;
        }
        Ok(checked)
    }

    /// Replaces local paths in the text by the address of the remote configuration.
    fn at_home(&self, text: String) -> String {
        let Some(Brought { folder, files, address }) = &self.brought else { return text };
        let files = format!("{}/", files.display());
        let text = text.replace(&files, &format!("{}/", address.trim_end_matches('/')));
        text.replace(&*folder.path().to_string_lossy(), address)
    }

    fn failure(&self, failure: Failure) -> Failure {
        if self.brought.is_none() {
            return failure;
        }
        match failure {
            Failure::Config(LoadError::Invalid(problems)) => {
                let named = |problem: Problem| {
                    let [file, message] = [problem.file, problem.message].map(|text| self.at_home(text));
                    Problem { file, message, ..problem }
                };
                Failure::Config(LoadError::Invalid(problems.into_iter().map(named).collect()))
            }
            Failure::Config(LoadError::Unreadable { path, source }) => {
                let path = self.at_home(path.display().to_string()).into();
                Failure::Config(LoadError::Unreadable { path, source })
            }
            other => Failure::Start(anyhow!(self.at_home(other.to_string()))),
        }
    }

    fn warn(&self, warning: impl Display) {
        print_error(self.at_home(format!("warning: {warning}")));
    }

    fn print(&self, text: &str) {
        print(&self.at_home(text.to_owned()));
    }

    /// Checks the configuration and the files that it names.
    pub(super) fn syntax(&self) -> Result<ExitCode, Failure> {
        self.look_at_file().map_err(|failure| self.failure(failure))
    }

    fn look_at_file(&self) -> Result<ExitCode, Failure> {
        let loaded = self.file.load().map_err(Failure::Config)?;
        let odd = convey_config::validate_without_host(&loaded)
            .map_err(LoadError::Invalid)
            .map_err(Failure::Config)?;
        loaded.warnings.iter().chain(&odd).for_each(|warning| self.warn(warning));
        let path = self.file.path.display();
        self.print(&format!("{path} is valid (this host was not checked); its content:\n\n"));
        self.print(&convey_config::describe(&loaded.config));
        Ok(ExitCode::SUCCESS)
    }

    /// Validates the configuration on this host, and tries the steps of a start. Succeeds if convey
    /// would start.
    pub(super) fn run(&self, socket: Option<&Path>) -> Result<ExitCode, Failure> {
        self.try_out(socket).map_err(|failure| self.failure(failure))
    }

    fn try_out(&self, socket: Option<&Path>) -> Result<ExitCode, Failure> {
        let file = &self.file;
        let runtime = runtime()?;
        for line in runtime.block_on(ask::other_than_file(&file.path, socket)) {
            self.warn(format!(
                "the running convey overrides this file: {line} (`convey reset` removes the override)"
            ));
        }
        let (loaded, kernel) = runtime.block_on(host::load(file))?;
        loaded.warnings.iter().for_each(|warning| self.warn(warning));
        if let Some(Kernel { netlink, table, .. }) = &kernel {
            let left = runtime.block_on(stale_filters::describe(netlink, &table.interfaces));
            left.iter().for_each(|line| self.warn(line));
        }
        runtime.block_on(look_up(&loaded.config)).faults.iter().for_each(|line| self.warn(line));
        let (config, other_ports) =
            snat_ports::choose(&loaded.config).context("convey would not start here")?;
        let few_ports = limits::few_local_ports(&config);
        let missing = proxy_path::missing_addresses(&config);
        let expiring = certificates::expiring(&config);
        let memory = PacketMemory::here(&config);
        memory.warning(&config).iter().for_each(|warning| self.warn(warning));
        let workers = paths::too_many_workers(&config, cores());
        let odd = other_ports.iter().chain(&workers).chain(&expiring).chain(&few_ports).chain(&missing);
        odd.for_each(|warning| self.warn(warning));
        let Rehearsed { mut obstacles, warnings } = confine::rehearse(file, &loaded.config);
        warnings.iter().for_each(|warning| self.warn(warning));
        obstacles.extend(of_sockets(&config));
        if let Ok(threads) = Threads::new(&config, cores(), kernel.as_ref()) {
            obstacles.extend(resources::missing_tasks(&config, threads));
            obstacles.extend(resources::missing_memory(&config, threads.packets));
        }
        let mut snat = String::new();
        let config = match kernel {
            Some(kernel) => {
                let (lines, warnings) = snat_of_servers(&config, &kernel);
                warnings.iter().for_each(|warning| self.warn(warning));
                snat = lines;
                obstacles.extend(of_packets(&config, &kernel));
                let config = packet_plan::resolve(config, &kernel.network, cores())?;
                let found = masquerade::of_host(&config, &config.passthrough.snat_addresses, &kernel.network);
                found.iter().for_each(|found| self.warn(masquerade::line(found)));
                config
            }
            None => config,
        };
        let path = file.path.display();
        if obstacles.is_empty() {
            self.print(&format!("{path} is valid; convey would run:\n\n"));
            self.print(&convey_config::describe(&config));
            memory.describe(&config).iter().for_each(|line| self.print(&format!("{line}\n")));
            self.print(&snat);
            return Ok(ExitCode::SUCCESS);
        }
        for obstacle in obstacles {
            print_error(self.at_home(format!("error: {obstacle}")));
        }
        let advice = "`check --syntax` does not look at this host";
        let why = format!("convey: {path} is valid, but would not start here now ({advice})");
        print_error(self.at_home(why));
        Ok(ExitCode::FAILURE)
    }
}

/// SNAT addresses, one line per address with the servers whose packets carry it. Also returns
/// warnings about SNAT addresses that may disappear or are unused.
fn snat_of_servers(config: &Config, kernel: &Kernel) -> (String, Vec<String>) {
    let network = &kernel.network;
    let Ok(addresses) = packet_plan::snat_addresses(config, network) else { return Default::default() };
    let choice = packet_plan::snat_choice(config);
    let [mut servers, mut later]: [BTreeMap<IpAddr, Vec<IpAddr>>; 2] = Default::default();
    for server in packet_plan::servers(config, Mode::has_snat) {
        let ServerSnat { first, further } =
            choice.of_server(network, server, SnatAddresses::free(&addresses));
        first.into_iter().for_each(|ip| servers.entry(ip).or_default().push(server));
        further.into_iter().for_each(|ip| later.entry(ip).or_default().push(server));
    }
    let line = |ip: &IpAddr, servers: &[IpAddr], when: &str| {
        format!("snat {ip} for {}{when}\n", snat_watch::named(servers))
    };
    let now = servers.iter().map(|(ip, servers)| line(ip, servers, ""));
    let later = later
        .iter()
        .map(|(ip, servers)| line(ip, servers, " once the ports of the other addresses are in use"));
    let lines = now.chain(later).collect();
    let unused = packet_plan::unused_snat_addresses(config, network).into_iter().map(|(_, line)| line);
    let warning = |ip: &IpAddr| match network.own_address(*ip) {
        Some(own) if own.expires => Some(format!(
            "the SNAT address {ip} has a lifetime: flows end when it expires; set passthrough.snat_addresses to an address that stays"
        )),
        Some(_) => None,
        None => Some(format!("no interface of this host has the SNAT address {ip}")),
    };
    (lines, servers.keys().filter_map(warning).chain(unused).collect())
}

/// Problems that prevent proxy mode or the statistics from listening, one per line.
fn of_sockets(config: &Config) -> Vec<String> {
    let mut obstacles = proxy_path::bind_problems(config);
    let stats = config.stats.listen;
    if let Err(error) = TcpListener::bind(stats) {
        obstacles.push(balancer::statistics_problem(stats, &error).to_string());
    }
    let open_files = limits::most_open_files();
    let workers = paths::proxy_workers(config, cores());
    if let Some(refusal) = proxy_path::too_many_ports(config, workers, open_files) {
        obstacles.push(format!("under this shell's limit of open files, {refusal}"));
    }
    obstacles
}

/// Problems that prevent packet modes from starting, one per line. A missing optional part is only
/// printed as a warning. The check attaches nothing to an interface, so only a start shows whether
/// the driver of a network card supports XDP.
fn of_packets(config: &Config, kernel: &Kernel) -> Vec<String> {
    if let Err(error) = privileges::check() {
        // All other checks need the interfaces.
        return vec![error.to_string()];
    }
    let mut obstacles = Vec::new();
    let mut note = |tried: anyhow::Result<()>| {
        if let Err(error) = tried {
            obstacles.push(format!("{error:#}"));
        }
    };
    note(Ownership::default().missing(config).map(drop));
    let interfaces = packet_plan::interfaces(config, &kernel.network);
    let addresses = packet_plan::snat_addresses(config, &kernel.network);
    if let Ok(addresses) = &addresses {
        let needs = packet_plan::needs_snat_address(config, &kernel.network, addresses);
        let needed = addresses.iter().copied().filter(|ip| needs(*ip));
        note(SnatOwnership::take(config, needed).map(drop));
        let settings = &config.passthrough;
        let selection = packet_plan::selection(settings, addresses, packet_plan::with_backends(config));
        if settings.guard
            && let Err(error) = Guard::of_kind(GuardKind::Tcx, &selection, &[])
        {
            print_error(format!(
                "warning: at a start, the guard would use nftables instead of BPF: {}",
                causes(&error)
            ));
        }
        if let Ok(interfaces) = &interfaces {
            match offload::try_out(settings, &selection, interfaces) {
                Ok(warning) => warning.iter().for_each(|warning| print_error(format!("warning: {warning}"))),
                Err(error) => note(Err(error)),
            }
        }
    }
    note(interfaces.map(drop));
    note(addresses.map(drop));
    obstacles
}

/// Result of DNS lookups for a configuration.
pub(super) struct LookedUp {
    /// Configuration with the servers that the names resolve to.
    pub(super) config: Config,
    /// The addresses of each name.
    pub(super) names: BTreeMap<String, BTreeSet<String>>,
    /// Names that have no address now, and names with an address of this host, which would lead
    /// back to convey; one line each. These are not errors, because a later lookup may return other
    /// addresses.
    pub(super) faults: Vec<String>,
}

/// Looks up all names of a configuration.
pub(super) async fn look_up(config: &Config) -> LookedUp {
    let resolver = Resolver::new(64);
    let look_up = |host: &str| resolver.look_up(host.to_owned(), &config.dns.name_servers);
    let lookups = join_all(config.hosts().into_iter().map(look_up)).await.into_iter();
    let local = |lookup: Lookup| if config.dns.allow_local { lookup } else { lookup.without_local() };
    let lookups: Vec<Lookup> = lookups.map(local).collect();
    let fault = |lookup: &Lookup| {
        let (host, LookupFault { missing, why }) = (&lookup.host, lookup.fault()?);
        Some(match missing {
            Missing::All => format!("name {host} cannot be resolved now: {why}"),
            Missing::Records(kind) => {
                format!("name {host}: its {kind} records cannot be looked up now: {why}")
            }
        })
    };
    let faults: Vec<String> = lookups.iter().filter_map(fault).collect();
    let mut addresses: HashMap<String, BTreeSet<ServerAddr>> = HashMap::new();
    for Lookup { host, v4, v6, .. } in lookups {
        let found = [v4, v6].into_iter().flatten().flat_map(DnsRecords::into_addresses);
        addresses.entry(host).or_default().extend(found);
    }
    let of = |host: &str| addresses.get(host).cloned().unwrap_or_default();
    let known = FoundServers { addresses: of, discovered: |_: &DiscoverySource| FoundBySource::default() };
    let Resolved { backends, left_out, .. } = config.resolved(&known, &own_addresses().unwrap_or_default());
    let resolved = Config { backends, ..config.clone() };
    let faults = faults.into_iter().chain(LeftOut::lines(left_out)).collect();
    let texts = |addresses: BTreeSet<ServerAddr>| addresses.iter().map(ToString::to_string).collect();
    let names = addresses.into_iter().map(|(host, of)| (host, texts(of))).collect();
    LookedUp { config: resolved, names, faults }
}
