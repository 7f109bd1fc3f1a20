//! A program's own wall clock, which can jump.
use std::{fs, path::PathBuf};

use anyhow::Result;

use crate::{folder::Folder, programs};

/// A wall clock for one program, which is right at first. The program's monotonic clock stays right.
#[derive(Debug)]
pub struct WallClock {
    library: PathBuf,
    /// The file with the offset.
    file: PathBuf,
}

impl WallClock {
    /// A clock with its offset in a folder; `None` if `make servers` could not get libfaketime.
    ///
    /// # Errors
    /// The folder can't be written to.
    pub fn new(folder: &Folder) -> Result<Option<Self>> {
        let Some(library) = programs::faketime() else {
            return Ok(None);
        };
        let file = folder.write("clock", "+0")?;
        Ok(Some(Self { library, file }))
    }

    /// The environment variables that make a program use it.
    pub fn env(&self) -> [(&'static str, String); 5] {
        [
            ("LD_PRELOAD", self.library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }

    /// Sets the offset from now on, such as `-50m` or `+30d`.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn jump(&self, by: &str) -> Result<()> {
        Ok(fs::write(&self.file, by)?)
    }
}
