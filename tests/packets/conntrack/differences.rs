//! Intended differences between convey and the kernel's conntrack. Readers find them in
//! `docs/design/conntrack.md`.

use super::conversation::{Kind, Sender, Step};
use super::translator::{Outcome, Phase};

/// A difference, for a reason.
pub(super) struct Difference {
    /// Name as in the documentation.
    pub(super) name: &'static str,
    /// Whether a segment with these outcomes, convey's and the kernel's, shows the difference.
    pub(super) is_it: fn(&Step, Outcome, Outcome) -> bool,
}

pub(super) const DIFFERENCES: &[Difference] = &[
    Difference {
        name: "the receiver handles a segment that is out of window or damaged",
        is_it: |_, ours, theirs| ours.forwarded && !theirs.forwarded && ours.phase == theirs.phase,
    },
    Difference {
        name: "a FIN after a gap counts only once it is acknowledged",
        is_it: |step, ours, theirs| {
            let is_earlier = matches!(
                (ours.phase, theirs.phase),
                (Phase::Established, Phase::HalfClosed) | (Phase::HalfClosed, Phase::Closing)
            );
            step.fin && step.is_behind_gap && ours.forwarded && theirs.forwarded && is_earlier
        },
    },
    Difference {
        name: "a FIN or reset as the server's first segment after a stray SYN",
        is_it: |step, ours, theirs| {
            let is_earlier = matches!(
                (ours.phase, theirs.phase),
                (Phase::Established, Phase::HalfClosed) | (Phase::HalfClosed, Phase::Closing)
            );
            let is_open = matches!(ours.phase, Phase::Established | Phase::HalfClosed);
            let is_later = (step.fin && is_earlier) || (step.rst && is_open && theirs.phase == Phase::Over);
            let fits = matches!(step.kind, Kind::Fin | Kind::Repeated | Kind::Reset) && !step.is_damaged;
            let is_first = step.from == Sender::Server && step.follows_stray_syn;
            is_first && fits && is_later && ours.forwarded && theirs.forwarded
        },
    },
    Difference {
        name: "a retransmitted FIN",
        is_it: |step, ours, theirs| {
            let phases = (ours.phase, theirs.phase);
            step.kind == Kind::Repeated && step.fin && phases == (Phase::HalfClosed, Phase::Closing)
        },
    },
    Difference {
        name: "a reset without the exact number",
        is_it: |step, ours, theirs| {
            let is_inexact = matches!(step.kind, Kind::NearReset | Kind::FarReset);
            is_inexact && ours.forwarded && ours.phase != Phase::Over && theirs.phase == Phase::Over
        },
    },
    Difference {
        name: "a FIN after a gap that acknowledges the FIN of the other side",
        is_it: |step, ours, theirs| {
            let phases = (ours.phase, theirs.phase);
            step.kind == Kind::Repeated && step.fin && phases == (Phase::TimeWait, Phase::Closing)
        },
    },
    Difference {
        name: "a reset after unacknowledged data",
        is_it: |step, ours, theirs| {
            let both_forward = ours.forwarded && theirs.forwarded;
            step.kind == Kind::Reset
                && !step.is_damaged
                && both_forward
                && ours.phase == Phase::Over
                && theirs.phase != Phase::Over
        },
    },
    Difference {
        name: "a SYN begins the next connection before it is answered",
        is_it: |step, ours, theirs| {
            let both_forward = ours.forwarded && theirs.forwarded;
            step.kind == Kind::NextSyn
                && both_forward
                && (ours.phase, theirs.phase) == (Phase::SynSent, Phase::Over)
        },
    },
    Difference {
        name: "a SYN begins a new connection once both sides have finished",
        is_it: |step, ours, theirs| {
            let phases = (ours.phase, theirs.phase);
            step.kind == Kind::StraySyn && step.is_over && phases == (Phase::SynSent, Phase::Closing)
        },
    },
    Difference {
        name: "an acknowledgement in a segment with damaged data",
        is_it: |step, ours, theirs| {
            let phases = (ours.phase, theirs.phase);
            let is_data = step.is_damaged && step.kind == Kind::Data;
            is_data && ours.forwarded && phases == (Phase::TimeWait, Phase::Closing)
        },
    },
    Difference {
        name: "an acknowledgement of data that was not sent",
        is_it: |step, ours, theirs| step.kind == Kind::FutureAck && ours.forwarded && !theirs.forwarded,
    },
];

/// Difference that a segment with these outcomes shows.
pub(super) fn known(step: &Step, ours: Outcome, theirs: Outcome) -> Option<&'static str> {
    DIFFERENCES.iter().find(|difference| (difference.is_it)(step, ours, theirs)).map(|known| known.name)
}

/// Whether later segments differ, too: convey accepts a segment that the kernel ignores, or a stray
/// SYN has begun a connection that its sender does not continue.
pub(super) fn misleads(step: &Step) -> bool {
    (step.is_damaged && step.kind == Kind::Data)
        || step.kind == Kind::FutureAck
        || (step.kind == Kind::StraySyn && step.is_over)
}
