//! Files and directories into documents.
//!
//! A directory stands for its own `*.yaml` and `*.yml` files, as with `kubectl apply -f`: it is not walked. Entries whose
//! name starts with a dot are skipped, which is all it takes to read a mounted ConfigMap once: its files are links into a
//! hidden `..data` directory.

use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::diagnostic::{Diagnostic, Location, Severity, Source};
use super::node::{self, Document};
use super::resource::{LIST, Secrets};
use super::secret_files;

/// Everything that was read, before anyone asked what it says.
#[derive(Default)]
pub struct Documents {
    pub(super) documents: Vec<Document>,
    pub(super) secrets: Secrets,
    /// Whether keys that are nowhere are wanted.
    pub(super) keys: Keys,
    pub(super) lost: Vec<Lost>,
    pub(super) diagnostics: Vec<Diagnostic>,
    fingerprint: u64,
}

/// One file that was read, or what stands for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentText {
    /// The path, or the name it was given.
    pub name: String,
    /// All of it.
    pub text: String,
}

/// A file or directory of which something could not be read, so that what is missing from it may still be wanted.
#[derive(Debug)]
pub(super) struct Lost {
    pub(super) path: PathBuf,
    /// Without them everyone may call, so that must not happen by accident.
    pub(super) client_keys: Presence,
    /// Policies that limit requests: without them everyone may call as often as they like.
    pub(super) limits: Presence,
    /// Policies that ask for a key to an upstream: without them it is called without one.
    pub(super) credentials: Presence,
}

/// Whether whoever compiles documents needs the keys to upstreams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Keys {
    /// They may be elsewhere.
    #[default]
    Unneeded,
    /// The same, and of one that is not here somebody wants to be told.
    Wanted,
    /// One that is nowhere is an error.
    Needed,
}

/// Whether a lost text may have had something in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// Its words say so.
    Possible,
    /// Nobody can tell.
    Conceivable,
    Unlikely,
}

/// A file larger than this holds something other than configuration. (A ConfigMap ends at 1 MiB.)
const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// What some editors begin a text with.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Reads files, and directories of files. What cannot be read is a diagnostic, which [`compile`](super::compile) passes on.
pub fn load(paths: &[PathBuf]) -> Documents {
    let mut documents = Documents::default();
    for path in paths {
        documents.read(path);
    }
    documents
}

/// By what it is: there are keys in it.
impl fmt::Debug for Documents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Documents").field("documents", &self.documents.len()).finish_non_exhaustive()
    }
}

impl Documents {
    /// The documents of one text, as if it had been read from a file of that name.
    pub fn from_text(name: &str, text: &str) -> Self {
        let mut documents = Self::default();
        documents.add(name, text.to_owned());
        documents
    }

    /// Has every key to an upstream wanted that a policy asks for, and takes those that are files of `directory`, if there is
    /// one: `<namespace>/<name>/apiKey`, as a Secret is mounted there.
    #[must_use]
    pub fn with_secrets(mut self, directory: Option<&Path>) -> Self {
        self.keys = Keys::Needed;
        if let Some(directory) = directory {
            self.secrets.files = secret_files::read(directory);
            for (name, kept) in &self.secrets.files {
                let text = match kept {
                    Ok(key) => format!("{name}={}", key.as_str()),
                    Err(fault) => format!("{name}: {fault}"),
                };
                self.fingerprint = xxh3_64_with_seed(text.as_bytes(), self.fingerprint);
            }
        }
        self
    }

    /// The same for a look at documents alone, as `attache check` has it: where no directory is named, a key that is not here is a
    /// warning, for Secrets are rightly kept elsewhere than the documents that name them.
    #[must_use]
    pub(super) fn with_secrets_if_named(mut self, directory: Option<&Path>) -> Self {
        if directory.is_some() {
            return self.with_secrets(directory);
        }
        self.keys = Keys::Wanted;
        self
    }

    /// The same for two readings of the same names and texts: nothing has to be compiled then. A directory is touched
    /// for many reasons, a log file that is written into it among them.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// The texts that there are documents of, in the order in which they were read.
    pub fn texts(&self) -> Vec<DocumentText> {
        let mut sources: Vec<&Arc<Source>> = Vec::new();
        for document in &self.documents {
            if sources.last().is_none_or(|last| !Arc::ptr_eq(last, &document.source)) {
                sources.push(&document.source);
            }
        }
        let text =
            |source: &&Arc<Source>| DocumentText { name: source.name().to_owned(), text: source.inner().to_owned() };
        sources.iter().map(text).collect()
    }

    fn read(&mut self, path: &Path) {
        let read = if path.is_dir() { self.read_directory(path) } else { self.read_file(path) };
        if let Err(error) = read {
            let message = format!("cannot read {}: {error}", path.display());
            self.mark(&message);
            self.diagnostics.push(Diagnostic::general(Severity::Error, message));
            self.lost.push(Lost::whole(path));
        }
    }

