//! SRV records (RFC 2782): hosts and ports of a service. If there are too many records, their
//! priorities and weights decide which records are used. The records do not decide the servers'
//! shares: these come from `weight` and `backup` in the configuration file.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use hickory_resolver::proto::rr::{RData, Record, RecordType};
use tokio::time::timeout;

use super::{Answer, Resolver, System};
use convey_model::DnsRecords;

/// Maximum number of records used for a service.
const MAX_TARGETS: usize = 128;

/// Time limit for the lookups of all hosts of a service.
const SERVICE_TIMEOUT: Duration = Duration::from_secs(15);

/// Host of a service. The sort order is the order of preference (RFC 2782).
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ServiceHost {
    priority: u16,
    weight: Reverse<u16>,
    host: String,
    port: u16,
}

/// Last answers for the hosts of each service. If the lookup of a host fails, its last addresses
/// stay.
#[derive(Debug, Clone, Default)]
pub(super) struct LastAnswers(Arc<Mutex<HashMap<String, HostAnswers>>>);

type HostAnswers = HashMap<String, (Answer, Answer)>;

impl LastAnswers {
    /// Stores the new answers of a service, and returns them. A failed answer is replaced by the
    /// last successful answer for its host.
    fn complete(&self, service: &str, new: HostAnswers) -> HostAnswers {
        let mut services = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = services.remove(service).unwrap_or_default();
        let complete = |(host, (v4, v6)): (String, (Answer, Answer))| {
            let or_last = |answer: Answer, last: Option<&Answer>| {
                answer.or_else(|error| last.and_then(|last| last.clone().ok()).ok_or(error))
            };
            let last = before.get(&host);
            let answers = (or_last(v4, last.map(|last| &last.0)), or_last(v6, last.map(|last| &last.1)));
            (host, answers)
        };
        let completed: HostAnswers = new.into_iter().map(complete).collect();
        services.insert(service.to_owned(), completed.clone());
        completed
    }
}

impl Resolver {
    /// Addresses of all hosts of a service, with their ports.
    pub(super) async fn service(&self, system: &System, name: &str) -> (Answer, Answer) {
        let found = timeout(SERVICE_TIMEOUT, self.hosts_of(system, name)).await;
        let late = || format!("the lookup of its host names took longer than {SERVICE_TIMEOUT:?}");
        found.unwrap_or_else(|_| Err(late())).unwrap_or_else(|error| (Err(error.clone()), Err(error)))
    }

    async fn hosts_of(&self, system: &System, name: &str) -> Result<(Answer, Answer), String> {
        let found = {
            let _turn = self.turns.acquire().await;
            system.ask(name, RecordType::SRV).await?
        };
        let targets = targets(&found.records);
        let answers = join_all(targets.iter().map(|target| self.addresses(system, &target.host))).await;
        let hosts = targets.iter().map(|target| target.host.clone());
        let answers = self.last_answers.complete(name, hosts.zip(answers).collect());
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for target in &targets {
            let Some((of_v4, of_v6)) = answers.get(&target.host).cloned() else { continue };
            let at_port = |records: DnsRecords| records.at_port(target.port, found.ttl);
            v4.push(of_v4.map(at_port));
            v6.push(of_v6.map(at_port));
        }
        Ok((merged(v4), merged(v6)))
    }
}

pub(super) fn targets(records: &[Record]) -> Vec<ServiceHost> {
    let mut targets: Vec<ServiceHost> = records.iter().filter_map(target).collect();
    // Targets are sorted, because name servers shuffle their answers. Otherwise the selection of
    // targets would change with each answer.
    targets.sort();
    targets.dedup();
    targets.truncate(MAX_TARGETS);
    targets
}

/// Host in an SRV record. `None` if the host is the root, which means that the service does not
/// exist, or if the port is 0.
fn target(record: &Record) -> Option<ServiceHost> {
    let RData::SRV(srv) = &record.data else { return None };
    let is_one = !srv.target.is_root() && srv.port != 0;
    is_one.then(|| ServiceHost {
        priority: srv.priority,
        weight: Reverse(srv.weight),
        host: srv.target.to_ascii(),
        port: srv.port,
    })
}

