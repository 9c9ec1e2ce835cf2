//! `convey explain`: explains the choice of a server. It queries the running convey, or evaluates a
//! configuration file as if convey had just started with it.

use std::process::ExitCode;

use anyhow::{Context, anyhow};
use convey_admin::search_network;
use convey_api::{ClientVerdict, Explanation};
use convey_cli::Options;
use convey_cli::operator::{Client, explain_path, read};
use convey_config::Config;
use convey_control::{ControlState, Resolver, own_addresses};
use convey_dataplane::plan;
use convey_explain::{
    AskedRequest, ClientAddr, ClientFlows, ExplainSources, NetworkQuestion, PacketFacts, as_text, explain,
};
use convey_model::Offload;
use futures_util::future::join_all;

use super::ask::refused;
use super::control_socket::places;
use super::host::{self, Kernel};
use super::{Failure, clock, cores, file, packet_plan, print, print_error, runtime, snat_ports};

/// Exit code if no server is available for the client now.
const NO_SERVER: u8 = 3;

/// Prints which server a client of a frontend gets, and why. With `json`, prints the response of
/// the control API.
pub(super) fn run(
    options: &Options,
    client: ClientAddr,
    frontend: &str,
    request: Option<&AskedRequest>,
    json: bool,
) -> Result<ExitCode, Failure> {
    let (text, answer) = runtime()?.block_on(async {
        if options.names_no_file() {
            let convey = Client::find(&places(options.socket.as_deref())).await.map_err(refused)?;
            let path = explain_path(&client.to_string(), frontend, request);
            let text = convey.answer(&path).await.map_err(refused)?;
            let answer: Explanation = read(text.as_bytes()).map_err(refused)?;
            return Ok::<_, Failure>((text, answer));
        }
        let answer = dry(options, client, frontend, request).await?;
        let text = serde_json::to_string_pretty(&answer).context("cannot print")? + "\n";
        Ok((text, answer))
    })?;
    print(&if json { text } else { as_text(&answer) });
    let is_served = match answer.verdict {
        ClientVerdict::Server | ClientVerdict::OneOfThem | ClientVerdict::Answered => true,
        ClientVerdict::Waits | ClientVerdict::Refused => false,
    };
    Ok(if is_served { ExitCode::SUCCESS } else { ExitCode::from(NO_SERVER) })
}

/// Explains the choice as of right after a start: all servers count as up, and there are no
/// connections.
async fn dry(
    options: &Options,
    client: ClientAddr,
    frontend: &str,
    request: Option<&AskedRequest>,
) -> Result<Explanation, Failure> {
    let (loaded, kernel) = host::load(&file(options)).await?;
    loaded.warnings.iter().for_each(|warning| print_error(format!("warning: {warning}")));
    let (config, _) = snat_ports::choose(&loaded.config).context("cannot choose SNAT ports")?;
    let mut state = ControlState::new(1);
    state.replace_own_addresses(own_addresses().unwrap_or_default(), clock::now());
    look_up(&config, &mut state).await;
    if let Some(kernel) = &kernel {
        state.set_network(kernel.network.clone());
    }
    let facts = kernel.as_ref().map(|kernel| facts(&config, kernel)).transpose()?;
    let snapshot = state.configure(config, clock::now());
    let plan = kernel.map(|_| plan(&snapshot));
    let wrong = |why| Failure::Start(anyhow!("{why}"));
    let network = match NetworkQuestion::new(&snapshot, client, frontend, request).map_err(wrong)? {
        Some(question) => Some(search_network(question).await),
        None => None,
    };
    let sources = ExplainSources {
        snapshot: &snapshot,
        plan: plan.as_ref(),
        packets: facts.as_ref(),
        proxy: None,
        flows: &ClientFlows::NotAsked,
        request,
        network: network.as_ref(),
        share: None,
        now: clock::now(),
    };
    explain(sources, client, frontend).map_err(wrong)
}

/// Looks up the host names of servers, and applies the results to `state`.
async fn look_up(config: &Config, state: &mut ControlState) {
    let resolver = Resolver::new(64);
    let lookups =
        config.hosts().into_iter().map(|host| resolver.look_up(host.to_owned(), &config.dns.name_servers));
    for lookup in join_all(lookups).await {
        let lookup = if config.dns.allow_local { lookup } else { lookup.without_local() };
        state.set_name(lookup, clock::now());
    }
}

/// Facts about packet modes that a start would find on this host.
fn facts(config: &Config, Kernel { network, .. }: &Kernel) -> anyhow::Result<PacketFacts> {
    let snat_addresses = packet_plan::snat_addresses(config, network)?;
    let workers = packet_plan::workers(config, cores(), &snat_addresses);
    let interfaces = packet_plan::interfaces(config, network)?;
    let settings = &config.passthrough;
    let nics: Vec<_> = interfaces.iter().map(super::offload::nic).collect();
    let layer = settings.offload.layer(&nics);
    Ok(PacketFacts {
        dispatch: None,
        split: (!snat_addresses.is_empty()).then(|| packet_plan::split(config, workers, &snat_addresses)),
        layers: interfaces.into_iter().map(|interface| (interface.name, layer)).collect(),
        without_kernel: without_kernel(settings.offload),
        snat_addresses,
        snat_choice: packet_plan::snat_choice(config),
    })
}

/// Reason why the kernel's flow cache forwards nothing.
pub(super) fn without_kernel(offload: Offload) -> String {
    match offload {
        Offload::Off => format!("passthrough.offload = \"{offload}\""),
        Offload::Auto | Offload::Tc | Offload::Xdp => {
            "this host does not support the flow cache; the log of convey's start has the reason".to_owned()
        }
    }
}
