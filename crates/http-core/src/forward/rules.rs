//! What an operator sets, adds and removes of a message's fields.

use std::fmt;

use super::write_field;

/// Rules for the fields of one kind of message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldRules {
    /// Names in small letters: fields of these are not passed on.
    dropped: Vec<Box<[u8]>>,
    /// Fields that are added, in order.
    added: Vec<AddedField>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct AddedField {
    name: Box<[u8]>,
    value: Box<[u8]>,
}

/// Why a rule is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldFault {
    /// The name has other characters than those of a token (RFC 9110, section 5.6.2).
    Name,
    /// The value has control characters, or spaces around it.
    Value,
    /// convey itself says how messages are framed and whom they are for.
    Reserved,
}

/// Fields that are no operator's: framing, connections, and what tells the client.
const RESERVED: [&str; 9] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

impl FieldRules {
    /// Sets a field: those of the message with this name give way.
    ///
    /// # Errors
    /// It is no field, or not to be set.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), FieldFault> {
        self.add(name, value)?;
        self.remove(name)
    }

    /// Adds a field beside those of the message with this name.
    ///
    /// # Errors
    /// It is no field, or not to be set.
    pub fn add(&mut self, name: &str, value: &str) -> Result<(), FieldFault> {
        check_name(name)?;
        let is_of_value = |byte: u8| matches!(byte, b' '..=b'~' | b'\t' | 0x80..);
        if !value.bytes().all(is_of_value) || value.trim_ascii() != value {
            return Err(FieldFault::Value);
        }
        self.added.push(AddedField { name: name.as_bytes().into(), value: value.as_bytes().into() });
        Ok(())
    }

    /// Removes all fields of the message with this name.
    ///
    /// # Errors
    /// It is no name, or not to be removed.
    pub fn remove(&mut self, name: &str) -> Result<(), FieldFault> {
        check_name(name)?;
        let name: Box<[u8]> = name.to_ascii_lowercase().into_bytes().into();
        if !self.dropped.contains(&name) {
            self.dropped.push(name);
        }
        Ok(())
    }

    /// These rules, and then others: a field that these add and the others set or remove is not there twice.
    pub fn then(&self, later: &FieldRules) -> FieldRules {
        let mut rules = self.clone();
        rules.added.retain(|field| later.keeps(&field.name));
        rules.added.extend(later.added.iter().cloned());
        for name in &later.dropped {
            if !rules.dropped.contains(name) {
                rules.dropped.push(name.clone());
            }
        }
        rules
    }

    /// Whether they change nothing.
    pub fn is_empty(&self) -> bool {
        self.dropped.is_empty() && self.added.is_empty()
    }

    /// Whether a field of the message is passed on.
    pub fn keeps(&self, name: &[u8]) -> bool {
        !self.dropped.iter().any(|dropped| name.eq_ignore_ascii_case(dropped))
    }

    /// Writes the fields that are added.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.added.iter().for_each(|field| write_field(&field.name, &field.value, out));
    }
}

impl fmt::Display for FieldRules {
    /// Such as `set X-A, add X-B, remove x-c`. Values are not told: they may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy;
        let added = self.added.iter().map(|field| match self.keeps(&field.name) {
            true => format!("add {}", text(&field.name)),
            false => format!("set {}", text(&field.name)),
        });
        let is_added = |name: &[u8]| self.added.iter().any(|field| field.name.eq_ignore_ascii_case(name));
        let removed = self.dropped.iter().filter(|name| !is_added(name));
        let removed = removed.map(|name| format!("remove {}", text(name)));
        f.write_str(&added.chain(removed).collect::<Vec<_>>().join(", "))
    }
}

fn check_name(name: &str) -> Result<(), FieldFault> {
    if name.is_empty() || !name.bytes().all(crate::body::is_token) {
        return Err(FieldFault::Name);
    }
    if RESERVED.iter().any(|reserved| reserved.eq_ignore_ascii_case(name)) {
        return Err(FieldFault::Reserved);
    }
    Ok(())
}

impl fmt::Display for FieldFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FieldFault::Name => "a header's name has letters, digits and hyphens",
            FieldFault::Value => "a header's value has no control characters, and no spaces around it",
            FieldFault::Reserved => "convey sets this header itself",
        })
    }
}
