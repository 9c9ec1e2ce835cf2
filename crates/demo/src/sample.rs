//! Sample configuration of the demo, built into the binary.

use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Copy of the sample configuration in a temporary folder. Dropping it removes the folder.
#[derive(Debug)]
pub struct Sample {
    folder: TempDir,
}

impl Sample {
    /// Writes the copy.
    pub fn new() -> io::Result<Sample> {
        let sample = Sample { folder: tempfile::Builder::new().prefix("convey-demo-").tempdir()? };
        std::fs::write(sample.path(), include_str!("config.toml"))?;
        Ok(sample)
    }

    /// Path of the copy. It may be edited while the demo runs.
    pub fn path(&self) -> PathBuf {
        Path::new(self.folder.path()).join("config.toml")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_is_a_valid_file_until_the_demo_ends() {
        let sample = Sample::new().unwrap();
        let path = sample.path();
        assert!(convey_config::load(&path).unwrap().warnings.is_empty());
        drop(sample);
        assert!(!path.exists());
    }
}
