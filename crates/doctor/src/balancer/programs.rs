//! XDP programs and tc BPF filters of other software that process packets before convey. Pure.

use std::collections::BTreeSet;

use convey_dataplane::net::{BpfFilter, XdpProgram};

use crate::Diagnosis;

/// XDP programs on `interfaces` that do not belong to the running convey. `of_running` are the
/// interfaces with convey's own programs.
pub(super) fn foreign<'a>(
    programs: &'a [XdpProgram],
    interfaces: &BTreeSet<String>,
    of_running: &BTreeSet<String>,
) -> Vec<&'a XdpProgram> {
    let is_foreign = |program: &&XdpProgram| {
        let is_ours = of_running.contains(&program.interface) && program.place == "xdpdrv";
        interfaces.contains(&program.interface) && !is_ours
    };
    programs.iter().filter(is_foreign).collect()
}

/// Finding for an XDP program of other software.
pub(super) fn diagnosis(XdpProgram { interface, id, name, place }: &XdpProgram) -> Diagnosis {
    let name = name
        .as_ref()
        .map_or("an XDP program without a name".to_owned(), |name| format!("the XDP program {name}"));
    let seen = format!("{name} (id {id}) on {interface} does not belong to the running convey");
    let why = "The program receives every packet before convey does, and may drop or redirect it. convey cannot use XDP on this interface. If \
               the command reports that the interface is busy, a process holds the program through a BPF link: `bpftool link \
               show` shows the process.";
    Diagnosis::warning("xdp-foreign", seen, why).fix(format!("ip link set dev {interface} {place} off"))
}

/// Finding for a BPF filter of other software on the ingress of an interface.
pub(super) fn filter(interface: &str, filter: &BpfFilter) -> Diagnosis {
    let BpfFilter { name, priority, handle, .. } = filter;
    let name = if name.is_empty() { "without a name" } else { name };
    let seen = format!(
        "the tc BPF filter {name} (pref {priority}, handle {handle:#x}) on the ingress of {interface} does not belong to convey"
    );
    let why = "The filter receives packets before this host's network stack does, and may drop or redirect them. If it belongs to a \
               program that you know (Cilium, a monitor), keep it.";
    let fix = format!("tc filter del dev {interface} ingress pref {priority} handle {handle:#x} bpf");
    Diagnosis::warning("tc-foreign", seen, why).fix(fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_others_on_interfaces_of_ours_are_told() {
        let on = |interface: &str, place| XdpProgram {
            interface: interface.to_owned(),
            id: 7,
            name: Some("drop_all".to_owned()),
            place,
        };
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let programs = [on("eth0", "xdpgeneric"), on("eth1", "xdpdrv"), on("eth2", "xdpdrv")];
        let found = foreign(&programs, &names(&["eth0", "eth1"]), &names(&["eth1"]));
        assert_eq!(found.len(), 1);
        let found = [diagnosis(found[0])];
        assert_eq!(found[0].fix, ["ip link set dev eth0 xdpgeneric off"]);
        assert!(found[0].seen.starts_with("the XDP program drop_all (id 7) on eth0"), "{found:?}");
    }
}
