//! seccomp filter: system calls that convey, and the programs that it starts, may make.
//!
//! The list contains the calls of a network service (compare `systemd-analyze syscall-filter
//! @system-service`), without calls that administer a host. Other calls fail with `EPERM`, and the
//! caller logs the failure. Calls that are newer than the list fail with `ENOSYS`, as on an older
//! kernel, so that libraries fall back to older calls.

use std::collections::BTreeMap;
use std::env::consts::ARCH;

#[allow(clippy::wildcard_imports, reason = "the lists below are nothing but its names")]
use libc::*;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, sock_filter};

use super::KeptPrivilege;

/// Calls that exist on every architecture.
const ALLOWED: &[c_long] = &[
    SYS_read,
    SYS_write,
    SYS_readv,
    SYS_writev,
    SYS_pread64,
    SYS_pwrite64,
    SYS_preadv,
    SYS_pwritev,
    SYS_preadv2,
    SYS_pwritev2,
    SYS_lseek,
    SYS_close,
    SYS_close_range,
    SYS_openat,
    SYS_openat2,
    SYS_fstat,
    SYS_newfstatat,
    SYS_statx,
    SYS_statfs,
    SYS_fstatfs,
    SYS_getdents64,
    SYS_readlinkat,
    SYS_faccessat,
    SYS_faccessat2,
    SYS_fchmod,
    SYS_fchmodat,
    SYS_fchown,
    SYS_fchownat,
    SYS_umask,
    SYS_ftruncate,
    SYS_truncate,
    SYS_fallocate,
    SYS_fsync,
    SYS_fdatasync,
    SYS_flock,
    SYS_utimensat,
    SYS_unlinkat,
    SYS_mkdirat,
    SYS_renameat,
    SYS_renameat2,
    SYS_linkat,
    SYS_symlinkat,
    SYS_getcwd,
    SYS_chdir,
    SYS_fchdir,
    SYS_dup,
    SYS_dup3,
    SYS_pipe2,
    SYS_fcntl,
    SYS_ioctl,
    SYS_splice,
    SYS_tee,
    SYS_sendfile,
    SYS_copy_file_range,
    SYS_memfd_create,
    SYS_mmap,
    SYS_munmap,
    SYS_mprotect,
    SYS_mremap,
    SYS_madvise,
    SYS_msync,
    SYS_mincore,
    SYS_mlock,
    SYS_munlock,
    SYS_brk,
    SYS_membarrier,
    SYS_socket,
    SYS_socketpair,
    SYS_bind,
    SYS_listen,
    SYS_accept,
    SYS_accept4,
    SYS_connect,
    SYS_getsockname,
    SYS_getpeername,
    SYS_getsockopt,
    SYS_setsockopt,
    SYS_shutdown,
    SYS_sendto,
    SYS_sendmsg,
    SYS_sendmmsg,
    SYS_recvfrom,
    SYS_recvmsg,
    SYS_recvmmsg,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_epoll_pwait2,
    SYS_ppoll,
    SYS_pselect6,
    SYS_eventfd2,
    SYS_signalfd4,
    SYS_timerfd_create,
    SYS_timerfd_settime,
    SYS_timerfd_gettime,
    SYS_inotify_init1,
    SYS_inotify_add_watch,
    SYS_inotify_rm_watch,
    SYS_futex,
    SYS_futex_waitv,
    SYS_set_robust_list,
    SYS_get_robust_list,
    SYS_rseq,
    SYS_set_tid_address,
    SYS_clone,
    SYS_clone3,
    SYS_execve,
    SYS_execveat,
    SYS_wait4,
    SYS_waitid,
    SYS_exit,
    SYS_exit_group,
    SYS_kill,
    SYS_tkill,
    SYS_tgkill,
    SYS_pidfd_open,
    SYS_pidfd_send_signal,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_rt_sigtimedwait,
    SYS_rt_sigsuspend,
    SYS_rt_sigpending,
    SYS_rt_sigqueueinfo,
    SYS_sigaltstack,
    SYS_restart_syscall,
    SYS_nanosleep,
    SYS_clock_nanosleep,
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_gettimeofday,
    SYS_setitimer,
    SYS_getitimer,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_sched_setaffinity,
    SYS_sched_getparam,
    SYS_sched_getscheduler,
    SYS_getcpu,
    SYS_getpriority,
    SYS_setpriority,
    SYS_getpid,
    SYS_getppid,
    SYS_gettid,
    SYS_getpgid,
    SYS_setpgid,
    SYS_getsid,
    SYS_setsid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_getgroups,
    SYS_getresuid,
    SYS_getresgid,
    SYS_setuid,
    SYS_setgid,
    SYS_setgroups,
    SYS_setresuid,
    SYS_setresgid,
    SYS_capget,
    SYS_capset,
    SYS_prctl,
    SYS_prlimit64,
    SYS_getrusage,
    SYS_times,
    SYS_uname,
    SYS_sysinfo,
    SYS_getrandom,
    SYS_getxattr,
    SYS_lgetxattr,
    SYS_fgetxattr,
    SYS_seccomp,
    SYS_landlock_create_ruleset,
    SYS_landlock_add_rule,
    SYS_landlock_restrict_self,
];

