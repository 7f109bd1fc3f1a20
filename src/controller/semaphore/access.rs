//! How a `ConsulSemaphore` may use Consul: with the operator's token, with its own, or not at all.

use std::sync::Arc;

use crate::controller::{
    Context,
    consul_target::ConsulTarget,
    prefix_watches::Credential,
    secret::{SecretToken, TokenChanges},
    watches::reference_of,
};
use consul_client::clock::Moment;
use consul_semaphore::engine::ConsulAccess;
use consul_semaphore_api::{ConsulSemaphore, TokenSecretRef, conditions::Reason};

/// An access for conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stated {
    problem: Option<(Reason, String)>,
    whose_token: String,
}

impl Stated {
    /// See [`Access::problem`].
    pub(super) fn problem(&self) -> Option<(Reason, String)> {
        self.problem.clone()
    }

    /// See [`Access::whose_token`].
    pub(super) fn whose_token(&self) -> &str {
        &self.whose_token
    }
}

/// How a semaphore may use Consul now.
pub(super) struct Access {
    kind: Kind,
    /// When it last changed.
    since: Moment,
}

enum Kind {
    /// With the operator's own token.
    Own,
    /// Not with the operator's own token: why not, and what to do.
    Barred(String),
    /// With the token of its Secret.
    Secret {
        from: TokenSecretRef,
        token: Arc<SecretToken>,
    },
}

impl Access {
    /// How this semaphore may use Consul. If it has its own token, reading it starts now.
    pub(super) fn new(context: &Arc<Context>, semaphore: &ConsulSemaphore) -> Self {
        let reference = reference_of(semaphore);
        let kind = if let Some(from) = secret_ref(semaphore) {
            Kind::Secret {
                token: SecretToken::shared(context, &reference.namespace, from),
                from: from.clone(),
            }
        } else {
            let tenancy = &context.shared.tenancy;
            match tenancy.check(&reference.namespace, &semaphore.prefix()) {
                Ok(()) => Kind::Own,
                Err(refusal) => Kind::Barred(refusal.to_string()),
            }
        };
        Self {
            kind,
            since: Moment::now(),
        }
    }

    /// Whether it still fits this spec.
    pub(super) fn suits(&self, semaphore: &ConsulSemaphore) -> bool {
        match (&self.kind, secret_ref(semaphore)) {
            (Kind::Secret { from, .. }, Some(wanted)) => from == wanted,
            // The fields that decide about the operator's own token are immutable.
            (Kind::Own | Kind::Barred(_), None) => true,
            _ => false,
        }
    }

    /// The target in Consul, if there is access.
    pub(super) fn target(
        &self,
        context: &Context,
        semaphore: &ConsulSemaphore,
    ) -> Option<ConsulTarget> {
        match &self.kind {
            Kind::Own => Some(context.own_target(semaphore)),
            Kind::Barred(_) => None,
            Kind::Secret { token, .. } => token
                .token()
                .map(|token| context.tenants_target(semaphore, token)),
        }
    }

    /// Whose token it is, in this namespace.
    pub(super) fn credential(&self, namespace: &Arc<str>) -> Credential {
        match &self.kind {
            Kind::Own | Kind::Barred(_) => Credential::Own,
            Kind::Secret { from, .. } => Credential::Secret(namespace.clone(), from.clone()),
        }
    }

    /// What is wrong with it, and what to do. The last good token may still be in use.
    pub(super) fn problem(&self) -> Option<(Reason, String)> {
        match &self.kind {
            Kind::Own => None,
            Kind::Barred(why) => Some((Reason::PrefixNotAllowed, why.clone())),
            Kind::Secret { token, .. } => token.problem().map(|why| (Reason::TokenNotFound, why)),
        }
    }

    /// Describes it for conditions.
    pub(super) fn stated(&self) -> Stated {
        Stated {
            problem: self.problem(),
            whose_token: self.whose_token(),
        }
    }

    /// Whose token it is, for people.
    fn whose_token(&self) -> String {
        match &self.kind {
            Kind::Own | Kind::Barred(_) => "the operator's token".to_owned(),
            Kind::Secret { from, .. } => format!("the token of the Secret {}", from.name),
        }
    }

    /// The access for the engine, with this target.
    pub(super) fn for_target(&self, target: Option<&ConsulTarget>) -> ConsulAccess {
        let since = self.since;
        match (target, &self.kind) {
            (Some(target), _) => ConsulAccess::Granted {
                operations: target.consul.transaction_capacity(),
            },
            (None, Kind::Barred(_)) => ConsulAccess::Refused { since },
            (None, Kind::Own | Kind::Secret { .. }) => ConsulAccess::Pending { since },
        }
    }

    /// Whether it is still unknown: the token is being read for the first time.
    pub(super) fn is_pending(&self) -> bool {
        match &self.kind {
            Kind::Own | Kind::Barred(_) => false,
            Kind::Secret { token, .. } => token.token().is_none() && token.problem().is_none(),
        }
    }

    /// Reports changes of the access, or of its problem; `None` if it can't change.
    pub(super) fn changes(&self) -> Option<TokenChanges> {
        match &self.kind {
            Kind::Secret { token, .. } => Some(token.changes()),
            Kind::Own | Kind::Barred(_) => None,
        }
    }
}

fn secret_ref(semaphore: &ConsulSemaphore) -> Option<&TokenSecretRef> {
    let consul = semaphore.spec.consul.as_ref()?;
    consul.token_secret_ref.as_ref()
}
