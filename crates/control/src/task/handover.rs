//! Whether another process takes the place of this one, and what that keeps this one from.

/// Whether another process takes the place of this one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Handover {
    /// No process does, and the file is in force as it was last read.
    #[default]
    None,
    /// A new process has the state and the sockets of this one. This one changes no state for an operator and listens on no new
    /// address: the new process reads the file itself, and listens there.
    UnderWay {
        /// Whether the file was reloaded meanwhile.
        has_reloaded: bool,
    },
    /// The new process has ended, and the file is to be read again: it may have addresses that this process left to the other.
    Failed,
}

impl Handover {
    /// Whether a process takes over at present.
    pub(super) fn is_under_way(self) -> bool {
        matches!(self, Handover::UnderWay { .. })
    }

    /// The file is reloaded now. Returns whether addresses that are new in it are left to another process.
    pub(super) fn reload(&mut self) -> bool {
        if let Handover::UnderWay { has_reloaded } = self {
            *has_reloaded = true;
        }
        self.is_under_way()
    }

    /// A process begins to take over.
    pub(super) fn begin(&mut self) {
        *self = Handover::UnderWay { has_reloaded: *self == Handover::Failed };
    }

    /// The process that took over has ended.
    pub(super) fn fail(&mut self) {
        let is_behind = *self == Handover::UnderWay { has_reloaded: true };
        *self = if is_behind { Handover::Failed } else { Handover::None };
    }

    /// Whether the file is to be read again. Returns true once.
    pub(super) fn take_reading(&mut self) -> bool {
        let is_due = *self == Handover::Failed;
        if is_due {
            *self = Handover::None;
        }
        is_due
    }
}
