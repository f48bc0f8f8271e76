//! What a test's tasks log.

use std::io;
use std::sync::{Arc, LazyLock, Mutex};

use tracing::Dispatch;
use tracing::subscriber::DefaultGuard;

use super::redis_server::until;

/// While there is one subscriber alone, `tracing` asks a line's first thread only whether anybody wants it, and a thread of another
/// test, which has none, would say no for all.
static NEVER_ALONE: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(tracing_subscriber::registry()));

/// What is logged by this thread, in which all of a test's tasks run.
pub(crate) struct Log {
    text: Arc<Mutex<Vec<u8>>>,
    _guard: DefaultGuard,
}

impl Log {
    pub(crate) fn start() -> Self {
        LazyLock::force(&NEVER_ALONE);
        let text = Arc::new(Mutex::new(Vec::new()));
        let writer = Sink(Arc::clone(&text));
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        Self { text, _guard: tracing::subscriber::set_default(subscriber) }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.text.lock().unwrap().clone()).unwrap()
    }

    /// The lines with these words in them.
    pub(crate) fn lines(&self, words: &str) -> Vec<String> {
        self.text().lines().filter(|line| line.contains(words)).map(str::to_owned).collect()
    }

    /// The first of them, as soon as it is there.
    pub(crate) async fn line(&self, words: &str) -> String {
        until(async || !self.lines(words).is_empty()).await;
        self.lines(words).remove(0)
    }
}

#[derive(Clone)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
