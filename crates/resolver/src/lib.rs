//! DNS resolver: looks up names in `/etc/hosts`, and then at name servers. [`connect`] connects to
//! a host by its name.

mod connect;
mod hosts;
mod service;

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind::NotFound;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::lookup::Lookup as LookupAnswer;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{Name, Record, RecordType};
use hickory_resolver::system_conf::parse_resolv_conf;
use log::warn;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout;

pub use self::connect::connect;
use self::hosts::Hosts;
use self::service::LastAnswers;
use convey_config::files;
use convey_model::{DnsRecords, Lookup, is_service};

const HOSTS: &str = "/etc/hosts";
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Time limit for the lookup of one address family if there is only one name server.
const FAMILY_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for the answer of one name server if there are several name servers. A name server
/// may have to query other name servers, but usually has the answer in its cache.
const PATIENCE_IF_OTHERS: Duration = Duration::from_millis(1_500);

/// Time limit for the second address family once the first one has addresses. Some name servers
/// drop queries for AAAA records, and servers whose other address is known should not wait for
/// them. The limit is long enough to repeat a lost query, which hickory does after a third of a
/// second.
const PATIENCE_WITH_ANSWER: Duration = Duration::from_secs(1);

/// Addresses of one family, or the reason why the lookup failed.
type Answer = Result<DnsRecords, String>;

/// Resolver of host names.
#[derive(Clone)]
pub struct Resolver {
    known: Arc<Mutex<Option<Arc<System>>>>,
    turns: Arc<Semaphore>,
    last_answers: LastAnswers,
}

impl Resolver {
    /// Creates a resolver that looks up at most `at_once` names at the same time. A lookup takes up
    /// to six file descriptors: queries for both families, and their repetitions.
    pub fn new(at_once: usize) -> Resolver {
        Resolver {
            known: Arc::default(),
            turns: Arc::new(Semaphore::new(at_once)),
            last_answers: LastAnswers::default(),
        }
    }

    /// Looks up a name at these name servers; if the list is empty, at the system's name servers.
    /// With the system's name servers, the search list of `/etc/resolv.conf` applies to names
    /// without a trailing dot.
    pub async fn look_up(&self, host: String, name_servers: &[SocketAddr]) -> Lookup {
        let system = self.system(name_servers).await;
        if is_service(&host) {
            let (v4, v6) = self.service(&system, &host).await;
            return lookup(host, name_servers, v4, v6, false);
        }
        let from_hosts = system.hosts.get(&host).is_some();
        let (v4, v6) = self.addresses(&system, &host).await;
        lookup(host, name_servers, v4, v6, from_hosts)
    }

    /// IPv4 and IPv6 addresses of a name: from the hosts file if the file contains the name,
    /// otherwise from name servers.
    async fn addresses(&self, system: &System, host: &str) -> (Answer, Answer) {
        if let Some((v4, v6)) = system.hosts.get(host) {
            return (Ok(v4), Ok(v6));
        }
        let _turn = self.turns.acquire().await;
        let ask = |kind| system.at_servers(host, kind);
        both(ask(RecordType::A), ask(RecordType::AAAA), PATIENCE_WITH_ANSWER).await
    }

    /// Contents of `/etc/hosts` and `/etc/resolv.conf`. If a file has changed, both are read again,
    /// and all lookups wait until they are read.
    async fn system(&self, name_servers: &[SocketAddr]) -> Arc<System> {
        let mut known = self.known.lock().await;
        let stamp = (name_servers.to_owned(), [HOSTS, RESOLV_CONF].map(changed));
        if let Some(system) = known.as_ref().filter(|system| system.stamp == stamp) {
            return system.clone();
        }
        let read = || (hosts(Path::new(HOSTS)), resolv_conf(Path::new(RESOLV_CONF)));
        // If no thread can be created, this thread reads the files. Resolved names are more
        // important than a delay by a slow disk.
        let (hosts, config) = files::aside(read).await.unwrap_or_else(read);
        let servers = servers(&stamp.0, config);
        let system = Arc::new(System { stamp, hosts, servers });
        *known = Some(system.clone());
        system
    }
}

fn lookup(host: String, name_servers: &[SocketAddr], v4: Answer, v6: Answer, from_hosts: bool) -> Lookup {
    Lookup { host, name_servers: name_servers.into(), v4, v6, from_hosts, refused: BTreeSet::new() }
}

/// Parsed contents of `/etc/resolv.conf`.
type ResolvConf = (ResolverConfig, ResolverOpts);

/// Configured name servers, and the stamp of each system file. If the stamp differs from the last
/// one, the files must be read again.
type Stamp = (Vec<SocketAddr>, [Option<(u64, SystemTime, u64)>; 2]);

