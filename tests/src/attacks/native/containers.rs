//! K-46 to K-49: what a container of the tier `docker` cannot do that a
//! container can.
//!
//! Invariant: the control is a container of the same image by the engine's own
//! client, with the very thing that the tier's request cannot say.

use std::sync::Arc;

use fumehood_host_fns::NativeTier as _;
use fumehood_native_tiers::{DockerTier, ImageId};

use super::outside::Outside;
use super::{KERNEL_SAYS, command, run, said};
use crate::harness::machine;
use crate::harness::{
    Attack, Attempt, Capability, Expected, Observed, REACHED, STOPPED, Setting, Tier, World,
};

const FIXED: &str = "the request for a container has fixed values for everything that would weaken it, and no field for the rest";

/// How a network says no that is not the machine's.
const OF_NETWORK: &[&str] = &["Connection refused", "Network is unreachable"];

/// A device that containers are not given, and most machines have.
const DEVICE: &str = "/dev/net/tun";

/// One thing that a container can be given by the engine's client.
struct Given {
    id: &'static str,
    property: &'static str,
    /// Prints REACHED if it got what it wanted.
    attack: &'static str,
    /// Arguments of `docker run` with which it does.
    with: &'static str,
}

const GIVEN: &[Given] = &[
    Given {
        id: "K-46b",
        property: "the engine's own socket is in no container",
        attack: "ls -l {engine} && echo REACHED",
        with: "--volume {engine}:{engine} --user 0",
    },
    Given {
        id: "K-46c",
        property: "the network of the machine is in no container",
        attack: "bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}' && echo REACHED",
        with: "--network host",
    },
    Given {
        id: "K-46d",
        property: "devices of the machine are in no container",
        attack: "head -c 0 /dev/net/tun && echo REACHED",
        with: "--device /dev/net/tun --user 0",
    },
    Given {
        id: "K-47",
        property: "a container has no capability of the machine's root",
        attack: "unshare -m true && echo REACHED",
        with: "--cap-add SYS_ADMIN --user 0",
    },
    Given {
        id: "K-47b",
        property: "processes of the machine are not seen in a container",
        attack: "grep -q . /proc/{victim}/cmdline && echo REACHED",
        with: "--pid host",
    },
    Given {
        id: "K-47c",
        property: "the engine's filter over system calls is on",
        attack: "unshare -U true && echo REACHED",
        with: "--security-opt seccomp=unconfined",
    },
    Given {
        id: "K-47d",
        property: "the image's file system is not changed",
        attack: "echo x > /usr/bin/new && echo REACHED",
        with: "--user 0",
    },
    Given {
        id: "K-47e",
        property: "a file with set-id bits gives no rights",
        attack: "grep -q 'NoNewPrivs:.0' /proc/self/status && echo REACHED || (grep -q 'NoNewPrivs:.1' /proc/self/status && ls /no/such/place)",
        with: "--user 0",
    },
];

fn container(world: &World<'_>) -> Result<(Arc<DockerTier>, ImageId), Observed> {
    world.stage().docker().map_err(Observed::waiting)
}

fn in_tier(world: &World<'_>, given: &Given) -> Observed {
    let (tier, _) = match container(world) {
        Ok(found) => found,
        Err(observed) => return observed,
    };
    let outside = match Outside::new(world) {
        Ok(outside) => outside,
        Err(error) => return Observed::broken(error.to_string()),
    };
    let text = filled(&outside, given.attack);
    match run(&*tier, &command(&*tier, &text)) {
        Ok(result) => {
            let (stdout, stderr) = (result.stdout.text(), result.stderr.text());
            if stdout.contains("REACHED") {
                Observed::fact(REACHED)
            } else if KERNEL_SAYS.iter().chain(OF_NETWORK).any(|told| stderr.contains(told)) {
                Observed::fact(STOPPED)
            } else {
                Observed::broken(format!("it ended in a third way: {}", said(&result)))
            }
        }
        Err(error) => Observed::broken(error.to_string()),
    }
}

fn filled(outside: &Outside, text: &str) -> String {
    let engine = DockerTier::find_socket().unwrap_or_default();
    outside.fill(text).replace("{engine}", &engine.to_string_lossy())
}

