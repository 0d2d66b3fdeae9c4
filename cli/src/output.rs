//! The process's own standard output and standard error.
//!
//! Invariant: bytes pass unchanged unless the stream is a terminal, where
//! [`crate::terminal`] makes them safe; nothing here panics when the reader
//! has gone.

use std::io::IsTerminal as _;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, TryLockError};

use fumehood::{Canceller, Outcome, Stream};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::terminal::{Decoder, Invalid, escape, escape_line};

/// Prints text on standard output.
pub(crate) fn print(text: &str) {
    // There is nobody to tell if the reader has gone.
    let _ = write_all(Stream::Stdout, text.as_bytes());
}

/// Prints a value as one line of JSON. Control characters that JSON does not
/// escape by itself are escaped too, which leaves the value the same.
pub(crate) fn print_json(value: &serde_json::Value) -> Result<(), Errno> {
    let mut line = String::new();
    for c in value.to_string().chars() {
        if ('\u{7f}'..='\u{9f}').contains(&c) {
            line.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            line.push(c);
        }
    }
    line.push('\n');
    write_all(Stream::Stdout, line.as_bytes())
}

/// Tells the user something on standard error, on one line.
pub(crate) fn note(message: &str) {
    let _ = write_all(Stream::Stderr, format!("fumehood: {}\n", escape_line(message)).as_bytes());
}

/// Writes everything, past the buffers of the standard library.
pub(crate) fn write_all(stream: Stream, bytes: &[u8]) -> Result<(), Errno> {
    match stream {
        Stream::Stdout => write_to(&std::io::stdout(), bytes),
        Stream::Stderr => write_to(&std::io::stderr(), bytes),
    }
}

fn write_to(fd: &impl AsFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            // Whoever shares the pipe made it non-blocking.
            Err(Errno::AGAIN) => {
                rustix::event::poll(&mut [PollFd::new(fd, PollFlags::OUT)], None)
                    .map(|_| ())
                    .or_else(|error| if error == Errno::INTR { Ok(()) } else { Err(error) })?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether standard error is a terminal.
pub(crate) fn stderr_is_terminal() -> bool {
    std::io::stderr().is_terminal()
}

/// Stops a run from anywhere, also before the run has been started.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    wanted: AtomicBool,
    canceller: OnceLock<Canceller>,
}

impl Stop {
    /// Stops the run, now or as soon as there is one.
    pub(crate) fn stop(&self) {
        self.wanted.store(true, Ordering::SeqCst);
        if let Some(canceller) = self.canceller.get() {
            canceller.cancel();
        }
    }

    /// Names the run to stop.
    pub(crate) fn attach(&self, canceller: Canceller) {
        let _ = self.canceller.set(canceller.clone());
        if self.wanted.load(Ordering::SeqCst) {
            canceller.cancel();
        }
    }
}

/// Passes a program's output on while it runs.
#[derive(Debug)]
pub(crate) struct Live {
    stdout: Mutex<Channel>,
    stderr: Mutex<Channel>,
}

#[derive(Debug)]
struct Channel {
    stream: Stream,
    /// On a terminal.
    decoder: Option<Decoder>,
    /// Bytes of the program that were passed on.
    passed: usize,
    ends_in_newline: bool,
    failed: Option<Errno>,
}

impl Live {
    pub(crate) fn new() -> Self {
        let channel = |stream, is_terminal: bool| {
            Mutex::new(Channel {
                stream,
                decoder: is_terminal.then(|| Decoder::new(Invalid::Escape)),
                passed: 0,
                ends_in_newline: true,
                failed: None,
            })
        };
        Self {
            stdout: channel(Stream::Stdout, std::io::stdout().is_terminal()),
            stderr: channel(Stream::Stderr, std::io::stderr().is_terminal()),
        }
    }

    fn channel(&self, stream: Stream) -> &Mutex<Channel> {
        match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        }
    }

    /// Passes bytes on. When standard output cannot take them, the run is
    /// stopped: nobody would see what it does.
    pub(crate) fn write(&self, stream: Stream, bytes: &[u8], stop: &Stop) {
        let mut channel = self.channel(stream).lock().unwrap_or_else(PoisonError::into_inner);
        channel.passed = channel.passed.saturating_add(bytes.len());
        channel.write(bytes);
        if channel.failed.is_some() && stream == Stream::Stdout {
            stop.stop();
        }
    }

    /// Prints what was not passed on when the run was stopped, what is left of
    /// cut characters, and then the value of a cell, on a line of its own.
    /// Returns why standard output could not be written.
    pub(crate) fn finish(&self, outcome: &Outcome, value: Option<&str>) -> Option<Errno> {
        for stream in [Stream::Stderr, Stream::Stdout] {
            // A channel that is still locked belongs to a run that was given
            // up in the middle of a write.
            let mut channel = match self.channel(stream).try_lock() {
                Ok(channel) => channel,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            let written = match stream {
                Stream::Stdout => &outcome.stdout,
                Stream::Stderr => &outcome.stderr,
            };
            let rest = written.get(channel.passed..).unwrap_or_default();
            channel.write(rest);
            if let Some(rest) = channel.decoder.as_mut().map(Decoder::finish) {
                channel.put(rest.as_bytes());
            }
            if stream == Stream::Stdout {
                if let Some(value) = value {
                    if !channel.ends_in_newline {
                        channel.write(b"\n");
                    }
                    channel.write(value.as_bytes());
                    channel.write(b"\n");
                }
                return channel.failed;
            }
        }
        None
    }
}

impl Channel {
    fn write(&mut self, bytes: &[u8]) {
        match self.decoder.as_mut().map(|decoder| decoder.push(bytes)) {
            Some(text) => self.put(escape(&text).as_bytes()),
            None => self.put(bytes),
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        if let Some(last) = bytes.last() {
            self.ends_in_newline = *last == b'\n';
        }
        self.failed = write_all(self.stream, bytes).err();
    }
}