/// Stamp of a file: inode, modification time and length; `None` if the file is missing.
fn changed(path: &str) -> Option<(u64, SystemTime, u64)> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.ino(), metadata.modified().ok()?, metadata.len()))
}

/// Name resolution as the files of this system define it.
struct System {
    stamp: Stamp,
    hosts: Hosts,
    /// Name servers to query, or the reason why there are none.
    servers: Result<Vec<NameServer>, String>,
}

/// Name server, with the resolvers that query it.
struct NameServer {
    ip: IpAddr,
    resolver: TokioResolver,
    /// Resolver without EDNS, for name servers that refuse or ignore EDNS (RFC 6891, section 7).
    /// `None` if `resolver` does not use EDNS.
    plain: Option<TokioResolver>,
    lacks_edns: AtomicBool,
}

impl System {
    /// Queries the name servers one after another until one answers. An answer without records also
    /// ends the search. As in the C library, only one answer is used, because an internal and a
    /// public name server may have different records for the same name.
    async fn at_servers(&self, host: &str, kind: RecordType) -> Answer {
        self.ask(host, kind).await.map(|found| found.addresses())
    }

    /// Queries the name servers one after another for records of any type, until one answers.
    async fn ask(&self, host: &str, kind: RecordType) -> Result<FoundRecords, String> {
        let servers = self.servers.as_ref().map_err(String::clone)?;
        let patience = patience(servers.len());
        let mut errors = Vec::new();
        for server in servers {
            match timeout(patience, server.ask(host, kind, patience / 2)).await {
                Ok(Ok(found)) => return Ok(found),
                Ok(Err(error)) => errors.push(format!("{}: {error}", server.ip)),
                Err(_) => errors.push(format!("{}: no answer within {patience:?}", server.ip)),
            }
        }
        Err(errors.join("; "))
    }
}

/// Answer of a name server, possibly without records.
#[derive(Default)]
struct FoundRecords {
    records: Vec<Record>,
    ttl: Duration,
}

impl FoundRecords {
    fn addresses(&self) -> DnsRecords {
        DnsRecords::new(self.records.iter().filter_map(address), self.ttl)
    }
}

impl NameServer {
    /// Queries the name server with EDNS. If the name server refuses EDNS, or has not answered
    /// after `wait`, queries it without EDNS.
    async fn ask(&self, host: &str, kind: RecordType, wait: Duration) -> Result<FoundRecords, String> {
        // The name is not parsed as UTF-8, which would refuse underscores. Names of containers have
        // underscores.
        let name = Name::from_ascii(host).map_err(|error| error.to_string())?;
        let Some(plain) = &self.plain else { return found(self.resolver.lookup(name, kind).await) };
        if !self.lacks_edns.load(Ordering::Relaxed) {
            match timeout(wait, self.resolver.lookup(name.clone(), kind)).await {
                Ok(Err(error)) if refuses_edns(&error) => {}
                Ok(answer) => return found(answer),
                // No answer in time: the resolver ignores a refusal that has no question section.
                Err(_) => {}
            }
        }
        let answer = found(plain.lookup(name, kind).await)?;
        self.lacks_edns.store(true, Ordering::Relaxed);
        Ok(answer)
    }
}

fn found(answer: Result<LookupAnswer, NetError>) -> Result<FoundRecords, String> {
    match answer {
        Ok(found) => {
            let ttl = found.answers().iter().map(|record| record.ttl).min().unwrap_or_default();
            Ok(FoundRecords { records: found.answers().to_vec(), ttl: Duration::from_secs(ttl.into()) })
        }
        Err(error) if error.is_no_records_found() => Ok(FoundRecords::default()),
        Err(error) => Err(error.to_string()),
    }
}

/// Whether the error is typical of name servers that do not support EDNS.
fn refuses_edns(error: &NetError) -> bool {
    use ResponseCode::{FormErr, NotImp};
    matches!(error, NetError::Dns(DnsError::ResponseCode(FormErr | NotImp)))
}

/// Time limit for each of `servers` name servers, so that all of them can be queried in time.
fn patience(servers: usize) -> Duration {
    match u32::try_from(servers) {
        Ok(0 | 1) => FAMILY_TIMEOUT,
        Ok(servers) => (FAMILY_TIMEOUT / servers).min(PATIENCE_IF_OTHERS),
        Err(_) => Duration::ZERO,
    }
}

/// Waits for the answers of both families. After the first answer with addresses, waits for the
/// other answer for at most `patience`.
async fn both(
    v4: impl Future<Output = Answer>,
    v6: impl Future<Output = Answer>,
    patience: Duration,
) -> (Answer, Answer) {
    let (mut v4, mut v6) = (pin!(v4), pin!(v6));
    tokio::select! {
        first = &mut v4 => {
            let second = other(&first, v6, patience).await;
            (first, second)
        }
        first = &mut v6 => (other(&first, v4, patience).await, first),
    }
}

