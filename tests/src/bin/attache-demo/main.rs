//! `make demo`: plays a story on a real Envoy with simulated model servers, then serves until Ctrl-C.
//!
//! All that it shows was measured: each step sends real requests, reads what the model servers and the sidecar recorded of
//! them, and compares that with what it promises.

mod place;
mod screen;
mod serve;
mod story;
mod table;
mod watch;

use std::{io, process::ExitCode};

use attache_tests::{Error, Stack};
use clap::Parser;
use tokio::{
    select,
    signal::unix::{Signal, SignalKind, signal},
};

use screen::Screen;

/// Plays Attaché's story on a real Envoy, then serves until Ctrl-C.
#[derive(Debug, Parser)]
struct Options {
    /// End after the story: with exit status 0 if every step showed what it should, else 1.
    #[arg(long)]
    once: bool,
}

/// The exit status of a program that SIGINT ended, as shells have it.
const INTERRUPTED: u8 = 130;

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let mut screen = Screen::of_stdout();
    let mut interrupts = match Interrupts::listen() {
        Ok(interrupts) => interrupts,
        Err(error) => return fail(&mut screen, &format!("cannot listen for Ctrl-C: {error}")),
    };
    // What is interrupted is dropped, and every process with it.
    let stack = select! {
        started = play(&mut screen) => match started {
            Ok(stack) => stack,
            Err(error) => return fail(&mut screen, &error.to_string()),
        },
        () = interrupts.next() => {
            screen.line("\nInterrupted.");
            return ExitCode::from(INTERRUPTED);
        }
    };
    let outcome = screen.conclude();
    if !options.once {
        serve::invite(&stack, &mut screen);
        interrupts.next().await;
    }
    outcome
}

async fn play(screen: &mut Screen) -> Result<Stack, Error> {
    place::check_ports()?;
    let mut stack = place::start(screen).await?;
    story::play(&mut stack, screen).await;
    Ok(stack)
}

fn fail(screen: &mut Screen, message: &str) -> ExitCode {
    screen.clear_progress();
    eprintln!("attache-demo: {message}");
    ExitCode::FAILURE
}

/// Everything that asks a program to end.
struct Interrupts([Signal; 3]);

impl Interrupts {
    fn listen() -> io::Result<Self> {
        let [interrupt, terminate, hangup] =
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
        Ok(Self([interrupt?, terminate?, hangup?]))
    }

    async fn next(&mut self) {
        let Self([interrupt, terminate, hangup]) = self;
        select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
