//! Adds the addresses of frontends to an interface while the frontends can serve.
//! `control::Announcement` decides; this module reads the addresses from the kernel, and adds and
//! removes them.

mod decision;
mod seen;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use convey_admin::{
    AcmeState, AnnounceState, AnnouncedAddress, AnnouncedAddresses, CertificateView, ReadinessInput,
    announced_addresses,
};
use convey_control::{AddressChange, EventKind, EventLevel, EventLog, KnownAnnouncement, LogLine, Readiness};
use convey_dataplane::net::{HostAddress, HostAddresses, OwnedName};
use convey_explain::PacketFacts;
use convey_model::{AnnounceConfig, Timestamp};
use convey_snapshot::{NewestSnapshot, Snapshot};
use log::{error, info, warn};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{sleep, timeout};

use self::decision::{AddressRow, Decision, ExplainedReadiness};
use self::seen::SeenAddresses;
use super::clock;
use super::stale_addresses::{announcers, name, own, own_all, own_in_lineage};

/// Interval between checks whether the addresses are still on the interface, and whether other
/// processes have left addresses behind.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Upper bound for the wait for the withdrawal of addresses when the program ends.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Hint for a process that lacks the privilege to add addresses.
pub(super) const PRIVILEGE: &str = " (convey must be started with CAP_NET_ADMIN; with the Debian package: /usr/share/convey/systemd/announce.conf)";

/// State that the announcing task works with.
pub(super) struct AnnounceParts {
    pub(super) snapshot: Arc<NewestSnapshot>,
    /// Whether the program drains.
    pub(super) draining: Arc<AtomicBool>,
    /// Notification that a snapshot was published, or that the program begins to drain.
    pub(super) changed: Arc<Notify>,
    pub(super) events: Arc<EventLog>,
    pub(super) state: Arc<AnnounceState>,
    pub(super) acme: Arc<AcmeState>,
    /// State of the packet modes since the start. `None` if no packet mode runs.
    pub(super) packets: Option<PacketFacts>,
    /// Addresses that the predecessor in an upgrade announced, or was about to announce.
    pub(super) known: BTreeMap<IpAddr, HandedAnnouncement>,
}

/// Address that the predecessor in an upgrade announced, or would have announced once its frontends
/// could serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HandedAnnouncement {
    pub(super) announcement: KnownAnnouncement,
    pub(super) withdrawals: u64,
}

impl HandedAnnouncement {
    /// Returns the addresses of this process, to be handed over to its successor.
    pub(super) fn all(state: &AnnounceState) -> BTreeMap<IpAddr, HandedAnnouncement> {
        let handed = |AnnouncedAddress { address, withdrawals, announcement, .. }| {
            (address, HandedAnnouncement { announcement, withdrawals })
        };
        state.addresses().into_iter().map(handed).collect()
    }
}

/// The task that announces addresses.
pub(super) struct Announcer(mpsc::Sender<(End, oneshot::Sender<()>)>);

/// How the announcing task ends.
#[derive(Debug, Clone, Copy)]
enum End {
    /// Removes all addresses.
    Withdraw,
    /// Another process has taken over. Removes only the addresses that the other process does not
    /// announce.
    Leave,
}

/// Names of the addresses that this process announces. A name is a lock on an address between
/// processes. This process takes the names before its predecessor exits.
pub(super) struct AnnounceNames(BTreeMap<IpAddr, OwnedName>);

impl AnnounceNames {
    /// Takes each name unless a process other than the predecessor in an upgrade holds it.
    pub(super) fn take(snapshot: &Snapshot) -> AnnounceNames {
        let frontends = snapshot.announce.iter().flat_map(|_| &snapshot.frontends);
        let addresses = AnnounceConfig::addresses(frontends.map(|frontend| &frontend.config));
        AnnounceNames(own_in_lineage(addresses.into_iter().collect()))
    }
}

