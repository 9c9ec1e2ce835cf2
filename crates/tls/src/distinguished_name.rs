//! Distinguished names of certificates as text (RFC 4514). Different names result in different
//! texts.

use std::fmt::Write;

use x509_parser::objects::{oid_registry, oid2abbrev};
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

/// Returns a distinguished name as text, its last part first: `CN=Alice,O=Admins`.
pub(crate) fn write(name: &X509Name<'_>) -> String {
    let mut text = String::new();
    let parts: Vec<_> = name.iter_rdn().collect();
    for (n, part) in parts.into_iter().rev().enumerate() {
        text.push_str(if n > 0 { "," } else { "" });
        for (n, attribute) in part.iter().enumerate() {
            text.push_str(if n > 0 { "+" } else { "" });
            write_attribute(attribute, &mut text);
        }
    }
    text
}

fn write_attribute(attribute: &AttributeTypeAndValue<'_>, out: &mut String) {
    match oid2abbrev(attribute.attr_type(), oid_registry()) {
        Ok(name) => out.push_str(name),
        Err(_) => out.push_str(&attribute.attr_type().to_id_string()),
    }
    out.push('=');
    match attribute.as_str() {
        Ok(value) => write_value(value, out),
        Err(_) => {
            out.push('#');
            for byte in attribute.as_slice() {
                let _ = write!(out, "{byte:02X}");
            }
        }
    }
}

/// Appends a value, and escapes characters that could end the value or are not visible (RFC 4514,
/// section 2.4).
fn write_value(value: &str, out: &mut String) {
    let last = value.chars().count().saturating_sub(1);
    for (n, c) in value.chars().enumerate() {
        match c {
            ' ' if n == 0 || n == last => out.push_str("\\ "),
            '#' if n == 0 => out.push_str("\\#"),
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => {
                let mut bytes = [0; 4];
                for byte in c.encode_utf8(&mut bytes).bytes() {
                    let _ = write!(out, "\\{byte:02X}");
                }
            }
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use crate::certificate::subject;

    fn written(parts: &[(DnType, &str)]) -> String {
        let mut name = DistinguishedName::new();
        parts.iter().for_each(|(kind, value)| name.push(kind.clone(), *value));
        let mut params = CertificateParams::default();
        params.distinguished_name = name;
        subject(params.self_signed(&KeyPair::generate().unwrap()).unwrap().der())
    }

    #[test]
    fn names_are_written_with_the_last_part_first() {
        let parts = [
            (DnType::CountryName, "DE"),
            (DnType::OrganizationName, "Admins"),
            (DnType::CommonName, "Alice"),
        ];
        assert_eq!(written(&parts), "CN=Alice,O=Admins,C=DE");
        assert_eq!(written(&[]), "");
        assert_eq!(written(&[(DnType::CustomDnType(vec![1, 2, 3, 4]), "x")]), "1.2.3.4=x");
    }

    #[test]
    fn special_characters_in_name_values_are_escaped() {
        for (value, expected) in [
            ("Eve, O=Admins, CN=Alice", "CN=Eve\\, O=Admins\\, CN=Alice"),
            ("a+b\"c\\d;<e>", "CN=a\\+b\\\"c\\\\d\\;\\<e\\>"),
            (" # ", "CN=\\ #\\ "),
            ("#1", "CN=\\#1"),
            ("a\r\nX-Admin: 1", "CN=a\\0D\\0AX-Admin: 1"),
            ("Jürgen", "CN=Jürgen"),
        ] {
            assert_eq!(written(&[(DnType::CommonName, value)]), expected);
        }
    }
}
