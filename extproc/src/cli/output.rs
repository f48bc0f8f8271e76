//! Where what was made goes: to standard output, or to a file that is never half written.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;

#[derive(Debug, Args)]
pub(super) struct OutputArgs {
    /// Write to this file instead of standard output: all of it by one rename, or nothing where there are errors, so whoever
    /// reads the file finds the last good one.
    #[arg(long, env = "ATTACHE_OUTPUT", value_name = "FILE")]
    output: Option<PathBuf>,
}

impl OutputArgs {
    /// Writes all of `text`, or fails and leaves what was there.
    pub(super) fn write(&self, text: &str) -> Result<(), String> {
        // An empty variable is how deployments say "none".
        match self.output.as_deref().filter(|path| !path.as_os_str().is_empty()) {
            Some(path) => {
                replace(path, text.as_bytes()).map_err(|error| format!("cannot write {}: {error}", path.display()))
            }
            None => io::stdout().lock().write_all(text.as_bytes()).map_err(|error| format!("cannot write: {error}")),
        }
    }
}

/// Puts a file with these bytes in the place of the one at `path`, which is never seen in between. A link stays one, a pipe or a
/// device is written to.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let permissions = match fs::metadata(path) {
        Ok(there) if !there.is_file() => return OpenOptions::new().write(true).open(path)?.write_all(bytes),
        Ok(there) => Some(there.permissions()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let path = if permissions.is_some() { fs::canonicalize(path)? } else { path.to_owned() };
    let beside = beside(&path)?;
    let written = write_new(&beside, bytes, permissions).and_then(|()| fs::rename(&beside, &path));
    if written.is_err() {
        // Of a disk that is full, what could be written of it.
        let _ = fs::remove_file(&beside);
    }
    written
}

/// A name in the same directory: only there is a rename one step. Nobody takes it for a document.
fn beside(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{}.new", std::process::id()));
    Ok(path.with_file_name(hidden))
}

fn write_new(path: &Path, bytes: &[u8], permissions: Option<fs::Permissions>) -> io::Result<()> {
    // Left over by a process of the same number, which was killed: never written through, it may be a link by now.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    if let Some(permissions) = permissions {
        file.set_permissions(permissions)?;
    }
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn names(directory: &Path) -> Vec<OsString> {
        let mut names: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_nothing_is_left_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("envoy.yaml");
        replace(&path, b"first").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o604)).unwrap();
        // Whoever has it open goes on reading what it opened.
        let open = fs::File::open(&path).unwrap();
        replace(&path, b"second").unwrap();
        assert_eq!(io::read_to_string(open).unwrap(), "first");
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o604);
        assert_eq!(names(directory.path()), ["envoy.yaml"]);
    }

    #[test]
    fn a_link_stays_a_link_and_a_left_over_one_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (target, link) = (directory.path().join("target"), directory.path().join("link"));
        fs::write(&target, "old").unwrap();
        symlink(&target, &link).unwrap();
        let other = directory.path().join("other");
        fs::write(&other, "other").unwrap();
        symlink(&other, beside(&target.canonicalize().unwrap()).unwrap()).unwrap();
        replace(&link, b"new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&target).unwrap(), b"new");
        assert_eq!(fs::read(&other).unwrap(), b"other");
    }

    #[test]
    fn what_is_no_file_is_written_to_and_what_cannot_be_written_leaves_the_old_one() {
        replace(Path::new("/dev/null"), b"nothing").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        let directory = tempfile::tempdir().unwrap();
        assert!(replace(&directory.path().join("absent/envoy.yaml"), b"x").is_err());
        assert!(replace(directory.path(), b"x").is_err());
        assert_eq!(names(directory.path()), [""; 0]);
    }
}