impl Announcer {
    /// Starts the task in the current runtime. Takes over addresses that are on the interface and
    /// carry convey's mark.
    pub(super) fn start(parts: AnnounceParts, AnnounceNames(names): AnnounceNames) -> Announcer {
        let (end, ends) = mpsc::channel(1);
        tokio::spawn(
            AnnounceTask { parts, names, rows: BTreeMap::new(), netlink: None, fault: None, has_work: false }
                .run(ends),
        );
        Announcer(end)
    }

    /// Removes the addresses and ends the task.
    pub(super) async fn withdraw(&self) {
        self.end(End::Withdraw).await;
    }

    /// Keeps the addresses that another process announces too, and removes the others.
    pub(super) async fn leave(&self) {
        self.end(End::Leave).await;
    }

    async fn end(&self, end: End) {
        let (done, is_done) = oneshot::channel();
        if self.0.send((end, done)).await.is_ok() && timeout(END_TIMEOUT, is_done).await.is_err() {
            warn!(
                "the kernel has not confirmed within {END_TIMEOUT:?} that announced addresses are withdrawn"
            );
        }
    }
}

struct AnnounceTask {
    parts: AnnounceParts,
    names: BTreeMap<IpAddr, OwnedName>,
    rows: BTreeMap<IpAddr, AddressRow>,
    netlink: Option<HostAddresses>,
    /// Last logged reason why no address can be announced.
    fault: Option<String>,
    /// Whether there are addresses to announce or to remove. Without such addresses, the task waits
    /// for the next snapshot.
    has_work: bool,
}

impl AnnounceTask {
    async fn run(mut self, mut ends: mpsc::Receiver<(End, oneshot::Sender<()>)>) {
        loop {
            let changed = self.parts.changed.clone();
            let due = self.update().await;
            let wait = due.map_or(LOOK_EVERY, |due| due.since(clock::now()).min(LOOK_EVERY));
            tokio::select! {
                // `notified` also returns for a change that happened during the check.
                () = changed.notified() => {}
                () = sleep(wait), if self.has_work => {}
                end = ends.recv() => {
                    let Some((end, done)) = end else { return };
                    self.end(end).await;
                    let _ = done.send(());
                    return;
                }
            }
        }
    }

    /// Announces and withdraws the addresses that are due now. Returns the time at which the next
    /// change is due. `None` if no change is due.
    async fn update(&mut self) -> Option<Timestamp> {
        let snapshot = self.parts.snapshot.load_full();
        let config = snapshot.announce.clone();
        // Most configurations lack the table `[announce]`. convey then checks the host only once,
        // at its start.
        let is_first = self.netlink.is_none();
        if config.is_none() && !self.has_work && !is_first {
            return None;
        }
        self.has_work = config.is_some();
        let seen = match self.see(config.as_deref()).await {
            Ok(seen) => {
                self.note_fault_of_all(config.is_some(), seen.interface().err());
                seen
            }
            Err(fault) => {
                self.note_fault_of_all(config.is_some(), Some(fault));
                self.report(config.as_deref());
                return None;
            }
        };
        self.has_work |= seen.addresses.iter().any(|address| address.is_announced);
        let names = self.parts.acme.names();
        let certificates = CertificateView::of_addresses(names, clock::unix_seconds(), &snapshot);
        let is_draining = self.parts.draining.load(Ordering::Relaxed);
        let (snapshot, certificates, packets) = (&*snapshot, &certificates, self.parts.packets.as_ref());
        let wanted = announced_addresses(ReadinessInput { snapshot, certificates, packets, is_draining });
        self.forget_unwanted(&wanted);
        if let Some(config) = &config {
            self.take_names(&wanted, &seen);
            let is_leaving = is_draining || snapshot.stopping;
            let mut added = Vec::new();
            for (ip, obstacle) in wanted {
                let readiness = match obstacle {
                    _ if is_leaving => ExplainedReadiness::new(Readiness::Leaving, "convey is draining"),
                    Some(why) => ExplainedReadiness { readiness: Readiness::Lacking, why },
                    None => ExplainedReadiness::new(Readiness::Ready, "a frontend on this address can serve"),
                };
                added.extend(self.update_address(ip, readiness, config, &seen).await);
            }
            self.check_marks(&added, config).await;
        }
        self.sweep(&seen).await;
        self.report(config.as_deref());
        let hold = config.map(|config| config.hold)?;
        self.rows.values().filter_map(|row| row.announcement.due(hold)).min()
    }

