//! Evaluation of conditional requests (RFC 9110, section 13). Pure.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use convey_http_core::RequestHead;

/// Validators of a file (entity tag and modification time), which identify one state of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Validators {
    /// Strong entity tag, including its quotes.
    pub etag: Box<str>,
    /// Modification time, in seconds since 1970. HTTP dates have no fractions of a second.
    pub modified: u64,
}

/// Outcome of a conditional request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// All conditions hold, or there are no conditions: the file is sent.
    Holds,
    /// The client already has this state of the file: status 304.
    NotModified,
    /// The client expects another state of the file: status 412.
    Fails,
}

impl Validators {
    /// Creates the validators of a file from its length and its modification time (seconds and
    /// nanoseconds since 1970). Copies on several hosts have equal validators if their modification
    /// times are equal, because the tag does not contain the inode. `form` distinguishes the
    /// precompressed forms of a file.
    pub fn new(len: u64, modified: (i64, u32), form: &str) -> Validators {
        let (seconds, nanoseconds) = modified;
        let etag = format!("\"{seconds:x}.{nanoseconds:x}-{len:x}{form}\"").into();
        Validators { etag, modified: u64::try_from(seconds).unwrap_or(0) }
    }

    /// Evaluates the conditions of a `GET` or `HEAD` request, in the order of RFC 9110, section
    /// 13.2.2.
    pub fn evaluate(&self, head: &RequestHead) -> Condition {
        let time = |name: &str| head.field(name).and_then(seconds_of);
        if head.field("if-match").is_some() {
            if !self.is_listed(head, "if-match", false) {
                return Condition::Fails;
            }
        } else if time("if-unmodified-since").is_some_and(|since| self.modified > since) {
            return Condition::Fails;
        }
        let is_known = match head.field("if-none-match") {
            Some(_) => self.is_listed(head, "if-none-match", true),
            None => time("if-modified-since").is_some_and(|since| self.modified <= since),
        };
        if is_known { Condition::NotModified } else { Condition::Holds }
    }

    /// Whether the client may get only a range: `If-Range` is missing, or matches this state of the
    /// file (RFC 9110, section 13.1.5).
    pub fn may_have_range(&self, head: &RequestHead) -> bool {
        match head.field("if-range") {
            None => true,
            Some(tag @ [b'"', ..]) => tag == self.etag.as_bytes(),
            // A weak tag never matches here. A time must match exactly, although even an exact time
            // is a weaker validator than the tag.
            Some(value) => seconds_of(value) == Some(self.modified),
        }
    }

    /// Whether the values of a header field contain the entity tag or are `*`.
    fn is_listed(&self, head: &RequestHead, name: &str, is_weak: bool) -> bool {
        let values = head.fields().filter(|field| field.name.eq_ignore_ascii_case(name.as_bytes()));
        values
            .map(|field| field.value)
            .any(|value| value == b"*" || has_tag(value, self.etag.as_bytes(), is_weak))
    }
}

/// Whether a list contains this entity tag (RFC 9110, section 8.8.3). With `is_weak`, weak tags
/// match, too. The search stops at an invalid tag.
fn has_tag(list: &[u8], tag: &[u8], is_weak: bool) -> bool {
    let mut rest = list;
    loop {
        while let [b' ' | b'\t' | b',', after @ ..] = rest {
            rest = after;
        }
        let (one, counts) = match rest.strip_prefix(b"W/") {
            Some(one) => (one, is_weak),
            None => (rest, true),
        };
        let [b'"', inner @ ..] = one else { return false };
        let Some(end) = inner.iter().position(|byte| *byte == b'"') else { return false };
        let (found, after) = one.split_at(end + 2);
        if counts && found == tag {
            return true;
        }
        rest = after;
    }
}

