//! Fields of a message that an operator sets, adds and removes.

use std::borrow::Cow;
use std::fmt;

use super::condition::{ConditionalRules, ResponseCondition};
use crate::field_syntax::{is_name, is_of_value, is_same_for_cgi};
use crate::{Template, Variable, Variables};

/// Rules for the fields of one kind of message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldRules {
    /// Names of fields that are removed from the message.
    dropped: Vec<DroppedName>,
    /// Fields to add, in order.
    added: Vec<AddedField>,
    /// Whether rules for a name with hyphens apply to its spelling with underscores, too.
    with_underscores: bool,
    /// Rules that follow, in order, for some responses.
    conditional: Vec<ConditionalRules>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct DroppedName {
    /// Lower-case name.
    name: Box<[u8]>,
    /// Whether `_` counts as `-`.
    with_underscores: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct AddedField {
    name: Box<[u8]>,
    value: FieldValue,
    purpose: FieldPurpose,
}

/// Purpose of an added field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldPurpose {
    /// The operator has configured the field.
    Configured,
    /// The field is a cookie that names a server. It is no secret, and must not get into a shared
    /// cache.
    Affinity,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum FieldValue {
    Text(Box<[u8]>),
    /// Value with variables, which exists only for a request.
    Template(Template),
}

/// Reason why a rule is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldFault {
    /// The name has a character that is not allowed in a token (RFC 9110, section 5.6.2).
    Name,
    /// The value has control characters, or spaces around it.
    Value,
    /// The field is in `RESERVED`: convey sets it itself.
    Reserved,
}

/// Fields that an operator may not change: they frame messages, control connections, or select a
/// host.
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
    /// Returns empty rules for requests. A rule that sets or removes `X-User` also removes the
    /// client's `X_User`, because servers behind CGI, WSGI and the like see the same field in both.
    pub fn of_requests() -> FieldRules {
        FieldRules { with_underscores: true, ..FieldRules::default() }
    }

    /// Sets a field: replaces all fields of the message with this name.
    ///
    /// # Errors
    /// The name or value is invalid, or the field may not be set.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), FieldFault> {
        self.add(name, value)?;
        self.remove(name)
    }

    /// Adds a field beside the message's own fields with this name.
    ///
    /// # Errors
    /// The name or value is invalid, or the field may not be added.
    pub fn add(&mut self, name: &str, value: &str) -> Result<(), FieldFault> {
        check_name(name)?;
        if !value.bytes().all(is_of_value) || value.trim_ascii() != value {
            return Err(FieldFault::Value);
        }
        let value = FieldValue::Text(value.as_bytes().into());
        let purpose = FieldPurpose::Configured;
        self.added.push(AddedField { name: name.as_bytes().into(), value, purpose });
        Ok(())
    }

    /// Adds `Set-Cookie` with a cookie that names a server. A response for shared caches is sent
    /// without it.
    ///
    /// # Errors
    /// The value is invalid.
    pub fn add_affinity_cookie(&mut self, value: &str) -> Result<(), FieldFault> {
        self.add("Set-Cookie", value)?;
        if let Some(added) = self.added.last_mut() {
            added.purpose = FieldPurpose::Affinity;
        }
        Ok(())
    }

    /// Sets a field to a value with variables, like [`FieldRules::set`]. If the value of a request is
    /// empty, its message has no such field.
    ///
    /// # Errors
    /// The name or value is invalid, or the field may not be set.
    pub fn set_template(&mut self, name: &str, value: &Template) -> Result<(), FieldFault> {
        self.add_template(name, value)?;
        self.remove(name)
    }

    /// Adds a field with variables, like [`FieldRules::add`].
    ///
    /// # Errors
    /// The name or value is invalid, or the field may not be added.
    pub fn add_template(&mut self, name: &str, value: &Template) -> Result<(), FieldFault> {
        // The text with the names of its variables is valid if its other parts are.
        self.add(name, &value.to_string())?;
        if let Some(added) = self.added.last_mut().filter(|_| value.as_text().is_none()) {
            added.value = FieldValue::Template(value.clone());
        }
        Ok(())
    }

    /// Appends rules that apply to some responses.
    pub fn add_conditional(&mut self, condition: ResponseCondition, rules: FieldRules) {
        self.conditional.push(ConditionalRules { condition, rules });
    }

    /// The rules for a response with this status. Rules for some paths are left out, unless
    /// [`FieldRules::expanded`] has compared the path of the request.
    pub fn of_status(&self, status: u16) -> Cow<'_, FieldRules> {
        if self.conditional.is_empty() {
            return Cow::Borrowed(self);
        }
        let always = FieldRules { conditional: Vec::new(), ..self.clone() };
        let applied = self.conditional.iter().filter(|conditional| conditional.apply_to(status));
        Cow::Owned(applied.fold(always, |rules, conditional| rules.then(&conditional.rules)))
    }

    /// Whether the rules differ from request to request: values have variables, or rules are for
    /// some paths.
    pub fn depend_on_request(&self) -> bool {
        self.added.iter().any(|field| matches!(field.value, FieldValue::Template(_)))
            || self.conditional.iter().any(|conditional| {
                !conditional.condition.paths.is_empty() || conditional.rules.depend_on_request()
            })
    }

    /// Whether values have this variable.
    pub fn uses(&self, variable: &Variable) -> bool {
        let is_used = |field: &AddedField| match &field.value {
            FieldValue::Template(template) => template.uses(variable),
            FieldValue::Text(_) => false,
        };
        self.added.iter().any(is_used)
            || self.conditional.iter().any(|conditional| conditional.rules.uses(variable))
    }

    /// These rules for a request, with the values of variables. Fields with an empty value are left
    /// out, and rules for other paths.
    #[must_use]
    pub fn expanded(&self, variables: &dyn Variables) -> FieldRules {
        let added = self.added.iter().filter_map(|field| {
            let value = match &field.value {
                FieldValue::Text(text) => text.clone(),
                FieldValue::Template(template) => {
                    let value = template.expand(variables);
                    value.trim_ascii().into()
                }
            };
            let is_shown = !value.is_empty() || matches!(field.value, FieldValue::Text(_));
            is_shown.then(|| AddedField { value: FieldValue::Text(value), ..field.clone() })
        });
        let conditional = self.conditional.iter().filter_map(|rules| rules.expanded(variables));
        FieldRules { added: added.collect(), conditional: conditional.collect(), ..self.clone() }
    }

    /// Removes all fields of the message with this name.
    ///
    /// # Errors
    /// The name is invalid, or the field may not be removed.
    pub fn remove(&mut self, name: &str) -> Result<(), FieldFault> {
        check_name(name)?;
        let name = name.to_ascii_lowercase().into_bytes().into();
        self.drop_name(DroppedName { name, with_underscores: self.with_underscores });
        Ok(())
    }

    /// Returns these rules followed by `later`. If `later` sets or removes a field, these rules no
    /// longer add this field.
    pub fn then(&self, later: &FieldRules) -> FieldRules {
        let mut rules = self.clone();
        if !rules.conditional.is_empty() {
            let always = FieldRules { conditional: Vec::new(), ..later.clone() };
            if !always.is_empty() {
                rules.add_conditional(ResponseCondition::default(), always);
            }
            rules.conditional.extend(later.conditional.iter().cloned());
            return rules;
        }
        rules.conditional.clone_from(&later.conditional);
        rules.added.retain(|field| later.keeps(&field.name));
        rules.added.extend(later.added.iter().cloned());
        later.dropped.iter().for_each(|dropped| rules.drop_name(dropped.clone()));
        rules
    }

    fn drop_name(&mut self, new: DroppedName) {
        match self.dropped.iter_mut().find(|dropped| dropped.name == new.name) {
            Some(same) => same.with_underscores |= new.with_underscores,
            None => self.dropped.push(new),
        }
    }

    /// Whether the rules change nothing.
    pub fn is_empty(&self) -> bool {
        self.dropped.is_empty() && self.added.is_empty() && self.conditional.is_empty()
    }

    /// Whether the message's own fields with this name are forwarded.
    pub fn keeps(&self, name: &[u8]) -> bool {
        !self.dropped.iter().any(|dropped| dropped.matches(name))
    }

    /// The added fields, in order, without those whose variables have no values yet.
    pub(crate) fn added(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.added.iter().filter_map(AddedField::text)
    }

    /// The added fields that the operator has configured.
    pub(crate) fn configured(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let is_configured = |field: &&AddedField| field.purpose == FieldPurpose::Configured;
        self.added.iter().filter(is_configured).filter_map(AddedField::text)
    }

    /// Whether the rules add a cookie that names a server.
    pub(crate) fn add_affinity(&self) -> bool {
        self.added.iter().any(|field| field.purpose == FieldPurpose::Affinity)
    }
}

