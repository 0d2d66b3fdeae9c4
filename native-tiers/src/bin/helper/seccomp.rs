//! Filters over system calls, made of the data in [`crate::rules`].
//!
//! Invariant: two filters are installed, in this order: the list of what is
//! allowed, and the list of what is answered as not there, which begins with
//! the check for the x32 table. A filter that cannot be made or installed is an
//! error; nothing runs without.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
    sock_filter,
};

use crate::rules::{ALLOWED, ALLOWED_OLDER, NOT_THERE, conditional};

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: TargetArch = TargetArch::x86_64;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: TargetArch = TargetArch::aarch64;

/// The bit of a system call's number that names the x32 table.
const X32_BIT: u32 = 0x4000_0000;

/// What of a filter could not be made.
pub(crate) type Failure = Box<dyn std::error::Error>;

fn error(number: i32) -> SeccompAction {
    SeccompAction::Errno(u32::try_from(number).unwrap_or(1))
}

/// What is allowed; the rest is `EPERM`, another architecture the end.
pub(crate) fn allowed() -> Result<BpfProgram, Failure> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.iter().chain(ALLOWED_OLDER).map(|number| (*number, Vec::new())).collect();
    for (number, choices) in conditional() {
        let mut all = Vec::new();
        for conditions in choices {
            let conditions = conditions
                .into_iter()
                .map(|(place, width, how, value)| SeccompCondition::new(place, width, how, value))
                .collect::<Result<Vec<_>, _>>()?;
            all.push(SeccompRule::new(conditions)?);
        }
        rules.insert(number, all);
    }
    let filter = SeccompFilter::new(rules, error(libc::EPERM), SeccompAction::Allow, ARCHITECTURE)?;
    Ok(filter.try_into()?)
}

/// What is answered as not there, behind the check for the x32 table.
pub(crate) fn not_there() -> Result<BpfProgram, Failure> {
    let rules = NOT_THERE.iter().map(|number| (*number, Vec::new())).collect();
    let filter =
        SeccompFilter::new(rules, SeccompAction::Allow, error(libc::ENOSYS), ARCHITECTURE)?;
    let program: BpfProgram = filter.try_into()?;
    Ok(x32_check().into_iter().chain(program).collect())
}

/// Ends a process that calls by the x32 table. The number is at offset 0 of
/// `struct seccomp_data`; jumps are relative, so a program can follow.
fn x32_check() -> Vec<sock_filter> {
    if cfg!(not(target_arch = "x86_64")) {
        return Vec::new();
    }
    let load = 0x20; // BPF_LD | BPF_W | BPF_ABS
    let at_least = 0x35; // BPF_JMP | BPF_JGE | BPF_K
    let answer = 0x06; // BPF_RET | BPF_K
    vec![
        sock_filter { code: load, jt: 0, jf: 0, k: 0 },
        sock_filter { code: at_least, jt: 0, jf: 1, k: X32_BIT },
        sock_filter { code: answer, jt: 0, jf: 0, k: libc::SECCOMP_RET_KILL_PROCESS },
    ]
}

/// Installs both filters in this thread, for ever.
pub(crate) fn install() -> Result<(), Failure> {
    let (first, second) = (allowed()?, not_there()?);
    seccompiler::apply_filter(&first)?;
    seccompiler::apply_filter(&second)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_lists_name_each_call_once_and_what_is_answered_is_let_through() {
        let allowed: BTreeSet<_> = ALLOWED.iter().collect();
        assert_eq!(allowed.len(), ALLOWED.len());
        for number in NOT_THERE {
            assert!(allowed.contains(number), "{number} would be EPERM");
        }
        for (number, choices) in conditional() {
            assert!(!allowed.contains(&number), "{number} is allowed without its condition");
            assert!(choices.iter().all(|choice| !choice.is_empty()), "{number}");
        }
    }

    #[test]
    fn what_is_left_out_on_purpose_is_in_no_list() {
        let conditional: BTreeSet<_> =
            conditional().into_iter().map(|(number, _)| number).collect();
        for number in [
            libc::SYS_socket,
            libc::SYS_connect,
            libc::SYS_bind,
            libc::SYS_listen,
            libc::SYS_accept4,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_mount,
            libc::SYS_umount2,
            libc::SYS_pivot_root,
            libc::SYS_fsopen,
            libc::SYS_fsmount,
            libc::SYS_move_mount,
            libc::SYS_open_tree,
            libc::SYS_mount_setattr,
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_pidfd_getfd,
            libc::SYS_kcmp,
            libc::SYS_perf_event_open,
            libc::SYS_bpf,
            libc::SYS_userfaultfd,
            libc::SYS_keyctl,
            libc::SYS_add_key,
            libc::SYS_request_key,
            libc::SYS_init_module,
            libc::SYS_finit_module,
            libc::SYS_kexec_load,
            libc::SYS_reboot,
            libc::SYS_syslog,
            libc::SYS_open_by_handle_at,
            libc::SYS_name_to_handle_at,
            libc::SYS_swapon,
            libc::SYS_acct,
            libc::SYS_settimeofday,
            libc::SYS_clock_settime,
            libc::SYS_sethostname,
            libc::SYS_mq_open,
            libc::SYS_semget,
            libc::SYS_msgget,
        ] {
            assert!(!ALLOWED.contains(&number) && !conditional.contains(&number), "{number}");
        }
    }

    #[test]
    fn the_filters_can_be_made() {
        assert!(allowed().unwrap().len() < 4096);
        let program = not_there().unwrap();
        if cfg!(target_arch = "x86_64") {
            assert_eq!(program.get(1).map(|one| one.k), Some(X32_BIT));
        }
    }
}
