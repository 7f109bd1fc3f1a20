//! The memory of a process that has tokens.
//!
//! Neither of these calls fails on Linux: each only gives something up. Where a sandbox does not know them, the process
//! works as before.

use rustix::process::{Resource, Rlimit, setrlimit};

/// Keeps the memory and the environment of this process, which may have tokens, out of core dumps, and from other
/// processes of the same user: only those with the capability `CAP_SYS_PTRACE` may still look. What this process starts
/// is not concerned: the kernel makes each new program readable again. Does nothing on other systems than Linux.
pub fn keep_private() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
}

/// Forbids core dumps of this process and of all that it starts from now on.
pub fn forbid_core_dumps() {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = setrlimit(Resource::Core, none);
}
