//! Guard of DSR frontends that outlives its process. The guard keeps the host's stack from
//! resetting connections to these frontends. So they can continue when convey starts again, or
//! through another balancer.
//!
//! The guard is a BPF program (`dsr_guard` in `bpf/guard.bpf.c`), attached as a clsact filter,
//! which every kernel keeps when the process ends. The program has a lease, so an abandoned guard
//! ends by itself.

use std::collections::BTreeSet;
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{Array, MapData};
use aya::programs::links::Link;
use aya::programs::tc::{NlOptions, SchedClassifierLink, TcAttachOptions, qdisc_add_clsact};
use aya::programs::{SchedClassifier, TcAttachType};
use log::{debug, info};

use super::super::kernel_clock::kernel_time;
use super::super::kernel_types::LeaseEntry;
use super::super::{Selection, objects, selection_maps};
use super::label::{self, Renaming};
use super::stacked_tags::StackedTags;
use super::tcx::{OBJECT, TcxError};
use convey_model::{Endpoint, Interface};

/// Name of the BPF program.
const PROGRAM: &str = "dsr_guard";

/// Name of the map with the lease, the time until which the guard is in force.
const LEASE: &str = "lease";

/// Drops packets to DSR frontends before the host's stack receives them, while this process runs
/// and for some time afterwards.
#[derive(Debug)]
pub struct LastingGuard {
    /// Handle of the guard's tc filters. No other filter may have this handle.
    handle: u32,
    made: Option<LoadedGuard>,
    lease: Lease,
    stacked_tags: StackedTags,
}

/// Loaded guard program and its filters.
#[derive(Debug)]
struct LoadedGuard {
    guard: Ebpf,
    selection: Selection,
    attached: Vec<GuardFilter>,
}

/// Filter of the guard on one interface.
#[derive(Debug)]
struct GuardFilter {
    interface: u32,
    /// Label of the filter: its name, if the name lists the guarded frontends.
    name: String,
    /// The link is never dropped, so that the filter outlives the process.
    link: ManuallyDrop<SchedClassifierLink>,
}

impl LastingGuard {
    /// Whether a filter with this name belongs to a lasting guard.
    pub fn is_filter(name: &str) -> bool {
        name.strip_prefix(PROGRAM).is_some_and(|label| label.is_empty() || label.starts_with(' '))
    }

    /// Whether `frontends` contains all frontends that the filter with this name guards. Returns
    /// `false` for a name without a list, because its guard may cover any frontends.
    pub fn guards_only(name: &str, frontends: &BTreeSet<Endpoint>) -> bool {
        label::is_within(PROGRAM, name, frontends)
    }

    /// Priority of the guard's filters: after the flow cache and other programs' filters.
    const PRIORITY: u16 = 60_000;

    /// Creates a guard without frontends. `handle` is the handle of its future filters.
    pub fn new(handle: u32, terms: Terms) -> LastingGuard {
        let lease = Lease { terms, map: Arc::default() };
        LastingGuard { handle, made: None, lease, stacked_tags: StackedTags::default() }
    }

    /// Counter of frames that the guard has dropped because of a second priority tag.
    pub fn stacked_tags(&self) -> StackedTags {
        self.stacked_tags.clone()
    }

    /// Lease of the guard, to be renewed while packets are forwarded.
    pub fn lease(&self) -> Lease {
        self.lease.clone()
    }

    /// Guards exactly these frontends, on exactly these interfaces. If a frontend was guarded
    /// before and is now in `draining`, its existing connections stay guarded. The first call with
    /// a frontend loads the guard.
    pub fn cover(
        &mut self,
        frontends: &BTreeSet<Endpoint>,
        draining: &BTreeSet<Endpoint>,
        interfaces: &[Interface],
    ) -> Result<(), TcxError> {
        let made = match &mut self.made {
            Some(made) => made,
            None if frontends.is_empty() => return Ok(()),
            none => none.insert(LoadedGuard::load(&self.lease, &self.stacked_tags)?),
        };
        made.select(frontends, draining)?;
        made.attach_to(interfaces, self.handle)?;
        made.label(self.handle)
    }
}

impl LastingGuard {
    /// Removes the guard immediately, because another process guards the same frontends.
    pub fn remove_now(mut self) {
        if let Some(mut made) = self.made.take() {
            made.detach_but(|_| false);
        }
    }
}

impl Drop for LastingGuard {
    /// Leaves the guard in force for existing connections; new connections then reach the host's
    /// stack. If the lease was never renewed, removes the guard.
    fn drop(&mut self) {
        let Some(made) = &mut self.made else { return };
        if !self.lease.end() {
            return made.detach_but(|_| false);
        }
        info!(
            "filter {PROGRAM} guards open connections of dsr mode for {} more minutes: they continue if convey starts again, or if \
             another balancer takes over the address; `convey clear` removes the filter",
            self.lease.terms.lasts.as_secs() / 60
        );
    }
}

impl LoadedGuard {
    fn load(lease: &Lease, stacked_tags: &StackedTags) -> Result<LoadedGuard, TcxError> {
        let mut guard = objects::loader().load(OBJECT)?;
        program(&mut guard)?.load()?;
        let map = guard.take_map(LEASE).ok_or(TcxError::Missing(LEASE))?;
        lease.begin(Array::try_from(map)?);
        stacked_tags.read(&mut guard)?;
        let selection = Selection { frontends: BTreeSet::new(), draining: BTreeSet::new(), replies: None };
        Ok(LoadedGuard { guard, selection, attached: Vec::new() })
    }