    async fn see(&mut self, config: Option<&AnnounceConfig>) -> Result<SeenAddresses, String> {
        if self.netlink.is_none() {
            let opened = HostAddresses::open()
                .map_err(|error| format!("cannot read addresses from the kernel: {error}"))?;
            self.netlink = Some(opened);
        }
        let Some(netlink) = &self.netlink else { return Err("no netlink".to_owned()) };
        SeenAddresses::read(netlink, config).await.map_err(|error| error.to_string())
    }

    /// Drops the state of addresses that the configuration no longer contains. `sweep` removes
    /// these addresses from the interface.
    fn forget_unwanted(&mut self, wanted: &AnnouncedAddresses) {
        self.parts.known.retain(|ip, _| wanted.contains_key(ip));
        let gone: Vec<IpAddr> = self.rows.keys().filter(|ip| !wanted.contains_key(ip)).copied().collect();
        for ip in gone {
            self.names.remove(&ip);
            if let Some(row) = self.rows.remove(&ip)
                && row.is_there
            {
                self.log_event(EventLevel::Info, &format!("{ip} withdrawn: no frontend announces it now"));
            }
        }
    }

    /// Checks one address and announces or withdraws it. Returns the address if this call added it.
    async fn update_address(
        &mut self,
        ip: IpAddr,
        readiness: ExplainedReadiness,
        config: &AnnounceConfig,
        seen: &SeenAddresses,
    ) -> Option<IpAddr> {
        let is_there = seen.announced(ip).is_some();
        let known = self.parts.known.remove(&ip);
        let row = self.rows.entry(ip).or_insert_with(|| AddressRow::new(is_there, known, config.hold));
        row.is_there = is_there;
        if let Err(LogLine { level, text }) = self.take_name(ip, seen) {
            self.note_fault(ip, level, text);
            return None;
        }
        let decision = self.decide(ip, readiness, config)?;
        if let Err(line) = self.carry_out(ip, decision.is_wanted, seen).await {
            self.note_fault(ip, EventLevel::Error, line);
            return None;
        }
        let row = self.rows.get_mut(&ip)?;
        let is_explained = decision.is_changed || seen.has_elsewhere(ip) || row.fault.is_some();
        (row.is_there, row.fault) = (decision.is_wanted, None);
        if is_there != decision.is_wanted {
            let line = decision.log_line(ip, &config.interface, is_explained);
            self.log_event(line.level, &line.text);
        }
        (decision.is_wanted && !is_there).then_some(ip)
    }

    /// Takes the names of all new addresses in one call, which is quick for thousands of addresses.
    /// [`Self::take_name`] reports each address whose name cannot be taken.
    fn take_names(&mut self, wanted: &AnnouncedAddresses, seen: &SeenAddresses) {
        let is_new = |ip: &&IpAddr| {
            !self.names.contains_key(ip) && (seen.announced(**ip).is_some() || !seen.has_foreign(**ip))
        };
        let new: Vec<IpAddr> = wanted.keys().filter(is_new).copied().collect();
        self.names.extend(own_all(&new));
    }

    /// Takes the name of the address, which this process needs to announce it. The error is the log
    /// line with the reason.
    fn take_name(&mut self, ip: IpAddr, seen: &SeenAddresses) -> Result<(), LogLine> {
        if seen.announced(ip).is_none() && seen.has_foreign(ip) {
            let line = format!(
                "convey does not announce {ip}: this host has the address already, and another program added it"
            );
            return Err(LogLine::warn(line));
        }
        if let Entry::Vacant(place) = self.names.entry(ip) {
            let name = own(ip).map_err(|error| match error.kind() {
                io::ErrorKind::AddrInUse => {
                    LogLine::warn(format!("{ip} is announced by another convey on this host"))
                }
                _ => LogLine::error(format!("{ip} cannot be announced: {error}")),
            })?;
            place.insert(name);
        }
        Ok(())
    }

