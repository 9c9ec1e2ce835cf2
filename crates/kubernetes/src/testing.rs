//! In-memory API server with arbitrary answers, for the fuzzer.

use std::collections::{BTreeSet, VecDeque};
use std::convert::Infallible;

use bytes::Bytes;
use convey_config::Annotations;
use convey_model::{DiscoveryState, KubernetesService};
use futures_util::stream::iter;
use http::Response;
use http_body_util::StreamBody;
use hyper::body::Frame;

use crate::annotations::{self, AnnotationState};
use crate::client::{ApiClient, Transport};
use crate::watch::{WatchAttempts, WatchEnd, watch_slices};

/// Answer of the in-memory API server.
#[derive(Debug, Clone)]
pub struct ApiAnswer {
    /// HTTP status.
    pub status: u16,
    /// Body, in the pieces in which it arrives at the client.
    pub pieces: Vec<Bytes>,
}

/// States that the watch of slices reports in one attempt, if the API server sends these answers.
pub async fn slices_from(service: &KubernetesService, answers: Vec<ApiAnswer>) -> Vec<DiscoveryState> {
    let (mut attempts, mut states) = (WatchAttempts::default(), Vec::new());
    let end = watch_slices(client(answers), service, |endpoints, is_settled| {
        states.push(attempts.on_slices(endpoints, is_settled));
    })
    .await;
    if let WatchEnd::Failed(failure) = end {
        states.push(attempts.on_failure(failure));
    }
    states
}

/// States that the watch of annotations reports in one attempt, if the API server sends these
/// answers.
pub async fn annotations_from(service: &KubernetesService, answers: Vec<ApiAnswer>) -> Vec<AnnotationState> {
    let (mut annotations, mut seen) = (Annotations::default(), Vec::new());
    let mut tell = |state| seen.push(state);
    let refusal = annotations::watch_service(client(answers), service, &mut annotations, &mut tell).await;
    let state = |why| AnnotationState { settings: annotations.settings(), notes: BTreeSet::from([why]) };
    seen.extend(refusal.map(state));
    seen
}

fn client(answers: Vec<ApiAnswer>) -> ApiClient<AnswersInTurn> {
    ApiClient::new(AnswersInTurn(answers.into()))
}

struct AnswersInTurn(VecDeque<ApiAnswer>);

type Pieces = futures_util::stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>;

impl Transport for AnswersInTurn {
    type Body = StreamBody<Pieces>;

    async fn get(&mut self, _: &str) -> Result<Response<Self::Body>, String> {
        let ApiAnswer { status, pieces } = self.0.pop_front().ok_or("the connection is closed")?;
        let frames: Vec<_> = pieces.into_iter().map(|piece| Ok(Frame::data(piece))).collect();
        let mut response = Response::new(StreamBody::new(iter(frames)));
        *response.status_mut() = http::StatusCode::from_u16(status).unwrap_or_default();
        Ok(response)
    }
}
