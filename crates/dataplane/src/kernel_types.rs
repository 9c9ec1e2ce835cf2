//! Types that are shared byte by byte with the BPF programs, as in `bpf/maps.h`, `bpf/selection.h`
//! and `bpf/guard.bpf.c`. Fields have their C names: tests compare these types with the types in
//! the committed objects. The entry of a flow is in `cache::entry`.

use std::net::IpAddr;

use aya::Pod;
use convey_model::{Addr, Endpoint, FlowKey, NextHop};

/// `struct macs`: destination and source MAC address of a next hop.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Macs {
    dst: [u8; 6],
    src: [u8; 6],
}

/// `struct next_hop`. All bytes zero: no next hop.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct NextHopEntry {
    macs: Macs,
    ifindex: u32,
    mtu: u32,
    redirect_peer: u32,
}

impl From<&NextHop> for NextHopEntry {
    fn from(hop: &NextHop) -> NextHopEntry {
        NextHopEntry {
            macs: Macs { dst: hop.dst_mac, src: hop.src_mac },
            ifindex: hop.interface,
            mtu: hop.mtu,
            redirect_peer: hop.redirect_peer.into(),
        }
    }
}

/// `struct rate`, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct RateEntry {
    pub(crate) interval: u64,
    pub(crate) burst: u64,
}

/// `struct syn_limit`. All bytes zero: no limit.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct SynLimitEntry {
    pub(crate) network: RateEntry,
    pub(crate) strangers: RateEntry,
}

/// `struct flow_counters`: traffic of a frontend and server in both directions. Lengths include the
/// Ethernet header. A super-frame counts as one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct FlowCounters {
    /// Packets to the server.
    pub packets_to_server: u64,
    /// Bytes of frames to the server.
    pub bytes_to_server: u64,
    /// Packets to clients.
    pub packets_to_client: u64,
    /// Bytes of frames to clients.
    pub bytes_to_client: u64,
}

/// `struct segment_event`. It is parsed field by field from the bytes in the event ring.
#[repr(C)]
pub(crate) struct SegmentEvent {
    pub(crate) key: FlowKey,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) len: u32,
    pub(crate) flags: u32,
}

/// `struct endpoint`: address, port and protocol of a frontend or server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct EndpointKey {
    addr: Addr,
    port: u16,
    protocol: u8,
    reserved: u8,
}

impl EndpointKey {
    /// Key of an address alone, with port 0 and protocol 0. No endpoint has protocol 0.
    pub(crate) fn of_address(ip: IpAddr) -> EndpointKey {
        EndpointKey { addr: ip.into(), port: 0, protocol: 0, reserved: 0 }
    }
}

impl From<&Endpoint> for EndpointKey {
    fn from(endpoint: &Endpoint) -> EndpointKey {
        let Endpoint { protocol, addr } = endpoint;
        EndpointKey { addr: addr.ip().into(), port: addr.port(), protocol: *protocol as u8, reserved: 0 }
    }
}

/// `struct port_range`: a range of ports, including the first and the last.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct PortRange {
    pub(crate) first: u16,
    pub(crate) last: u16,
}

/// `struct lease` of the guard. Times are nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct LeaseEntry {
    pub(crate) serves_until: u64,
    pub(crate) ends: u64,
}

/// Implements [`Pod`], so that maps can store these types.
macro_rules! in_maps {
    ($($type:ty),+ $(,)?) => { $(
        #[expect(unsafe_code, reason = "what a map holds is bytes")]
        // SAFETY: the types contain only numbers, without padding (which a test checks), so any
        // bytes are valid.
        unsafe impl Pod for $type {}
    )+ };
}

in_maps![NextHopEntry, SynLimitEntry, FlowCounters, EndpointKey, PortRange, LeaseEntry];

/// Compares a struct in a committed object with its Rust type, field by field. The list must
/// contain all fields.
#[cfg(test)]
macro_rules! assert_layout {
    ($btf:expr, $name:literal, $ours:ident { $($field:ident),+ $(,)? }) => {{
        // Does not compile if a field is missing from the list.
        let _ = |$ours { $($field: _),+ }: $ours| {};
        let ours = [$($crate::kernel_types::btf::Field {
            name: stringify!($field).to_owned(),
            offset: std::mem::offset_of!($ours, $field),
            size: $crate::kernel_types::btf::size_of_field(|ours: &$ours| &ours.$field),
        }),+];
        assert_eq!($btf.fields($name), ours, "`struct {}`, and `{}` of ours", $name, stringify!($ours));
        assert_eq!($btf.size($name), size_of::<$ours>(), "`struct {}`", $name);
    }};
}
#[cfg(test)]
pub(crate) use assert_layout;

/// Types in a committed BPF object.
#[cfg(test)]
pub(crate) mod btf {
    use std::collections::BTreeMap;

    use btf::{FlattenedType, Type};
    use object::{Object, ObjectSection};

    pub(crate) struct Btf(btf::Btf);

    #[derive(Debug, PartialEq, Eq)]
    pub(crate) struct Field {
        pub(crate) name: String,
        pub(crate) offset: usize,
        pub(crate) size: usize,
    }

    pub(crate) fn size_of_field<S, F>(_: impl Fn(&S) -> &F) -> usize {
        size_of::<F>()
    }

    impl Btf {
        pub(crate) fn of(object: &[u8]) -> Btf {
            let object = object::File::parse(object).unwrap();
            let section = object.section_by_name(".BTF").expect("BTF").data().unwrap();
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(&file, section).unwrap();
            Btf(btf::Btf::from_file(&file).unwrap())
        }

