//! Static table of HPACK (RFC 7541, appendix A): names and sizes of its entries. Pure.

use super::{ENTRY, Entry, FieldName, ValueMeaning};

/// Number of entries.
pub(super) const LEN: usize = PSEUDO.len() + NAMES.len();

/// Names in the static table (RFC 7541, appendix A), without the pseudo-header fields at its
/// beginning.
const NAMES: [&str; 47] = [
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "accept-ranges",
    "accept",
    "access-control-allow-origin",
    "age",
    "allow",
    "authorization",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-range",
    "content-type",
    "cookie",
    "date",
    "etag",
    "expect",
    "expires",
    "from",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "link",
    "location",
    "max-forwards",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "referer",
    "refresh",
    "retry-after",
    "server",
    "set-cookie",
    "strict-transport-security",
    "transfer-encoding",
    "user-agent",
    "vary",
    "via",
    "www-authenticate",
];

/// Names of the first 14 entries in the static table, which are pseudo-header fields.
const PSEUDO: [FieldName; 14] = {
    use FieldName::{Authority, Method, Path, Scheme, Status};
    let (method, path, scheme, status) = (Method, Path, Scheme, Status);
    [
        Authority, method, method, path, path, scheme, scheme, status, status, status, status, status,
        status, status,
    ]
};

/// Lengths of the values of the first 14 entries in the static table.
const PSEUDO_VALUES: [usize; 14] = [0, 3, 4, 1, 11, 4, 5, 3, 3, 3, 3, 3, 3, 3];

/// Index of `accept-encoding: gzip, deflate`, the only regular field of the static table with a
/// value, and the length of the value.
const VALUE: (usize, usize) = (15, 13);

/// Returns an entry of the static table, by its index from 0.
pub(super) fn entry(index: usize) -> Entry {
    let (name, value_len) = match PSEUDO.get(index) {
        Some(name) => (*name, PSEUDO_VALUES[index]),
        None => {
            let name = FieldName::regular(NAMES[index - PSEUDO.len()].as_bytes());
            (name, if index == VALUE.0 { VALUE.1 } else { 0 })
        }
    };
    // The names alone that the library refuses are in the table, and empty values.
    let value = if value_len == 0 { name.meaning_of(b"") } else { ValueMeaning::Any };
    Entry { name, value, size: ENTRY + name.len() + value_len }
}
