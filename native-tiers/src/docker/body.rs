//! The request that makes a container.
//!
//! Invariant: everything that would weaken a container has a fixed value here;
//! a [`fumehood_host_fns::NativeCommand`] cannot say privileges, devices,
//! capabilities, namespaces of the machine or a network, because it has no field
//! for them.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    MountBindOptions, MountBindOptionsPropagationEnum, MountType, ResourcesUlimits, RestartPolicy,
    RestartPolicyNameEnum,
};
use fumehood_host_fns::{Access, NativeCommand, NativeError};

use super::image::ImageId;

/// The label that every container of this tier has; its value names the process
/// that made it.
pub(super) const LABEL: &str = "org.fumehood.run";

/// `nobody`, for a machine's root user: a container is never started as root.
const NOBODY: u32 = 65534;

/// Directories in memory that a command has for itself; each gets a quarter of
/// the bytes, and `/dev/shm` the fourth.
const SCRATCH: [&str; 3] = ["/tmp", "/work", "/home/agent"];

/// Processors at once, in billionths, at most.
const PROCESSORS: i64 = 2_000_000_000;

const VARIABLES: &[(&str, &str)] = &[
    ("HOME", "/home/agent"),
    ("LANG", "C.UTF-8"),
    ("PATH", "/usr/local/bin:/usr/bin:/bin"),
    ("PYTHONDONTWRITEBYTECODE", "1"),
    ("PYTHONUNBUFFERED", "1"),
    ("TERM", "dumb"),
    ("TMPDIR", "/tmp"),
];

