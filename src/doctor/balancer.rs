//! Looks at the host that convey runs on.

use super::Diagnosis;
use crate::control::ConfigFile;

/// What keeps clients of this configuration from being served.
///
/// # Errors
/// The file cannot be used: its problems.
pub fn look(file: &ConfigFile) -> Result<Vec<Diagnosis>, crate::config::LoadError> {
    let _loaded = file.load()?;
    Ok(Vec::new())
}
