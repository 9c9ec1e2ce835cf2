//! The guard of tcx: a BPF program (`bpf/guard.bpf.c`) on the ingress of each captured interface. Its links belong
//! to descriptors of this process.

use aya::maps::MapError;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, ProgramError, SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfError};
use thiserror::Error;

use super::super::{Selection, selection_maps};
use crate::model::Interface;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/guard.bpf.o"));

/// The program's name.
const PROGRAM: &str = "guard";

/// The program, attached. Detached when dropped.
#[derive(Debug)]
pub(super) struct Tcx(Ebpf);

/// Why tcx does not guard.
#[derive(Debug, Error)]
pub enum TcxError {
    /// The program could not be loaded.
    #[error("loading the guard (needs CAP_BPF and CAP_NET_ADMIN): {0}")]
    Load(#[from] EbpfError),
    /// The kernel refused the program, or it could not be attached.
    #[error("the guard's program (needs Linux 6.6): {0}")]
    Program(#[from] ProgramError),
    /// A map could not be changed; most likely it is full.
    #[error("what the guard drops: {0}")]
    Map(#[from] MapError),
    /// The object is not what this program was built for.
    #[error("the guard's object lacks `{0}`")]
    Missing(&'static str),
}

impl Tcx {
    /// Guards the interfaces, in the thread's network namespace.
    pub(super) fn new(selection: &Selection, interfaces: &[Interface]) -> Result<Tcx, TcxError> {
        let mut guard = Tcx(Ebpf::load(OBJECT)?);
        guard.program()?.load()?;
        guard.select(selection)?;
        for interface in interfaces {
            // After others: what they take away (a redirect, say) needs no guarding.
            let last = TcAttachOptions::TcxOrder(LinkOrder::last());
            guard.program()?.attach_with_options(&interface.name, TcAttachType::Ingress, last)?;
        }
        Ok(guard)
    }

    /// Drops by another selection. What is in both is dropped throughout.
    pub(super) fn select(&mut self, selection: &Selection) -> Result<(), TcxError> {
        for name in selection_maps::NAMES {
            let map = self.0.map_mut(name).ok_or(TcxError::Missing(name))?;
            selection_maps::fill(name, map, selection)?;
        }
        Ok(())
    }

    fn program(&mut self) -> Result<&mut SchedClassifier, TcxError> {
        let program = self.0.program_mut(PROGRAM).ok_or(TcxError::Missing(PROGRAM))?;
        Ok(program.try_into()?)
    }
}
