//! Child processes: their output is kept in a file, and they are killed when they are dropped.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{LazyLock, mpsc},
    thread,
    time::Instant,
};

use rustix::process::{Pid, kill_process};
use tokio::{sync::oneshot, time::sleep};

use crate::{
    error::{Error, LastLines, Result},
    wait::{DEADLINE, PAUSE},
};

/// What a process can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM: end in good order.
    Terminate,
    /// SIGKILL: end at once.
    Kill,
    /// SIGSTOP: stand still, with all connections open.
    Stop,
    /// SIGCONT: go on.
    Continue,
    /// SIGHUP: read the configuration again.
    Hangup,
}

impl From<Signal> for rustix::process::Signal {
    fn from(signal: Signal) -> Self {
        match signal {
            Signal::Terminate => Self::TERM,
            Signal::Kill => Self::KILL,
            Signal::Stop => Self::STOP,
            Signal::Continue => Self::CONT,
            Signal::Hangup => Self::HUP,
        }
    }
}

/// A child process.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command`; what it writes is added to `<name>.log` in `directory`.
    ///
    /// # Errors
    /// When the log cannot be written or the program cannot be run.
    pub async fn spawn(name: &str, mut command: Command, directory: &Path) -> Result<Self> {
        let log = directory.join(format!("{name}.log"));
        let open = || {
            let output = File::options().create(true).append(true).open(&log)?;
            Ok((output.try_clone()?, output))
        };
        let (stdout, stderr) = open().map_err(Error::io(format!("write {}", log.display())))?;
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        let program = command.get_program().to_string_lossy().into_owned();
        let child = spawn(command).await.map_err(Error::io(format!("run {program}")))?;
        Ok(Self { name: name.to_owned(), child, log })
    }

    /// Waits until the condition holds. `what` completes the sentence "ended before".
    ///
    /// # Errors
    /// When the process ends instead, or after 30 s.
    pub async fn until(&mut self, what: &str, mut condition: impl AsyncFnMut() -> bool) -> Result<()> {
        let start = Instant::now();
        loop {
            // First, because the condition may hold of somebody else's process, at an address that this one wanted.
            if let Some(status) = self.ended()? {
                return Err(Error::Ended {
                    process: self.name.clone(),
                    status,
                    what: what.to_owned(),
                    log: LastLines::of(&self.log()),
                });
            }
            if condition().await {
                return Ok(());
            }
            if start.elapsed() > DEADLINE {
                return Err(self.late(what));
            }
            sleep(PAUSE).await;
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// After 30 s.
    pub async fn end(&mut self) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if start.elapsed() > DEADLINE {
                return Err(self.late("it ended"));
            }
            sleep(PAUSE).await;
        }
    }

    /// Kills it, and waits until it is gone.
    ///
    /// # Errors
    /// When it stays.
    pub async fn kill(&mut self) -> Result<()> {
        self.signal(Signal::Kill)?;
        self.end().await.map(drop)
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// The operating system's.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().map_err(Error::io(format!("look after {}", self.name)))
    }

    /// Sends a signal; nothing if it has ended.
    ///
    /// # Errors
    /// The operating system's.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        // Until it is waited for, its id is nobody else's.
        if self.ended()?.is_some() {
            return Ok(());
        }
        kill_process(Pid::from_child(&self.child), signal.into())
            .map_err(|errno| Error::io(format!("send {signal:?} to {}", self.name))(errno.into()))
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// All that it and its predecessors of the same name wrote.
    pub fn log(&self) -> String {
        fs::read(&self.log).map_or_else(|_| String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    fn late(&self, what: &str) -> Error {
        let what = format!("{what} ({})", self.name);
        Error::NotInTime { what, within: DEADLINE, log: LastLines::of(&self.log()) }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error says that it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a child from the one thread that does so, which never ends: Envoy asks the kernel to be killed when the thread
/// that started it does (PR_SET_PDEATHSIG), and the threads of tests come and go.
async fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: LazyLock<mpsc::Sender<Birth>> = LazyLock::new(|| {
        let (sender, births) = mpsc::channel::<Birth>();
        thread::spawn(move || {
            for Birth { mut command, reply } in births {
                if let Err(Ok(mut orphan)) = reply.send(command.spawn()) {
                    // Nobody waits for it any more; it ends as a dropped process does.
                    let _ = orphan.kill();
                    let _ = orphan.wait();
                }
            }
        });
        sender
    });
    let (reply, child) = oneshot::channel();
    let gone = || io::Error::other("the thread that starts processes is gone");
    SPAWNER.send(Birth { command, reply }).map_err(|_| gone())?;
    child.await.map_err(|_| gone())?
}

struct Birth {
    command: Command,
    reply: oneshot::Sender<io::Result<Child>>,
}
