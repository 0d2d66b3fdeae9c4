//! What rules say about descriptors, and policies that are replaced.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use fumehood_guest_abi::ToolErrorKind;
use fumehood_policies::Policy;
use serde_json::json;

use super::tools_tests::{guest_with, policy};
use crate::environment::{SimpleWaiter, WaitResult, Waiter, Wake};
use crate::errno::Errno;
use crate::live::LivePolicy;
use crate::testing::{CREATE, Guest, R, TRUNCATE, W, path};
use crate::tools::{ToolSet, file_tools};

const OPEN: &str = "version = 1\n[fs]\n[[tools.rules]]\nid = \"tools\"\ntools = [\"*\"]\n";

/// The open policy, which denies one operation below `/work`.
fn denying(operation: &str) -> Policy {
    policy(&format!(
        "{OPEN}[[fs.rules]]\nid = \"no\"\naction = \"deny\"\npaths = [\"/work/**\"]\noperations = [\"{operation}\"]\n"
    ))
}

#[test]
fn a_file_is_read_through_no_descriptor_where_reading_is_denied() {
    let mut guest = Guest::with(|config| {
        config.policy = Some(denying("read"));
        config.files.push((path("/work/secret"), b"hush".to_vec()));
    });
    let denied = Err(Errno::Acces);
    for (open_flags, rights) in [
        (0, R),
        (0, R | W),
        (CREATE, R),
        (CREATE, R | W),
        (TRUNCATE, R | W),
        (CREATE | TRUNCATE, R | W),
    ] {
        assert_eq!(guest.open("/work/secret", open_flags, rights), denied, "{open_flags} {rights}");
    }
    assert_eq!(guest.open("/work/new", CREATE, R), denied);
    for open_flags in [0, CREATE, TRUNCATE] {
        let fd = guest.open("/work/secret", open_flags, W).unwrap();
        assert_eq!(guest.read(fd, 9), Err(Errno::Badf));
        assert_eq!(guest.write(fd, b"x"), Ok(1));
        guest.close(fd).unwrap();
    }
}

#[test]
fn a_state_opens_nothing_that_the_policy_denies_now() {
    let live = Arc::new(LivePolicy::new(policy(OPEN)));
    let given = Arc::clone(&live);
    let mut guest = Guest::with(|config| {
        config.live_policy = Some(given);
        config.files.push((path("/work/secret"), b"hush".to_vec()));
    });
    let both = guest.open("/work/secret", 0, R | W).unwrap();
    let written = guest.open("/work/secret", 0, W).unwrap();
    let state = guest.broker.snapshot();
    assert_eq!(live.replace(denying("read")), Ok(2));
    guest.broker.restore(state);
    assert_eq!(guest.read(both, 4), Err(Errno::Badf));
    assert_eq!(guest.write(both, b"x"), Err(Errno::Badf));
    assert_eq!(guest.write(written, b"x"), Ok(1));
}

#[test]
fn a_replaced_policy_holds_for_the_next_call_of_the_embedder() {
    let live = Arc::new(LivePolicy::new(policy(OPEN)));
    let given = Arc::clone(&live);
    let (mut guest, _) = guest_with(|config| config.live_policy = Some(given));
    assert_eq!(guest.broker.call_tool("echo", &json!({"a": 1})), Ok(json!({"a": 1})));
    assert_eq!(live.replace(policy("version = 1\n[fs]\n[tools]\n")), Ok(2));
    let denied = guest.broker.call_tool("echo", &json!({"a": 1})).unwrap_err();
    assert_eq!(denied.kind, Some(ToolErrorKind::Denied));
}

/// Replaces the policy at its first look at whether the run is to end.
struct Replacing {
    live: Arc<LivePolicy>,
    next: Mutex<Option<Policy>>,
    real: SimpleWaiter,
}

impl Waiter for Replacing {
    fn wait(&self, timeout: Duration) -> WaitResult {
        self.real.wait(timeout)
    }

    fn park(&self, timeout: Duration) -> Wake {
        if let Some(policy) = self.next.lock().unwrap().take() {
            self.live.replace(policy).unwrap();
        }
        self.real.park(timeout)
    }

    fn waker(&self) -> Waker {
        self.real.waker()
    }
}

#[test]
fn a_replaced_policy_holds_for_the_next_step_of_a_file_tool() {
    let live = Arc::new(LivePolicy::new(policy(OPEN)));
    let waiter = Replacing {
        live: Arc::clone(&live),
        next: Mutex::new(Some(denying("remove"))),
        real: SimpleWaiter::default(),
    };
    let mut guest = Guest::with(|config| {
        let mut set = ToolSet::new();
        for tool in file_tools().unwrap() {
            set.add(tool).unwrap();
        }
        config.tools = Arc::new(set);
        config.waiter = Arc::new(waiter);
        config.live_policy = Some(live);
        config.files.push((path("/work/d/a"), b"x".to_vec()));
    });
    let arguments = json!({"path": "/work/d", "recursive": true});
    let error = guest.broker.call_tool("delete", &arguments).unwrap_err();
    assert_eq!(error.kind, Some(ToolErrorKind::Failed));
    assert!(error.message.starts_with("PermissionError"), "{}", error.message);
    assert_eq!(guest.get("/work/d/a").unwrap(), b"x");
}
