//! Any bytes as the answers of a Kubernetes API server to one attempt to list and watch: the names
//! of servers are unique and possible in Kubernetes, and messages for operators are short lines.
//! The results do not depend on how the bytes arrive.

#![no_main]

use std::collections::BTreeSet;

use bytes::Bytes;
use convey_kubernetes::{AnnotationState, ApiAnswer, annotations_from, slices_from};
use convey_model::{KubernetesCluster, KubernetesService, Protocol, ServicePort};
use libfuzzer_sys::fuzz_target;

const STATUSES: [u16; 8] = [200, 200, 200, 200, 401, 403, 410, 503];

/// The longest line of text for an operator.
const MAX_TEXT: usize = 300;

// The first byte selects the port, and how the bytes are cut. Zero bytes separate answers. The
// first byte of an answer selects its status.
fuzz_target!(|bytes: &[u8]| {
    let Some((&how, bytes)) = bytes.split_first() else { return };
    let service = KubernetesService {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        port: if how & 1 == 0 { ServicePort::Name("http".to_owned()) } else { ServicePort::Number(80) },
        protocol: [None, Some(Protocol::Tcp), Some(Protocol::Udp), None][usize::from(how >> 1 & 3)],
        cluster: KubernetesCluster::default(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let piece = usize::from(how >> 4) + 1;
        let states = slices_from(&service, answers(bytes, piece)).await;
        for state in &states {
            let servers = state.servers.as_deref().unwrap_or_default();
            let names: BTreeSet<&str> = servers.iter().map(|server| &*server.name).collect();
            assert_eq!(names.len(), servers.len());
            let zones = servers.iter().filter_map(|server| server.zone.as_deref());
            assert!(names.into_iter().chain(zones).all(|name| name.len() <= 253 && !name.contains(char::is_control)));
            state.notes.iter().chain(&state.fault).for_each(|text| is_short_line(text));
        }
        let at_once = slices_from(&service, answers(bytes, usize::MAX)).await;
        assert_eq!(states.last().map(|state| &state.servers), at_once.last().map(|state| &state.servers));
        for AnnotationState { notes, .. } in annotations_from(&service, answers(bytes, piece)).await {
            notes.iter().for_each(|text| is_short_line(text));
        }
    });
});

fn is_short_line(text: &str) {
    assert!(text.chars().count() <= MAX_TEXT && !text.contains(char::is_control), "{text:?}");
}

fn answers(bytes: &[u8], piece: usize) -> Vec<ApiAnswer> {
    let answer = |bytes: &[u8]| {
        let (status, body) = bytes.split_first().map_or((0, bytes), |(status, body)| (*status, body));
        let pieces = body.chunks(piece).map(Bytes::copy_from_slice).collect();
        ApiAnswer { status: STATUSES[usize::from(status) % STATUSES.len()], pieces }
    };
    bytes.split(|byte| *byte == 0).map(answer).collect()
}