/// Older variants of allowed calls. Among the supported architectures, only x86-64 has them.
#[cfg(target_arch = "x86_64")]
const OLDER: &[c_long] = &[
    SYS_open,
    SYS_stat,
    SYS_lstat,
    SYS_poll,
    SYS_select,
    SYS_pipe,
    SYS_dup2,
    SYS_access,
    SYS_fork,
    SYS_vfork,
    SYS_creat,
    SYS_readlink,
    SYS_unlink,
    SYS_mkdir,
    SYS_rmdir,
    SYS_rename,
    SYS_link,
    SYS_symlink,
    SYS_chmod,
    SYS_chown,
    SYS_epoll_create,
    SYS_epoll_wait,
    SYS_eventfd,
    SYS_signalfd,
    SYS_inotify_init,
    SYS_getdents,
    SYS_getpgrp,
    SYS_arch_prctl,
    SYS_time,
    SYS_alarm,
    SYS_pause,
    SYS_utime,
    SYS_getrlimit,
    SYS_setrlimit,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[c_long] = &[];

/// Additional call of the packet modes, for BPF programs and their maps.
const PACKETS: &[c_long] = &[SYS_bpf];

/// Number of the newest call that the list covers: `futex_requeue` of Linux 6.7. Calls since Linux
/// 5.1 have the same number on all architectures.
const NEWEST: u32 = 456;

/// Restricts this thread, and the threads that it starts, to the calls that convey needs.
pub(super) fn restrict(forwards_packets: bool) -> Result<(), KeptPrivilege> {
    let what = "privileges.seccomp has no effect, so convey can make all system calls";
    let program = program(forwards_packets).map_err(|error| KeptPrivilege::because(what, &error))?;
    seccompiler::apply_filter(&program).map_err(|error| KeptPrivilege::because(what, &error))?;
    // If two filters refuse a call, the one that was installed last sets the error (seccomp(2)).
    seccompiler::apply_filter(&newer_than_the_list()).map_err(|error| KeptPrivilege::because(what, &error))
}

fn program(forwards_packets: bool) -> Result<BpfProgram, seccompiler::BackendError> {
    let packets = if forwards_packets { PACKETS } else { &[] };
    let calls = ALLOWED.iter().chain(OLDER).chain(packets);
    let rules: BTreeMap<i64, Vec<_>> = calls.map(|call| (*call, Vec::new())).collect();
    let refuse = SeccompAction::Errno(EPERM.unsigned_abs());
    SeccompFilter::new(rules, refuse, SeccompAction::Allow, TargetArch::try_from(ARCH)?)?.try_into()
}

/// Filter that refuses system calls newer than the list.
fn newer_than_the_list() -> BpfProgram {
    let instruction =
        |code: u32, jt, jf, k| sock_filter { code: u16::try_from(code).unwrap_or_default(), jt, jf, k };
    vec![
        // `seccomp_data` begins with the number of the system call.
        instruction(BPF_LD | BPF_W | BPF_ABS, 0, 0, 0),
        instruction(BPF_JMP | BPF_JGT | BPF_K, 0, 1, NEWEST),
        instruction(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | ENOSYS.unsigned_abs()),
        instruction(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW),
    ]
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn the_filter_can_be_made_for_every_mode() {
        let without = program(false).unwrap();
        let with = program(true).unwrap();
        assert!(with.len() > without.len(), "{} and {}", with.len(), without.len());
    }

    #[test]
    fn refused_and_unknown_system_calls_fail_with_different_errors() {
        // A filter applies only to its thread.
        let tried = std::thread::spawn(|| {
            restrict(false).unwrap();
            #[expect(unsafe_code, reason = "no library makes calls that do not exist")]
            // SAFETY: neither call takes a pointer.
            let call = |number| match unsafe { syscall(number, 0, 0, 0, 0, 0) } {
                -1 => std::io::Error::last_os_error().raw_os_error(),
                _ => None,
            };
            [
                call(SYS_getpid),
                call(SYS_unshare),
                call(c_long::from(NEWEST) + 1),
                call(c_long::from(NEWEST) + 100),
            ]
        });
        assert_eq!(tried.join().unwrap(), [None, Some(EPERM), Some(ENOSYS), Some(ENOSYS)]);
    }

    #[test]
    fn the_list_has_nothing_that_is_newer_than_it_says() {
        let newest = [ALLOWED, OLDER, PACKETS].concat().into_iter().max();
        assert!(newest.is_some_and(|newest| newest <= c_long::from(NEWEST)));
    }

    #[test]
    fn administrative_system_calls_are_in_no_list() {
        let all = [ALLOWED, OLDER, PACKETS].concat();
        let never = [
            SYS_mount,
            SYS_umount2,
            SYS_pivot_root,
            SYS_reboot,
            SYS_init_module,
            SYS_finit_module,
            SYS_kexec_load,
            SYS_ptrace,
            SYS_setns,
            SYS_unshare,
            SYS_settimeofday,
            SYS_clock_settime,
            SYS_swapon,
            SYS_keyctl,
            SYS_process_vm_writev,
            SYS_perf_event_open,
            SYS_io_uring_setup,
        ];
        assert!(never.iter().all(|call| !all.contains(call)));
    }
}
