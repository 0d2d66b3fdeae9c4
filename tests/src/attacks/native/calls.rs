//! System calls and opens that the helper makes itself, inside.
//!
//! Invariant: each of the helper's attempts belongs to exactly one attack here.

use super::in_both;
use crate::harness::{Attack, Capability, Observed, REACHED, STOPPED, Tier, World};

/// One attack: its id and property, and the attempts. `real` are those that get
/// through without a boundary whoever the user is, and are its control.
struct Group {
    id: &'static str,
    property: &'static str,
    real: &'static [&'static str],
    more: &'static [&'static str],
    /// A kernel may have been built without what they need.
    may_lack: bool,
}

const REASON: &str = "the filter over system calls, Landlock or the namespaces answer before the \
                      kernel looks at the arguments";

#[rustfmt::skip]
const GROUPS: &[Group] = &[
    Group { id: "K-01", property: "no system call is made around the filter by io_uring",
        real: &["io_uring_enter", "io_uring_register"], more: &["io_uring_setup"], may_lack: false },
    Group { id: "K-01b", property: "programs, counters and keys of the kernel are not reached",
        real: &["keyctl", "add_key"],
        more: &["bpf", "perf_event_open", "userfaultfd", "request_key"], may_lack: false },
    Group { id: "K-02b", property: "memory and descriptors of other processes are not reached by a call",
        real: &["process_vm_readv", "process_vm_writev", "pidfd_getfd"], more: &["ptrace", "kcmp"], may_lack: false },
    Group { id: "K-02c", property: "what the first process of the machine holds is not read or written",
        real: &[], more: &["read /proc/1/environ", "write /proc/1/mem"], may_lack: false },
    Group { id: "K-05", property: "a socket of a virtual machine's host is not made",
        real: &["socket AF_VSOCK"], more: &[], may_lack: true },
    Group { id: "K-07", property: "the tables of system calls for other programs are no way around",
        real: &["int 0x80 getpid"], more: &["x32 getpid"], may_lack: true },
    Group { id: "K-07b", property: "a process does not become one with weaker memory",
        real: &["personality"], more: &[], may_lack: false },
    Group { id: "K-08b", property: "no call makes or enters a namespace",
        real: &["unshare user", "setns", "clone user", "clone3"], more: &[], may_lack: false },
    // The kernel looks at the names that these are given before it looks at
    // rights, so that without a boundary every user sees them refused for those.
    Group { id: "K-08d", property: "no call of the older and newer interface mounts anything",
        real: &["mount", "umount2", "chroot"],
        more: &["pivot_root", "fsopen", "fsmount", "fspick", "open_tree", "move_mount",
            "mount_setattr"], may_lack: false },
    Group { id: "K-08f", property: "the machine is not administered from inside",
        real: &["name_to_handle_at"],
        more: &["open_by_handle_at", "init_module", "finit_module", "kexec_load", "reboot", "swapon",
            "syslog", "acct", "sethostname", "settimeofday"], may_lack: false },
    Group { id: "K-10d", property: "no file is made that no file system holds",
        real: &["memfd_create"], more: &[], may_lack: false },
    Group { id: "K-13", property: "nothing is typed into the terminal of whoever started it",
        real: &["ioctl TIOCSTI", "ioctl TIOCLINUX", "ioctl TIOCSTI, high bits set"],
        more: &["open /dev/tty"], may_lack: false },
    Group { id: "K-19d", property: "no memory or queue is made that outlives its process",
        real: &["shmget", "msgget"], more: &["mq_open"], may_lack: false },
    Group { id: "K-20c", property: "the process that guards a command is neither signalled nor changed by it",
        real: &["signal the helper itself"], more: &["prlimit of the first process"], may_lack: false },
    Group { id: "K-22h", property: "no socket is made, connected or bound",
        real: &["socket AF_INET", "socket AF_INET6", "socket AF_UNIX", "socket AF_NETLINK",
            "socketpair of datagrams", "connect", "bind"],
        more: &["socket AF_PACKET", "socket AF_ALG", "connect to the docker socket"], may_lack: false },
    Group { id: "K-34h", property: "files of the system that tell about others are not opened",
        real: &["list /var", "list /sys"],
        more: &["read /etc/shadow", "list /root", "write /usr/bin/env", "write /etc/passwd",
            "read /proc/kcore", "write /proc/sysrq-trigger"], may_lack: false },
    Group { id: "K-50c", property: "devices of the machine are not opened",
        real: &[], more: &["read /dev/kmsg", "read /dev/mem", "open /dev/kvm"], may_lack: false },
];

pub(super) fn all() -> Vec<Attack> {
    let one = |group: &'static Group| {
        let [stopped, through] =
            in_both(group.id, group.property, REASON, |tier, world| attempt(group, tier, world));
        match group.real {
            // Who may do them depends on the user, and so does the gap.
            [] => vec![stopped.no_control(
                "without a boundary the rights of the user decide, and the tests of the helper \
                 compare the whole list as root",
            )],
            _ => vec![stopped, through],
        }
    };
    GROUPS.iter().flat_map(one).collect()
}

fn attempt(group: &Group, tier: Tier, world: &World<'_>) -> Observed {
    let made = match world.stage().native(tier) {
        Ok(tier) => tier.attempts(),
        Err(capability) => return Observed::waiting(capability),
    };
    let made = match made {
        Ok(made) => made,
        Err(error) => return Observed::broken(error.to_string()),
    };
    let belongs = |name: &str| {
        GROUPS.iter().any(|group| group.real.iter().chain(group.more).any(|known| *known == name))
    };
    if let Some(attempt) = made.iter().find(|attempt| !belongs(&attempt.name)) {
        return Observed::broken(format!("the attempt {:?} belongs to no attack", attempt.name));
    }
    let names = |with: &[&'static str], and: &[&'static str]| -> Vec<&'static str> {
        with.iter().chain(and).copied().collect()
    };
    // Where there is no boundary only these are everybody's.
    let wanted = names(group.real, if tier == Tier::Process { &[] } else { group.more });
    let mut through = Vec::new();
    for name in &wanted {
        match made.iter().find(|attempt| attempt.name == *name) {
            None => return Observed::broken(format!("the helper makes no attempt {name:?}")),
            Some(attempt) if !attempt.prevented => through.push(*name),
            Some(_) => {}
        }
    }
    if through.is_empty() && tier == Tier::Process && group.may_lack {
        Observed::waiting(Capability::Equipment)
    } else if through.is_empty() {
        Observed::fact(STOPPED)
    } else if through == wanted {
        Observed::fact(REACHED)
    } else {
        Observed::fact(format!("through: {through:?} of {wanted:?}"))
    }
}
