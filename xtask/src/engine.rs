//! A container engine for the tests of the tier `docker`, where none is there.
//!
//! Invariant: what was started here is ended here, by its own number, and its
//! images and containers go with the directory they are in; an engine that the
//! machine has already is used and left alone.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// How long an engine may take to answer first, and to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// An engine that was started for the tests.
pub(crate) struct Engine {
    daemon: Child,
    place: PathBuf,
}

impl Engine {
    /// Starts `dockerd` without a network of its own: containers of the tier
    /// have none.
    ///
    /// # Errors
    /// It cannot be started, or does not answer.
    pub(crate) fn start() -> anyhow::Result<Self> {
        // The name of a socket is short.
        let place = std::env::temp_dir().join(format!("fumehood-engine-{}", std::process::id()));
        std::fs::create_dir(&place).context("cannot make a directory for the engine")?;
        let log = std::fs::File::create(place.join("log")).context("cannot make its log")?;
        let daemon = Command::new("dockerd")
            .args(["--iptables=false", "--bridge=none", "--log-level=warn"])
            .arg(format!("--host={}", host(&place)))
            .arg("--data-root")
            .arg(place.join("data"))
            .arg("--exec-root")
            .arg(place.join("exec"))
            .arg("--pidfile")
            .arg(place.join("pid"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("cannot share its log")?)
            .stderr(log)
            .spawn()
            .context("cannot start dockerd, which docker.io has")?;
        let mut engine = Self { daemon, place };
        let start = Instant::now();
        while !engine.answers() {
            let ended = engine.daemon.try_wait().context("cannot look at dockerd")?;
            if ended.is_some() || start.elapsed() > PATIENCE {
                let log = std::fs::read_to_string(engine.place.join("log")).unwrap_or_default();
                let last: Vec<&str> = log.lines().rev().take(5).collect();
                bail!("dockerd does not answer; the end of its log: {}", last.join(" | "));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(engine)
    }

    /// What `DOCKER_HOST` has to be.
    pub(crate) fn host(&self) -> String {
        host(&self.place)
    }

    fn answers(&self) -> bool {
        std::os::unix::net::UnixStream::connect(self.place.join("socket")).is_ok()
    }
}

fn host(place: &std::path::Path) -> String {
    format!("unix://{}", place.join("socket").display())
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Asked, it takes the containerd that it started with it.
        let number = self.daemon.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &number]).status();
        let start = Instant::now();
        while matches!(self.daemon.try_wait(), Ok(None)) {
            if start.elapsed() > PATIENCE {
                let _ = self.daemon.kill();
                let _ = self.daemon.wait();
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        // What dockerd leaves behind is held by a mount.
        let left = self.place.join("exec/netns/default");
        if left.exists() {
            let _ = Command::new("umount").arg(&left).status();
        }
        if let Err(error) = std::fs::remove_dir_all(&self.place) {
            eprintln!("{} cannot be removed: {error}", self.place.display());
        }
    }
}