    fn decide(
        &mut self,
        ip: IpAddr,
        ExplainedReadiness { readiness, why }: ExplainedReadiness,
        config: &AnnounceConfig,
    ) -> Option<Decision> {
        let row = self.rows.get_mut(&ip)?;
        let is_leaving = readiness == Readiness::Leaving;
        let change = row.announcement.observe(readiness, config.hold, clock::now());
        row.withdrawals += u64::from(change == Some(AddressChange::Withdraw));
        let (is_wanted, wait) = (row.announcement.is_announced(), row.announcement.wait());
        row.reason = match (is_wanted, readiness) {
            (true, Readiness::Lacking) => {
                format!("{why}; convey withdraws the address if this lasts {:?}", config.hold)
            }
            (false, Readiness::Ready) => {
                format!("{why}; convey announces the address once this has lasted {wait:?}")
            }
            _ => why.clone(),
        };
        Some(Decision { is_wanted, is_changed: change.is_some(), is_leaving, why, wait })
    }

    /// Asks the kernel to add the address (`is_wanted`) or to remove it. The error is an
    /// operator-facing message.
    async fn carry_out(&self, ip: IpAddr, is_wanted: bool, seen: &SeenAddresses) -> Result<(), String> {
        let Some(netlink) = &self.netlink else { return Ok(()) };
        let (verb, done) = match (is_wanted, seen.announced(ip)) {
            (true, None) => ("announced", netlink.announce(ip, seen.interface()?).await),
            (false, Some(address)) => ("withdrawn", netlink.withdraw(address).await),
            (true, Some(_)) | (false, None) => return Ok(()),
        };
        done.map_err(|error| {
            let needs = if error.is_not_permitted() { PRIVILEGE } else { "" };
            format!("{ip} cannot be {verb}: {error}{needs}")
        })
    }

    /// Checks that the kernel kept convey's mark on the added addresses. Removes addresses without
    /// the mark: after a kill, no process could recognize them as convey's.
    async fn check_marks(&mut self, added: &[IpAddr], config: &AnnounceConfig) {
        let Some(netlink) = self.netlink.as_ref().filter(|_| !added.is_empty()) else { return };
        let Ok(seen) = SeenAddresses::read(netlink, Some(config)).await else { return };
        let mut unmarked = Vec::new();
        for address in added.iter().filter_map(|ip| seen.on_interface(*ip)).filter(|one| !one.is_announced) {
            let _ = netlink.withdraw(address).await;
            unmarked.push(address.ip);
        }
        for ip in unmarked {
            if let Some(row) = self.rows.get_mut(&ip) {
                row.is_there = false;
            }
            let line = format!(
                "{ip} cannot be announced: this kernel cannot mark addresses as convey's, which needs Linux 5.18"
            );
            self.note_fault(ip, EventLevel::Error, line);
        }
    }

    /// Logs a fault that prevents all announcements, once per fault. Without the table `[announce]`
    /// it logs nothing.
    fn note_fault_of_all(&mut self, is_asked_for: bool, fault: Option<String>) {
        if let Some(fault) =
            fault.as_ref().filter(|fault| is_asked_for && self.fault.as_ref() != Some(*fault))
        {
            self.log_event(EventLevel::Error, &format!("addresses cannot be announced: {fault}"));
        }
        self.fault = fault;
    }

    /// Logs the fault of an address, once per fault.
    fn note_fault(&mut self, ip: IpAddr, level: EventLevel, line: String) {
        let Some(row) = self.rows.get_mut(&ip) else { return };
        row.reason.clone_from(&line);
        if row.fault.as_ref() != Some(&line) {
            row.fault = Some(line.clone());
            self.log_event(level, &line);
        }
    }

