//! Guard by tcx: a BPF program (`bpf/guard.bpf.c`) on the ingress of each captured interface. Only
//! descriptors of this process hold the program's links.

use aya::maps::MapError;
use aya::programs::tc::{SchedClassifierLinkId, TcAttachOptions};
use aya::programs::{LinkOrder, ProgramError, SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfError};
use thiserror::Error;

use super::super::{Selection, objects, selection_maps};
use super::stacked_tags::StackedTags;
use convey_model::Interface;

pub(crate) static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf/guard.bpf.o"));

/// Name of the BPF program.
const PROGRAM: &str = "guard";

/// Attached guard program. Dropping it detaches the program.
#[derive(Debug)]
pub(super) struct Tcx {
    guard: Ebpf,
    /// Links by the index of the interface.
    links: Vec<(u32, SchedClassifierLinkId)>,
    stacked_tags: StackedTags,
}

/// Errors of the tcx guard.
#[derive(Debug, Error)]
pub enum TcxError {
    /// The program could not be loaded.
    #[error("cannot load the program of the guard (needs CAP_BPF): {0}")]
    Load(#[from] EbpfError),
    /// The kernel refused the program, or it could not be attached.
    #[error("the kernel refuses the program of the guard (needs Linux 6.6): {0}")]
    Program(#[from] ProgramError),
    /// A map could not be changed, most likely because it is full.
    #[error("cannot change a BPF map of the guard: {0}")]
    Map(#[from] MapError),
    /// The object file lacks a program or map that this binary expects.
    #[error("the BPF object of the guard contains no `{0}`")]
    Missing(&'static str),
}

impl Tcx {
    /// Guards these interfaces, in the calling thread's network namespace.
    pub(super) fn new(selection: &Selection, interfaces: &[Interface]) -> Result<Tcx, TcxError> {
        let stacked_tags = StackedTags::default();
        let mut guard = Tcx { guard: objects::loader().load(OBJECT)?, links: Vec::new(), stacked_tags };
        guard.stacked_tags.read(&mut guard.guard)?;
        guard.program()?.load()?;
        guard.select(selection)?;
        guard.cover(interfaces)?;
        Ok(guard)
    }

    /// Guards exactly these interfaces.
    pub(super) fn cover(&mut self, interfaces: &[Interface]) -> Result<(), TcxError> {
        let is_covered = |index: u32| interfaces.iter().any(|interface| interface.index == index);
        let gone: Vec<_> = self.links.extract_if(.., |(index, _)| !is_covered(*index)).collect();
        for (_, link) in gone {
            // Fails only if the interface is gone, and the program with it.
            let _ = self.program()?.detach(link);
        }
        for interface in interfaces {
            if self.links.iter().any(|(index, _)| *index == interface.index) {
                continue;
            }
            // Run after other programs: packets that they redirect or drop need no guard.
            let last = TcAttachOptions::TcxOrder(LinkOrder::last());
            let link = self.program()?.attach_with_options(&interface.name, TcAttachType::Ingress, last)?;
            self.links.push((interface.index, link));
        }
        Ok(())
    }

    /// Applies a new selection. Packets that are in both the old and the new selection are also
    /// dropped during the change.
    pub(super) fn select(&mut self, selection: &Selection) -> Result<(), TcxError> {
        for name in selection_maps::NAMES {
            let map = self.guard.map_mut(name).ok_or(TcxError::Missing(name))?;
            selection_maps::fill(name, map, selection)?;
        }
        Ok(())
    }

    /// Counter of frames that the guard has dropped because of a second priority tag.
    pub(super) fn stacked_tags(&self) -> StackedTags {
        self.stacked_tags.clone()
    }

    fn program(&mut self) -> Result<&mut SchedClassifier, TcxError> {
        let program = self.guard.program_mut(PROGRAM).ok_or(TcxError::Missing(PROGRAM))?;
        Ok(program.try_into()?)
    }
}
