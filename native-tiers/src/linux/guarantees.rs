//! What a tier of the helper can promise, told by what was found out.

use fumehood_host_fns::{Guarantee, GuaranteeReport, GuaranteeState, Missing, Probe, Unavailable};

use super::Found;
use crate::protocol::Boundary;
use GuaranteeState::{Enforced, Missing as No, Partial};

/// The state of a guarantee, with its reason and its remedy.
type Told = (GuaranteeState, String, String);

fn told(state: GuaranteeState, reason: &str, remedy: &str) -> Told {
    (state, reason.to_owned(), remedy.to_owned())
}

fn of(found: &Found, guarantee: Guarantee) -> Told {
    let has = |name: &str| found.controls.iter().any(|control| control == name);
    if guarantee == Guarantee::TreeMemory {
        return tree_memory(found, has("no-proc"));
    }
    match found.boundary {
        Boundary::None => without_boundary(guarantee),
        Boundary::Kernel { namespaces: true } => with_namespaces(guarantee, has("no-proc")),
        Boundary::Kernel { namespaces: false } => alone(found, guarantee),
    }
}

fn without_boundary(guarantee: Guarantee) -> Told {
    if guarantee == Guarantee::ProcessTree {
        let reason = "orphans are adopted and ended, but a command can end what adopts them";
        return told(Partial, reason, "use the tier `landlock` or `docker`");
    }
    told(No, "this tier is no boundary", "use the tier `landlock` or `docker`")
}

fn with_namespaces(guarantee: Guarantee, no_proc: bool) -> Told {
    let reason = match guarantee {
        Guarantee::Files => "Landlock, and a file system of its own",
        Guarantee::SystemCalls => "a list of allowed calls, no capability, no new privileges",
        Guarantee::Network => "a network namespace without an interface, and no socket call",
        Guarantee::ProcessTree => "the kernel ends a process namespace with its first process",
        Guarantee::PidView if no_proc => "a process namespace, and no /proc at all",
        Guarantee::PidView => "a process namespace with a /proc of its own",
        Guarantee::PrivateMounts => {
            "/tmp, /dev/shm, the home and the working directory are its own"
        }
        Guarantee::TreeMemory => "",
    };
    told(Enforced, reason, "")
}

fn alone(found: &Found, guarantee: Guarantee) -> Told {
    let why = |what: &str| {
        let first = found.alone.first();
        let reason = first.map_or_else(String::new, |missing| missing.reason.clone());
        let remedy = first.map_or_else(String::new, |missing| missing.remedy.clone());
        (No, format!("{what}: {reason}"), remedy)
    };
    match guarantee {
        Guarantee::Files => {
            let reason = "Landlock, and no call for a file's mode, owner, times or attributes";
            told(Enforced, reason, "")
        }
        Guarantee::SystemCalls => {
            told(Enforced, "a list of allowed calls, no capability, no new privileges", "")
        }
        Guarantee::Network => told(Enforced, "no socket call is allowed", ""),
        Guarantee::ProcessTree => {
            let reason = "orphans are adopted and ended; Landlock keeps signals inside";
            told(Enforced, reason, "")
        }
        Guarantee::PidView => why("no process namespace"),
        Guarantee::PrivateMounts => why("no mount namespace"),
        Guarantee::TreeMemory => why("unknown"),
    }
}

fn tree_memory(found: &Found, no_proc: bool) -> Told {
    match &found.groups {
        Ok(_) => told(Enforced, "a control group", ""),
        Err(why) => {
            let remedy = "delegate a control group (version 2) with memory and pids to this user";
            if no_proc {
                let reason = format!("one process at a time only: {why}, and no /proc to sum by");
                return (No, reason, remedy.to_owned());
            }
            let reason = format!("summed every 20 ms and ended beyond: {why}");
            (Partial, reason, remedy.to_owned())
        }
    }
}

/// Every guarantee of a tier.
pub(crate) fn probe(tier: &str, found: Result<&Found, Unavailable>) -> Probe {
    let mut guarantees = Vec::new();
    for guarantee in Guarantee::ALL {
        let (state, reason, remedy) = match &found {
            Ok(found) => of(found, guarantee),
            Err(unavailable) => {
                let named = |missing: &&Missing| missing.name == guarantee.name();
                let missing = unavailable.missing.iter().find(named);
                let missing = missing.or(unavailable.missing.first());
                let text = |part: fn(&Missing) -> &String| missing.map(part).cloned();
                let reason = text(|missing| &missing.reason).unwrap_or_default();
                (No, reason, text(|missing| &missing.remedy).unwrap_or_default())
            }
        };
        guarantees.push(GuaranteeReport { guarantee, state, reason, remedy });
    }
    let first = found.err().and_then(|unavailable| unavailable.missing.into_iter().next());
    Probe {
        tier: tier.to_owned(),
        available: first.is_none(),
        reason: first.as_ref().map_or_else(String::new, |missing| missing.reason.clone()),
        remedy: first.map_or_else(String::new, |missing| missing.remedy),
        guarantees,
    }
}

/// What of the required guarantees does not hold in full.
pub(crate) fn lacking(found: &Found, required: &[Guarantee]) -> Vec<Missing> {
    let lack = |guarantee: &Guarantee| {
        let (state, reason, remedy) = of(found, *guarantee);
        let name = guarantee.name().to_owned();
        (state != Enforced).then_some(Missing { name, reason, remedy })
    };
    required.iter().filter_map(lack).collect()
}
