//! `attache key`: a new API key, and the ClientKey that knows its hash.

use std::fs::File;
use std::io::{self, Read as _, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::process::ExitCode;

use attache::config;
use attache_gate::KeyDigest;
use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Subcommand)]
pub(super) enum KeyCommand {
    /// Make a key: its ClientKey on standard output, the key itself, this once, on standard error.
    New(NewArgs),
}

impl KeyCommand {
    pub(super) fn run(self) -> Result<ExitCode, String> {
        match self {
            Self::New(args) => args.run(),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct NewArgs {
    /// The ClientKey's name, by which limits and logs call the caller.
    name: String,
    /// Whose key it is; a tenant of its own without.
    #[arg(long, value_name = "T")]
    tenant: Option<String>,
    /// An AIGatewayRoute that it may call: NAME, NAMESPACE/NAME or '*'. May be given several times.
    #[arg(long = "route", value_name = "R", required = true)]
    routes: Vec<String>,
    /// The ClientKey's namespace.
    #[arg(long, value_name = "NS")]
    namespace: Option<String>,
    /// What limits may count by. May be given several times.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Its last moment, as 2030-12-31T23:59:59Z; without, it has no end.
    #[arg(long, value_name = "TIME")]
    not_after: Option<String>,
    /// How much of a limit it may use.
    #[arg(long, default_value = "normal")]
    priority: Priority,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Priority {
    /// All.
    Normal,
    /// A part, so that the rest is there for others.
    Low,
}

impl NewArgs {
    fn run(self) -> Result<ExitCode, String> {
        refuse_one_file(io::stdout().as_fd(), io::stderr().as_fd())?;
        let key = NewKey::make().map_err(|error| format!("no random numbers from the operating system: {error}"))?;
        let text = self.document(&key.digest());
        let faults = config::faults("the ClientKey", &text);
        if faults.iter().any(config::Diagnostic::is_error) {
            let faults: Vec<&str> = faults.iter().map(|fault| fault.message.as_str()).collect();
            return Err(format!("no key was made: {}", faults.join("; ")));
        }
        // First the key: a hash whose key nobody has seen would be of no use, and a key without a hash opens nothing.
        key.show(&self.name)?;
        io::stdout()
            .lock()
            .write_all(text.as_bytes())
            .map_err(|error| format!("cannot write the ClientKey: {error}"))?;
        Ok(ExitCode::SUCCESS)
    }

    /// The ClientKey as a YAML document that may follow others.
    fn document(&self, digest: &KeyDigest) -> String {
        let mut metadata = format!("name: {}", scalar(&self.name));
        if let Some(namespace) = &self.namespace {
            metadata += &format!(", namespace: {}", scalar(namespace));
        }
        let mut text = format!(
            "---\napiVersion: attache.dev/v1alpha1\nkind: ClientKey\nmetadata: {{{metadata}}}\nspec:\n  sha256: {digest}\n"
        );
        let mut field = |name: &str, value: String| text += &format!("  {name}: {value}\n");
        if let Some(tenant) = &self.tenant {
            field("tenant", scalar(tenant));
        }
        let routes: Vec<String> = self.routes.iter().map(|route| scalar(route)).collect();
        field("routes", format!("[{}]", routes.join(", ")));
        if !self.labels.is_empty() {
            let labels: Vec<String> =
                self.labels.iter().map(|(name, value)| format!("{}: {}", scalar(name), scalar(value))).collect();
            field("labels", format!("{{{}}}", labels.join(", ")));
        }
        if let Some(end) = &self.not_after {
            field("notAfter", scalar(end));
        }
        if self.priority == Priority::Low {
            field("priority", "low".to_owned());
        }
        text
    }
}

/// An API key that nobody has seen yet.
pub(super) struct NewKey(String);

/// 256 bits: no guess finds it, and none finds one with its hash.
const KEY_BYTES: usize = 32;

impl NewKey {
    pub(super) fn make() -> io::Result<Self> {
        let mut bytes = [0; KEY_BYTES];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
        Ok(Self(std::iter::once("sk-".to_owned()).chain(digits).collect()))
    }

    pub(super) fn digest(&self) -> KeyDigest {
        KeyDigest::of(self.0.as_bytes())
    }

    /// Shows it, the only time.
    pub(super) fn show(&self, name: &str) -> Result<(), String> {
        let text = format!("attache: the key of {name}, shown this once; only its hash is in the YAML:\n{}\n", self.0);
        let mut out = io::stderr().lock();
        let shown = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        shown.map_err(|error| format!("no key was made: it cannot be shown on standard error: {error}"))
    }
}

/// The key is not to lie beside its hash in one file.
fn refuse_one_file(out: BorrowedFd<'_>, err: BorrowedFd<'_>) -> Result<(), String> {
    // What cannot be told is no file.
    let file = |stream: BorrowedFd<'_>| {
        let metadata = File::from(stream.try_clone_to_owned().ok()?).metadata().ok()?;
        metadata.is_file().then(|| (metadata.dev(), metadata.ino()))
    };
    match (file(out), file(err)) {
        (Some(out), Some(err)) if out == err => {
            Err("no key was made: standard output and standard error are one file, in which the key would stand beside its hash; \
                 redirect standard output alone"
                .to_owned())
        }
        _ => Ok(()),
    }
}

/// Plain where any reader of YAML takes it for text, else in quotes, as JSON has them.
fn scalar(text: &str) -> String {
    const WORDS: [&str; 8] = ["true", "false", "null", "yes", "no", "on", "off", "nan"];
    let is_plain = text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c))
        && text.len() > 1
        && !WORDS.contains(&text.to_ascii_lowercase().as_str());
    if is_plain { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("`{text}` is no label; write tier=gold"))?;
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: NewArgs,
    }