/// By the engine's client, with what the tier does not give.
fn by_client(world: &World<'_>, given: &Given) -> Observed {
    if given.with.contains(DEVICE) && !std::path::Path::new(DEVICE).exists() {
        return Observed::waiting(Capability::Equipment);
    }
    let (_, image) = match container(world) {
        Ok(found) => found,
        Err(observed) => return observed,
    };
    let outside = match Outside::new(world) {
        Ok(outside) => outside,
        Err(error) => return Observed::broken(error.to_string()),
    };
    let network = if given.with.contains("--network") { "" } else { "--network none" };
    let text = format!(
        "docker run --rm --user 65534 {network} {} --entrypoint /bin/bash {image} -c '{}' 2>&1",
        filled(&outside, given.with),
        filled(&outside, given.attack).replace('\'', "'\\''"),
    );
    reached(&text)
}

fn reached(text: &str) -> Observed {
    match machine::shell_output(text) {
        Ok(text) if text.contains("REACHED") => Observed::fact(REACHED),
        Ok(text) => Observed::fact(text),
        Err(error) => Observed::broken(error.to_string()),
    }
}

/// The image's own user is root and its own program says REACHED.
fn entry_point(world: &World<'_>) -> Observed {
    let (tier, _) = match container(world) {
        Ok(found) => found,
        Err(observed) => return observed,
    };
    match run(&*tier, &command(&*tier, "id -u; ls /root/x")) {
        Ok(result) => {
            let stdout = result.stdout.text();
            let root = stdout.lines().any(|line| line == "0");
            match (root || stdout.contains("REACHED"), stdout.trim().parse::<u32>()) {
                (true, _) => Observed::fact(REACHED),
                (false, Ok(_)) => Observed::fact(STOPPED),
                (false, Err(_)) => Observed::broken(said(&result)),
            }
        }
        Err(error) => Observed::broken(error.to_string()),
    }
}

/// What becomes of a name of an image.
fn named(world: &World<'_>, name: &str) -> Observed {
    if let Err(observed) = container(world) {
        return observed;
    }
    let image = match ImageId::parse(name) {
        Ok(image) => image,
        Err(error) => return Observed::refused(error.to_string()),
    };
    let socket = DockerTier::find_socket().unwrap_or_default();
    let tier = DockerTier::new(&socket, image);
    if let Err(unavailable) = tier.prepare(&[]) {
        let missing = unavailable.missing.iter();
        let names: Vec<_> = missing.map(|one| format!("{}: {}", one.name, one.reason)).collect();
        return Observed::refused(names.join("; "));
    }
    match run(&tier, &command(&tier, "echo REACHED")) {
        Ok(result) if result.stdout.text() == "REACHED\n" => Observed::fact(REACHED),
        Ok(result) => Observed::fact(said(&result)),
        Err(error) => Observed::refused(error.to_string()),
    }
}

fn names() -> Vec<Attack> {
    let one = |id, property, name: &'static str, says| {
        Attack::host(id, property, move |world, _| named(world, name))
            .tier(Tier::Docker)
            .control(
                Attempt::Host(Arc::new(|world: &World<'_>, _: &Setting| match container(world) {
                    Ok((_, image)) => named(world, image.as_str()),
                    Err(observed) => observed,
                })),
                Expected::Harmless(REACHED),
            )
            .expect(Expected::Refused(says), "an image is named by what never means another one")
    };
    vec![
        one(
            "K-49",
            "an image by a tag, which can mean another one tomorrow, is not run",
            "evil/img:latest",
            &["does not name one image for ever"],
        ),
        one(
            "K-49b",
            "nor is one by a digest that the engine does not have, and nothing is pulled",
            "evil/img@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            &["image"],
        ),
    ]
}

pub(super) fn all() -> Vec<Attack> {
    let mut all: Vec<Attack> = GIVEN
        .iter()
        .map(|given| {
            Attack::host(given.id, given.property, move |world, _| in_tier(world, given))
                .tier(Tier::Docker)
                .control(
                    Attempt::Host(Arc::new(move |world: &World<'_>, _: &Setting| {
                        by_client(world, given)
                    })),
                    Expected::Harmless(REACHED),
                )
                .expect(Expected::Stopped, FIXED)
        })
        .collect();
    all.push(
        Attack::host(
            "K-46",
            "the user and the program that an image names for itself are not used",
            |world, _| entry_point(world),
        )
        .tier(Tier::Docker)
        .control(
            Attempt::Host(Arc::new(|world: &World<'_>, _: &Setting| match container(world) {
                Ok((_, image)) => reached(&format!("docker run --rm --network none {image} 2>&1")),
                Err(observed) => observed,
            })),
            Expected::Harmless(REACHED),
        )
        .expect(Expected::Stopped, FIXED),
    );
    all.extend(names());
    all
}
