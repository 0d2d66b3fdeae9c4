//! Hosts, connections and questions of `fumehood run`.
//!
//! Invariant: what a grant brings is shown before anything runs; a question is
//! answered by a line that is typed after it was shown and the terminal was
//! quiet, at the terminal and nowhere else.

use std::fs::File;
use std::io::{Read, Write as _};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use clap::Args;
use fumehood::SandboxBuilder;
use fumehood::network::{
    Answer, ApprovalRequest, Approver, Approving, EgressOptions, GrantTerms, HostGrant, Proxy,
    granted_hosts,
};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::error::CliError;
use crate::terminal::escape_line;
use crate::{files, output};

/// Largest file of certificates.
const MAX_CERTIFICATE_BYTES: usize = 8 << 20;
/// How long the terminal is waited for before it is seen whether an answer is
/// still wanted.
const LOOK: Duration = Duration::from_millis(200);
/// How long nothing comes before a line can be an answer: a paste goes on after
/// the question.
const QUIET: Duration = Duration::from_millis(300);

/// The arguments about the network.
#[derive(Debug, Default, Args)]
pub(crate) struct NetArgs {
    /// Let the program send requests to a host: https, or http and https if a port is written
    #[arg(long, value_name = "HOST[:PORT]", value_parser = |text: &str| parse_host(text, false))]
    pub(crate) allow: Vec<HostGrant>,
    /// The same, for a name that leads to a private network
    #[arg(long, value_name = "HOST[:PORT]", value_parser = |text: &str| parse_host(text, true))]
    pub(crate) allow_private: Vec<HostGrant>,
    /// Ask at the terminal about requests that a rule of the policy sends to an approver
    #[arg(long)]
    pub(crate) ask: bool,
    /// Send every connection through an HTTP proxy
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_proxy)]
    pub(crate) proxy: Option<SocketAddr>,
    /// A file of certificates (PEM) that are trusted beside the public ones
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
}

fn parse_host(text: &str, private: bool) -> Result<HostGrant, String> {
    HostGrant::parse(text, private).map_err(|error| format!("{error}; {}", error.remedy()))
}

fn parse_proxy(text: &str) -> Result<SocketAddr, String> {
    let address = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    address.parse().ok().filter(|address: &SocketAddr| address.port() != 0).ok_or_else(|| {
        "it is not the address of a proxy; write ADDRESS:PORT, such as 192.0.2.1:3128".to_owned()
    })
}

/// Applies the arguments, and says what they bring.
///
/// # Errors
/// One sentence; nothing has run.
pub(crate) fn apply(
    args: &NetArgs,
    mut sandbox: SandboxBuilder,
) -> Result<SandboxBuilder, CliError> {
    let grants: Vec<HostGrant> = args.allow.iter().chain(&args.allow_private).cloned().collect();
    for granted in granted_hosts(&grants) {
        if let Some(service) = granted.companion_of {
            output::note(&format!("{} is allowed too, as {service} needs it", granted.host));
        }
    }
    for grant in &args.allow {
        sandbox = sandbox.allow(&grant.to_string());
    }
    for grant in &args.allow_private {
        sandbox = sandbox.allow_private(&grant.to_string());
    }
    let mut options = EgressOptions::default();
    if let Some(file) = &args.ca_file {
        options.extra_certificates =
            files::read_file(file, "the file of certificates", MAX_CERTIFICATE_BYTES)?;
    }
    options.proxy = args.proxy.map(|address| Proxy { address, authorization: None });
    sandbox = sandbox.egress_options(options);
    if args.ask {
        let terminal = Terminal::open().ok_or_else(|| {
            CliError::usage("--ask needs a terminal, and this command has none; leave it out")
        })?;
        sandbox = sandbox.approver(Arc::new(terminal));
    }
    Ok(sandbox)
}

/// The terminal of this command, whatever its standard streams are.
struct Terminal(Arc<Mutex<File>>);

impl Terminal {
    #[allow(clippy::disallowed_methods, reason = "the terminal is no file of the guest's")]
    fn open() -> Option<Self> {
        let file = File::options().read(true).write(true).open("/dev/tty").ok()?;
        Some(Self(Arc::new(Mutex::new(file))))
    }
}

