//! Directories that vanish and return. The kernel watches a directory, not its path: once it is gone, what comes to its place is
//! not watched. So whoever has lost one looks again and again.

use std::fs::{self, File, Metadata};
use std::hash::Hash;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::mpsc;
use xxhash_rust::xxh3::Xxh3Default;

/// How often. A look asks for one inode, and for those of a directory's entries once another is in its place.
const EVERY: Duration = Duration::from_millis(500);

/// Says on `changed` whenever something is new in a directory that took the place of one of these, until nobody listens. What
/// is there now, before this is polled, is what the kernel watches.
pub(super) fn look_for_changes(
    directories: Vec<PathBuf>,
    changed: mpsc::Sender<()>,
) -> impl Future<Output = ()> + Send {
    look_again_and_again(directories.into_iter().map(Look::new).collect(), changed)
}

async fn look_again_and_again(mut looks: Vec<Look>, changed: mpsc::Sender<()>) {
    let mut every = tokio::time::interval(EVERY);
    while !changed.is_closed() {
        every.tick().await;
        let news = looks.iter_mut().filter_map(|look| look.has_news().then_some(())).count();
        if news > 0 {
            // A full channel means that a reload is due already.
            let _ = changed.try_send(());
        }
    }
}

/// One directory.
#[derive(Debug)]
struct Look {
    path: PathBuf,
    /// The one that the kernel watches; `None` if there was none. It is held open: the number of an inode that is gone is used
    /// again, often for the very next directory, but not as long as somebody holds the inode.
    watched: Option<File>,
    last: Seen,
}

/// Which directory it is, whatever its path.
type Identity = (u64, u64);

/// What was there at the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// The one that is watched.
    Watched,
    Nothing,
    /// Another, with these entries.
    Another(u64),
}

impl Look {
    fn new(path: PathBuf) -> Self {
        let watched = File::open(&path).ok();
        let last = if watched.is_some() { Seen::Watched } else { Seen::Nothing };
        Self { path, watched, last }
    }

    fn has_news(&mut self) -> bool {
        let seen = self.look();
        let is_news = seen != self.last;
        self.last = seen;
        is_news
    }

    fn look(&self) -> Seen {
        let Ok(metadata) = fs::metadata(&self.path) else { return Seen::Nothing };
        // One that was lost is not believed to be back: whether the kernel still watches it depends on how it was lost.
        if self.last == Seen::Watched && self.is_watched(&metadata) {
            return Seen::Watched;
        }
        let Ok(entries) = fs::read_dir(&self.path) else { return Seen::Nothing };
        // The sum does not depend on the order in which a directory gives its entries.
        let sum = entries.flatten().fold(0_u64, |sum, entry| {
            let mut hasher = Xxh3Default::new();
            entry.file_name().hash(&mut hasher);
            if let Ok(metadata) = fs::metadata(entry.path()) {
                let changed = (metadata.mtime(), metadata.mtime_nsec(), metadata.len());
                (identity(&metadata), changed).hash(&mut hasher);
            }
            sum.wrapping_add(hasher.digest())
        });
        Seen::Another(sum)
    }

    fn is_watched(&self, metadata: &Metadata) -> bool {
        let watched = self.watched.as_ref().and_then(|directory| directory.metadata().ok());
        watched.is_some_and(|watched| identity(&watched) == identity(metadata))
    }
}

fn identity(metadata: &Metadata) -> Identity {
    (metadata.dev(), metadata.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_to_the_place_of_a_lost_directory_is_looked_at_and_nothing_else_is() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("config");
        fs::create_dir(&path).unwrap();
        let mut look = Look::new(path.clone());
        fs::write(path.join("a.yaml"), "a: 1").unwrap();
        assert!(!look.has_news(), "the kernel tells of it");
        fs::remove_dir_all(&path).unwrap();
        assert_eq!((look.has_news(), look.has_news()), (true, false), "it is gone");
        fs::create_dir(&path).unwrap();
        assert_eq!((look.has_news(), look.has_news()), (true, false), "it is back");
        fs::write(path.join("a.yaml"), "a: 12").unwrap();
        assert_eq!((look.has_news(), look.has_news()), (true, false), "a file is new");
        fs::write(path.join("a.yaml"), "a: 123").unwrap();
        assert_eq!((look.has_news(), look.has_news()), (true, false), "it has changed");
        fs::remove_file(path.join("a.yaml")).unwrap();
        assert_eq!((look.has_news(), look.has_news()), (true, false), "it is gone");
    }

    #[test]
    fn one_that_vanished_and_returned_between_two_looks_is_another() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("config");
        fs::create_dir(&path).unwrap();
        let mut look = Look::new(path.clone());
        fs::remove_dir(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!((look.has_news(), look.has_news()), (true, false), "another is there");
        fs::write(path.join("a.yaml"), "a: 1").unwrap();
        assert!(look.has_news(), "the kernel does not tell of it");
    }
}
