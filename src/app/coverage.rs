//! Which traffic the packet modes get to see, and keep from the host's stack: it changes with the configuration, and
//! with the interfaces that there are.

use std::collections::BTreeSet;
use std::io;

use log::{info, warn};

use crate::dataplane::{Filter, Guard, Pipeline, Selection};
use crate::model::Interface;
use crate::snapshot::NextHops;

/// The pipeline and the guard, and what both look at.
pub(super) struct Coverage {
    pipeline: Pipeline,
    guard: Option<Guard>,
    selection: Selection,
    captured: Vec<Interface>,
    /// Indices of interfaces that were to be captured on and could not be; told once.
    refused: BTreeSet<u32>,
}

impl Coverage {
    /// A pipeline and a guard that are made for this selection; the guard for these interfaces, on which the pipeline
    /// begins to capture.
    pub(super) fn begin(
        mut pipeline: Pipeline,
        guard: Option<Guard>,
        selection: Selection,
        interfaces: Vec<Interface>,
    ) -> io::Result<Coverage> {
        interfaces.iter().try_for_each(|interface| pipeline.capture(interface.index))?;
        Ok(Coverage { pipeline, guard, selection, captured: interfaces, refused: BTreeSet::new() })
    }

    /// Captures and guards by this selection from now on. Returns whether it is another than before.
    pub(super) fn select(&mut self, selection: Selection) -> bool {
        if selection == self.selection {
            return false;
        }
        if let Err(error) = self.pipeline.set_filter(&Filter::new(&selection)) {
            warn!("new frontends are not captured: {error}");
        }
        if let Some(guard) = &mut self.guard
            && let Err(error) = guard.select(&selection)
        {
            warn!("new frontends are not guarded: {error}");
        }
        self.selection = selection;
        true
    }

    /// Captures and guards on these interfaces, too. Those before stay until they are gone.
    pub(super) fn cover(&mut self, passed: Vec<Interface>, network: &NextHops) {
        let there_is = |index: u32| network.interfaces().iter().any(|interface| interface.index == index);
        for gone in self.captured.extract_if(.., |interface| !there_is(interface.index)) {
            self.pipeline.release(gone.index);
            warn!(
                "interface {} is gone: no packets pass it until there is one of this name again",
                gone.name
            );
        }
        self.refused.retain(|index| there_is(*index));
        for new in passed {
            if self.captured.iter().any(|interface| interface.index == new.index) {
                continue;
            }
            match self.add(&new) {
                Ok(()) => {
                    self.refused.remove(&new.index);
                    info!("forwarding packets on {} from now on", new.name);
                    self.captured.push(new);
                }
                Err(error) if self.refused.insert(new.index) => {
                    warn!("cannot forward packets on {}: {error:#}", new.name);
                }
                Err(_) => {}
            }
        }
    }

    /// What is captured and guarded.
    pub(super) fn selection(&self) -> &Selection {
        &self.selection
    }

    /// Sends what is queued, and stops.
    pub(super) fn stop(self) {
        self.pipeline.stop();
    }

    /// Guards an interface before it is captured on: what the host's stack sees of it, it answers.
    fn add(&mut self, new: &Interface) -> anyhow::Result<()> {
        if let Some(guard) = &mut self.guard {
            let all: Vec<Interface> = self.captured.iter().chain([new]).cloned().collect();
            guard.cover(&self.selection, &all)?;
        }
        Ok(self.pipeline.capture(new.index)?)
    }
}