/// Merges the addresses of all hosts. The result is an error if there is no answer for any host.
fn merged(hosts: Vec<Answer>) -> Answer {
    let (mut all, mut failure) = (None, None);
    for host in hosts {
        match host {
            Ok(records) => all = Some(all.unwrap_or_else(DnsRecords::default).and(records)),
            Err(error) => failure = Some(error),
        }
    }
    match (all, failure) {
        (None, Some(error)) => Err(error),
        (all, _) => Ok(all.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use hickory_resolver::proto::rr::Name;
    use hickory_resolver::proto::rr::rdata::SRV;

    use super::*;

    fn found(ip: &str, port: u16, seconds: u64) -> Answer {
        let ttl = Duration::from_secs(seconds);
        Ok(DnsRecords::new([ip.parse().unwrap()], ttl).at_port(port, Duration::from_secs(30)))
    }

    fn shown(answer: Answer) -> Vec<String> {
        answer.unwrap().into_addresses().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn hosts_are_merged_and_one_that_fails_takes_nothing_away() {
        let all = merged(vec![found("10.0.0.1", 80, 60), found("10.0.0.1", 81, 5)]);
        assert_eq!(shown(all), ["10.0.0.1:80", "10.0.0.1:81"]);
        assert_eq!(shown(merged(vec![Err("refused".into()), found("10.0.0.1", 80, 60)])), ["10.0.0.1:80"]);
        assert!(merged(vec![Err("refused".into()), Err("refused".into())]).is_err());
        assert_eq!(shown(merged(vec![])), [""; 0]);
    }

    #[test]
    fn a_host_that_cannot_be_looked_up_keeps_what_it_had() {
        let last = LastAnswers::default();
        let none = || Ok(DnsRecords::default());
        let both = |b: Answer| {
            let hosts = [("a", found("10.0.0.1", 80, 60)), ("b", b)];
            let hosts = hosts.map(|(host, answer)| (host.to_owned(), (answer, none())));
            let answers = last.complete("_http._tcp.test", hosts.into());
            shown(merged(vec![answers["a"].0.clone(), answers["b"].0.clone()]))
        };
        assert_eq!(both(Err("SERVFAIL".into())), ["10.0.0.1:80"], "it had nothing");
        assert_eq!(both(found("10.0.0.2", 80, 60)), ["10.0.0.1:80", "10.0.0.2:80"]);
        for _ in 0..2 {
            assert_eq!(both(Err("SERVFAIL".into())), ["10.0.0.1:80", "10.0.0.2:80"]);
        }
        assert_eq!(both(none()), ["10.0.0.1:80"], "that it has none is an answer");
    }

    fn record(priority: u16, host: &str, port: u16) -> Record {
        let record = SRV::new(priority, 1, port, Name::from_ascii(host).unwrap());
        Record::from_rdata(Name::root(), 60, RData::SRV(record))
    }

    #[test]
    fn excess_records_are_dropped_alike_in_any_order() {
        let mut records: Vec<Record> =
            (1..=200).map(|port| record(port / 100, "web.internal.", port)).collect();
        let ports =
            |records: &[Record]| -> Vec<u16> { targets(records).iter().map(|target| target.port).collect() };
        assert_eq!(ports(&records), (1..=128).collect::<Vec<u16>>());
        records.reverse();
        assert_eq!(ports(&records), (1..=128).collect::<Vec<u16>>());
    }

    #[test]
    fn the_root_and_port_0_are_no_host() {
        let found =
            |host: &str, port| target(&record(1, host, port)).map(|target| (target.host, target.port));
        let expected = ("web_1.internal.".to_owned(), 80);
        assert_eq!(found("web_1.internal.", 80), Some(expected));
        assert_eq!((found(".", 80), found("web.internal.", 0)), (None, None));
    }
}