    /// Removes addresses that an earlier convey left behind, and addresses that this process added
    /// to another interface.
    async fn sweep(&self, seen: &SeenAddresses) {
        let Some(netlink) = &self.netlink else { return };
        let is_ours = |ip: &IpAddr| self.rows.contains_key(ip) && self.names.contains_key(ip);
        let is_left = |address: &&HostAddress| !(is_ours(&address.ip) && seen.is_its_interface(address));
        let marked = seen.addresses.iter().filter(|address| address.is_announced);
        let left: Vec<&HostAddress> = marked.filter(is_left).collect();
        if left.is_empty() {
            return;
        }
        let others = announcers();
        for address in left {
            let ip = address.ip;
            // Hold the name until the address is removed, so that no other process announces the
            // address meanwhile.
            let name = if is_ours(&ip) || others.contains(&name(ip)) { None } else { own(ip).ok() };
            if !is_ours(&ip) && name.is_none() {
                continue;
            }
            match netlink.withdraw(address).await {
                Ok(()) => {
                    info!("removed {ip}: an earlier convey process or an earlier configuration announced it")
                }
                Err(error) => warn!(
                    "cannot remove {ip}, which an earlier convey process or an earlier configuration announced: {error}"
                ),
            }
        }
    }

    /// Removes the addresses whose names this process holds. In an upgrade, the next process keeps
    /// the addresses whose names it holds too.
    async fn end(&mut self, end: End) {
        let there: Vec<IpAddr> =
            self.rows.iter().filter(|(_, row)| row.is_there).map(|(ip, _)| *ip).collect();
        let ours = there.into_iter().filter(|ip| self.names.contains_key(ip));
        let (leaving, why): (BTreeSet<IpAddr>, _) = match end {
            End::Withdraw => (ours.collect(), "convey stops"),
            End::Leave => {
                let ours: Vec<IpAddr> = ours.collect();
                self.names.clear();
                let others = announcers();
                let is_left = |ip: &IpAddr| !others.contains(&name(*ip));
                (ours.into_iter().filter(is_left).collect(), "the new process does not announce it")
            }
        };
        match self.take_away(&leaving).await {
            Ok(()) => {
                for ip in &leaving {
                    if let Some(row) = self.rows.get_mut(ip) {
                        row.is_there = false;
                        why.clone_into(&mut row.reason);
                    }
                    self.log_event(EventLevel::Info, &format!("{ip} withdrawn: {why}"));
                }
            }
            Err(error) => {
                self.log_event(EventLevel::Error, &format!("addresses cannot be withdrawn: {error}"))
            }
        }
        match end {
            End::Withdraw => self.report(self.parts.snapshot.load().announce.as_deref()),
            End::Leave => self.parts.state.set(Vec::new()),
        }
        self.names.clear();
    }

    async fn take_away(&self, leaving: &BTreeSet<IpAddr>) -> Result<(), convey_dataplane::net::Error> {
        let Some(netlink) = self.netlink.as_ref().filter(|_| !leaving.is_empty()) else { return Ok(()) };
        for address in netlink.all().await?.iter().filter(|one| one.is_announced && leaving.contains(&one.ip))
        {
            netlink.withdraw(address).await?;
        }
        Ok(())
    }

    fn report(&self, config: Option<&AnnounceConfig>) {
        let Some(config) = config else { return self.parts.state.set(Vec::new()) };
        let address = |(ip, row): (&IpAddr, &AddressRow)| AnnouncedAddress {
            address: *ip,
            interface: config.interface.clone(),
            is_announced: row.is_there,
            reason: self.fault.clone().unwrap_or_else(|| row.reason.clone()),
            withdrawals: row.withdrawals,
            announcement: row.announcement.known(),
        };
        self.parts.state.set(self.rows.iter().map(address).collect());
    }

    fn log_event(&self, level: EventLevel, line: &str) {
        match level {
            EventLevel::Info => info!("{line}"),
            EventLevel::Warn => warn!("{line}"),
            EventLevel::Error => error!("{line}"),
        }
        self.parts.events.record(EventKind::Announcement, level, clock::now(), line);
    }
}
