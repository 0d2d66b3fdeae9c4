//! What there is to reach outside of a boundary.
#![allow(
    clippy::disallowed_methods,
    reason = "listens on the loopback interface, to be reached or not"
)]

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;

use crate::harness::World;
use crate::harness::machine::Victim;

/// Files, listeners and a process, all of them ended with it.
pub(super) struct Outside {
    dir: PathBuf,
    port: u16,
    victim: Victim,
    _listeners: (std::net::TcpListener, UnixListener, UnixListener),
    /// An open file whose descriptor a new process inherits.
    _inherited: std::fs::File,
}

impl Outside {
    /// # Errors
    /// The system's reason.
    pub(super) fn new(world: &World<'_>) -> std::io::Result<Self> {
        use crate::harness::machine;
        let dir = world.path("beyond");
        machine::make_directory(&dir)?;
        machine::write(&dir.join("secret"), "REACHED\n")?;
        machine::write(&dir.join("secret.cut"), "x")?;
        machine::write(&dir.join("token"), "#!/bin/sh\necho REACHED\n")?;
        machine::set_mode(&dir.join("token"), 0o755)?;
        let inherited = machine::append_to(&dir.join("inherited-descriptor"))?;
        rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty())?;
        let tcp = std::net::TcpListener::bind("127.0.0.1:0")?;
        let port = tcp.local_addr()?.port();
        let named = UnixListener::bind(dir.join("socket"))?;
        let hidden = SocketAddr::from_abstract_name(abstract_name(port))?;
        let hidden = UnixListener::bind_addr(&hidden)?;
        let victim = Victim::start(("FUMEHOOD_VICTIM", "REACHED"))?;
        Ok(Self { dir, port, victim, _listeners: (tcp, named, hidden), _inherited: inherited })
    }

    /// The text of an attack with what it names.
    pub(super) fn fill(&self, text: &str) -> String {
        let at = |name: &str| self.dir.join(name).to_string_lossy().into_owned();
        [
            ("{pid}", std::process::id().to_string()),
            ("{victim}", self.victim.id().to_string()),
            ("{port}", self.port.to_string()),
            ("{socket}", at("socket")),
            ("{abstract}", abstract_name(self.port)),
            ("{secret}", at("secret")),
            ("{token}", at("token")),
            ("{inherited}", "inherited-descriptor".to_owned()),
        ]
        .iter()
        .fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }
}

fn abstract_name(port: u16) -> String {
    format!("fumehood-attack-{port}")
}