fn seconds_of(value: &[u8]) -> Option<u64> {
    let time: SystemTime = httpdate::parse_http_date(std::str::from_utf8(value).ok()?).ok()?;
    time.duration_since(UNIX_EPOCH).ok().map(|since: Duration| since.as_secs())
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use convey_http_core::{HeadLimits, HeadReader};

    use super::*;

    const MODIFIED: i64 = 784_111_777;

    fn request(fields: &str) -> RequestHead {
        let text = format!("GET /a HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let mut bytes = BytesMut::from(text.as_bytes());
        HeadReader::default().request(&mut bytes, &HeadLimits::default()).unwrap().unwrap()
    }

    fn file() -> Validators {
        Validators::new(0x10, (MODIFIED, 0xff), "")
    }

    #[test]
    fn etag_differs_after_every_change_and_is_equal_for_copies() {
        assert_eq!(&*file().etag, "\"2ebcaf61.ff-10\"".replace("2ebcaf61", &format!("{MODIFIED:x}")));
        for other in [
            Validators::new(0x11, (MODIFIED, 0xff), ""),
            Validators::new(0x10, (MODIFIED, 0xfe), ""),
            Validators::new(0x10, (MODIFIED, 0xff), "-gz"),
        ] {
            assert_ne!(other.etag, file().etag);
        }
        assert_eq!(Validators::new(0, (-5, 0), "").modified, 0);
    }

    #[test]
    fn conditions_are_judged_in_the_order_of_the_rfc() {
        use Condition::{Fails, Holds, NotModified};
        let tag = file().etag.to_string();
        let (then, before, after) = (
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:36 GMT",
            "Mon, 07 Nov 1994 08:49:37 GMT",
        );
        for (fields, expected) in [
            (String::new(), Holds),
            (format!("If-None-Match: {tag}"), NotModified),
            (format!("If-None-Match: W/{tag}"), NotModified),
            (format!("If-None-Match: \"x\", {tag}"), NotModified),
            (format!("If-None-Match: \"x\"\r\nIf-None-Match: {tag}"), NotModified),
            ("If-None-Match: *".into(), NotModified),
            ("If-None-Match: \"x\"".into(), Holds),
            ("If-None-Match: \"a,b\" , \"c\"".into(), Holds),
            (format!("If-None-Match: {}", tag.trim_matches('"')), Holds),
            (format!("If-Modified-Since: {then}"), NotModified),
            (format!("If-Modified-Since: {after}"), NotModified),
            (format!("If-Modified-Since: {before}"), Holds),
            ("If-Modified-Since: yesterday".into(), Holds),
            // The dates have obsolete formats.
            ("If-Modified-Since: Sunday, 06-Nov-94 08:49:37 GMT".into(), NotModified),
            ("If-Modified-Since: Sun Nov  6 08:49:37 1994".into(), NotModified),
            // The entity tag takes precedence over the time.
            (format!("If-None-Match: \"x\"\r\nIf-Modified-Since: {then}"), Holds),
            (format!("If-Match: {tag}"), Holds),
            ("If-Match: *".into(), Holds),
            ("If-Match: \"x\"".into(), Fails),
            (format!("If-Match: W/{tag}"), Fails),
            (format!("If-Unmodified-Since: {then}"), Holds),
            (format!("If-Unmodified-Since: {before}"), Fails),
            (format!("If-Match: {tag}\r\nIf-Unmodified-Since: {before}"), Holds),
            (format!("If-Match: {tag}\r\nIf-None-Match: {tag}"), NotModified),
            (format!("If-Match: \"x\"\r\nIf-None-Match: {tag}"), Fails),
        ] {
            let fields = if fields.is_empty() { fields } else { format!("{fields}\r\n") };
            assert_eq!(file().evaluate(&request(&fields)), expected, "{fields}");
        }
    }

    #[test]
    fn if_range_needs_a_strong_tag_or_the_exact_date() {
        let tag = file().etag.to_string();
        for (value, expected) in [
            (tag.clone(), true),
            (format!("W/{tag}"), false),
            ("\"x\"".into(), false),
            ("Sun, 06 Nov 1994 08:49:37 GMT".into(), true),
            ("Mon, 07 Nov 1994 08:49:37 GMT".into(), false),
            ("nonsense".into(), false),
        ] {
            assert_eq!(
                file().may_have_range(&request(&format!("If-Range: {value}\r\n"))),
                expected,
                "{value}"
            );
        }
        assert!(file().may_have_range(&request("")));
    }
}