/// A question and its answer.
#[derive(Default)]
struct Slot {
    state: Mutex<(Option<Answer>, Option<Waker>)>,
    withdrawn: AtomicBool,
}

impl Slot {
    fn answer(&self, answer: Answer) {
        let waker = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.0 = Some(answer);
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Waits for an answer; dropping it withdraws the question.
struct Asked(Arc<Slot>);

impl Future for Asked {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = state.0.take() {
            return Poll::Ready(answer);
        }
        state.1 = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.withdrawn.store(true, Ordering::Release);
    }
}

impl Approver for Terminal {
    fn ask(&self, request: ApprovalRequest) -> Approving {
        let slot = Arc::new(Slot::default());
        let (terminal, of_thread) = (Arc::clone(&self.0), Arc::clone(&slot));
        let asked = std::thread::Builder::new()
            .name("fumehood-ask".to_owned())
            .spawn(move || question(&terminal, &request, &of_thread));
        if asked.is_err() {
            slot.answer(Answer::Deny { reason: "nobody could be asked".to_owned() });
        }
        Box::pin(Asked(slot))
    }
}

/// Asks one question after the other, until it is answered or withdrawn.
fn question(terminal: &Mutex<File>, request: &ApprovalRequest, slot: &Slot) {
    let mut terminal = terminal.lock().unwrap_or_else(PoisonError::into_inner);
    let more = if request.grantable { ", a for this and the like in this session" } else { "" };
    let text = format!(
        "fumehood: the program asks for {}\nfumehood: y once{more}, anything else denies (within {} s): ",
        escape_line(&request.to_string()),
        request.ttl.as_secs()
    );
    let denied = |reason: &str| slot.answer(Answer::Deny { reason: reason.to_owned() });
    if !takes_lines(&*terminal) {
        return denied("the terminal is taking single keys for something else");
    }
    if terminal.write_all(text.as_bytes()).is_err() {
        return denied("the terminal is gone");
    }
    let is_over = || slot.withdrawn.load(Ordering::Acquire);
    let line = until_quiet(&mut *terminal, is_over).and_then(|dropped| {
        // A line that was begun before is no answer either.
        let _ = rustix::termios::tcflush(terminal.as_fd(), rustix::termios::QueueSelector::IFlush);
        if dropped {
            let text = b"\nfumehood: what came before does not count; y, or anything else: ";
            let _ = terminal.write_all(text);
        }
        read_line(&mut *terminal, is_over)
    });
    match line {
        Some(line) => slot.answer(meaning(line.trim(), request)),
        None => {
            let _ = terminal.write_all(b"\nfumehood: the question was withdrawn\n");
            denied("the terminal gave no answer");
        }
    }
}

/// Whether a terminal gives whole lines and not each key at once.
fn takes_lines(terminal: impl AsFd) -> bool {
    rustix::termios::tcgetattr(terminal)
        .is_ok_and(|modes| modes.local_modes.contains(rustix::termios::LocalModes::ICANON))
}

/// Takes everything that comes until nothing came for [`QUIET`], and says
/// whether anything did; `None` if nobody wants an answer any more.
fn until_quiet(input: &mut (impl Read + AsFd), is_over: impl Fn() -> bool) -> Option<bool> {
    let mut dropped = false;
    while !is_over() {
        match comes(&*input, QUIET) {
            Ok(false) => return Some(dropped),
            Ok(true) => {
                if input.read(&mut [0; 4096]).unwrap_or(0) == 0 {
                    return None;
                }
                dropped = true;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    None
}

/// A line that is typed; `None` if nobody wants it any more.
fn read_line(input: &mut (impl Read + AsFd), is_over: impl Fn() -> bool) -> Option<String> {
    while !is_over() {
        if comes(&*input, LOOK).unwrap_or(false) {
            let mut line = [0; 256];
            let length = input.read(&mut line).unwrap_or(0);
            let line = line.get(..length).unwrap_or_default();
            return Some(String::from_utf8_lossy(line).into_owned());
        }
    }
    None
}

/// Whether input is there within a time.
fn comes(input: &impl AsFd, within: Duration) -> Result<bool, rustix::io::Errno> {
    let within = Timespec::try_from(within).ok();
    let mut ready = [PollFd::new(input, PollFlags::IN)];
    rustix::event::poll(&mut ready, within.as_ref()).map(|count| count > 0)
}

/// What a typed line means.
fn meaning(line: &str, request: &ApprovalRequest) -> Answer {
    match line {
        "y" | "yes" => Answer::Once,
        "a" if request.grantable => Answer::Grant(GrantTerms {
            methods: vec![request.method.to_owned()],
            path_prefix: path_of(&request.url),
            ..GrantTerms::default()
        }),
        _ => Answer::Deny { reason: String::new() },
    }
}

/// The path of a canonical URL.
fn path_of(url: &str) -> String {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let from = rest.find('/').unwrap_or(rest.len());
    let path = rest.get(from..).unwrap_or_default();
    path.split('?').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &'static str, grantable: bool) -> ApprovalRequest {
        ApprovalRequest {
            id: 1,
            session: "s".to_owned(),
            method,
            url: "https://a.test:8443/v1/x?q=/y".to_owned(),
            body_bytes: Some(0),
            body_digest: None,
            rule: "r".to_owned(),
            grantable,
            ttl: Duration::from_secs(1),
        }
    }

    #[test]
    fn only_what_is_typed_for_it_says_yes() {
        let get = request("GET", true);
        assert_eq!(meaning("y", &get), Answer::Once);
        assert!(matches!(meaning("a", &get), Answer::Grant(terms) if terms.path_prefix == "/v1/x"));
        for line in ["", "n", "Y\u{1b}", "yy", "a b"] {
            assert!(matches!(meaning(line, &get), Answer::Deny { .. }), "{line}");
        }
        assert!(matches!(meaning("a", &request("DELETE", false)), Answer::Deny { .. }));
    }

    #[test]
    fn hosts_and_proxies_are_read_strictly() {
        assert!(parse_host("a.example:8443", false).is_ok());
        for text in ["https://a.example", "*", "a.example:0", "0.0.0.0"] {
            assert!(parse_host(text, true).unwrap_err().contains("; "), "{text}");
        }
        assert!(parse_proxy("http://192.0.2.1:3128/").is_ok());
        for text in ["", "proxy:3128", "192.0.2.1", "192.0.2.1:0"] {
            assert!(parse_proxy(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_paste_that_goes_on_after_the_question_is_no_answer() {
        let (mut terminal, mut keys) = std::io::pipe().unwrap();
        let (asked, is_asked) = std::sync::mpsc::channel();
        let typing = std::thread::spawn(move || {
            for _ in 0..20 {
                keys.write_all(b"y\n").unwrap();
                std::thread::sleep(Duration::from_millis(10));
            }
            // From here on a person has read the question.
            is_asked.recv().unwrap();
            keys.write_all(b"no\n").unwrap();
        });
        assert_eq!(until_quiet(&mut terminal, || false), Some(true));
        asked.send(()).unwrap();
        assert_eq!(read_line(&mut terminal, || false), Some("no\n".to_owned()));
        typing.join().unwrap();
        // Nobody types any more, or nobody wants to know.
        assert_eq!(until_quiet(&mut terminal, || false), None);
        assert_eq!(until_quiet(&mut terminal, || true), None);
        assert_eq!(read_line(&mut terminal, || true), None);
        let (mut terminal, _keys) = std::io::pipe().unwrap();
        assert_eq!(until_quiet(&mut terminal, || false), Some(false));
        assert!(!takes_lines(&terminal), "a pipe is no terminal");
    }

    #[test]
    fn a_question_that_is_dropped_is_withdrawn() {
        let slot = Arc::new(Slot::default());
        let mut asked = Box::pin(Asked(Arc::clone(&slot)));
        let mut context = Context::from_waker(Waker::noop());
        assert!(asked.as_mut().poll(&mut context).is_pending());
        slot.answer(Answer::Once);
        assert_eq!(asked.as_mut().poll(&mut context), Poll::Ready(Answer::Once));
        drop(asked);
        assert!(slot.withdrawn.load(Ordering::Acquire));
    }
}
