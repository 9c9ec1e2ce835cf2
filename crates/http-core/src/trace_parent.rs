//! Trace of a request: the field `traceparent` (W3C Trace Context, version 00).

use std::fmt;

use crate::RequestHead;

/// Parsed value of the field `traceparent`.
///
/// The ids are bytes, because integers of 128 bits would align, and so enlarge, each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// Trace id; never 0.
    trace: [u8; 16],
    /// Id of the request's span; never 0.
    step: [u8; 8],
    is_sampled: bool,
}

impl TraceParent {
    /// Name of the field.
    pub const FIELD: &'static str = "traceparent";

    /// Starts a sampled trace. `step` is the id of the request's span. An id of 0, which is
    /// invalid, becomes 1.
    pub fn begin(trace: u128, step: u64) -> TraceParent {
        TraceParent::new(trace.max(1), step.max(1), true)
    }

    fn new(trace: u128, step: u64, is_sampled: bool) -> TraceParent {
        TraceParent { trace: trace.to_be_bytes(), step: step.to_be_bytes(), is_sampled }
    }

    /// Returns the trace of a request. `None`: the request has no `traceparent`, or an invalid one.
    pub fn of(head: &RequestHead) -> Option<TraceParent> {
        TraceParent::parse(std::str::from_utf8(head.field(TraceParent::FIELD)?).ok()?)
    }

    /// Trace id, as a number.
    pub fn id(&self) -> u128 {
        u128::from_be_bytes(self.trace)
    }

    /// Trace id for a lookup: 32 hexadecimal digits.
    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.id())
    }

    /// Parses `00-TRACE-STEP-FLAGS`. Later versions begin in the same way.
    fn parse(value: &str) -> Option<TraceParent> {
        let mut parts = value.split('-');
        let (version, trace, step, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_right = |part: &str, len: usize| {
            part.len() == len && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        if !is_right(version, 2) || version == "ff" || (version == "00" && parts.next().is_some()) {
            return None;
        }
        if !is_right(trace, 32) || !is_right(step, 16) || !is_right(flags, 2) {
            return None;
        }
        let trace = u128::from_str_radix(trace, 16).ok().filter(|trace| *trace != 0)?;
        let step = u64::from_str_radix(step, 16).ok().filter(|step| *step != 0)?;
        let is_sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        Some(TraceParent::new(trace, step, is_sampled))
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, step, flags) = (self.id(), u64::from_be_bytes(self.step), u8::from(self.is_sampled));
        write!(f, "00-{trace:032x}-{step:016x}-{flags:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_is_read_as_strictly_as_the_standard_says() {
        let example = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let read = TraceParent::parse(example).unwrap();
        assert_eq!((read.to_string(), &*read.trace_id()), (example.to_owned(), &example[3..35]));
        let later = format!("cc{}-what-comes", &example[2..]);
        assert!(TraceParent::parse(&later).is_some());
        for wrong in [
            "",
            "00",
            &later.replacen("cc", "ff", 1),
            &later.replacen("cc", "00", 1),
            &example.to_uppercase(),
            &example.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &example.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &example.replace("-01", "-1"),
            &example.replace("-01", "-0g"),
        ] {
            assert_eq!(TraceParent::parse(wrong), None, "{wrong:?}");
        }
        assert_eq!(
            TraceParent::begin(0, 0).to_string(),
            format!("00-{}1-{}1-01", "0".repeat(31), "0".repeat(15))
        );
    }
}
