//! Where a stack keeps its files: configuration, sockets and logs, all under Cargo's target directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
};

use tempfile::TempDir;

use crate::{
    error::{Error, Result},
    tools,
};

/// A directory that is removed when it is dropped, unless the test failed.
#[derive(Debug)]
pub struct Directory(Keep);

#[derive(Debug)]
enum Keep {
    UntilDropped(Option<TempDir>),
    Always(PathBuf),
}

impl Directory {
    /// A new one, under a name of its own.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn temporary() -> Result<Self> {
        let parent = tools::target_directory().join("stacks");
        let make = || {
            fs::create_dir_all(&parent)?;
            tempfile::Builder::new().prefix("").tempdir_in(parent.canonicalize()?)
        };
        let directory = make().map_err(Error::io(format!("make a directory in {}", parent.display())))?;
        Ok(Self(Keep::UntilDropped(Some(directory))))
    }

    /// One that stays, empty at first; what was there before is removed.
    ///
    /// # Errors
    /// When it cannot be emptied or made.
    pub fn kept(path: &Path) -> Result<Self> {
        let make = || {
            match fs::remove_dir_all(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => fs::create_dir_all(path)?,
            }
            path.canonicalize()
        };
        let path = make().map_err(Error::io(format!("make the directory {}", path.display())))?;
        Ok(Self(Keep::Always(path)))
    }

    /// Where it is, from the root.
    pub fn path(&self) -> &Path {
        match &self.0 {
            Keep::UntilDropped(directory) => directory.as_ref().map_or(Path::new(""), TempDir::path),
            Keep::Always(path) => path,
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if thread::panicking()
            && let Keep::UntilDropped(directory) = &mut self.0
            && let Some(directory) = directory.take()
        {
            eprintln!("the logs of the failed test are in {}", directory.keep().display());
        }
    }
}
