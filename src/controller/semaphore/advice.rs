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
                    "{error}: Consul does not know {}. The token was deleted, has expired, or belongs to \
                     another Consul: use one that this Consul knows",
                    self.access.whose_token()
                );
                return (Reason::PermissionDenied, message);
            }
            let message = format!(
                "{error}. Give {} the missing rule: the token needs key write on the prefix, and session \
                 and node write on the node {}",
                self.access.whose_token(),
                self.node.unwrap_or_default()
            );
            return (Reason::PermissionDenied, message);
        }
        if matches!(error, consul::Error::TooLarge(_)) {
            let key = self.settings.prefix.lock_key();
            let message = format!(
                "{error}. No slots are granted or released, and running Jobs continue: the key {key} is \
                 too large for a transaction, which Consul limits to 512 KiB, or about 380 KiB of \
                 value. Remove data that does not belong to the semaphore from the key, or raise \
                 limits.kv_max_value_size and limits.txn_max_req_len in the configuration of all \
                 Consul servers"
            );
            return (Reason::LockTooLarge, message);
        }
        let folder = self.settings.prefix.folder();
        if matches!(error, consul::Error::PrefixTooLarge(_)) {
            let message = format!(
                "{error}: this namespace uses more of that memory than any other namespace, and {folder} is its largest \
                 prefix. {BY_ITSELF}. Delete data that does not belong to the semaphore \
                 (consul kv get -keys {folder}), have fewer ConsulSemaphores with this prefix, or raise the \
                 operator's --consul-memory and its memory limit"
            );
            return (Reason::PrefixTooLarge, message);
        }
        if matches!(error, consul::Error::AnswerTooLarge(_)) {
            let message = format!(
                "{error} where it lists {folder}, which is more than 5000 holders need. {NOTHING_GRANTED}. Delete data that \
                 does not belong to the semaphore: consul kv get -keys {folder}"
            );
            return (Reason::LockTooLarge, message);
        }
        if matches!(error, consul::Error::Unreachable { .. }) {
            let message = format!(
                "{error}. {BY_ITSELF}. If the connection has never worked, check the operator's \
                 --consul-address (CONSUL_HTTP_ADDR)"
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
            "Check the auth method and its binding rules in Consul, and the operator's \
             --consul-auth-method and --consul-bearer-token-file. The operator retries automatically",
        ),
        consul::Error::Unsupported(_) => (
            Reason::EnterpriseOnly,
            "spec.consul.namespace and partition need Consul Enterprise: create another \
             ConsulSemaphore without these fields",
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

const BY_ITSELF: &str = "No slots are granted. Running Jobs continue for as long as the operator can confirm that \
                         their slots are held. The operator retries automatically";

const NOTHING_GRANTED: &str = "No slots are granted. Running Jobs continue for as long as the operator can confirm \
                               that their slots are held";
