//! `convey doctor`: examines this host and prints the findings.

mod features;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use convey_cli::operator::Client;
use convey_cli::{Options, Service};
use convey_config::Config;
use convey_control::{ConfigFile, health};
use convey_doctor::balancer::{
    self, AcceptQueue, CheckWords, Explained, FileLimits, Host, Running, RunningStatus, TakenPort,
    TargetServer, reported,
};
use convey_doctor::{Diagnosis, Examination, SkippedCheck, as_json, as_text, dsr_path, server, statistics};
use convey_model::{
    BackendConfig, DsrKind, Endpoint, FrontendConfig, HealthCheck, HttpCheck, HttpVersion, Listen, Mode,
    PathEnds, ProbeKind, Protocol, ServerConfig, UnixSocket,
};
use convey_proxy::BindError;
use futures_util::future::join_all;
use tokio::runtime::Runtime;

use super::ask::width;
use super::check::LookedUp;
use super::control_socket::places;
use super::host::{self, Kernel};
use super::{
    Failure, certificates, check, clock, cores, file, packet_plan, port_owner, print, route_check, runtime,
    stale_addresses,
};

/// Exit code if there are findings.
const FOUND: u8 = 3;

/// Upper bound for a request to a server of mode http. It is long because doctor does not check how
/// fast pages are.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of queries to the running convey, while servers are down for a reason that doctor
/// cannot find.
const LOOKS: u32 = 7;
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Maximum number of ports that doctor tries in a port range.
const PORTS_OF_RANGE: u32 = 8;

/// Line width, in columns, if the output is not a terminal.
const USUAL_WIDTH: usize = 80;

