//! Explains what is wrong with Consul, and what a person can do about it.

use super::conditions::Observed;
use consul_client as consul;
use consul_semaphore_api::conditions::Reason;

impl Observed<'_> {
    /// Returns the reason for a condition, and what a person can do about the error.
    pub(super) fn explain(&self, error: &consul::Error) -> (Reason, String) {
        if matches!(error, consul::Error::Denied(_)) {
            // The denied token may be an old one, which is still in use because the new one can't be read.
            if let Some((reason, message)) = self.access.problem() {
                return (reason, format!("{error}, and {message}"));
            }
            if error.is_unknown_token() {
                let message = format!(
                    "{error}: Consul does not know {}. It was deleted or has expired, or is another \
                     Consul's: bring one that this Consul knows",
                    self.access.whose_token()
                );
                return (Reason::PermissionDenied, message);
            }
            let message = format!(
                "{error}. Give {} this rule: it needs key write on the prefix, and session and node \
                 write on the node {}",
                self.access.whose_token(),
                self.node.unwrap_or_default()
            );
            return (Reason::PermissionDenied, message);
        }
        if matches!(error, consul::Error::TooLarge(_)) {
            let key = self.settings.prefix.lock_key();
            let message = format!(
                "{error}. Nothing is granted or released, and running Jobs go on: the key {key} is \
                 too large to be written in a transaction, of which Consul takes 512 KiB: some 380 \
                 KiB of value. Remove from it what is no semaphore's, or raise \
                 limits.kv_max_value_size and limits.txn_max_req_len in the configuration of all \
                 Consul servers"
            );
            return (Reason::LockTooLarge, message);
        }
        let folder = self.settings.prefix.folder();
        if matches!(error, consul::Error::PrefixTooLarge(_)) {
            let message = format!(
                "{error}: the semaphores of this namespace take most of it, and {folder} most of theirs. Nothing is \
                 granted; running Jobs go on while it can be shown that their slots are held. It is tried again \
                 by itself. Delete what is no semaphore's: consul kv get -keys {folder}; have fewer \
                 ConsulSemaphores with this prefix; or raise the operator's --consul-memory and its memory limit"
            );
            return (Reason::PrefixTooLarge, message);
        }
        if matches!(error, consul::Error::AnswerTooLarge(_)) {
            let message = format!(
                "{error} where it lists {folder}, which is more than 5000 holders need. Nothing is granted; \
                 running Jobs go on while it can be shown that their slots are held. Delete what is no \
                 semaphore's: consul kv get -keys {folder}"
            );
            return (Reason::LockTooLarge, message);
        }
        if matches!(error, consul::Error::Unreachable { .. }) {
            let message = format!(
                "{error}. {BY_ITSELF}. If it has never worked, look at the operator's --consul-address \
                 (CONSUL_HTTP_ADDR)"
            );
            return (Reason::ConsulUnreachable, message);
        }
        let (reason, advice) = advise(error);
        (reason, format!("{error}. {advice}"))
    }
}

/// Returns the reason for a condition, and what a person can do about an error that has no other explanation.
fn advise(error: &consul::Error) -> (Reason, &'static str) {
    match error {
        consul::Error::NotSent(_) | consul::Error::NoTurn(_) => {
            (Reason::ConsulUnreachable, BY_ITSELF)
        }
        consul::Error::NoToken => (Reason::TokenNotFound, BY_ITSELF),
        consul::Error::LoginFailed(_) => (
            Reason::LoginFailed,
            "Look at the auth method and its binding rules in Consul, and at the operator's \
             --consul-auth-method and --consul-bearer-token-file. It is tried again by itself",
        ),
        consul::Error::Unsupported(_) => (
            Reason::EnterpriseOnly,
            "spec.consul.namespace and partition need Consul Enterprise: make another \
             ConsulSemaphore without them",
        ),
        consul::Error::UnknownDatacenter => (
            Reason::UnknownDatacenter,
            "Create another ConsulSemaphore with a datacenter that this Consul knows",
        ),
        consul::Error::Withheld(_) => (Reason::IdentityUnknown, BY_ITSELF),
        consul::Error::NoLeader { .. } => (Reason::NoLeader, BY_ITSELF),
        consul::Error::TooManyRequests(_) => (Reason::TooManyRequests, BY_ITSELF),
        _ => (Reason::UnexpectedAnswer, BY_ITSELF),
    }
}

const BY_ITSELF: &str = "Nothing is granted; running Jobs go on while it can be shown that their \
                         slots are held. It is tried again by itself";
