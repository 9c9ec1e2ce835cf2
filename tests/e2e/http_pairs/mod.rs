//! Exchanges in each pair of HTTP versions: real libraries are client and server, and convey is
//! between them. `CONVEY_SEED` selects a single round of random exchanges.

mod case;
mod client;
mod cut_uploads;
mod grpc;
mod link;
mod pages;
mod resets;
mod server;
mod silent_streams;
mod slots;
mod streams;
mod websocket;

use std::time::Duration;

use convey_testkit::{BalancerProcess, Loopback, Need, Setup, tests};
use fastrand::Rng;
use futures_util::future::join_all;

use case::{Case, Link, Message, Version};
use client::{Addresses, Failure, Received, exchange};
use cut_uploads::{
    uploads_pass_after_a_few_rounds_of_cut_ones, uploads_pass_after_a_thousand_rounds_of_cut_ones,
};
use grpc::{streams_of_messages_arrive_whole, unary_calls_of_all_sizes_arrive_whole};
use resets::{
    code_of_a_server_that_resets_its_response_reaches_the_client,
    early_reset_of_a_grpc_call_reaches_its_client_with_its_code,
};
use server::Cases;
use silent_streams::streams_that_pause_leave_the_window_of_their_connection_to_others;
use slots::{
    thousands_of_unread_streams_leave_servers_to_others,
    unread_long_responses_leave_all_slots_after_the_timeout, unread_responses_need_one_stream_to_a_server,
    unread_short_responses_leave_all_slots_at_once,
};
use websocket::{
    end_of_a_websocket_server_reaches_the_client_and_frees_the_server,
    handshake_of_the_test_server_is_that_of_the_standard, websocket_over_http2_reaches_servers_of_http1,
    websocket_over_http3_reaches_servers_of_http1,
};

use crate::http2::block_on;
use crate::http3::authority;

tests!("http_pairs":
    bodies_and_trailers_pass_unchanged_in_each_pair_of_versions,
    many_bodies_and_trailers_pass_unchanged_in_each_pair_of_versions [Need::Long],
    unary_calls_of_all_sizes_arrive_whole [Need::Long],
    streams_of_messages_arrive_whole [Need::Long],
    uploads_pass_after_a_few_rounds_of_cut_ones,
    uploads_pass_after_a_thousand_rounds_of_cut_ones [Need::Long],
    unread_short_responses_leave_all_slots_at_once,
    unread_long_responses_leave_all_slots_after_the_timeout,
    unread_responses_need_one_stream_to_a_server,
    thousands_of_unread_streams_leave_servers_to_others [Need::Long],
    streams_that_pause_leave_the_window_of_their_connection_to_others,
    code_of_a_server_that_resets_its_response_reaches_the_client,
    early_reset_of_a_grpc_call_reaches_its_client_with_its_code,
    websocket_over_http2_reaches_servers_of_http1,
    websocket_over_http3_reaches_servers_of_http1,
    end_of_a_websocket_server_reaches_the_client_and_frees_the_server,
    handshake_of_the_test_server_is_that_of_the_standard,
);

/// Time of one exchange, at most.
const PATIENCE: Duration = Duration::from_secs(20);

/// Faults that are listed, at most.
const MOST_FAULTS: usize = 40;

/// Exchanges of a round, for each version of a client.
const CASES: usize = 8;

/// Exchanges with one server, all at once.
#[derive(Debug)]
struct Round {
    server: Version,
    link: Link,
    cases: Vec<Case>,
}

impl Round {
    fn random(seed: u64) -> Round {
        let mut random = Rng::with_seed(seed);
        let server = if seed.is_multiple_of(2) { Version::Http1 } else { Version::Http2 };
        let link = Link::random(&mut random);
        let clients = [Version::Http1, Version::Http2, Version::Http3].into_iter().cycle().take(3 * CASES);
        let cases = clients.map(|client| Case::random(&mut random, client, (server, &link))).collect();
        Round { server, link, cases }
    }

    /// Runs all cases. Returns those that failed, and how.
    fn run(&self) -> Vec<(Case, String)> {
        let lab = Loopback::new();
        let authority = authority(&lab);
        let _balancer =
            BalancerProcess::start(&lab, &setup(&lab, self.server).server("a", lab.server(1), ""));
        let to = addresses(&lab);
        block_on(async {
            let cases = Cases::new(self.cases.clone());
            server::start(lab.server(1), self.server, &self.link, &cases);
            let faults = join_all(self.cases.iter().enumerate().map(async |(number, case)| {
                let path = Cases::path(number);
                let exchange = exchange(to, &authority, case, &path);
                let received = tokio::time::timeout(PATIENCE, exchange).await;
                let response = received.unwrap_or_else(|elapsed| Err(elapsed.into()));
                let fault = fault_in(case, response, cases.received(number))?;
                Some((case.clone(), fault))
            }));
            faults.await.into_iter().flatten().collect()
        })
    }