async fn other(first: &Answer, second: impl Future<Output = Answer>, patience: Duration) -> Answer {
    if first.as_ref().map_or(true, DnsRecords::is_empty) {
        return second.await;
    }
    let late =
        |_| Err(format!("no answer within {patience:?} after the answer for the other address family"));
    timeout(patience, second).await.unwrap_or_else(late)
}

/// Name servers to query, in order: `name_servers`, or the system's name servers if `name_servers`
/// is empty.
fn servers(
    name_servers: &[SocketAddr],
    system: Result<ResolvConf, String>,
) -> Result<Vec<NameServer>, String> {
    let (config, mut options) = match name_servers {
        [] => system.map_err(|error| format!("{RESOLV_CONF}: {error}"))?,
        _ => {
            let servers = name_servers.iter().copied().map(name_server).collect();
            (ResolverConfig::from_name_servers(servers), ResolverOpts::default())
        }
    };
    // No cache here, because the caller applies the time to live.
    options.cache_size = 0;
    options.use_hosts_file = ResolveHosts::Never;
    let (domain, search, servers) = config.into_parts();
    let one = |server: NameServerConfig| {
        let ip = server.ip;
        // Each name server has its own resolver. A resolver with several name servers would query
        // two of them at the same time and use the faster answer.
        let config = ResolverConfig::from_parts(domain.clone(), search.clone(), vec![server]);
        let with_edns = |edns0| {
            let builder = TokioResolver::builder_with_config(config.clone(), TokioRuntimeProvider::default());
            let mut options = options.clone();
            options.edns0 = edns0;
            builder.with_options(options).build().map_err(|error| error.to_string())
        };
        let (resolver, plain) = (with_edns(options.edns0)?, options.edns0.then(|| with_edns(false)));
        Ok(NameServer { ip, resolver, plain: plain.transpose()?, lacks_edns: AtomicBool::new(false) })
    };
    servers.into_iter().map(one).collect()
}

fn address(record: &Record) -> Option<IpAddr> {
    record.data.ip_addr()
}

fn name_server(addr: SocketAddr) -> NameServerConfig {
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
        connection.port = addr.port();
        connection
    });
    NameServerConfig::new(addr.ip(), true, connections.into())
}

/// Reads the hosts file. If the file is missing or cannot be read, names are looked up only at name
/// servers.
fn hosts(path: &Path) -> Hosts {
    match files::read(path) {
        Ok(text) => Hosts::parse(&String::from_utf8_lossy(&text)),
        Err(error) => {
            if error.kind() != NotFound {
                warn!("cannot read {}: {error}", path.display());
            }
            Hosts::default()
        }
    }
}

/// Reads `/etc/resolv.conf`. If the file is missing or contains no name server, this host is
/// queried as the name server (resolver(5)).
fn resolv_conf(path: &Path) -> Result<ResolvConf, String> {
    let text = match files::read(path) {
        Err(error) if error.kind() == NotFound => Vec::new(),
        text => text.map_err(|error| error.to_string())?,
    };
    let local = || [&text, &b"\nnameserver 127.0.0.1\n"[..]].concat();
    parse_resolv_conf(&text).or_else(|_| parse_resolv_conf(local())).map_err(|error| error.to_string())
}