/// Examines this host as a balancer. With `service`, examines it as a server with direct server
/// return.
pub(super) fn run(options: &Options, json: bool, service: Option<Service>) -> Result<ExitCode, Failure> {
    let (found, title): (Examination, _) = match service {
        Some(Service { vip, port }) => {
            is_no_balancer(options, vip)?;
            (server::examine(vip, port).map_err(|why| anyhow!("{why}"))?, String::new())
        }
        None => of_balancer(options)?,
    };
    let text = if json {
        as_json(&found).context("cannot print")?
    } else {
        title + &as_text(&found, width().unwrap_or(USUAL_WIDTH))
    };
    print(&text);
    Ok(if found.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
}

/// Checks that this host is not the balancer of the VIP.
///
/// # Errors
/// The convey of this host forwards packets for the VIP. The commands that doctor suggests for a
/// server would take the VIP away from the balancer.
fn is_no_balancer(options: &Options, vip: IpAddr) -> Result<(), Failure> {
    let runtime = runtime()?;
    let Some((client, status)) = runtime.block_on(read_kernel(options)) else { return Ok(()) };
    let process = runtime.block_on(client.process());
    // The socket may belong to a convey in another network namespace. Compare the namespaces.
    let network_of = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let is_here = process.is_some_and(|process| network_of(&process.to_string()) == network_of("self"));
    if is_here && status.forwards(vip) {
        return Err(anyhow!(
            "this host is a balancer for {vip}, not a server: run `convey doctor` without --server"
        )
        .into());
    }
    Ok(())
}

/// Returns findings, and a title line that contains the path of the file unless the command line
/// names the file.
fn of_balancer(options: &Options) -> Result<(Examination, String), Failure> {
    let runtime = runtime()?;
    let asked = runtime.block_on(read_kernel(options));
    let (file, title) = judged_file(options, asked.as_ref().map(|(_, status)| status));
    let (loaded, kernel) = runtime.block_on(host::load(&file))?;
    let LookedUp { config, names, faults } = runtime.block_on(check::look_up(&loaded.config));
    let kernel = match kernel {
        Some(kernel) => kernel,
        None => runtime.block_on(host::read_kernel()).context("cannot list the kernel's routes")?,
    };
    let has_named_snat = !config.passthrough.snat_addresses.is_empty();
    let unused = packet_plan::unused_snat_addresses(&config, &kernel.network);
    let (config, obstacle) = of_packets(config, &kernel);
    let asked = asked.map(|(client, status)| (Source::Socket(client), status)).or_else(|| {
        let source = Source::Statistics(config.stats.listen);
        let status = runtime.block_on(source.status())?;
        status.is_of(&file.absolute()).then_some((source, status))
    });
    let (source, status) = asked.unzip();
    let running = source.as_ref().zip(status);
    let running = running.map(|(source, status)| runtime.block_on(with_process(source, status, &config)));
    let (ports, unseen) = taken_ports(&config, running.as_ref());
    // The running convey reports its own expired certificates.
    let expired = if running.is_some() { Vec::new() } else { certificates::expired(&config) };
    let host = Host {
        file: &file.path,
        is_list: file.list.is_some(),
        config: &config,
        has_named_snat,
        tables: &kernel.table,
        network: &kernel.network,
        route_differences: runtime.block_on(route_differences(&kernel, &config)),
        servers: servers(&config),
        ports,
        queues: accept_queues(&config),
        programs: runtime.block_on(kernel.netlink.xdp_programs()).unwrap_or_default(),
        filters: runtime.block_on(features::foreign_filters(&kernel)),
        names,
        now: clock::wall_clock_start() + Duration::from_nanos(clock::now().0),
        running,
    };
    let mut features = runtime.block_on(features::examine(&config, &kernel, host.running.as_ref()));
    let (mut found, explained) = balancer::examine(&host, |servers| check_all(&runtime, servers));
    found.findings.append(&mut features.findings);
    found.skipped.append(&mut features.skipped);
    let ways = dsr_path::check(host.config, &found.findings, &explained);
    found.findings.extend(ways);
    // If an interface is down, packet modes report that they find no interface. One finding is
    // enough.
    let is_down = found.findings.iter().any(|finding| finding.check == "interface-down");
    found.findings.extend(obstacle.filter(|_| !is_down));
    // Earlier findings report addresses that no interface has.
    let unused = unused.into_iter().filter(|(ip, _)| kernel.network.is_own(*ip));
    found.findings.extend(unused.map(|(_, line)| unused_address(line)));
    found.findings.extend(faults.into_iter().map(unresolved_name));
    found.findings.extend(runtime.block_on(stale_addresses::diagnoses()));
    if let (Some(source), Some(running)) = (&source, &host.running) {
        let reported = runtime.block_on(reported(source, &running.status, &found.findings, &explained));
        found.findings.extend(reported);
    }
    found.findings.extend(expired.into_iter().map(expired_certificate));
    found.skipped.extend(unseen);
    found.file = Some(file.absolute());
    Ok((found, title))
}

fn unused_address(line: String) -> Diagnosis {
    let why = "Its ports are none of those that convey has. Give the address to the interface that leads to servers, or to the \
               loopback interface with routers that lead to it; or remove it from the file.";
    Diagnosis::warning("snat-unused", line, why)
}

fn unresolved_name(fault: String) -> Diagnosis {
    let why = "convey has no server for the name while it has no address. Fix its records, or `[dns]`.";
    Diagnosis::error("name-unresolved", fault, why)
}

fn expired_certificate(line: String) -> Diagnosis {
    Diagnosis::error(
        "certificate",
        line,
        "Clients reject the expired certificate. Replace the file with a renewed certificate.",
    )
}

/// Completes the configuration as packet modes do on this host. Also returns a finding if packet
/// modes would not start.
fn of_packets(config: Config, kernel: &Kernel) -> (Config, Option<Diagnosis>) {
    if config.frontends_where(Mode::forwards_packets).next().is_none() {
        return (config, None);
    }
    match packet_plan::resolve(config.clone(), &kernel.network, cores()) {
        Ok(resolved) => (resolved, None),
        Err(error) => {
            let why = "convey does not start in a packet mode.";
            (config, Some(Diagnosis::error("interfaces", format!("{error:#}"), why)))
        }
    }
}

/// Servers of packet modes that the kernel would reach by a different route than convey does, one
/// line per server.
async fn route_differences(kernel: &Kernel, config: &Config) -> Vec<String> {
    let servers = packet_plan::servers(config, Mode::forwards_packets);
    let ends = PathEnds { sources: &config.passthrough.snat_addresses, servers: &servers };
    route_check::differences(&kernel.netlink, &kernel.network, ends).await
}

/// Servers that get new connections from a frontend.
fn servers(config: &Config) -> Vec<TargetServer> {
    let used = |backend: &&BackendConfig| config.frontends.iter().any(|one| one.uses(&backend.name));
    config.backends.iter().filter(used).flat_map(|backend| of_backend(config, backend)).collect()
}

fn of_backend<'a>(config: &'a Config, backend: &'a BackendConfig) -> impl Iterator<Item = TargetServer> + 'a {
    let frontends: Vec<&FrontendConfig> =
        config.frontends.iter().filter(|frontend| frontend.uses(&backend.name)).collect();
    let uses_tcp = match backend.health_check.kind {
        ProbeKind::Tcp | ProbeKind::Http(_) | ProbeKind::Grpc(_) => true,
        // doctor connects to a server without a health check unless it is in mode dsr: the service
        // of such a server may listen on the VIP only.
        ProbeKind::None => {
            frontends.iter().any(|frontend| frontend.protocol == Protocol::Tcp && !frontend.mode.is_dsr())
        }
        ProbeKind::Udp => false,
    };
    let has_vip = match backend.dsr {
        DsrKind::L2 | DsrKind::Ipip | DsrKind::Gue => frontends.iter().any(|frontend| frontend.mode.is_dsr()),
        DsrKind::L3 => false,
    };
    let first_port = frontends.iter().flat_map(|one| &one.listen).map(|listen| listen.first().port()).next();
    // Doctor examines paths through networks, and no network leads to a unix socket.
    let is_examined =
        |server: &&ServerConfig| server.settings.weight > 0 && UnixSocket::of(server.addr).is_none();
    let servers = backend.servers.iter().filter(is_examined);
    let listens: Vec<Listen> = frontends
        .iter()
        .filter(|frontend| frontend.protocol == Protocol::Tcp)
        .flat_map(|frontend| frontend.listen.clone())
        .collect();
    let request = request(backend, &frontends);
    servers.map(move |server| TargetServer {
        name: format!("{}/{}", backend.name, server.name),
        addr: server.addr_for(first_port.unwrap_or_default()),
        check: backend.check_of(server),
        uses_tcp,
        has_vip,
        more_ports: if uses_tcp && server.keeps_port() { sample(&listens) } else { Vec::new() },
        request: request.clone().map(|request| HealthCheck { tls: backend.check_of(server).tls, ..request }),
    })
}

/// HTTP request for servers of mode http whose health check sends none. Any status counts as an
/// answer. `None` if no request is needed.
fn request(backend: &BackendConfig, frontends: &[&FrontendConfig]) -> Option<HealthCheck> {
    let check = &backend.health_check;
    let sends_none = matches!(check.kind, ProbeKind::None | ProbeKind::Tcp);
    let is_http = !frontends.is_empty() && frontends.iter().all(|frontend| frontend.mode.is_http());
    let is_asked = sends_none && is_http && backend.protocol != HttpVersion::H2 && backend.files.is_none();
    is_asked.then(|| {
        let any = HttpCheck { expected_status: vec![100..=599], ..HttpCheck::default() };
        let kind = ProbeKind::Http(any);
        HealthCheck { kind, port: None, timeout: ANSWER_TIMEOUT, ..check.clone() }
    })
}

/// Sample of the ports in these ranges, including the first and the last port of each range.
fn sample(listens: &[Listen]) -> Vec<u16> {
    let of_listen = |listen: &Listen| {
        let (first, last) = listen.ports().into_inner();
        let steps = u32::from(last - first).min(PORTS_OF_RANGE - 1);
        let step = move |n: u32| first + (u32::from(last - first) * n).checked_div(steps).unwrap_or(0) as u16;
        (0..=steps).map(step)
    };
    let ports: BTreeSet<u16> = listens.iter().flat_map(of_listen).collect();
    ports.into_iter().collect()
}

/// Accept queues of the frontends whose modes listen on sockets.
fn accept_queues(config: &Config) -> Vec<AcceptQueue> {
    let most = fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap_or_default();
    let most = most.trim().parse().unwrap_or_default();
    let mut names: BTreeMap<SocketAddr, &str> = BTreeMap::new();
    for frontend in config.frontends_where(Mode::is_proxied) {
        names.extend(frontend.endpoints().map(|at| (at.addr, &*frontend.name)));
    }
    let queues = port_owner::accept_queues().into_iter().filter_map(|(at, waiting)| {
        let frontend = (*names.get(&at)?).to_owned();
        Some(AcceptQueue { at, frontend, waiting, most })
    });
    queues.collect()
}

/// Runs all health checks concurrently and returns their results.
fn check_all(runtime: &Runtime, servers: &[TargetServer]) -> Vec<CheckWords> {
    let checks = servers.iter().map(async |server| {
        health::check_once(server.addr, &server.check).await.map_err(|why| why.to_string())
    });
    runtime.block_on(join_all(checks))
}

/// Client of the control socket, with the status of the running convey. `None` if no convey
/// answers.
async fn read_kernel(options: &Options) -> Option<(Client, RunningStatus)> {
    let client = Client::find(&places(options.socket.as_deref())).await.ok()?;
    let status = client.get("/v1/status").await.ok()?;
    Some((client, status))
}

/// Chooses the file to examine: the file from the command line, otherwise the file of the running
/// convey, otherwise the default. The title contains the path unless the command line names the
/// file.
fn judged_file(options: &Options, running: Option<&RunningStatus>) -> (ConfigFile, String) {
    let named = file(options);
    if !options.names_no_file() {
        return (named, String::new());
    }
    let (file, whose) = match running.and_then(RunningStatus::config_file) {
        Some(of_running) => {
            (ConfigFile { mode: named.mode.or(of_running.mode), ..of_running }, "of the running convey")
        }
        None => (named, "no convey answers at the control socket"),
    };
    let title = format!("configuration: {} ({whose})\n\n", file.path.display());
    (file, title)
}

/// Endpoint at which the running convey answers requests.
enum Source {
    Socket(Client),
    /// Statistics address, for users who may not connect to the control socket.
    Statistics(SocketAddr),
}

impl Source {
    async fn status(&self) -> Option<RunningStatus> {
        match self {
            Source::Socket(client) => client.get("/v1/status").await.ok(),
            Source::Statistics(listen) => statistics::read(*listen).ok(),
        }
    }
}

/// Returns the faults that the running convey reports. Repeats the query, up to `LOOKS` times,
/// while servers may still pass their checks.
async fn reported(
    source: &Source,
    first: &RunningStatus,
    known: &[Diagnosis],
    explained: &Explained,
) -> Vec<Diagnosis> {
    let mut looks = 0;
    loop {
        let latest = source.status().await;
        let found = reported::examine((first, latest.as_ref().unwrap_or(first)), known, explained);
        looks += 1;
        if looks == LOOKS || !found.iter().any(reported::may_pass) {
            return found;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Describes the running convey, including the file descriptors of its process.
async fn with_process(source: &Source, status: RunningStatus, config: &Config) -> Running {
    // After an upgrade, the control socket still reports the id of its first process. The
    // statistics address belongs to the process that serves now.
    let of_statistics =
        port_owner::owner(Endpoint::tcp(config.stats.listen)).filter(|(_, name)| is_convey(name));
    let process = match of_statistics {
        Some((process, _)) => Some(process),
        None => match source {
            Source::Socket(client) => client.process().await,
            Source::Statistics(_) => status.process,
        },
    };
    Running { process, descriptors: process.and_then(descriptors), status }
}

/// Whether a process with this name runs this program. The kernel truncates the names of processes.
fn is_convey(name: &str) -> bool {
    let own = std::env::current_exe().ok();
    own.is_some_and(|path| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name)))
}

/// Number and limit of the open descriptors of a process. `None` if this user may not read them.
fn descriptors(process: u32) -> Option<FileLimits> {
    let open = fs::read_dir(format!("/proc/{process}/fd")).ok()?.count();
    let limits = fs::read_to_string(format!("/proc/{process}/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let mut limits = line.split_whitespace().map(str::parse);
    let (soft_limit, hard_limit) = (limits.next()?.ok()?, limits.next()?.ok()?);
    Some(FileLimits { open: open as u64, soft_limit, hard_limit })
}

/// Addresses on which this configuration cannot listen because another socket uses them.
fn taken_ports(config: &Config, running: Option<&Running>) -> (Vec<TakenPort>, Option<SkippedCheck>) {
    let (mut taken, mut unseen) = (Vec::new(), None);
    let listens = running.map(Running::listens).unwrap_or_default();
    for frontend in config.frontends_where(Mode::is_proxied) {
        let places: BTreeSet<Endpoint> = frontend.endpoints().collect();
        let (in_use, others): (Vec<_>, Vec<_>) =
            convey_proxy::try_to_bind(&places).into_iter().partition(BindError::is_taken);
        let foreign = in_use.iter().map(BindError::at).filter(|at| !listens.contains(&at.addr));
        // One taken port per range is enough for the report.
        taken.extend(foreign.take(1).map(|at| {
            let purpose = format!("frontend {}", frontend.name);
            TakenPort { at, purpose, owner: port_owner::owner(at) }
        }));
        let needs = others.first().map(|error| format!("root: {error}"));
        unseen = unseen.or(needs.map(|needs| SkippedCheck { check: "port-taken", needs }));
    }
    let at = Endpoint::tcp(config.stats.listen);
    if TcpListener::bind(at.addr).is_err_and(|error| error.kind() == ErrorKind::AddrInUse) {
        let owner = port_owner::owner(at);
        let is_its = running.is_some_and(|running| {
            owner.as_ref().is_none_or(|(process, _)| Some(*process) == running.process)
        });
        if !is_its {
            taken.push(TakenPort { at, purpose: "statistics".to_owned(), owner });
        }
    }
    (taken, unseen)
}