    /// The simplest exchange that fails alone like this one, found by a few attempts.
    fn simplest(&self, mut case: Case) -> (Case, Link) {
        let mut link = self.link.clone();
        let alone = |case: &Case, link: &Link| {
            let round = Round { server: self.server, link: link.clone(), cases: vec![case.clone(); 3] };
            !round.run().is_empty()
        };
        if alone(&case, &Link::plain()) {
            link = Link::plain();
        }
        let mut attempts = 0..40;
        while let Some(simpler) =
            case.simpler().into_iter().find(|simpler| attempts.next().is_some() && alone(simpler, &link))
        {
            case = simpler;
        }
        (case, link)
    }
}

/// convey in front of a server of this version: without TLS at the first address, with TLS and
/// HTTP/3 at the second one.
fn setup(lab: &Loopback, server: Version) -> Setup {
    let at = lab.directory().display();
    let protocol = if server == Version::Http1 { "h1" } else { "h2" };
    let secure = format!(
        "[frontends.secure]\nmode = \"http\"\nlisten_addr = \"{}\"\nbackend = \"pool\"\n\
         [frontends.secure.tls]\nhttp3 = true\ncertificate = \"{at}/site.pem\"\nkey = \"{at}/site.key\"\n",
        lab.second_vip()
    );
    let setup = Setup::new(lab).frontend("mode = \"http\"").backend(&format!("protocol = \"{protocol}\""));
    setup.and(&secure)
}

fn addresses(lab: &Loopback) -> Addresses {
    Addresses { plain: lab.vip(), tls: lab.second_vip() }
}

/// Difference between an exchange as it was sent and as both ends saw it.
fn fault_in(
    case: &Case,
    response: Result<Received, Failure>,
    mut requests: Vec<Result<Received, String>>,
) -> Option<String> {
    let response = match response {
        Ok(response) => response,
        Err(failure) => {
            let requests: Vec<_> =
                requests.iter().map(|request| request.as_ref().map(Received::summary)).collect();
            return Some(format!("client: {failure} ({failure:?}); server: {requests:?}"));
        }
    };
    let (Some(Ok(request)), None) = (requests.pop(), requests.pop()) else {
        return Some("the server did not get exactly one whole request".to_owned());
    };
    if (&*request.method, response.status) != (case.method, case.status) {
        return Some(format!("{} and {}", request.method, response.status));
    }
    let expected_body = match case.is_answered_by_head() {
        true => Vec::new(),
        false => case.response.body(),
    };
    let request =
        difference(&case.request, case.request.body(), &request).map(|fault| format!("request: {fault}"));
    request.or_else(|| {
        difference(&case.response, expected_body, &response).map(|fault| format!("response: {fault}"))
    })
}

fn difference(sent: &Message, body: Vec<u8>, received: &Received) -> Option<String> {
    if received.body != body {
        let same = received.body.iter().zip(&body).take_while(|(a, b)| a == b).count();
        return Some(format!("{} bytes of {}, and equal up to {same}", received.body.len(), body.len()));
    }
    if received.fields != sent.fields {
        return Some(format!("fields {:?}", received.fields));
    }
    if received.trailers != sent.trailers {
        return Some(format!("trailers {:?}", received.trailers));
    }
    // A length goes if trailers follow.
    let expected = (sent.has_length && !sent.has_trailers()).then(|| sent.len.to_string());
    let is_wrong = match (&received.length, &expected) {
        (None, Some(_)) => true,
        (Some(length), _) => *length != sent.len.to_string(),
        (None, None) => false,
    };
    is_wrong.then(|| format!("content-length {:?}", received.length))
}

/// Runtime of a test that takes longer than [`block_on`] allows.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Seeds of rounds: the one in the environment, or all of these.
fn seeds(all: std::ops::Range<u64>) -> Vec<u64> {
    let named = std::env::var("CONVEY_SEED").ok();
    named.map_or_else(|| all.collect(), |seed| vec![seed.parse().unwrap()])
}

fn run_rounds(seeds: Vec<u64>) {
    let mut faults = Vec::new();
    let mut first = None;
    for seed in seeds {
        let round = Round::random(seed);
        for (case, fault) in round.run() {
            faults.push(format!("CONVEY_SEED={seed}, {:?} to {:?}: {fault}", case.client, round.server));
            first.get_or_insert_with(|| round.simplest(case));
        }
    }
    let Some((simplest, link)) = first else { return };
    faults.truncate(MOST_FAULTS);
    panic!("{}\nThe first one, made simpler, on {link:?} at the server: {simplest:#?}", faults.join("\n"));
}

fn bodies_and_trailers_pass_unchanged_in_each_pair_of_versions() {
    run_rounds(seeds(0..4));
}

fn many_bodies_and_trailers_pass_unchanged_in_each_pair_of_versions() {
    run_rounds(seeds(100..180));
}
