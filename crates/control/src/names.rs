//! Addresses of host names. Pure: the input is lookups and the time, the output is addresses. The
//! module `dns` performs the lookups.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use convey_model::{
    DnsRecords, Lookup, LookupFault, Missing, ServerAddr, Timestamp, is_local, is_of_one_machine,
};
use convey_snapshot::{Name, NameLive};

/// Maximum number of addresses of a name. A larger pool would be slow to build and to probe.
/// Operators can spread more servers over several names. Consul, Kubernetes and Route 53 answer
/// with up to a few hundred addresses.
const MAX_ADDRESSES: usize = 1_024;

/// Host names of servers, with their addresses.
#[derive(Debug, Default)]
pub(super) struct Names(BTreeMap<String, NameEntry>);

/// Changes that a lookup causes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NameChange {
    /// Host name.
    pub host: String,
    /// Addresses that are new.
    pub added: Vec<ServerAddr>,
    /// Addresses that are gone.
    pub removed: Vec<ServerAddr>,
    /// All current addresses.
    pub addresses: BTreeSet<ServerAddr>,
    /// Whether lookups have begun to fail, or have recovered.
    pub fault: FaultChange,
    /// Operator-facing messages about refused addresses. They are returned again only after the
    /// refused addresses have changed.
    pub notes: Vec<String>,
}

/// State of a host name, for the process that takes over in an upgrade.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownName {
    /// Host name.
    pub host: String,
    /// Addresses of the name.
    pub addresses: BTreeSet<ServerAddr>,
    /// Whether the addresses are from this machine's hosts file.
    pub from_hosts: bool,
    /// Operator-facing reason why the last lookup found no address; `None`: it found one.
    pub fault: Option<String>,
}

/// Change of the fault of a host name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FaultChange {
    /// No change.
    Same,
    /// Lookups have begun to fail. Addresses of the missing families stay.
    Began(LookupFault),
    /// Lookups have recovered.
    Ended,
}

#[derive(Debug)]
struct NameEntry {
    v4: BTreeSet<ServerAddr>,
    v6: BTreeSet<ServerAddr>,
    fault: Option<LookupFault>,
    /// Refused addresses in the last answer.
    refused: BTreeSet<ServerAddr>,
    is_cut: bool,
    from_hosts: bool,
    since: Timestamp,
    live: Arc<NameLive>,
}

impl Names {
    /// Keeps exactly these names: adds the missing names, and removes all other names.
    pub(super) fn want(&mut self, hosts: &BTreeSet<&str>, now: Timestamp) {
        self.0.retain(|host, _| hosts.contains(host.as_str()));
        for &host in hosts {
            self.0.entry(host.to_owned()).or_insert_with(|| NameEntry::new(now));
        }
    }

    /// State of the names that have addresses, for the next process.
    pub(super) fn known(&self) -> Vec<KnownName> {
        let known = self.0.iter().map(|(host, entry)| KnownName {
            host: host.clone(),
            addresses: entry.addresses(),
            from_hosts: entry.from_hosts,
            fault: entry.fault.clone().filter(|fault| fault.missing == Missing::All).map(|fault| fault.why),
        });
        known.filter(|name| !name.addresses.is_empty()).collect()
    }

    /// Starts with the addresses that the previous process had. The addresses of a name stay until
    /// a lookup of the name succeeds.
    pub(super) fn expect(&mut self, known: Vec<KnownName>, now: Timestamp) {
        for KnownName { host, addresses, from_hosts, fault } in known {
            let usable =
                addresses.into_iter().filter(|addr| is_of_one_machine(addr.ip())).take(MAX_ADDRESSES);
            let (v4, v6): (BTreeSet<_>, BTreeSet<_>) = usable.partition(|addr| addr.0.is_ipv4());
            if !(v4.is_empty() && v6.is_empty()) {
                let fault = fault.map(|why| LookupFault { missing: Missing::All, why });
                self.0.insert(host, NameEntry { v4, v6, from_hosts, fault, ..NameEntry::new(now) });
            }
        }
    }

    /// Removes loopback and link-local addresses, after a reload has forbidden these addresses.
    /// Addresses from the hosts file stay.
    pub(super) fn refuse_local(&mut self) {
        for entry in self.0.values_mut().filter(|entry| !entry.from_hosts) {
            entry.v4.retain(|addr| !is_local(addr.ip()));
            entry.v6.retain(|addr| !is_local(addr.ip()));
        }
    }

    /// Whether the name is known.
    pub(super) fn is_known(&self, host: &str) -> bool {
        self.0.contains_key(host)
    }

    /// Addresses of the name; empty if the name is unknown.
    pub(super) fn addresses(&self, host: &str) -> BTreeSet<ServerAddr> {
        self.0.get(host).map(NameEntry::addresses).unwrap_or_default()
    }

