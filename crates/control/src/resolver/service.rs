//! SRV records (RFC 2782): the hosts and ports of a service. Priorities and weights are left alone: `weight` and `backup` of
//! the file say which server gets how much.

use std::time::Duration;

use futures_util::future::join_all;
use hickory_resolver::proto::rr::{RData, Record, RecordType};
use tokio::time::timeout;

use super::{Answer, Resolver, System};
use convey_model::Records;

/// The most records of a service that are followed.
const MAX_TARGETS: usize = 128;

/// How long all hosts of a service may take together.
const PATIENCE: Duration = Duration::from_secs(15);

/// A host of a service.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    host: String,
    port: u16,
}

impl Resolver {
    /// The addresses of a service, with their ports.
    pub(super) async fn service(&self, system: &System, name: &str) -> (Answer, Answer) {
        let found = timeout(PATIENCE, self.hosts_of(system, name)).await;
        let late = || format!("its hosts were not looked up within {PATIENCE:?}");
        found.unwrap_or_else(|_| Err(late())).unwrap_or_else(|error| (Err(error.clone()), Err(error)))
    }

    async fn hosts_of(&self, system: &System, name: &str) -> Result<(Answer, Answer), String> {
        let found = {
            let _turn = self.turns.acquire().await;
            system.ask(name, RecordType::SRV).await?
        };
        let targets = targets(&found.records);
        let hosts = join_all(targets.iter().map(|target| self.addresses(system, &target.host))).await;
        let (mut v4, mut v6) = (Ok(Records::default()), Ok(Records::default()));
        for (target, (of_v4, of_v6)) in targets.iter().zip(hosts) {
            let at_port = |records: Records| records.at_port(target.port, found.ttl);
            v4 = merged(v4, of_v4.map(at_port));
            v6 = merged(v6, of_v6.map(at_port));
        }
        Ok((v4, v6))
    }
}

fn targets(records: &[Record]) -> Vec<Target> {
    records.iter().filter_map(target).take(MAX_TARGETS).collect()
}

/// The root means that there is no such service.
fn target(record: &Record) -> Option<Target> {
    let RData::SRV(srv) = &record.data else { return None };
    let is_one = !srv.target.is_root() && srv.port != 0;
    is_one.then(|| Target { host: srv.target.to_ascii(), port: srv.port })
}

/// One host that fails makes its family fail: then the addresses that are known stay.
fn merged(all: Answer, one: Answer) -> Answer {
    Ok(all?.and(one?))
}

#[cfg(test)]
mod tests {
    use hickory_resolver::proto::rr::Name;
    use hickory_resolver::proto::rr::rdata::SRV;

    use super::*;

    #[test]
    fn hosts_are_merged_and_one_that_fails_takes_nothing_away() {
        let found = |ip: &str, port, seconds| {
            let ttl = Duration::from_secs(seconds);
            Ok(Records::new([ip.parse().unwrap()], ttl).at_port(port, Duration::from_secs(30)))
        };
        let all = merged(found("10.0.0.1", 80, 60), found("10.0.0.1", 81, 5));
        let shown = |answer: Answer| -> Vec<String> {
            answer.unwrap().into_addresses().iter().map(ToString::to_string).collect()
        };
        assert_eq!(shown(all), ["10.0.0.1:80", "10.0.0.1:81"]);
        assert_eq!(shown(merged(Ok(Records::default()), found("10.0.0.1", 80, 60))), ["10.0.0.1:80"]);
        assert!(merged(found("10.0.0.1", 80, 60), Err("refused".into())).is_err());
    }

    fn record(host: &str, port: u16) -> Record {
        let record = SRV::new(1, 1, port, Name::from_ascii(host).unwrap());
        Record::from_rdata(Name::root(), 60, RData::SRV(record))
    }

    #[test]
    fn of_too_many_records_the_first_are_followed() {
        let records: Vec<Record> = (1..=200).map(|port| record("web.internal.", port)).collect();
        let ports: Vec<u16> = targets(&records).iter().map(|target| target.port).collect();
        assert_eq!(ports, (1..=128).collect::<Vec<u16>>());
    }

    #[test]
    fn the_root_and_port_0_are_no_host() {
        let found = |host: &str, port| target(&record(host, port));
        let expected = Target { host: "web_1.internal.".into(), port: 80 };
        assert_eq!(found("web_1.internal.", 80), Some(expected));
        assert_eq!((found(".", 80), found("web.internal.", 0)), (None, None));
    }
}