/// Parses arbitrary bytes as the answer of a name server and as a hosts file, for the fuzzer.
#[cfg(feature = "test-util")]
pub fn read_answer(bytes: &[u8]) -> Option<DnsRecords> {
    let _ = Hosts::parse(&String::from_utf8_lossy(bytes)).get("a.test");
    let message = hickory_resolver::proto::op::Message::from_vec(bytes).ok()?;
    service::targets(&message.answers);
    let ttl = message.answers.iter().map(|record| record.ttl).min().unwrap_or_default();
    let found = FoundRecords { records: message.answers.clone(), ttl: Duration::from_secs(ttl.into()) };
    Some(found.addresses())
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::atomic::AtomicUsize;

    use hickory_resolver::proto::op::{Message, MessageType};
    use hickory_resolver::proto::rr::RData;
    use hickory_resolver::proto::rr::rdata::A;
    use tokio::net::UdpSocket;
    use tokio::task::yield_now;

    use super::*;

    fn answer_with(ip: &str) -> Answer {
        Ok(DnsRecords::new([ip.parse().unwrap()], Duration::from_secs(60)))
    }

    /// An answer that arrives after all immediate answers, and after a wait of zero.
    async fn later(answer: Answer) -> Answer {
        for _ in 0..3 {
            yield_now().await;
        }
        answer
    }

    async fn at_once<T>(asked: impl Future<Output = T>) -> T {
        timeout(FAMILY_TIMEOUT, asked).await.expect("nobody waits for what never comes")
    }

    /// Starts a name server that refuses EDNS. Its refusal has the question section if
    /// `has_question`. Returns its address, and counters of queries with and without EDNS.
    async fn without_edns(has_question: bool) -> (SocketAddr, Arc<[AtomicUsize; 2]>) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let (at, queries) = (socket.local_addr().unwrap(), Arc::<[AtomicUsize; 2]>::default());
        let counts = queries.clone();
        tokio::spawn(async move {
            let mut query = [0; 512];
            loop {
                let (len, client) = socket.recv_from(&mut query).await.unwrap();
                let mut message = Message::from_vec(&query[..len]).unwrap();
                let has_edns = message.edns.take().is_some();
                counts[usize::from(!has_edns)].fetch_add(1, Ordering::Relaxed);
                message.metadata.message_type = MessageType::Response;
                if has_edns {
                    message.metadata.response_code = ResponseCode::FormErr;
                    message.queries.truncate(usize::from(has_question));
                } else {
                    let name = message.queries[0].name().clone();
                    message.add_answer(Record::from_rdata(name, 60, RData::A(A::new(10, 0, 0, 3))));
                }
                socket.send_to(&message.to_vec().unwrap(), client).await.unwrap();
            }
        });
        (at, queries)
    }

    #[tokio::test]
    async fn name_server_that_refuses_edns_is_asked_without_it() {
        for has_question in [true, false] {
            let (at, queries) = without_edns(has_question).await;
            let server = servers(&[at], Err("not read".to_owned())).unwrap().remove(0);
            for _ in 0..2 {
                let wait = Duration::from_millis(if has_question { 60_000 } else { 50 });
                let found = server.ask("app.test.", RecordType::A, wait).await.unwrap().addresses();
                assert_eq!(Ok(found), answer_with("10.0.0.3"));
            }
            let of = |n: usize| queries[n].load(Ordering::Relaxed);
            assert!(of(0) >= 1 && of(1) == 2, "{} with EDNS, {} without", of(0), of(1));
        }
    }

    #[test]
    fn empty_and_missing_resolv_conf_mean_the_name_server_of_this_host() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("resolv.conf");
        let asked = || resolv_conf(&path).map(|conf| servers(&[], Ok(conf)).unwrap()[0].ip.to_string());
        assert_eq!(asked().as_deref(), Ok("127.0.0.1"), "without a file");
        for (text, ip) in [
            ("", "127.0.0.1"),
            ("# nothing\nsearch internal", "127.0.0.1"),
            ("nameserver 10.0.0.53\n", "10.0.0.53"),
        ] {
            fs::write(&path, text).unwrap();
            assert_eq!(asked().as_deref(), Ok(ip), "{text:?}");
        }
    }

    #[test]
    fn timeout_of_a_name_server_shrinks_with_their_number() {
        assert_eq!([1, 2, 3, 10].map(|n| patience(n).as_millis()), [5_000, 1_500, 1_500, 500]);
    }

    #[tokio::test]
    async fn a_family_that_is_never_answered_does_not_hold_the_other_up() {
        let (v4, v6) = (answer_with("10.0.0.3"), answer_with("2001:db8::3"));
        let (a, aaaa) = at_once(both(ready(v4.clone()), pending(), Duration::ZERO)).await;
        assert_eq!(a, v4);
        assert_eq!(aaaa.unwrap_err(), "no answer within 0ns after the answer for the other address family");
        let (a, aaaa) = at_once(both(pending(), ready(v6.clone()), Duration::ZERO)).await;
        assert!(a.is_err());
        assert_eq!(aaaa, v6);
    }

    #[tokio::test]
    async fn a_family_that_is_answered_a_little_later_is_waited_for() {
        let (v4, v6) = (answer_with("10.0.0.3"), answer_with("2001:db8::3"));
        let asked = both(ready(v4.clone()), later(v6.clone()), Duration::from_secs(60));
        assert_eq!(asked.await, (v4, v6));
    }

    #[tokio::test]
    async fn a_family_without_addresses_is_no_reason_to_give_the_other_up() {
        let v6 = answer_with("2001:db8::3");
        for v4 in [Ok(DnsRecords::default()), Err("refused".to_owned())] {
            let asked = both(ready(v4.clone()), later(v6.clone()), Duration::ZERO);
            assert_eq!(asked.await, (v4, v6.clone()));
        }
    }
}
