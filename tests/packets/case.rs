//! The ways in which a story is told: packet mode, IP family, and who forwards open flows.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use convey::model::{Mode, Offload};
use convey_lab::{Role, VIP, VIP_V6};
use convey_testkit::Need;

/// How a story is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) mode: Mode,
    pub(crate) family: Family,
    pub(crate) offload: Offload,
}

/// Which IP everybody speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

/// A story by its name, which is its function's.
#[derive(Clone, Copy)]
pub(crate) struct Story {
    pub(crate) name: &'static str,
    pub(crate) tell: fn(Case),
    /// Whether there is something to tell.
    pub(crate) when: fn(Case) -> bool,
    /// What else it takes to tell it.
    pub(crate) needs: &'static [Need],
}

/// Stories that are told in each mode and family, or `when` a condition holds; `long` ones only if `CONVEY_LONG` is set.
macro_rules! stories {
    (long when $when:expr => $($story:ident),+ $(,)?) => {
        $crate::case::stories![@ &[convey_testkit::Need::Long], $when => $($story),+]
    };
    (when $when:expr => $($story:ident),+ $(,)?) => { $crate::case::stories![@ &[], $when => $($story),+] };
    (@ $needs:expr, $when:expr => $($story:ident),+) => {
        vec![$($crate::case::Story { name: stringify!($story), tell: $story, when: $when, needs: $needs }),+]
    };
    ($($story:ident),+ $(,)?) => { $crate::case::stories![when |_| true => $($story),+] };
}
pub(crate) use stories;

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}::{}", self.mode.name(), self.family.name(), self.offload)
    }
}

/// The cases in which a newcomer has a story told, too: one mode by IPv4 and the kernel, the other by IPv6 and a worker. The
/// story's name decides which.
pub(crate) fn first(cases: &[Case], name: &str) -> Vec<Case> {
    let is_odd = name.bytes().fold(false, |is_odd, byte| is_odd ^ (byte % 2 == 1));
    let is_turn = |case: &Case| (case.is_dsr() == case.is_cached()) == is_odd;
    let (dsr, passthrough): (Vec<Case>, Vec<Case>) = cases.iter().partition(|case| case.is_dsr());
    let first = |of_mode: Vec<Case>| {
        let of = |is_first: &dyn Fn(&Case) -> bool| {
            of_mode.iter().copied().filter(|case| is_first(case)).collect()
        };
        let choices: [Vec<Case>; 2] =
            [of(&|case| case.is_typical() && is_turn(case)), of(&|case| case.is_typical())];
        choices.into_iter().find(|cases| !cases.is_empty()).unwrap_or(of_mode)
    };
    [first(passthrough), first(dsr)].concat()
}

impl Case {
    /// Every one.
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

    /// By IPv4 the kernel forwards, by IPv6 a worker: what depends on neither by itself need not be told in all four ways.
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

    /// Where clients connect to.
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

    /// Every address of a machine.
    pub(crate) fn any(self) -> IpAddr {
        match self {
            Family::V4 => IpAddr::from([0; 4]),
            Family::V6 => IpAddr::from([0; 16]),
        }
    }

    /// This much; by IPv6 an eighth, for what takes long and is told by IPv4 in full.
    pub(crate) fn of(self, amount: u64) -> u64 {
        match self {
            Family::V4 => amount,
            Family::V6 => amount / 8,
        }
    }
}
