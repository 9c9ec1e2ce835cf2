//! Listen ports that another process holds. Pure.

use convey_model::Endpoint;

use crate::Diagnosis;

/// Listen address that a process other than the running convey holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenPort {
    /// The listen address.
    pub at: Endpoint,
    /// Use of the address, such as `frontend web` or `statistics`.
    pub purpose: String,
    /// Id and name of the process that listens on the address; `None` if this user may not see it.
    pub owner: Option<(u32, String)>,
}

/// Findings for ports that another process holds.
pub(super) fn taken(ports: &[TakenPort]) -> Vec<Diagnosis> {
    ports.iter().map(diagnosis).collect()
}

fn diagnosis(TakenPort { at, purpose, owner }: &TakenPort) -> Diagnosis {
    let protocol = at.protocol.name().to_uppercase();
    let who =
        owner.as_ref().map_or("another process".to_owned(), |(id, name)| format!("{name} (process {id})"));
    let seen = format!("{who} listens on {} ({protocol}), which convey needs for {purpose}", at.addr);
    let why = "convey cannot start while another process uses the port.";
    match owner {
        Some((_, name)) if name == "convey" => {
            let ask = "If this process runs with the same file, doctor could not reach it: pass its control socket with --socket.";
            Diagnosis::error("port-taken", seen, format!("{why} {ask}"))
        }
        Some((id, _)) => {
            let unit = format!(
                "If the process belongs to a service, stop and disable the service instead: `systemctl status {id}` shows its name."
            );
            Diagnosis::error("port-taken", seen, format!("{why} {unit}")).fix(format!("kill {id}"))
        }
        None => {
            let look = format!(
                "The process belongs to another user; it may be a convey that doctor could not reach. As root, run `ss -lnp 'sport = :{}'` to see it.",
                at.addr.port()
            );
            Diagnosis::error("port-taken", seen, format!("{why} {look}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_that_has_a_port_is_named_if_it_is_known() {
        let port = |addr: &str, owner| TakenPort {
            at: Endpoint::tcp(addr.parse().unwrap()),
            purpose: "frontend web".to_owned(),
            owner,
        };
        let [nginx, convey] = ["nginx", "convey"].map(|name| Some((123, name.to_owned())));
        let ports = [port("10.0.0.1:80", nginx), port("10.0.0.1:81", None), port("10.0.0.1:82", convey)];
        let found = taken(&ports);
        assert_eq!(found.len(), 3);
        assert!(
            found[2].fix.is_empty() && found[2].why.contains("--socket"),
            "nobody is to end it: {found:?}"
        );
        assert_eq!(
            found[0].seen,
            "nginx (process 123) listens on 10.0.0.1:80 (TCP), which convey needs for frontend web"
        );
        assert_eq!(found[0].fix, ["kill 123"]);
        assert!(found[1].fix.is_empty() && found[1].why.contains("ss -lnp"), "{found:?}");
    }
}