        /// Finds a struct by name. A map may have the same name, so other kinds of types are
        /// ignored.
        fn structure(&self, name: &str) -> &FlattenedType {
            let is_it = |of: &&FlattenedType| {
                of.name.as_deref() == Some(name) && matches!(of.base_type, Type::Struct(_))
            };
            self.0.get_types().iter().find(is_it).unwrap_or_else(|| panic!("no `struct {name}`"))
        }

        pub(crate) fn size(&self, name: &str) -> usize {
            self.structure(name).bits as usize / 8
        }

        pub(crate) fn fields(&self, name: &str) -> Vec<Field> {
            let Type::Struct(of) = &self.structure(name).base_type else { panic!("`{name}` is no struct") };
            let field = |member: &btf::StructMember| Field {
                name: member.name.clone().unwrap_or_default(),
                offset: member.offset as usize / 8,
                size: self.0.get_type_by_id(member.type_id).unwrap().bits as usize / 8,
            };
            of.members.iter().map(field).collect()
        }

        pub(crate) fn field(&self, of: &str, name: &str) -> Field {
            let field = self.fields(of).into_iter().find(|field| field.name == name);
            field.unwrap_or_else(|| panic!("`struct {of}` has no `{name}`"))
        }

        /// Compares all values of an enumeration in the object with `ours`.
        #[track_caller]
        pub(crate) fn assert_enum(&self, name: &str, ours: &[(&str, u32)]) {
            let found = self.0.get_types().iter().find_map(|of| match &of.base_type {
                Type::Enum32(values) if of.name.as_deref() == Some(name) => Some(values),
                _ => None,
            });
            let values = &found.unwrap_or_else(|| panic!("no `enum {name}`")).entries;
            let theirs: BTreeMap<_, _> =
                values.iter().map(|entry| (entry.name.as_deref().unwrap_or_default(), entry.value)).collect();
            let ours: BTreeMap<_, _> = ours.iter().map(|(name, value)| (*name, i64::from(*value))).collect();
            assert_eq!(theirs, ours, "`enum {name}`, and ours");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::btf::Btf;
    use super::*;
    use crate::cache::{self, Outcome};
    use crate::{guard, selection_maps};
    use convey_forward::testing;

    #[test]
    fn structs_are_as_the_kernel_programs_have_them() {
        let cache = Btf::of(cache::OBJECT);
        assert_layout!(cache, "macs", Macs { dst, src });
        assert_layout!(cache, "next_hop", NextHopEntry { macs, ifindex, mtu, redirect_peer });
        assert_layout!(cache, "rate", RateEntry { interval, burst });
        assert_layout!(cache, "syn_limit", SynLimitEntry { network, strangers });
        assert_layout!(
            cache,
            "flow_counters",
            FlowCounters { packets_to_server, bytes_to_server, packets_to_client, bytes_to_client }
        );
        assert_layout!(cache, "segment_event", SegmentEvent { key, seq, ack, len, flags });
        let guard = Btf::of(guard::OBJECT);
        assert_layout!(guard, "lease", LeaseEntry { serves_until, ends });
        for object in [cache, guard] {
            assert_layout!(object, "endpoint", EndpointKey { addr, port, protocol, reserved });
            assert_layout!(object, "port_range", PortRange { first, last });
        }
    }

    #[test]
    fn numbers_are_as_the_kernel_programs_have_them() {
        let btf = Btf::of(cache::OBJECT);
        let mut outcomes: Vec<_> =
            Outcome::ALL.map(|outcome| (outcome.label().to_uppercase(), outcome as u32)).into();
        outcomes.extend([
            ("SYN_LIMITED".to_owned(), cache::SYN_LIMITED),
            ("FIN_QUEUE_FULL".to_owned(), cache::FIN_QUEUE_FULL),
            // Outcomes that only the kernel counts.
            ("BAD_CHECKSUM".to_owned(), cache::BAD_CHECKSUM),
            ("REWRITE_FAILED".to_owned(), cache::REWRITE_FAILED),
            ("OUTCOMES".to_owned(), cache::REWRITE_FAILED + 1),
            ("UNKNOWN".to_owned(), cache::REWRITE_FAILED + 2),
        ]);
        let outcomes: Vec<_> = outcomes.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        btf.assert_enum("outcome", &outcomes);
        let [serving, draining] = [selection_maps::SERVING, selection_maps::DRAINING].map(u32::from);
        btf.assert_enum("frontend_state", &[("SERVING", serving), ("DRAINING", draining)]);
        let with_frontends = selection_maps::WITH_FRONTENDS.into();
        let snat_alone = selection_maps::SNAT_ALONE.into();
        btf.assert_enum("own_address", &[("WITH_FRONTENDS", with_frontends), ("SNAT_ALONE", snat_alone)]);
        btf.assert_enum(
            "sequence_limit",
            &[
                ("WINDOW", testing::WINDOW),
                ("FIRST_WINDOW", testing::FIRST_WINDOW),
                ("MAX_GAP", testing::MAX_GAP),
                ("MAX_GAP_ACK", testing::MAX_GAP_ACK),
                ("MAX_UNSUSPECTED", testing::MAX_UNSUSPECTED),
            ],
        );
        btf.assert_enum("extension_limit", &[("MAX_EXTENSIONS", convey_wire::MAX_EXTENSIONS as u32)]);
    }
}
