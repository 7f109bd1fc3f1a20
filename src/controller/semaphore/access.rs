//! Decides how a `ConsulSemaphore` may use Consul: with the operator's token, with its own token, or not at all.

use std::sync::Arc;

use crate::controller::{
    Context,
    consul_target::ConsulTarget,
    prefix_watches::WatchCredential,
    secret::{SecretToken, TokenChanges},
    watches::reference_of,
};
use consul_client::clock::Moment;
use consul_semaphore::engine::ConsulAccess;
use consul_semaphore_api::{ConsulSemaphore, TokenSecretRef, conditions::Reason};

/// Description of an access for conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stated {
    problem: Option<(Reason, String)>,
    whose_token: String,
}

impl Stated {
    /// Returns the problem of the access: see [`SemaphoreAccess::problem`].
    pub(super) fn problem(&self) -> Option<(Reason, String)> {
        self.problem.clone()
    }

    /// Returns the name of the token: see [`SemaphoreAccess::whose_token`].
    pub(super) fn whose_token(&self) -> &str {
        &self.whose_token
    }
}

/// Access of a semaphore to Consul.
pub(super) struct SemaphoreAccess {
    kind: AccessKind,
    /// Time of the last change of the access.
    since: Moment,
}

enum AccessKind {
    /// The semaphore uses the operator's own token.
    Own,
    /// The semaphore must not use the operator's own token: the reason, and what to do.
    Barred(String),
    /// The semaphore uses the token of its Secret.
    Secret {
        from: TokenSecretRef,
        token: Arc<SecretToken>,
    },
}

impl SemaphoreAccess {
    /// Decides how this semaphore may use Consul. If it has its own token, reading the token starts at once.
    pub(super) fn new(context: &Arc<Context>, semaphore: &ConsulSemaphore) -> Self {
        let reference = reference_of(semaphore);
        let kind = if let Some(from) = secret_ref(semaphore) {
            AccessKind::Secret {
                token: SecretToken::shared(context, &reference.namespace, from),
                from: from.clone(),
            }
        } else {
            let tenancy = &context.shared.tenancy;
            match tenancy.check(&reference.namespace, &semaphore.prefix()) {
                Ok(()) => AccessKind::Own,
                Err(refusal) => AccessKind::Barred(refusal.to_string()),
            }
        };
        Self {
            kind,
            since: Moment::now(),
        }
    }

    /// Whether the access still fits the spec of this semaphore.
    pub(super) fn suits(&self, semaphore: &ConsulSemaphore) -> bool {
        match (&self.kind, secret_ref(semaphore)) {
            (AccessKind::Secret { from, .. }, Some(wanted)) => from == wanted,
            // The fields that decide whether the operator's own token may be used are immutable.
            (AccessKind::Own | AccessKind::Barred(_), None) => true,
            _ => false,
        }
    }

    /// Returns the target in Consul, if there is access.
    pub(super) fn target(
        &self,
        context: &Context,
        semaphore: &ConsulSemaphore,
    ) -> Option<ConsulTarget> {
        match &self.kind {
            AccessKind::Own => Some(context.own_target(semaphore)),
            AccessKind::Barred(_) => None,
            AccessKind::Secret { token, .. } => token
                .token()
                .map(|token| context.tenants_target(semaphore, token)),
        }
    }

    /// Returns the credential of the access, for a semaphore in this namespace.
    pub(super) fn credential(&self, namespace: &Arc<str>) -> WatchCredential {
        match &self.kind {
            AccessKind::Own | AccessKind::Barred(_) => WatchCredential::Own,
            AccessKind::Secret { from, .. } => {
                WatchCredential::Secret(namespace.clone(), from.clone())
            }
        }
    }

    /// Returns what is wrong with the access, and what to do. The last good token may still be in use.
    pub(super) fn problem(&self) -> Option<(Reason, String)> {
        match &self.kind {
            AccessKind::Own => None,
            AccessKind::Barred(why) => Some((Reason::PrefixNotAllowed, why.clone())),
            AccessKind::Secret { token, .. } => {
                token.problem().map(|why| (Reason::TokenNotFound, why))
            }
        }
    }

    /// Describes the access for conditions.
    pub(super) fn stated(&self) -> Stated {
        Stated {
            problem: self.problem(),
            whose_token: self.whose_token(),
        }
    }

    /// Returns a name for the token, for people.
    fn whose_token(&self) -> String {
        match &self.kind {
            AccessKind::Own | AccessKind::Barred(_) => "the operator's token".to_owned(),
            AccessKind::Secret { from, .. } => format!("the token of the Secret {}", from.name),
        }
    }

    /// Returns the access for the engine, with this target.
    pub(super) fn for_target(&self, target: Option<&ConsulTarget>) -> ConsulAccess {
        let since = self.since;
        match (target, &self.kind) {
            (Some(target), _) => ConsulAccess::Granted {
                operations: target.consul.transaction_capacity(),
            },
            (None, AccessKind::Barred(_)) => ConsulAccess::Refused { since },
            (None, AccessKind::Own | AccessKind::Secret { .. }) => ConsulAccess::Pending { since },
        }
    }

    /// Whether the access is still unknown, because the token is being read for the first time.
    pub(super) fn is_pending(&self) -> bool {
        match &self.kind {
            AccessKind::Own | AccessKind::Barred(_) => false,
            AccessKind::Secret { token, .. } => {
                token.token().is_none() && token.problem().is_none()
            }
        }
    }

    /// Returns a receiver for changes of the access, or of its problem; `None` if the access can't change.
    pub(super) fn changes(&self) -> Option<TokenChanges> {
        match &self.kind {
            AccessKind::Secret { token, .. } => Some(token.changes()),
            AccessKind::Own | AccessKind::Barred(_) => None,
        }
    }
}

fn secret_ref(semaphore: &ConsulSemaphore) -> Option<&TokenSecretRef> {
    let consul = semaphore.spec.consul.as_ref()?;
    consul.token_secret_ref.as_ref()
}