/// Who runs a container: this user and group, or nobody for root.
pub(super) fn user() -> (u32, u32) {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    if user.is_root() {
        return (NOBODY, NOBODY);
    }
    (user.as_raw(), if group.is_root() { NOBODY } else { group.as_raw() })
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn limit(name: &str, value: u64) -> ResourcesUlimits {
    let value = Some(number(value));
    ResourcesUlimits { name: Some(name.to_owned()), soft: value, hard: value }
}

/// The body for a command.
///
/// # Errors
/// [`NativeError::Command`] for a command without a program or a mount point
/// that no engine takes.
pub(super) fn body(
    command: &NativeCommand,
    image: &ImageId,
    owner: &str,
    processors: usize,
) -> Result<ContainerCreateBody, NativeError> {
    let who = user();
    let (program, arguments) = command
        .argv
        .split_first()
        .ok_or_else(|| NativeError::Command("there is no program".to_owned()))?;
    let mut env: std::collections::BTreeMap<&str, &str> = VARIABLES.iter().copied().collect();
    env.extend(command.variables.iter());
    Ok(ContainerCreateBody {
        image: Some(image.as_str().to_owned()),
        user: Some(format!("{}:{}", who.0, who.1)),
        // The image's own entry point is not used.
        entrypoint: Some(vec![program.clone()]),
        cmd: Some(arguments.to_vec()),
        env: Some(env.into_iter().map(|(name, value)| format!("{name}={value}")).collect()),
        working_dir: Some(command.cwd.clone()),
        hostname: Some("fumehood".to_owned()),
        tty: Some(false),
        open_stdin: Some(true),
        stdin_once: Some(true),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        network_disabled: Some(true),
        labels: Some(HashMap::from([(LABEL.to_owned(), owner.to_owned())])),
        host_config: Some(host(command, who, processors)?),
        ..ContainerCreateBody::default()
    })
}

fn host(
    command: &NativeCommand,
    (user, group): (u32, u32),
    processors: usize,
) -> Result<HostConfig, NativeError> {
    let limits = &command.limits;
    let memory = number(limits.memory_bytes);
    let seconds = limits.cpu.as_secs().saturating_add(u64::from(limits.cpu.subsec_nanos() != 0));
    let quarter = (limits.scratch_bytes / 4).max(1);
    let taken = |at: &str| command.mounts.iter().any(|mount| mount.at.as_bytes() == at.as_bytes());
    // By their owner: some runtimes give them the mode of what they cover.
    let options = format!("rw,nosuid,nodev,noexec,size={quarter},mode=0755,uid={user},gid={group}");
    let scratch = SCRATCH.iter().filter(|at| !taken(at));
    let there = i64::try_from(processors).unwrap_or(1).max(1).saturating_mul(1_000_000_000);
    Ok(HostConfig {
        network_mode: Some("none".to_owned()),
        cap_drop: Some(vec!["ALL".to_owned()]),
        cap_add: Some(Vec::new()),
        security_opt: Some(vec!["no-new-privileges:true".to_owned()]),
        privileged: Some(false),
        readonly_rootfs: Some(true),
        ipc_mode: Some("private".to_owned()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        devices: Some(Vec::new()),
        memory: Some(memory),
        // Both together: no swap beyond the memory.
        memory_swap: Some(memory),
        oom_kill_disable: Some(false),
        pids_limit: Some(number(limits.processes)),
        nano_cpus: Some(PROCESSORS.min(there)),
        ulimits: Some(vec![
            limit("core", 0),
            limit("cpu", seconds.max(1)),
            limit("fsize", limits.file_bytes),
            limit("nofile", limits.open_files),
        ]),
        shm_size: Some(number(quarter)),
        tmpfs: Some(scratch.map(|at| ((*at).to_owned(), options.clone())).collect()),
        mounts: Some(command.mounts.iter().map(mount).collect::<Result<_, _>>()?),
        // Output goes to whoever reads it and nowhere else.
        log_config: Some(HostConfigLogConfig {
            typ: Some("none".to_owned()),
            config: Some(HashMap::new()),
        }),
        // So that orphans are waited for and signals reach the command.
        init: Some(true),
        auto_remove: Some(false),
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        ..HostConfig::default()
    })
}

fn mount(mount: &fumehood_host_fns::NativeMount) -> Result<Mount, NativeError> {
    if mount.overlay.is_some() {
        let message = "a container cannot be given an overlay; give it a whole copy";
        return Err(NativeError::Command(message.to_owned()));
    }
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec());
    let target = text(mount.at.as_bytes())
        .map_err(|_| NativeError::Command("a mount point is not UTF-8".to_owned()))?;
    let source = text(mount.host.as_os_str().as_encoded_bytes())
        .map_err(|_| NativeError::Command("a directory's name is not UTF-8".to_owned()))?;
    if mount.access == Access::ReadWrite && !mount.execute {
        let message = "a container cannot be given a directory to change but not to run from; leave out one of both";
        return Err(NativeError::Command(message.to_owned()));
    }
    Ok(Mount {
        target: Some(target),
        source: Some(source),
        typ: Some(MountType::BIND),
        read_only: Some(mount.access == Access::ReadOnly),
        bind_options: Some(MountBindOptions {
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "tests")]

    use std::sync::Arc;
    use std::time::Duration;

    use fumehood_host_fns::{GuestPath, NativeLimits, NativeMount, Variables};
    use serde_json::{Value, json};

    use super::*;

    fn made() -> Value {
        let dir = Arc::new(std::fs::File::open("/").unwrap().into());
        let at = GuestPath::parse(&GuestPath::root(), b"/work").unwrap().path;
        let mount = NativeMount {
            at,
            dir,
            host: "/home/me/pro ject,ro".into(),
            access: Access::ReadOnly,
            execute: false,
            overlay: None,
        };
        let variables = Variables::new([("A".to_owned(), "b c".to_owned())]).unwrap();
        let command = NativeCommand {
            argv: ["/bin/sh", "-c", "ls; --privileged"].map(str::to_owned).to_vec(),
            variables,
            cwd: "/work".to_owned(),
            stdin: Arc::from([].as_slice()),
            timeout: Duration::from_secs(1),
            limits: NativeLimits::default(),
            mounts: vec![mount],
        };
        let image = ImageId::parse(&format!("sha256:{}", "a".repeat(64))).unwrap();
        let mut body: Value =
            serde_json::to_value(body(&command, &image, "1000:7", 8).unwrap()).unwrap();
        // By who runs the test.
        let user = body["User"].take();
        let user = user.as_str().unwrap().to_owned();
        assert!(!user.starts_with("0:") && !user.ends_with(":0"));
        let own = user.split_once(':').map(|(user, group)| format!("uid={user},gid={group}"));
        let text = body.to_string().replace(&own.unwrap(), "uid=U,gid=G");
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn the_request_is_what_it_was() {
        let pinned: Value = serde_json::from_str(include_str!("../../tests/docker.json")).unwrap();
        let made = made();
        assert_eq!(made, pinned, "if this is meant, write it to tests/docker.json: {made:#}");
    }

    #[test]
    fn the_request_weakens_nothing() {
        let made = made();
        let host = &made["HostConfig"];
        for (name, value) in [
            ("NetworkMode", json!("none")),
            ("CapDrop", json!(["ALL"])),
            ("CapAdd", json!([])),
            ("SecurityOpt", json!(["no-new-privileges:true"])),
            ("Privileged", json!(false)),
            ("ReadonlyRootfs", json!(true)),
            ("IpcMode", json!("private")),
            ("CgroupnsMode", json!("private")),
            ("Devices", json!([])),
            ("OomKillDisable", json!(false)),
        ] {
            assert_eq!(host[name], value, "{name}");
        }
        for name in [
            "Binds",
            "DeviceRequests",
            "DeviceCgroupRules",
            "PidMode",
            "UTSMode",
            "UsernsMode",
            "VolumesFrom",
            "GroupAdd",
            "ExtraHosts",
            "PortBindings",
            "PublishAllPorts",
            "Sysctls",
            "Runtime",
            "MaskedPaths",
            "ReadonlyPaths",
            "CgroupParent",
            "OomScoreAdj",
        ] {
            assert!(host[name].is_null(), "{name} is {}", host[name]);
        }
        assert_eq!(host["Memory"], host["MemorySwap"]);
        assert!(host["PidsLimit"].as_i64().is_some_and(|limit| limit > 0));
    }
}
