//! Compares convey with HAProxy, nginx, Caddy and the kernel's own NAT: the same loads through each
//! of them in turn, in one run, between the same namespaces. `benches/README.md` describes the
//! method.
//!
//! cargo bench --bench peers -- [proxy|http|tls|http3|files|passthrough|dsr|budget]...
//! [--quick|--smoke] [--load WORDS]... [--floor BINARY] [--pingora BINARY] [--before BINARY]
//! [--with FEATURE]...
#![allow(clippy::disallowed_methods, reason = "it measures time, and its threads can be made")]

mod budget;
mod chart;
mod client;
mod compared;
mod delivery;
mod extra;
mod feature;
mod floor;
mod http;
mod http2;
mod idle;
mod load;
mod loads;
mod machine;
mod measure;
mod metric;
mod mixed;
mod peer;
mod report;
mod results;
mod resumed;
mod site;
mod steady;
mod streams;

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use compared::Compared;
use extra::Extra;
use feature::Feature;
use load::{Load, LoadPlan};
use peer::{Peer, Running};
use results::Results;
use site::Site;

/// Compares convey with HAProxy, nginx and the kernel's NAT, side by side in one run. Needs root.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo bench --bench peers --")]
struct Options {
    /// Modes of convey to compare, or mode http within TLS, by HTTP/3 or with files; all of these
    /// unless named. `budget`: parts of a load balancer, each added to the floor
    #[arg(value_name = "MODES", value_parser = PossibleValuesParser::new(Compared::ALL.map(Compared::name)).map(compared))]
    compared: Vec<Compared>,
    /// Two short rounds, in less than two minutes a mode; results are not kept
    #[arg(long)]
    quick: bool,
    /// One round of a second, with few idle connections: shows that it works; results are not kept
    #[arg(long, conflicts_with = "quick")]
    smoke: bool,
    #[command(flatten)]
    extra: Extra,
    /// Only loads with these words in their names; may be repeated; results are not kept
    #[arg(long = "load", value_name = "WORDS")]
    loads: Vec<String>,
    /// Argument that cargo passes to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let asked = |flag: &str| std::env::args().any(|argument| argument == flag);
    if asked("--test") || !asked("--bench") {
        println!("peers: nothing to test; `cargo bench --bench peers` measures");
        return ExitCode::SUCCESS;
    }
    match measure(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peers: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(mut options: Options) -> Result<()> {
    let (plan, is_full) = match (options.quick, options.smoke) {
        (false, false) => (&LoadPlan::FULL, true),
        (true, _) => (&LoadPlan::QUICK, false),
        (_, true) => (&LoadPlan::SMOKE, false),
    };
    let kept = is_full && options.extra.may_be_kept() && options.loads.is_empty();
    site::check()?;
    options.extra.check()?;
    let wanted = if options.compared.is_empty() { Compared::by_default() } else { options.compared.clone() };
    have_floor(&wanted, &mut options.extra)?;
    let loads = load::chosen(&options.loads)?;
    for wanted in wanted {
        let loads: Vec<&'static Load> = loads.iter().copied().filter(|load| load.is_of(wanted)).collect();
        if loads.is_empty() {
            eprintln!("{}: none of these loads is put on it", wanted.name());
            continue;
        }
        let plan = if wanted.is_budget() && is_full { &LoadPlan::BUDGET } else { plan };
        let results =
            compare(wanted, plan, &loads, &options.extra).with_context(|| format!("in {}", wanted.name()))?;
        let folder = report::write(&results, kept)?;
        println!("{}", report::markdown(&results));
        eprintln!("{}: table, chart and every sample are in {}", wanted.name(), folder.display());
    }
    Ok(())
}

/// Builds the floor if a comparison needs it and the command line names no program. Modes are
/// compared without it if it cannot be built.
fn have_floor(wanted: &[Compared], extra: &mut Extra) -> Result<()> {
    if extra.floor.is_some() || !wanted.iter().any(|compared| compared.has_any_floor()) {
        return Ok(());
    }
    eprintln!("building the floor");
    match floor::build() {
        Ok(program) => extra.floor = Some(program),
        Err(error) if wanted.contains(&Compared::Budget) => {
            return Err(error.context("building benches/floor"));
        }
        Err(error) => eprintln!("without the floor, which cannot be built: {error:#}"),
    }
    Ok(())
}

/// Runs every load through every peer, in turns.
fn compare(compared: Compared, plan: &LoadPlan, loads: &[&'static Load], extra: &Extra) -> Result<Results> {
    let site = Site::new(extra.clone())?;
    let peers = Peer::of(compared, extra);
    if compared.is_http3() && !peers.contains(&Peer::Caddy) {
        eprintln!("{}: without Caddy, which is not installed", compared.name());
    }
    let mut results = Results::new(compared, peers.clone(), loads.to_vec(), plan);
    let mut rate = None;
    for load in loads {
        for round in 0..plan.rounds {
            let mut peers: Vec<Peer> =
                peers.iter().copied().filter(|peer| load.is_for(compared, *peer)).collect();
            // The order rotates, so that no peer always follows the same one.
            let first = round % peers.len();
            peers.rotate_left(first);
            for peer in peers {
                let running = Running::start(&site, peer, compared).with_context(|| peer.name())?;
                let put = || load.run(&site, &running, plan, rate);
                let outcome = match peer {
                    Peer::With(Feature::Scraped) => feature::while_scraped(&site, put),
                    _ => put(),
                };
                let sample = outcome
                    .with_context(|| format!("{} through {}\n{}", load.name, peer.name(), running.log()))?;
                ensure!(
                    sample.requests > 0,
                    "{} through {}: no answer\n{}",
                    load.name,
                    peer.name(),
                    running.log()
                );
                results.add(load, peer, sample);
            }
            eprintln!("{}: {}, round {} of {}", compared.name(), load.name, round + 1, plan.rounds);
        }
        rate = rate.or_else(|| results.half_of_peak());
    }
    Ok(results)
}

fn compared(name: String) -> Compared {
    Compared::ALL.into_iter().find(|one| one.name() == name).expect("only their names are accepted")
}