    /// Applies the first lookup of a name that the next configuration uses.
    pub(super) fn apply_first(&mut self, lookup: Lookup, now: Timestamp) -> Option<NameChange> {
        self.0.entry(lookup.host.clone()).or_insert_with(|| NameEntry::new(now));
        self.on_lookup(lookup, now)
    }

    /// Applies a lookup. Returns the changes; `None` if nothing changed, or if the name is no
    /// longer used.
    pub(super) fn on_lookup(&mut self, lookup: Lookup, now: Timestamp) -> Option<NameChange> {
        let entry = self.0.get_mut(&lookup.host)?;
        let before = entry.addresses();
        let fault = lookup.fault();
        entry.live.note_lookup(lookup.ttl().is_none());
        let Lookup { host, v4, v6, refused, from_hosts, .. } = lookup;
        if fault.as_ref().is_none_or(|fault| fault.missing != Missing::All) {
            entry.from_hosts = from_hosts;
        }
        // If the lookup of one family failed, an empty answer for the other family removes no
        // addresses.
        for (known, found) in [(&mut entry.v4, v4), (&mut entry.v6, v6)] {
            match found.map(DnsRecords::into_addresses) {
                Ok(addresses) if fault.is_none() || !addresses.is_empty() => *known = addresses,
                _ => {}
            }
        }
        let change = match (&entry.fault, &fault) {
            (None, None) => FaultChange::Same,
            (Some(before), Some(after)) if before.missing == after.missing => FaultChange::Same,
            (_, Some(after)) => FaultChange::Began(after.clone()),
            (Some(_), None) => FaultChange::Ended,
        };
        entry.fault = fault;
        let notes: Vec<String> = [entry.cut(&before), entry.refuse(refused)].into_iter().flatten().collect();
        let after = entry.addresses();
        if after != before || change != FaultChange::Same {
            entry.since = now;
        } else if notes.is_empty() {
            return None;
        }
        Some(NameChange {
            host,
            added: after.difference(&before).copied().collect(),
            removed: before.difference(&after).copied().collect(),
            addresses: after,
            fault: change,
            notes,
        })
    }

    /// State of all names, for a snapshot.
    pub(super) fn all(&self) -> Vec<Name> {
        let names = self.0.iter().map(|(host, entry)| Name {
            host: host.clone(),
            addresses: entry.addresses(),
            fault: entry.fault.clone(),
            since: entry.since,
            live: entry.live.clone(),
        });
        names.collect()
    }
}

impl NameEntry {
    fn new(now: Timestamp) -> NameEntry {
        NameEntry {
            v4: BTreeSet::new(),
            v6: BTreeSet::new(),
            fault: None,
            refused: BTreeSet::new(),
            is_cut: false,
            from_hosts: false,
            since: now,
            live: Arc::default(),
        }
    }

    /// Cuts the addresses to [`MAX_ADDRESSES`]. Addresses of `before` are kept first. So if answers
    /// have more addresses than the limit, and others each time, the kept addresses stay. Returns a
    /// note when addresses are first cut.
    fn cut(&mut self, before: &BTreeSet<ServerAddr>) -> Option<String> {
        let all = self.v4.len() + self.v6.len();
        let was_cut = std::mem::replace(&mut self.is_cut, all > MAX_ADDRESSES);
        let v6_at_least = self.v6.len().min(MAX_ADDRESSES / 2);
        truncate(&mut self.v4, MAX_ADDRESSES - v6_at_least, before);
        truncate(&mut self.v6, MAX_ADDRESSES - self.v4.len(), before);
        (self.is_cut && !was_cut)
            .then(|| format!("the name has {all} addresses; convey uses only {MAX_ADDRESSES} of them"))
    }

    /// Records the refused addresses. Returns a note if the addresses were not refused before.
    /// Returns `None` while the name has a fault, because the reason of the fault contains the
    /// addresses.
    fn refuse(&mut self, refused: BTreeSet<ServerAddr>) -> Option<String> {
        let is_news = !refused.is_empty() && refused != self.refused && self.fault.is_none();
        self.refused = refused;
        let first = self.refused.first().filter(|_| is_news)?;
        let ignored = match self.refused.len() - 1 {
            0 => format!("{first} is not used as a server: it belongs"),
            others => format!("{first} and {others} more are not used as servers: they belong"),
        };
        Some(format!("{ignored} to this host or link (`dns.allow_local = true` permits such addresses)"))
    }

    fn addresses(&self) -> BTreeSet<ServerAddr> {
        self.v4.union(&self.v6).copied().collect()
    }
}