    fn read_directory(&mut self, directory: &Path) -> io::Result<()> {
        let (directories, mut files): (Vec<_>, Vec<_>) =
            visible(directory)?.into_iter().partition(|path| path.is_dir());
        files.retain(|path| holds_documents(path));
        if files.is_empty() {
            let message = format!("there is no *.yaml, *.yml or *.json file in {}", directory.display());
            self.diagnostics.push(Diagnostic::general(Severity::Warning, message));
        }
        for below in directories {
            // One that cannot be read is not asked for.
            if visible(&below).unwrap_or_default().iter().any(|path| holds_documents(path)) {
                let message = format!("the files in {} are not read; name that directory as well", below.display());
                self.diagnostics.push(Diagnostic::general(Severity::Warning, message));
            }
        }
        for file in files {
            self.read(&file);
        }
        Ok(())
    }

    fn read_file(&mut self, path: &Path) -> io::Result<()> {
        // To open a pipe waits for its writer, and a device may have no end.
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        let mut text = String::new();
        fs::File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(io::Error::other(format!("it is larger than {MAX_FILE_BYTES} bytes")));
        }
        self.add(&path.to_string_lossy(), text);
        Ok(())
    }

    fn mark(&mut self, text: &str) {
        self.fingerprint = xxh3_64_with_seed(text.as_bytes(), self.fingerprint);
    }

    fn add(&mut self, name: &str, text: String) {
        self.mark(name);
        self.mark(&text);
        let source = Arc::new(Source::new(name, text));
        if source.inner().trim_start_matches(BYTE_ORDER_MARK).trim().is_empty() {
            // Whoever writes a file in place, or runs out of disk, leaves it empty for a moment or for good.
            let empty = Diagnostic::error(&Location::new(&source, 0..0), "this file is empty: it may be half written");
            self.diagnostics.push(empty.with_help("write what belongs there, or remove the file"));
            self.lost.push(Lost::whole(Path::new(name)));
            return;
        }
        let parsed = node::parse(&source);
        if let Some(broken) = parsed.broken {
            self.diagnostics.push(broken);
            self.lost.push(Lost::from_broken_text(&source));
        } else if parsed.documents.is_empty() {
            let here = Location::new(&source, 0..0);
            if is_commentary(source.inner()) {
                self.diagnostics.push(Diagnostic::warning(&here, "there is no document in this file"));
            } else {
                let error = Diagnostic::error(&here, "there is no document in this file: it may be half written");
                self.diagnostics.push(error.with_help("write what belongs there, or remove the file"));
                self.lost.push(Lost::whole(Path::new(name)));
            }
        }
        self.documents.extend(parsed.documents);
    }
}

impl Lost {
    /// Nothing can be told of what is there.
    pub(super) fn whole(path: &Path) -> Self {
        let possible = Presence::Possible;
        Self { path: path.to_owned(), client_keys: possible, limits: possible, credentials: possible }
    }

    /// Something in this text could not be told.
    pub(super) fn from_text(source: &Source) -> Self {
        let text = source.inner().to_ascii_lowercase();
        let presence = |stems: &[&str]| match stems.iter().any(|stem| text.contains(stem)) {
            true => Presence::Possible,
            false => Presence::Unlikely,
        };
        Self {
            path: PathBuf::from(source.name()),
            client_keys: presence(&["clientkey"]),
            // Plurals and slips of the end included.
            limits: presence(&["tokenlimit", "quotapol", "backendtraffic", "io.envoy.ai_gateway"]),
            credentials: presence(&["backendsecur"]),
        }
    }

    /// This text is not YAML. Its words tell what was in it, unless it ends before they do.
    fn from_broken_text(source: &Source) -> Self {
        if ends_in_a_known_kind(source.inner()) {
            return Self::from_text(source);
        }
        Self::unknown(source)
    }

    /// Nobody can tell what was in this text, but for what its words say.
    pub(super) fn unknown(source: &Source) -> Self {
        let Self { path, client_keys, limits, credentials } = Self::from_text(source);
        let conceivable = |presence| match presence {
            Presence::Possible => Presence::Possible,
            Presence::Conceivable | Presence::Unlikely => Presence::Conceivable,
        };
        Self {
            path,
            client_keys: conceivable(client_keys),
            limits: conceivable(limits),
            credentials: conceivable(credentials),
        }
    }
}

/// Whether the last document of a text says in full what kind it is of, and is not the first half of a separator. Documents in
/// the flow style and Lists say nothing that could be found without reading them.
fn ends_in_a_known_kind(text: &str) -> bool {
    let is_cut_separator = text.lines().next_back().is_some_and(|line| matches!(line, "-" | "--"));
    let mut lines = text.split_inclusive('\n').rev().take_while(|line| !line.starts_with("---"));
    let has_kind = lines.any(|line| {
        let kind = line.strip_suffix('\n').and_then(|line| line.strip_prefix("kind:")).map_or("", str::trim);
        !kind.is_empty() && kind != LIST && kind.bytes().all(|byte| byte.is_ascii_alphanumeric())
    });
    has_kind && !is_cut_separator
}

/// Whether nothing but comments is there.
fn is_commentary(text: &str) -> bool {
    text.trim_start_matches(BYTE_ORDER_MARK)
        .lines()
        .map(str::trim_start)
        .all(|line| line.is_empty() || line.starts_with('#'))
}

/// What is in a directory, in the order of the names, without what is hidden: mounts of Kubernetes keep their versions so.
fn visible(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| !name.as_encoded_bytes().starts_with(b".")) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// By its ending, in any case. JSON is YAML.
fn holds_documents(path: &Path) -> bool {
    let has = |ending: &str| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(ending));
    ["yaml", "yml", "json"].into_iter().any(has)
}
