//! Secrets as files: `<namespace>/<name>/apiKey` below one directory, as Kubernetes mounts them.
//!
//! Each Secret may be a volume of its own or all of them one projected volume. Entries whose names start with a dot are
//! skipped: they are what the links of a volume point into.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::model::ObjectName;
use super::resource::{KEY_ENTRY, Kept, KeyFault};
use super::upstream::{ApiKey, MAX_KEY_BYTES, NotAKey};
use super::value::is_dns_name;

/// More than anybody has: what lies below a directory that is named by mistake is not walked for ever.
const MAX_SECRETS: usize = 4096;

/// All keys below `directory`. What cannot be read is not there.
pub(super) fn read(directory: &Path) -> BTreeMap<ObjectName, Kept> {
    secrets(directory)
        .take(MAX_SECRETS)
        .filter_map(|(name, path)| Some((name, key_at(&path.join(KEY_ENTRY))?)))
        .collect()
}

/// `directory` and those below it in which a change may be a change of a key.
pub fn directories(directory: &Path) -> Vec<PathBuf> {
    let mut all = vec![directory.to_owned()];
    all.extend(children(directory).map(|(_, namespace)| namespace).take(MAX_SECRETS));
    all.extend(secrets(directory).map(|(_, secret)| secret).take(MAX_SECRETS));
    all
}

fn secrets(directory: &Path) -> impl Iterator<Item = (ObjectName, PathBuf)> + use<> {
    children(directory).flat_map(|(namespace, path)| {
        children(&path).map(move |(name, path)| (ObjectName { namespace: Arc::clone(&namespace), name }, path))
    })
}

/// The directories in a directory whose names are those of objects.
fn children(directory: &Path) -> impl Iterator<Item = (Arc<str>, PathBuf)> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let (name, path) = (entry.file_name(), entry.path());
        let name = name.to_str().filter(|name| is_dns_name(name))?;
        path.is_dir().then(|| (Arc::from(name), path))
    })
}

/// `None` where there is no such file: the Secret has other entries.
fn key_at(path: &Path) -> Option<Kept> {
    let mut text = Vec::new();
    let open = || match fs::metadata(path)?.is_file() {
        true => fs::File::open(path),
        // To open a pipe would wait for its writer.
        false => Err(io::Error::other("it is not a regular file")),
    };
    let read = open().and_then(|file| file.take(2 * MAX_KEY_BYTES as u64).read_to_end(&mut text));
    match read {
        Ok(_) if text.len() == 2 * MAX_KEY_BYTES => Some(Err(NotAKey::TooLong.into())),
        Ok(_) => Some(ApiKey::parse(&text).map_err(KeyFault::from)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(Err(KeyFault::Unreadable(Arc::from(error.to_string())))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn name(namespace: &str, name: &str) -> ObjectName {
        ObjectName { namespace: Arc::from(namespace), name: Arc::from(name) }
    }

    #[test]
    fn a_key_is_found_by_its_path_in_plain_directories_and_in_volumes() {
        let here = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = here.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("default/plain/apiKey", "sk-plain\n");
        // One Secret mounted by itself.
        write("default/mounted/..2026/apiKey", "sk-mounted");
        symlink("..2026", here.path().join("default/mounted/..data")).unwrap();
        symlink("..data/apiKey", here.path().join("default/mounted/apiKey")).unwrap();
        // A projected volume.
        write("..2027/team/projected/apiKey", "sk-projected");
        symlink("..2027", here.path().join("..data")).unwrap();
        symlink("..data/team", here.path().join("team")).unwrap();
        // What is none of ours.
        write("default/tls/tls.key", "-");
        write("default/empty/apiKey", "\n");
        write("stray", "-");

        fs::create_dir_all(here.path().join("default/device")).unwrap();
        symlink("/dev/zero", here.path().join("default/device/apiKey")).unwrap();

        let mut found = read(here.path());
        let not_a_file = KeyFault::Unreadable(Arc::from("it is not a regular file"));
        assert_eq!(found.remove(&name("default", "device")), Some(Err(not_a_file)));
        assert_eq!(found.remove(&name("default", "empty")), Some(Err(KeyFault::NotAKey(NotAKey::Empty))));
        let key = |text: &str| Ok(ApiKey::parse(text.as_bytes()).unwrap());
        let expected = [
            (name("default", "mounted"), key("sk-mounted")),
            (name("default", "plain"), key("sk-plain")),
            (name("team", "projected"), key("sk-projected")),
        ];
        assert_eq!(found, BTreeMap::from(expected));
        assert_eq!(directories(here.path()).len(), 1 + 2 + 6);
    }

    #[test]
    fn a_directory_that_is_not_there_has_no_secrets() {
        assert_eq!(read(Path::new("/nowhere/at/all")), BTreeMap::new());
    }
}