/// Keeps at most `most` addresses. Addresses of `before` are kept first.
fn truncate(addresses: &mut BTreeSet<ServerAddr>, most: usize, before: &BTreeSet<ServerAddr>) {
    if addresses.len() > most {
        let (known, new): (BTreeSet<ServerAddr>, BTreeSet<ServerAddr>) =
            std::mem::take(addresses).into_iter().partition(|ip| before.contains(ip));
        *addresses = known.into_iter().chain(new).take(most).collect();
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Duration;

    use super::*;

    const HOST: &str = "app.internal";

    /// Test state of one name that is looked up every second.
    struct Scenario {
        names: Names,
        now: Timestamp,
    }

    fn records(addresses: &[&str], ttl: u64) -> Result<DnsRecords, String> {
        Ok(DnsRecords::new(addresses.iter().map(|ip| ip.parse().unwrap()), Duration::from_secs(ttl)))
    }

    fn server(ip: &str) -> ServerAddr {
        ServerAddr::from(ip.parse::<IpAddr>().unwrap())
    }

    fn lookup(v4: Result<DnsRecords, String>, v6: Result<DnsRecords, String>) -> Lookup {
        Lookup {
            host: HOST.into(),
            name_servers: vec![],
            v4,
            v6,
            from_hosts: false,
            refused: BTreeSet::new(),
        }
    }

    impl Scenario {
        fn begin() -> Scenario {
            let mut names = Names::default();
            names.want(&BTreeSet::from([HOST]), Timestamp(0));
            Scenario { names, now: Timestamp(0) }
        }

        /// Applies an answer to the next lookup.
        fn answer(
            &mut self,
            v4: Result<DnsRecords, String>,
            v6: Result<DnsRecords, String>,
        ) -> Option<NameChange> {
            self.now = self.now.after(Duration::from_secs(1));
            self.names.on_lookup(lookup(v4, v6), self.now)
        }

        fn has(&self) -> Vec<String> {
            self.names.addresses(HOST).iter().map(ToString::to_string).collect()
        }
    }

    fn failed() -> Result<DnsRecords, String> {
        Err("request timed out".into())
    }

    fn began(missing: Missing) -> FaultChange {
        FaultChange::Began(LookupFault { missing, why: "request timed out".into() })
    }

    #[test]
    fn name_change_lists_added_and_removed_addresses_of_both_families() {
        let mut scenario = Scenario::begin();
        let change = scenario.answer(records(&["10.0.0.3"], 60), records(&["2001:db8::3"], 30)).unwrap();
        assert_eq!((change.added.len(), change.removed.len(), change.fault), (2, 0, FaultChange::Same));
        assert_eq!(scenario.has(), ["10.0.0.3", "2001:db8::3"]);
        let change = scenario.answer(records(&["10.0.0.4"], 60), records(&["2001:db8::3"], 30)).unwrap();
        assert_eq!((change.added, change.removed), (vec![server("10.0.0.4")], vec![server("10.0.0.3")]));
        assert_eq!(scenario.answer(records(&["10.0.0.4"], 9), records(&["2001:db8::3"], 9)), None);
    }

    #[test]
    fn a_lookup_that_fails_keeps_the_addresses_and_is_told_once() {
        let mut scenario = Scenario::begin();
        scenario.answer(records(&["10.0.0.3"], 60), records(&[], 60));
        let change = scenario.answer(failed(), failed()).unwrap();
        assert_eq!(change.fault, began(Missing::All));
        assert_eq!((change.added.len(), change.removed.len()), (0, 0));
        assert_eq!(scenario.answer(failed(), failed()), None);
        assert_eq!(scenario.has(), ["10.0.0.3"]);
        let change = scenario.answer(records(&["10.0.0.3"], 60), records(&[], 60)).unwrap();
        assert_eq!(change.fault, FaultChange::Ended);
        let live = &scenario.names.all()[0].live;
        assert_eq!((live.lookups(), live.failures()), (4, 2));
    }

    #[test]
    fn a_name_that_is_gone_keeps_its_last_addresses() {
        let mut scenario = Scenario::begin();
        scenario.answer(records(&["10.0.0.3"], 60), records(&[], 60));
        let change = scenario.answer(records(&[], 60), records(&[], 60)).unwrap();
        assert!(
            matches!(change.fault, FaultChange::Began(fault) if fault.why.starts_with("the name does not exist"))
        );
        assert_eq!(scenario.has(), ["10.0.0.3"]);
    }

    #[test]
    fn failing_address_family_keeps_its_addresses_while_the_other_changes() {
        let mut scenario = Scenario::begin();
        scenario.answer(records(&["10.0.0.3"], 60), records(&["2001:db8::3"], 60));
        let change = scenario.answer(records(&["10.0.0.4"], 60), failed()).unwrap();
        assert_eq!((change.fault, change.removed.len()), (began(Missing::Records("AAAA")), 1));
        assert_eq!(scenario.has(), ["10.0.0.4", "2001:db8::3"]);
        assert_eq!(scenario.answer(records(&["10.0.0.4"], 60), failed()), None, "it is told once");
        let change = scenario.answer(records(&[], 60), failed()).unwrap();
        assert_eq!(change.fault, began(Missing::All));
        assert_eq!(scenario.has(), ["10.0.0.4", "2001:db8::3"], "half an answer takes nothing away");
        let change = scenario.answer(records(&[], 60), records(&["2001:db8::4"], 60)).unwrap();
        assert_eq!((change.fault, scenario.has()), (FaultChange::Ended, vec!["2001:db8::4".to_owned()]));
    }

    #[test]
    fn a_name_whose_one_family_is_never_answered_is_resolved() {
        let mut scenario = Scenario::begin();
        for _ in 0..9 {
            scenario.answer(records(&["10.0.0.3"], 100), failed());
        }
        let name = &scenario.names.all()[0];
        assert!(name.is_resolved() && scenario.has() == ["10.0.0.3"]);
        assert_eq!((name.live.lookups(), name.live.failures()), (9, 0));
        scenario.answer(failed(), failed());
        assert!(!scenario.names.all()[0].is_resolved());
    }

    #[test]
    fn unusable_addresses_of_a_name_are_ignored() {
        let mut scenario = Scenario::begin();
        let change = scenario.answer(records(&["0.0.0.0"], 60), records(&["::", "ff02::1"], 60)).unwrap();
        assert!(matches!(change.fault, FaultChange::Began(_)));
        assert!(scenario.has().is_empty());
    }

    #[test]
    fn late_answer_for_an_unwanted_name_is_ignored() {
        let mut scenario = Scenario::begin();
        scenario.names.want(&BTreeSet::new(), scenario.now);
        let late = lookup(records(&["10.0.0.3"], 1), records(&[], 1));
        assert_eq!(scenario.names.on_lookup(late, scenario.now), None);
        assert!(!scenario.names.is_known(HOST));
    }

    fn many(v4: std::ops::Range<u32>, v6: u128) -> Lookup {
        let minute = Duration::from_secs(60);
        let base = u32::from_be_bytes([10, 0, 0, 1]);
        let v4 = DnsRecords::new(v4.map(|n| IpAddr::from((base + n).to_be_bytes())), minute);
        let v6 = DnsRecords::new(
            (0..v6).map(|n| IpAddr::from(((0x2001_0db8 << 96) + n + 1).to_be_bytes())),
            minute,
        );
        lookup(Ok(v4), Ok(v6))
    }

    #[test]
    fn addresses_of_a_name_are_bounded_fairly_for_both_families() {
        let mut scenario = Scenario::begin();
        let change = scenario.names.on_lookup(many(0..4_000, 700), scenario.now).unwrap();
        assert_eq!(change.notes, ["the name has 4700 addresses; convey uses only 1024 of them"]);
        assert_eq!(change.addresses.len(), 1_024);
        assert_eq!(change.addresses.iter().filter(|addr| addr.ip().is_ipv6()).count(), 512);
        assert_eq!(scenario.names.on_lookup(many(0..4_000, 700), scenario.now), None);
        let change = scenario.names.on_lookup(many(0..4_000, 100), scenario.now).unwrap();
        assert_eq!(
            change.addresses.iter().filter(|addr| addr.ip().is_ipv4()).count(),
            924,
            "room that is left is used"
        );
    }

    #[test]
    fn ever_new_addresses_push_out_none_that_are_still_there() {
        let mut scenario = Scenario::begin();
        scenario.names.on_lookup(many(2_000..3_000, 0), scenario.now);
        let before = scenario.names.addresses(HOST);
        let change = scenario.names.on_lookup(many(0..3_000, 0), scenario.now).unwrap();
        assert_eq!((change.added.len(), change.removed.len()), (24, 0));
        assert!(change.addresses.is_superset(&before));
    }

    #[test]
    fn refused_local_addresses_are_logged_when_they_change() {
        let mut scenario = Scenario::begin();
        let answer = |v4: &[&str]| lookup(records(v4, 60), records(&[], 60)).without_local();
        let note = "127.0.0.1 and 1 more are not used as servers: they belong to this host or link (`dns.allow_local = true` permits such addresses)";
        let mixed = answer(&["10.0.0.3", "127.0.0.1", "169.254.169.254"]);
        assert_eq!(scenario.names.on_lookup(mixed.clone(), scenario.now).unwrap().notes, [note]);
        assert_eq!(scenario.has(), ["10.0.0.3"]);
        assert_eq!(scenario.names.on_lookup(mixed, scenario.now), None, "it is told once");
        let change = scenario.names.on_lookup(answer(&["169.254.169.254"]), scenario.now).unwrap();
        assert!(
            matches!(change.fault, FaultChange::Began(fault) if fault.why.starts_with("169.254.169.254 is"))
        );
        assert_eq!(scenario.has(), ["10.0.0.3"], "what was found before stays");
    }
}