    fn select(
        &mut self,
        frontends: &BTreeSet<Endpoint>,
        draining: &BTreeSet<Endpoint>,
    ) -> Result<(), TcxError> {
        let draining = self.selection.listen().filter(|known| draining.contains(known)).copied().collect();
        let selection = Selection { frontends: frontends.clone(), draining, replies: None };
        if selection == self.selection {
            return Ok(());
        }
        for name in selection_maps::NAMES {
            let map = self.guard.map_mut(name).ok_or(TcxError::Missing(name))?;
            selection_maps::fill(name, map, &selection)?;
        }
        self.selection = selection;
        Ok(())
    }

    fn attach_to(&mut self, interfaces: &[Interface], handle: u32) -> Result<(), TcxError> {
        self.detach_but(|index| interfaces.iter().any(|interface| interface.index == index));
        for Interface { index, name, .. } in interfaces {
            if self.attached.iter().any(|filter| filter.interface == *index) {
                continue;
            }
            let _ = qdisc_add_clsact(name); // there may be one
            let options =
                NlOptions { priority: LastingGuard::PRIORITY, handle: handle.into(), ..NlOptions::default() };
            let program = program(&mut self.guard)?;
            let link = program.attach_with_options(
                name,
                TcAttachType::Ingress,
                TcAttachOptions::Netlink(options),
            )?;
            let link = ManuallyDrop::new(program.take_link(link)?);
            self.attached.push(GuardFilter { interface: *index, name: String::new(), link });
        }
        Ok(())
    }

    /// Sets each filter's name to the label of the guarded frontends. If renaming fails, the filter
    /// still guards all of these frontends, but the next process cannot remove the filter before
    /// the lease ends.
    fn label(&mut self, handle: u32) -> Result<(), TcxError> {
        let name = label::name(PROGRAM, &self.selection.listen().copied().collect());
        let program = program(&mut self.guard)?.fd()?;
        for filter in self.attached.iter_mut().filter(|filter| filter.name != name) {
            let priority = LastingGuard::PRIORITY;
            let renaming =
                Renaming { interface: filter.interface, priority, handle, program: program.as_fd() };
            match renaming.rename(&name) {
                Ok(()) => filter.name.clone_from(&name),
                Err(error) => {
                    debug!("cannot rename filter {PROGRAM} after the frontends that it guards: {error}")
                }
            }
        }
        Ok(())
    }

    /// Detaches the guard from all interfaces for which `stays` returns false.
    fn detach_but(&mut self, stays: impl Fn(u32) -> bool) {
        for filter in self.attached.extract_if(.., |filter| !stays(filter.interface)) {
            // Fails only if the interface is gone, and the filter with it.
            let _ = ManuallyDrop::into_inner(filter.link).detach();
        }
    }
}

fn program(guard: &mut Ebpf) -> Result<&mut SchedClassifier, TcxError> {
    let program = guard.program_mut(PROGRAM).ok_or(TcxError::Missing(PROGRAM))?;
    Ok(program.try_into()?)
}

/// How long the guard stays in force after the last renewal of its lease.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Time after the last renewal during which the guard drops all packets to its frontends.
    pub serves: Duration,
    /// Time after the last renewal during which the guard drops packets of existing connections.
    pub lasts: Duration,
}

impl Default for Terms {
    /// One minute for all packets: after a crash, new clients retry instead of being refused, until
    /// a service manager has restarted convey. After this minute the host's stack gets new
    /// connections, so that another program can answer them.
    ///
    /// Five minutes for existing connections: a person who starts convey by hand needs minutes.
    /// Afterwards the host's stack resets clients that still send, since no balancer forwards their
    /// packets.
    fn default() -> Terms {
        Terms { serves: Duration::from_secs(60), lasts: Duration::from_secs(300) }
    }
}

/// Lease of the guard, which determines how long the guard stays in force.
#[derive(Debug, Clone)]
pub struct Lease {
    terms: Terms,
    map: Arc<Mutex<Option<LeaseMap>>>,
}

struct LeaseMap {
    map: Array<MapData, LeaseEntry>,
    renewed: bool,
}

impl Lease {
    /// Interval between renewals.
    pub const RENEW_EVERY: Duration = Duration::from_secs(10);

    /// Renews the lease. Call this when convey begins to forward packets, and then every
    /// [`Lease::RENEW_EVERY`].
    pub fn renew(&self) {
        self.write_terms(self.terms);
    }

    fn begin(&self, map: Array<MapData, LeaseEntry>) {
        *self.lock_map() = Some(LeaseMap { map, renewed: false });
    }

    /// Shortens the lease at the end of this process: only existing connections stay guarded.
    /// Returns whether the lease was ever renewed.
    fn end(&self) -> bool {
        let was_renewed = self.lock_map().as_ref().is_some_and(|held| held.renewed);
        if was_renewed {
            self.write_terms(Terms { serves: Duration::ZERO, ..self.terms });
        }
        was_renewed
    }

    fn write_terms(&self, terms: Terms) {
        let mut held = self.lock_map();
        let Some(LeaseMap { map, renewed }) = held.as_mut() else { return };
        let now = kernel_time();
        let at = |later: Duration| (now + later).as_nanos() as u64;
        // The map is an array of one element, so the write cannot fail for a missing key or a full
        // map.
        let _ = map.set(0, LeaseEntry { serves_until: at(terms.serves), ends: at(terms.lasts) }, 0);
        *renewed = true;
    }

    fn lock_map(&self) -> MutexGuard<'_, Option<LeaseMap>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for LeaseMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseMap").field("renewed", &self.renewed).finish_non_exhaustive()
    }
}
