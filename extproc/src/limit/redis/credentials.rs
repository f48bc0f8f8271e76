//! A user's name and password, which are never shown.

use std::fmt;
use std::path::PathBuf;

#[derive(Debug, Clone, Default)]
pub(super) struct Login {
    /// Redis's default user without.
    pub(super) user: Option<String>,
    pub(super) password: Password,
}

#[derive(Clone, Default)]
pub(super) enum Password {
    #[default]
    None,
    Text(String),
    /// Its first line.
    File(PathBuf),
}

impl Password {
    /// The password as it is now.
    pub(super) fn read(&self) -> Result<Option<String>, String> {
        match self {
            Self::None => Ok(None),
            Self::Text(password) => Ok(Some(password.clone())),
            Self::File(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| format!("cannot read the password in {}: {error}", path.display()))?;
                match text.lines().next().filter(|password| !password.is_empty()) {
                    Some(password) => Ok(Some(password.to_owned())),
                    None => Err(format!("{} does not begin with a password", path.display())),
                }
            }
        }
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Text(_) => f.write_str("Text(..)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}
