//! Connects to hosts by name or address.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Answer, Resolver};

/// Time limit for connecting to each address of a host except the last one. For the last address,
/// only the caller's timeout applies.
const TIMEOUT_OF_ONE: Duration = Duration::from_secs(1);

/// Connects to a host, given by name or address, at its first address that accepts. The name is
/// looked up in the same way as names of servers. The lookup needs no thread, whereas
/// `TcpStream::connect` with a name panics if no thread can be created.
///
/// # Errors
/// The name cannot be resolved, or no address accepts. If no address accepts, the error is the
/// error of the last address.
pub async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses = addresses(host).await?;
    let Some((last, others)) = addresses.split_last() else {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address")));
    };
    for ip in others {
        if let Ok(Ok(stream)) = timeout(TIMEOUT_OF_ONE, TcpStream::connect(SocketAddr::new(*ip, port))).await
        {
            return Ok(stream);
        }
    }
    TcpStream::connect(SocketAddr::new(*last, port)).await
}

/// Addresses of a host. IPv6 addresses are last, because more hosts lack an IPv6 route than an IPv4
/// route.
async fn addresses(host: &str) -> io::Result<Vec<IpAddr>> {
    if let Ok(ip) = host.trim_matches(['[', ']']).parse() {
        return Ok(vec![ip]);
    }
    let resolver = Resolver::new(1);
    let system = resolver.system(&[]).await;
    let (v4, v6) = resolver.addresses(&system, host).await;
    merged(host, v4, v6)
}

fn merged(host: &str, v4: Answer, v6: Answer) -> io::Result<Vec<IpAddr>> {
    let failed = |why: &String| io::Error::other(format!("{host} cannot be resolved: {why}"));
    let fault = v4.as_ref().err().or(v6.as_ref().err()).map(failed);
    let found: Vec<IpAddr> = [v4, v6].into_iter().flatten().flat_map(ips).collect();
    match fault {
        Some(fault) if found.is_empty() => Err(fault),
        _ => Ok(found),
    }
}

fn ips(records: convey_model::DnsRecords) -> impl Iterator<Item = IpAddr> {
    records.into_addresses().into_iter().map(|address| address.ip())
}

#[cfg(test)]
mod tests {
    use convey_model::DnsRecords;

    use super::*;

    fn found(ip: &str) -> Answer {
        Ok(DnsRecords::new([ip.parse().unwrap()], Duration::from_secs(60)))
    }

    #[tokio::test]
    async fn addresses_of_one_family_suffice() {
        let ip: IpAddr = "10.0.0.1".parse().unwrap();
        assert_eq!(merged("a", found("10.0.0.1"), Err("late".to_owned())).unwrap(), [ip]);
        let refused = merged("a", Err("refused".to_owned()), Err("late".to_owned())).unwrap_err();
        assert_eq!(refused.to_string(), "a cannot be resolved: refused");
        assert!(merged("a", Ok(DnsRecords::default()), Ok(DnsRecords::default())).unwrap().is_empty());
    }
}