impl AddedField {
    /// Name and value; `None`: the variables of the value have no values yet.
    fn text(&self) -> Option<(&[u8], &[u8])> {
        match &self.value {
            FieldValue::Text(text) => Some((&self.name, text)),
            FieldValue::Template(_) => None,
        }
    }
}

impl fmt::Display for FieldRules {
    /// Writes, for example, `set X-A, add X-B, remove x-c`. Omits values, because they may be
    /// secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy;
        let added = self.added.iter().map(|field| match self.keeps(&field.name) {
            true => format!("add {}", text(&field.name)),
            false => format!("set {}", text(&field.name)),
        });
        let is_added = |name: &[u8]| self.added.iter().any(|field| field.name.eq_ignore_ascii_case(name));
        let removed = self.dropped.iter().map(|dropped| &*dropped.name).filter(|name| !is_added(name));
        let removed = removed.map(|name| format!("remove {}", text(name)));
        let conditional = self.conditional.iter().map(ToString::to_string);
        f.write_str(&added.chain(removed).chain(conditional).collect::<Vec<_>>().join(", "))
    }
}

impl DroppedName {
    fn matches(&self, name: &[u8]) -> bool {
        match self.with_underscores {
            true => is_same_for_cgi(&self.name, name),
            false => self.name.eq_ignore_ascii_case(name),
        }
    }
}

fn check_name(name: &str) -> Result<(), FieldFault> {
    if !is_name(name.as_bytes()) {
        return Err(FieldFault::Name);
    }
    if is_reserved(name) { Err(FieldFault::Reserved) } else { Ok(()) }
}

/// Whether convey itself sets the field with this name.
pub(super) fn is_reserved(name: &str) -> bool {
    RESERVED.iter().any(|reserved| reserved.eq_ignore_ascii_case(name))
}

impl fmt::Display for FieldFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FieldFault::Name => "the name of a header consists of letters, digits and hyphens",
            FieldFault::Value => {
                "the value of a header must not contain control characters, or begin or end with a space"
            }
            FieldFault::Reserved => "convey sets this header itself",
        })
    }
}
