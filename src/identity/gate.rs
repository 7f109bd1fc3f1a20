//! Lets writes to Consul pass only while the identity is known to be this API server's.

use tokio::sync::watch;

use super::Ownership;
use crate::leader::Term;
use consul_client::{self as consul, clock::Moment};
use consul_semaphore::SessionState;

/// The owner of the token that the calls behind a gate have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenOwner {
    /// The operator's own token, which also keeps the mark.
    Operator,
    /// The token of a namespace. The operator's own token may have no rights in Consul then, so the mark is kept only
    /// if it has them.
    Tenant,
}

/// A gate for the writes to one datacenter. It is open in the term of leadership, while the mark is kept.
#[derive(Debug)]
pub(crate) struct IdentityGate {
    pub(super) term: Term,
    pub(super) ownership: watch::Receiver<Ownership>,
    pub(super) token: TokenOwner,
}

impl consul::Gate for IdentityGate {
    fn refusal(&self) -> Option<consul::Error> {
        if let Some(refusal) = self.term.refusal() {
            return Some(refusal);
        }
        refusal(&self.ownership.borrow(), self.token, Moment::now())
    }
}

/// Returns why a call with such a token may write nothing at this time; `None` if it may write.
fn refusal(ownership: &Ownership, token: TokenOwner, now: Moment) -> Option<consul::Error> {
    let withheld = |why: &str| Some(consul::Error::Withheld(why.to_owned()));
    match ownership {
        Ownership::Undecided => {
            withheld("it is not known yet whether another cluster uses this cluster's id")
        }
        Ownership::Ours(life) => match life.get() {
            SessionState::Renewed { sent, ttl } if now < sent + ttl => None,
            _ => withheld(
                "the session that keeps this cluster's identity in Consul was not renewed in time",
            ),
        },
        Ownership::Unknown(why) if token == TokenOwner::Tenant && is_without_rights(why) => None,
        Ownership::Unknown(why) => Some(why.clone()),
        Ownership::Conflict(message) => withheld(message),
    }
}

/// Returns whether the error shows that the operator's own token has no rights where the mark is.
fn is_without_rights(why: &consul::Error) -> bool {
    matches!(why, consul::Error::Denied(_) | consul::Error::NoToken)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use consul_semaphore::holding::KnownLife;

    #[test]
    fn nothing_is_written_while_the_mark_is_not_kept() {
        use TokenOwner::{Operator, Tenant};
        let now = Moment::from_boot(Duration::from_secs(100));
        let renewed = |ago: u64| {
            let state = SessionState::Renewed {
                sent: Moment::from_boot(Duration::from_secs(100 - ago)),
                ttl: Duration::from_mins(1),
            };
            Ownership::Ours(KnownLife::new(state))
        };
        let gone = Ownership::Ours(KnownLife::new(SessionState::Gone));
        let away = consul::Error::Unreachable {
            message: "no answer".to_owned(),
            undecided: false,
        };
        let denied = consul::Error::Denied("key:write".to_owned());
        for (ownership, operator, tenant) in [
            (renewed(10), true, true),
            (renewed(60), false, false),
            (gone, false, false),
            (Ownership::Undecided, false, false),
            (Ownership::Unknown(away), false, false),
            (Ownership::Unknown(denied), false, true),
            (Ownership::Conflict("a copy".to_owned()), false, false),
        ] {
            for (token, expected) in [(Operator, operator), (Tenant, tenant)] {
                let open = refusal(&ownership, token, now).is_none();
                assert_eq!(open, expected, "{ownership:?} {token:?}");
            }
        }
    }
}
