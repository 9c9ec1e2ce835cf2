//! Kubernetes Services as a source of servers. EndpointSlices define the servers, annotations
//! define their settings.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::pending;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::sleep;

use convey_model::{DiscoveryState, KubernetesService, ServerSource, SourceSettings};

use crate::annotations::{self, AnnotationState};
use crate::watch;

/// Maximum delay of the first servers while the annotations of their Service are unknown.
const FIRST_ANNOTATIONS: Duration = Duration::from_secs(1);

/// Source of servers from Kubernetes Services. While an API server is unreachable, servers and
/// settings stay as they are.
#[derive(Debug, Clone, Copy)]
pub struct Kubernetes;

impl ServerSource for Kubernetes {
    type Wanted = KubernetesService;
    type Said = DiscoveryState;

    async fn watch(&self, wanted: KubernetesService, tell: impl FnMut(DiscoveryState) + Send) -> Infallible {
        let both = Mutex::new(Both {
            slices: None,
            settings: SourceSettings::default(),
            notes: BTreeSet::new(),
            waits: true,
            tell,
        });
        let both = || both.lock().unwrap_or_else(PoisonError::into_inner);
        tokio::select! {
            never = watch::watch(&wanted, |state| both().hear(Some(state), None)) => never,
            never = annotations::watch(&wanted, |annotations| both().hear(None, Some(annotations))) => never,
            never = async {
                sleep(FIRST_ANNOTATIONS).await;
                both().wait_no_longer();
                pending().await
            } => never,
        }
    }
}

/// Combined state of the watches of slices and of annotations.
struct Both<T> {
    /// State of the slices; `None` before the first list. Until then, nothing is reported, because
    /// settings without servers would count as the first state of the source.
    slices: Option<DiscoveryState>,
    settings: SourceSettings,
    /// Messages about faults of annotations.
    notes: BTreeSet<String>,
    /// Whether reports still wait for the first annotations, because annotations may take servers
    /// out of rotation.
    waits: bool,
    tell: T,
}

impl<T: FnMut(DiscoveryState)> Both<T> {
    fn hear(&mut self, slices: Option<DiscoveryState>, annotations: Option<AnnotationState>) {
        if let Some(AnnotationState { settings, notes }) = annotations {
            (self.settings, self.notes, self.waits) = (settings, notes, false);
        }
        self.slices = slices.or(self.slices.take());
        if let Some(mut state) = self.slices.clone().filter(|_| !self.waits) {
            state.settings = self.settings;
            state.notes.extend(self.notes.iter().cloned());
            (self.tell)(state);
        }
    }
}

impl<T: FnMut(DiscoveryState)> Both<T> {
    /// Reports the servers although the annotations are still unknown.
    fn wait_no_longer(&mut self) {
        if std::mem::take(&mut self.waits) {
            self.hear(None, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_are_told_with_the_servers_and_never_before() {
        let mut told = Vec::new();
        let (slices, settings, notes) = (None, SourceSettings::default(), BTreeSet::new());
        let mut both = Both { slices, settings, notes, waits: true, tell: |state| told.push(state) };
        let settings = SourceSettings { weight: Some(3), ..settings };
        both.hear(None, Some(AnnotationState { settings, notes: BTreeSet::from(["odd".to_owned()]) }));
        let slices = DiscoveryState { failures: 1, ..DiscoveryState::default() };
        both.hear(Some(slices), None);
        both.hear(
            None,
            Some(AnnotationState { settings: SourceSettings::default(), notes: BTreeSet::new() }),
        );
        let notes = BTreeSet::from(["odd".to_owned()]);
        let first = DiscoveryState { failures: 1, settings, notes, ..DiscoveryState::default() };
        let second = DiscoveryState { failures: 1, ..DiscoveryState::default() };
        assert_eq!(told, [first, second]);
    }

    #[test]
    fn servers_wait_for_the_first_annotations_but_not_for_ever() {
        let told = std::cell::RefCell::new(Vec::new());
        let (slices, settings, notes) = (None, SourceSettings::default(), BTreeSet::new());
        let tell = |state| told.borrow_mut().push(state);
        let mut both = Both { slices, settings, notes, waits: true, tell };
        let slices = DiscoveryState { failures: 1, ..DiscoveryState::default() };
        both.hear(Some(slices.clone()), None);
        assert_eq!(*told.borrow(), []);
        both.wait_no_longer();
        assert_eq!(told.borrow().len(), 1);
        both.wait_no_longer();
        both.hear(Some(slices.clone()), None);
        assert_eq!(*told.borrow(), [slices.clone(), slices]);
    }
}
