//! The guard of DSR frontends that outlives the process: connections through them go on when convey comes back, or by
//! another balancer, unless the host's stack resets them meanwhile.
//!
//! It is a BPF program (`dsr_guard` in `bpf/guard.bpf.c`) as a filter of clsact, which every kernel keeps when its process
//! is gone. It knows until when it is wanted, so that one that nobody comes back for ends by itself.

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

/// The program's name.
const PROGRAM: &str = "dsr_guard";

/// The map that says until when.
const LEASE: &str = "lease";

/// Keeps the host's stack from DSR frontends, during this process and for some time after it.
#[derive(Debug)]
pub struct LastingGuard {
    /// Number of its filters, which is nobody else's.
    handle: u32,
    made: Option<LoadedGuard>,
    lease: Lease,
    stacked_tags: StackedTags,
}

/// The program and where it is attached.
#[derive(Debug)]
struct LoadedGuard {
    guard: Ebpf,
    selection: Selection,
    attached: Vec<GuardFilter>,
}

/// One on an interface.
#[derive(Debug)]
struct GuardFilter {
    interface: u32,
    /// What it is called, if it says whom it guards.
    name: String,
    /// It is not to go with us.
    link: ManuallyDrop<SchedClassifierLink>,
}

impl LastingGuard {
    /// Whether a filter of this name is one of such a guard.
    pub fn is_filter(name: &str) -> bool {
        name.strip_prefix(PROGRAM).is_some_and(|label| label.is_empty() || label.starts_with(' '))
    }

    /// Whether a filter of this name guards none but these frontends. One that does not say whom it guards may guard others.
    pub fn guards_only(name: &str, frontends: &BTreeSet<Endpoint>) -> bool {
        label::is_within(PROGRAM, name, frontends)
    }

    /// Where its filters come among others: behind the flow cache, and what others attach.
    const PRIORITY: u16 = 60_000;

    /// One that guards nothing. Its filters will have this handle.
    pub fn new(handle: u32, terms: Terms) -> LastingGuard {
        let lease = Lease { terms, held: Arc::default() };
        LastingGuard { handle, made: None, lease, stacked_tags: StackedTags::default() }
    }

    /// Counter of the frames that it drops for a second priority tag.
    pub fn stacked_tags(&self) -> StackedTags {
        self.stacked_tags.clone()
    }

    /// What keeps it in force.
    pub fn lease(&self) -> Lease {
        self.lease.clone()
    }

    /// Guards these frontends on these interfaces and no others. Of those before, it goes on guarding what is under way
    /// at those that are `draining`. Nothing is made before there is a frontend.
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
    /// Another process guards the same frontends: this guard goes.
    pub fn give_up(mut self) {
        if let Some(mut made) = self.made.take() {
            made.detach_but(|_| false);
        }
    }
}

impl Drop for LastingGuard {
    /// Connections that have begun stay guarded; the host gets those that begin from now on. A guard that was
    /// never in force is removed.
    fn drop(&mut self) {
        let Some(made) = &mut self.made else { return };
        if !self.lease.end() {
            return made.detach_but(|_| false);
        }
        info!(
            "connections under way in dsr mode stay guarded for {} minutes (filter {PROGRAM}): they go on if convey starts again, \
             or another balancer has the address; `convey clear` ends that",
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

    /// Has each filter say whom it guards. One that cannot guards them all the same: the next process does not take it away
    /// before its time is over.
    fn label(&mut self, handle: u32) -> Result<(), TcxError> {
        let name = label::name(PROGRAM, &self.selection.listen().copied().collect());
        let program = program(&mut self.guard)?.fd()?;
        for filter in self.attached.iter_mut().filter(|filter| filter.name != name) {
            let priority = LastingGuard::PRIORITY;
            let renaming =
                Renaming { interface: filter.interface, priority, handle, program: program.as_fd() };
            match renaming.rename(&name) {
                Ok(()) => filter.name.clone_from(&name),
                Err(error) => debug!("filter {PROGRAM} does not say whom it guards: {error}"),
            }
        }
        Ok(())
    }

    /// Detaches it from all interfaces but these.
    fn detach_but(&mut self, stays: impl Fn(u32) -> bool) {
        for filter in self.attached.extract_if(.., |filter| !stays(filter.interface)) {
            // Fails if the interface is gone: so is what was attached to it.
            let _ = ManuallyDrop::into_inner(filter.link).detach();
        }
    }
}

fn program(guard: &mut Ebpf) -> Result<&mut SchedClassifier, TcxError> {
    let program = guard.program_mut(PROGRAM).ok_or(TcxError::Missing(PROGRAM))?;
    Ok(program.try_into()?)
}

/// How long the guard is in force after the process.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// So long after the last renewal everything to a frontend is kept from the host.
    pub serves: Duration,
    /// So long what was under way is.
    pub lasts: Duration,
}

impl Default for Terms {
    /// New clients of a process that was killed try again for a minute instead of being refused: a service manager has
    /// started it again by then. After that the host gets new connections, so that nobody wonders for long why another
    /// program does not answer there. Connections under way are kept for five minutes: a person who starts convey by
    /// hand takes minutes. Afterwards the host's stack resets clients that still send, for nobody will forward their
    /// packets.
    fn default() -> Terms {
        Terms { serves: Duration::from_secs(60), lasts: Duration::from_secs(300) }
    }
}

/// Until when the guard is in force.
#[derive(Debug, Clone)]
pub struct Lease {
    terms: Terms,
    held: Arc<Mutex<Option<LeaseMap>>>,
}

struct LeaseMap {
    map: Array<MapData, LeaseEntry>,
    renewed: bool,
}

impl Lease {
    /// How often it is to be renewed.
    pub const RENEW_EVERY: Duration = Duration::from_secs(10);

    /// Keeps the guard in force. To be called as soon as packets are forwarded, and then as often as [`Lease::RENEW_EVERY`] says.
    pub fn renew(&self) {
        self.hold(self.terms);
    }

    fn begin(&self, map: Array<MapData, LeaseEntry>) {
        *self.held() = Some(LeaseMap { map, renewed: false });
    }

    /// Begins the time after the process. Returns whether the guard has been in force.
    fn end(&self) -> bool {
        let was_renewed = self.held().as_ref().is_some_and(|held| held.renewed);
        if was_renewed {
            self.hold(Terms { serves: Duration::ZERO, ..self.terms });
        }
        was_renewed
    }

    fn hold(&self, terms: Terms) {
        let mut held = self.held();
        let Some(LeaseMap { map, renewed }) = held.as_mut() else { return };
        let now = kernel_time();
        let at = |later: Duration| (now + later).as_nanos() as u64;
        // An array of one: nothing can be missing or full.
        let _ = map.set(0, LeaseEntry { serves_until: at(terms.serves), ends: at(terms.lasts) }, 0);
        *renewed = true;
    }

    fn held(&self) -> MutexGuard<'_, Option<LeaseMap>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for LeaseMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseMap").field("renewed", &self.renewed).finish_non_exhaustive()
    }
}
