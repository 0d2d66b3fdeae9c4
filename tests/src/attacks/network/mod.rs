//! N: requests to the network; S, H: approvals and policies that change.
//!
//! What: each attack is agent Python, or a record that it encodes itself
//! (`network.py`), against real servers on the loopback interface.
//!
//! Invariant: what is compared is what came back, which names were looked up
//! and which addresses were dialled, so that a refusal that comes after the
//! look-up is no success. A control shows that the same code gets an answer
//! where it may.

mod addresses;
mod approvals;
mod authority;
mod policies;
mod redirects;
mod replies;
mod servers;
mod urls;

use std::sync::Arc;

use fumehood::{Sandbox, SandboxBuilder};

use crate::harness::{Attack, Attempt, Expected, Observed, Setting, World, run_in};
use servers::Net;

/// Functions of the attacking code.
const PRELUDE: &str = include_str!("network.py");
/// What the host that is allowed answers, and what is seen of it.
const ANSWERED: &str = "hello; looked up: api.allowed.test; dialled: 93.184.215.14:80";
const NOTHING_SEEN: &str = "; looked up: -; dialled: -";

/// What may be reached.
#[derive(Clone, Copy)]
enum Grants {
    /// Hosts as on the command line; `private:` before one allows private
    /// networks.
    Hosts(&'static [&'static str]),
    /// A policy's text without its first line.
    Policy(&'static str),
}

/// The host that is allowed, encrypted and not.
const USUAL: Grants = Grants::Hosts(&["api.allowed.test", "api.allowed.test:80"]);

impl Grants {
    fn apply(self, builder: SandboxBuilder) -> SandboxBuilder {
        match self {
            Self::Policy(text) => builder.policy(format!("version = 1\n{text}")),
            Self::Hosts(hosts) => {
                hosts.iter().fold(builder, |builder, host| match host.strip_prefix("private:") {
                    Some(host) => builder.allow_private(host),
                    None => builder.allow(host),
                })
            }
        }
    }
}

/// Servers and names of an attack.
type Prepare = fn(&mut Net) -> std::io::Result<()>;

fn nothing_more(_: &mut Net) -> std::io::Result<()> {
    Ok(())
}

/// One attack before it is put together.
struct Case {
    id: &'static str,
    property: &'static str,
    grants: Grants,
    prepare: Prepare,
    /// Runs one after the other, in one sandbox.
    codes: &'static [&'static str],
    expected: String,
    reason: &'static str,
    control: (Grants, Prepare, &'static str, &'static str),
}

impl Case {
    /// Code that gets nothing and leaves nothing: no look-up, no connection.
    fn new(id: &'static str, property: &'static str, code: &'static [&'static str]) -> Self {
        Self {
            id,
            property,
            grants: USUAL,
            prepare: nothing_more,
            codes: code,
            expected: String::new(),
            reason: "",
            control: (USUAL, nothing_more, "print(raw('http://api.allowed.test/'))", ANSWERED),
        }
    }

    fn grants(mut self, grants: Grants) -> Self {
        self.grants = grants;
        self.control.0 = grants;
        self
    }

    fn prepare(mut self, prepare: Prepare) -> Self {
        self.prepare = prepare;
        self
    }

    fn control(
        mut self,
        grants: Grants,
        prepare: Prepare,
        code: &'static str,
        expected: &'static str,
    ) -> Self {
        self.control = (grants, prepare, code, expected);
        self
    }

    /// Expects this printed, and nothing looked up or dialled.
    fn unseen(self, printed: &str, reason: &'static str) -> Attack {
        self.expect(&format!("{printed}{NOTHING_SEEN}"), reason)
    }

    fn expect(mut self, expected: &str, reason: &'static str) -> Attack {
        self.expected = expected.to_owned();
        self.reason = reason;
        self.attack()
    }

    fn attack(self) -> Attack {
        let Self { id, property, grants, prepare, codes, expected, reason, control } = self;
        let (control_grants, control_prepare, control_code, control_expected) = control;
        // An expectation is data of the program, like those of other attacks.
        let expected: &'static str = Box::leak(expected.into_boxed_str());
        Attack::host(id, property, move |world, setting| {
            cells(world, setting, grants, prepare, codes)
        })
        .control(
            Attempt::Host(Arc::new(move |world, setting| {
                cells(world, setting, control_grants, control_prepare, &[control_code])
            })),
            Expected::Harmless(control_expected),
        )
        .expect(Expected::Harmless(expected), reason)
    }
}

/// A sandbox with these servers around it.
fn sandbox(
    world: &World<'_>,
    setting: &Setting,
    grants: Grants,
    net: &Net,
) -> Result<Sandbox, Observed> {
    let builder = world.builder(setting).map_err(Observed::broken)?;
    let builder = grants.apply(builder).egress_options(net.options());
    builder.build().map_err(|error| Observed::broken(error.to_string()))
}

/// What one run printed, or how it ended.
fn printed(outcome: &fumehood::Outcome) -> String {
    if outcome.is_success() {
        return outcome.stdout_text().trim_end().to_owned();
    }
    let error = outcome.error.as_ref();
    let error = error.map_or(String::new(), |error| format!(" {}", error.type_name));
    format!("{}{error} {}", outcome.kind.as_str(), outcome.stdout_text().trim_end())
}

/// Runs cells one after the other; what they print is the fact, with what was
/// looked up and dialled.
fn cells(
    world: &World<'_>,
    setting: &Setting,
    grants: Grants,
    prepare: Prepare,
    codes: &[&str],
) -> Observed {
    let net = Net::new().and_then(|mut net| prepare(&mut net).map(|()| net));
    let net = match net {
        Ok(net) => net,
        Err(error) => return Observed::broken(error.to_string()),
    };
    let sandbox = match sandbox(world, setting, grants, &net) {
        Ok(sandbox) => sandbox,
        Err(observed) => return observed,
    };
    let mut texts = Vec::new();
    let mut seen = Vec::new();
    for code in codes {
        let ran = run_in(&sandbox, setting.limits.wall, format!("{PRELUDE}\n{code}"));
        texts.push(printed(&ran.outcome));
        seen.push(ran);
    }
    Observed::fact(format!("{}; {}", texts.join(" | "), net.seen())).seen(seen)
}

/// Every attack of this kind.
pub(super) fn all() -> Vec<Attack> {
    let mut all = addresses::all();
    all.extend(urls::all());
    all.extend(policies::all());
    all.extend(redirects::all());
    all.extend(replies::all());
    all.extend(approvals::all());
    all
}
