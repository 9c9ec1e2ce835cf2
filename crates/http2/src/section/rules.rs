//! Rules for the field lines of a request together.

use convey_http_core::Malformed;

use super::mark::{FieldKind, Mark, Meaning};

/// Field lines of a request so far.
#[derive(Debug, Default)]
pub(super) struct RequestRules {
    /// Pseudo-header fields so far, one bit each.
    pseudo: u8,
    has_regular: bool,
    is_connect: bool,
    length: Option<u64>,
    fault: Option<Malformed>,
}

impl RequestRules {
    /// Notes the next line.
    pub(super) fn read(&mut self, line: Mark) {
        let fault = match line.meaning {
            Meaning::Any => None,
            Meaning::Refused(fault) | Meaning::Invalid(fault) => Some(fault),
            Meaning::Connect => {
                self.is_connect = true;
                None
            }
            Meaning::Length(length) => {
                let is_other = self.length.replace(length).is_some_and(|other| other != length);
                is_other.then_some(Malformed::ContentLength)
            }
        };
        let place = line.kind.pseudo_bit();
        let is_misplaced = place != 0 && (self.has_regular || self.pseudo & place != 0);
        self.pseudo |= place;
        self.has_regular |= place == 0;
        let misplaced = is_misplaced.then_some(Malformed::PseudoField);
        self.fault = self.fault.or(misplaced).or(fault);
    }

    /// Length of the body, if a line announces it.
    pub(super) fn length(&self) -> Option<u64> {
        self.length
    }

    /// Returns the reason why the stream of the request is reset; `None` if the lines form a
    /// request. `is_over` if neither data nor trailers follow.
    pub(super) fn fault(&self, is_over: bool) -> Option<Malformed> {
        let has = |kind: FieldKind| self.pseudo & kind.pseudo_bit() != 0;
        let (has_scheme, has_path) = (has(FieldKind::Scheme), has(FieldKind::Path));
        let are_fields_wrong = match (self.is_connect, has(FieldKind::Protocol)) {
            (true, true) => !has_scheme || !has_path,
            (true, false) => has_scheme || has_path,
            (false, true) => true,
            // Without both, the request names its host in `Host` and gets the path `/`.
            (false, false) => !has_scheme || has(FieldKind::Authority) && !has_path,
        };
        if let Some(fault) = self.fault {
            return Some(fault);
        }
        if !has(FieldKind::Method) || has(FieldKind::Status) || are_fields_wrong {
            return Some(Malformed::PseudoField);
        }
        (is_over && self.length.is_some_and(|length| length > 0)).then_some(Malformed::ContentLength)
    }
}

impl FieldKind {
    /// Bit of a pseudo-header field in a set; 0 for other fields.
    fn pseudo_bit(self) -> u8 {
        match self {
            FieldKind::Authority => 1,
            FieldKind::Method => 2,
            FieldKind::Path => 4,
            FieldKind::Scheme => 8,
            FieldKind::Status => 16,
            FieldKind::Protocol => 32,
            _ => 0,
        }
    }
}
