//! Expands `${VAR}` and `${VAR:-default}` in values. Pure: the caller provides the values of
//! variables.

use std::env::VarError;

/// Function that returns the value of an environment variable.
pub(super) type VariableLookup<'a> = &'a dyn Fn(&str) -> Result<String, VarError>;

/// Replaces the variables in a text; `None` if the text has none. `$${` becomes `${`.
///
/// # Errors
/// Operator-facing message about a variable.
pub(super) fn expand(text: &str, lookup: VariableLookup<'_>) -> Result<Option<String>, String> {
    if !text.contains("${") {
        return Ok(None);
    }
    let (mut expanded, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("${") {
        let (before, inside) = (&rest[..at], &rest[at + 2..]);
        if let Some(before) = before.strip_suffix('$') {
            expanded += &format!("{before}${{");
            rest = inside;
            continue;
        }
        let Some((variable, after)) = inside.split_once('}') else {
            return Err("`${` has no `}`; write $${ for a literal ${".to_owned());
        };
        if variable.contains("${") {
            return Err("found ${ within ${...}; a default is plain text, without variables".to_owned());
        }
        expanded += &format!("{before}{}", value(variable, lookup)?);
        rest = after;
    }
    Ok(Some(expanded + rest))
}

/// Value of a variable, or its default. As in a shell, the default also replaces an empty value.
fn value(variable: &str, lookup: VariableLookup<'_>) -> Result<String, String> {
    let (name, default) = match variable.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (variable, None),
    };
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(is_word) || name.starts_with(|c: char| c.is_ascii_digit()) {
        let name: String = name.chars().take(60).collect();
        return Err(format!(
            "found ${{{}}}; allowed: ${{NAME}} or ${{NAME:-default}}, with letters, digits and _ in NAME; write $${{ for a \
             literal ${{",
            name.escape_debug()
        ));
    }
    match (lookup(name), default) {
        (Ok(value), Some(default)) if value.is_empty() => Ok(default.to_owned()),
        (Ok(value), _) => Ok(value),
        (Err(VarError::NotPresent), Some(default)) => Ok(default.to_owned()),
        (Err(VarError::NotPresent), None) => {
            Err(format!("the environment variable {name} is not set; set it, or write ${{{name}:-default}}"))
        }
        (Err(VarError::NotUnicode(_)), _) => Err(format!("the environment variable {name} is not UTF-8")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Result<Option<String>, String> {
        expand(text, &|name| match name {
            "IP" => Ok("10.0.0.1".to_owned()),
            "EMPTY" => Ok(String::new()),
            "RAW" => Err(VarError::NotUnicode("x".into())),
            _ => Err(VarError::NotPresent),
        })
    }

    #[test]
    fn variables_are_replaced_as_a_shell_does() {
        for (text, found) in [
            ("${IP}:80", Some("10.0.0.1:80")),
            ("${IP}${IP:-x}", Some("10.0.0.110.0.0.1")),
            ("${NONE:-[::1]:80}", Some("[::1]:80")),
            ("${NONE:-}x${EMPTY:-y}", Some("xy")),
            ("a${EMPTY}b", Some("ab")),
            ("$${IP} $$${IP}", Some("${IP} $${IP}")),
            ("$IP $ {IP} }", None),
        ] {
            assert_eq!(expanded(text), Ok(found.map(str::to_owned)), "{text}");
        }
    }

    #[test]
    fn invalid_variables_are_reported() {
        for (text, told) in [
            ("${NONE}", "variable NONE is not set; set it, or write ${NONE:-default}"),
            ("${RAW:-x}", "variable RAW is not UTF-8"),
            ("${IP", "has no `}`"),
            ("${}", "found ${}; allowed: ${NAME} or ${NAME:-default}"),
            ("${1}", "found ${1}; allowed"),
            ("${a\nb}", "found ${a\\nb}; allowed"),
            ("${IP:-${NONE:-x}}", "a default is plain text, without variables"),
            ("${IP:+x}", "found ${IP:+x}; allowed"),
        ] {
            let error = expanded(text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
