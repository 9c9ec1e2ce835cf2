//! Cases of a test: packet mode, IP family, and whether the kernel or a worker forwards open flows.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use convey_lab::{Role, VIP, VIP_V6};
use convey_model::{Mode, Offload};
use convey_testkit::Need;

/// Case in which a test runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) mode: Mode,
    pub(crate) family: Family,
    pub(crate) offload: Offload,
}

/// IP version of all hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

/// A test; its name is the name of its function.
#[derive(Clone, Copy)]
pub(crate) struct PacketTest {
    pub(crate) name: &'static str,
    pub(crate) run: fn(Case),
    /// Whether the test applies to a case.
    pub(crate) when: fn(Case) -> bool,
    /// Additional requirements of the test.
    pub(crate) needs: &'static [Need],
    /// Whether only one other test may run at once; see `turns`.
    pub(crate) is_flood: bool,
}

/// Marks tests as floods.
pub(crate) fn floods(tests: Vec<PacketTest>) -> Vec<PacketTest> {
    tests.into_iter().map(|test| PacketTest { is_flood: true, ..test }).collect()
}

/// Tests that run in each mode and family, or where the condition `when` holds; `long` ones only if
/// `CONVEY_LONG` is set. Brackets after a test name the programs that it uses, as constants of
/// `Need`.
macro_rules! tests {
    (long when $when:expr => $($test:ident $([$($tool:ident),+])?),+ $(,)?) => {
        vec![$($crate::case::tests![@ $test, $when, Long $($(, $tool)+)?]),+]
    };
    (when $when:expr => $($test:ident $([$($tool:ident),+])?),+ $(,)?) => {
        vec![$($crate::case::tests![@ $test, $when $($(, $tool)+)?]),+]
    };
    (@ $test:ident, $when:expr $(, $need:ident)*) => {
        $crate::case::PacketTest {
            name: stringify!($test),
            run: $test,
            when: $when,
            needs: &[$(convey_testkit::Need::$need),*],
            is_flood: false,
        }
    };
    ($($test:ident $([$($tool:ident),+])?),+ $(,)?) => {
        $crate::case::tests![when |_| true => $($test $([$($tool),+])?),+]
    };
}
pub(crate) use tests;

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}::{}", self.mode.name(), self.family.name(), self.offload)
    }
}

/// Case of a test in a short run: in one mode, by IPv4 and the kernel or by IPv6 and a worker. The
/// test's name selects the case.
pub(crate) fn first(cases: &[Case], name: &str) -> Option<Case> {
    let turn = name.bytes().fold(0, u8::wrapping_add);
    let is_turn_of_mode = |case: &Case| case.is_dsr() == (turn & 1 == 1);
    let is_turn_of_path = |case: &Case| case.is_cached() == (turn & 2 == 2);
    let fitness = |case: &&Case| (case.is_typical(), is_turn_of_mode(case), is_turn_of_path(case));
    cases.iter().rev().max_by_key(fitness).copied()
}

/// Case that has the least in common with `first`: a long run adds it. So every test runs in both
/// modes, in both families, by the kernel and by a worker, where it can.
pub(crate) fn opposite(cases: &[Case], first: Case) -> Option<Case> {
    let differs = |case: &&Case| {
        let differences =
            [case.mode != first.mode, case.family != first.family, case.is_cached() != first.is_cached()];
        differences.into_iter().filter(|differs| *differs).count()
    };
    cases.iter().max_by_key(differs).copied()
}

impl Case {
    /// All cases.
    pub(crate) fn all() -> impl Iterator<Item = Case> {
        let modes = [Mode::Passthrough, Mode::Dsr].into_iter();
        modes.flat_map(|mode| {
            [Family::V4, Family::V6].into_iter().flat_map(move |family| {
                [Offload::Tc, Offload::Off, Offload::Xdp].into_iter().map(move |offload| Case {
                    mode,
                    family,
                    offload,
                })
            })
        })
    }

    pub(crate) fn is_dsr(self) -> bool {
        self.mode == Mode::Dsr
    }

    /// Whether the kernel forwards open flows.
    pub(crate) fn is_cached(self) -> bool {
        self.offload != Offload::Off
    }

    /// Whether the kernel forwards by IPv4, or a worker by IPv6: a test that depends on only one of
    /// the two need not run in all four ways.
    pub(crate) fn is_typical(self) -> bool {
        (self.family == Family::V4) == self.is_cached()
    }

    pub(crate) fn is_passthrough(self) -> bool {
        self.mode == Mode::Passthrough
    }
}

impl Family {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Family::V4 => "ipv4",
            Family::V6 => "ipv6",
        }
    }

    /// Address and port that clients connect to.
    pub(crate) fn vip(self, port: u16) -> SocketAddr {
        match self {
            Family::V4 => (VIP, port).into(),
            Family::V6 => (VIP_V6, port).into(),
        }
    }

    /// The address of a machine.
    pub(crate) fn address(self, role: Role) -> IpAddr {
        match self {
            Family::V4 => role.address().into(),
            Family::V6 => role.address_v6().into(),
        }
    }

    /// Unspecified address of the family.
    pub(crate) fn any(self) -> IpAddr {
        match self {
            Family::V4 => IpAddr::from([0; 4]),
            Family::V6 => IpAddr::from([0; 16]),
        }
    }

    /// Returns this amount for IPv4, and an eighth for IPv6: long tests run in full by IPv4 only.
    pub(crate) fn of(self, amount: u64) -> u64 {
        match self {
            Family::V4 => amount,
            Family::V6 => amount / 8,
        }
    }
}