    fn document(options: &[&str]) -> String {
        let line = Line::try_parse_from([&["new"], options].concat()).unwrap();
        line.args.document(&KeyDigest::of(b"abc"))
    }

    #[test]
    fn a_client_key_says_what_was_asked_for_and_reads_without_faults() {
        let text = document(&["app-a", "--tenant", "acme", "--route", "chat"]);
        assert_eq!(
            text,
            "---\napiVersion: attache.dev/v1alpha1\nkind: ClientKey\nmetadata: {name: app-a}\nspec:\n  \
             sha256: ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\n  tenant: acme\n  routes: [chat]\n"
        );
        let all = ["a", "--route", "*", "--route", "other/chat", "--namespace", "team", "--label", "tier=gold: \"1\""];
        let more =
            ["--label", "x=true", "--not-after", "2999-12-31T23:59:59Z", "--priority", "low", "--tenant", "A: {b}"];
        let text = document(&[&all[..], &more].concat());
        assert!(config::faults("a", &text).is_empty(), "{text}");
        let document: serde_json::Value = serde_saphyr::from_str(text.trim_start_matches("---\n")).unwrap();
        assert_eq!(document["metadata"]["namespace"], "team");
        let spec = &document["spec"];
        assert_eq!(spec["routes"], serde_json::json!(["*", "other/chat"]));
        assert_eq!(spec["labels"], serde_json::json!({"tier": "gold: \"1\"", "x": "true"}));
        assert_eq!((&spec["tenant"], &spec["priority"]), (&"A: {b}".into(), &"low".into()));
    }

    #[test]
    fn what_could_be_no_client_key_is_found_before_a_key_is_shown() {
        for (options, expected) in [
            (&["App", "--route", "chat"][..], "name"),
            (&["app", "--route", "no route"], "is not the name of a route"),
            (&["app", "--route", "chat", "--not-after", "tomorrow"], "RFC 3339"),
            (&["app", "--route", "chat", "--tenant", " x"], "a space at its ends"),
            (&["app", "--route", "chat", "--label", "a b=c"], "is not a label"),
        ] {
            let faults = config::faults("a", &document(options));
            assert!(faults.iter().any(|fault| fault.message.contains(expected)), "{options:?}: {faults:?}");
        }
        assert!(Line::try_parse_from(["new", "app"]).is_err(), "a key that may call nothing");
    }

    #[test]
    fn keys_are_long_and_no_two_are_alike() {
        let (a, b) = (NewKey::make().unwrap(), NewKey::make().unwrap());
        assert_eq!((a.0.len(), &a.0[..3]), (67, "sk-"));
        assert_ne!(a.0, b.0);
        assert_eq!(a.digest(), KeyDigest::of(a.0.as_bytes()));
    }

    #[test]
    fn one_file_for_the_key_and_its_hash_is_refused_and_two_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| File::create(directory.path().join(name)).unwrap();
        let (one, other) = (file("one"), file("other"));
        assert!(refuse_one_file(one.as_fd(), one.try_clone().unwrap().as_fd()).is_err());
        assert_eq!(refuse_one_file(one.as_fd(), other.as_fd()), Ok(()));
        let null = File::open("/dev/null").unwrap();
        assert_eq!(refuse_one_file(null.as_fd(), null.as_fd()), Ok(()));
    }
}
