//! The memory of a process that has tokens.
//!
//! Neither of these calls fails on Linux: each only gives something up. Where a sandbox does not know them, the process
//! works as before.

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// Keeps the memory and the environment of this process, which may have tokens, out of core dumps, and from other
/// processes of the same user: only those with the capability `CAP_SYS_PTRACE` may still look. What this process starts
/// is not concerned: the kernel makes each new program readable again.
pub fn keep_private() {
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Forbids core dumps of this process and of all that it starts from now on.
pub fn forbid_core_dumps() {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = setrlimit(Resource::Core, none);
}
