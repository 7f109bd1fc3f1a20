//! Limits how many pages may be open, in total and by one tenant.

use std::{collections::HashMap, fmt, sync::Arc};

use parking_lot::Mutex;

/// Number of pages that may be open in total.
pub(super) const MAX_PAGES: usize = 64;

/// Number of pages that one tenant may open. Without authentication, all clients may use all places.
pub(super) const MAX_PAGES_PER_TENANT: usize = 12;

/// The prefix of every `ServiceAccount`'s user name, before its namespace.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// The users that share places. Groups are not tenants, because a user can be in many, and some contain everybody.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Tenant {
    /// All `ServiceAccounts` of a namespace, because anybody who may create one there may create a hundred.
    Namespace(Arc<str>),
    /// A user.
    User(Arc<str>),
    /// All clients, without authentication.
    Anybody,
}

impl Tenant {
    fn of(user: Option<Arc<str>>) -> Self {
        let Some(user) = user else {
            return Self::Anybody;
        };
        let account = user.strip_prefix(SERVICE_ACCOUNT);
        match account.and_then(|account| account.split_once(':')) {
            Some((namespace, _)) => Self::Namespace(namespace.into()),
            None => Self::User(user),
        }
    }

    /// Returns the number of places that the tenant may have.
    fn most(&self) -> usize {
        match self {
            Self::Namespace(_) | Self::User(_) => MAX_PAGES_PER_TENANT,
            Self::Anybody => MAX_PAGES,
        }
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespace(namespace) => {
                write!(f, "the ServiceAccounts of the namespace {namespace} have")
            }
            Self::User(_) | Self::Anybody => f.write_str("you have"),
        }
    }
}

/// All places for open pages.
#[derive(Clone, Default)]
pub(super) struct Places(Arc<Mutex<HashMap<Tenant, usize>>>);

/// The place of one open page, until it is dropped.
pub(super) struct PagePlace {
    places: Places,
    tenant: Tenant,
}

impl Places {
    /// Takes a place for this user, or returns why there is none.
    pub(super) fn take(&self, user: Option<Arc<str>>) -> Result<PagePlace, String> {
        let tenant = Tenant::of(user);
        let mut taken = self.0.lock();
        if taken.values().sum::<usize>() >= MAX_PAGES {
            return Err(format!(
                "this replica already serves {MAX_PAGES} open pages, and can't serve more: close one, or use another \
                 replica"
            ));
        }
        let own = taken.entry(tenant.clone()).or_default();
        if *own >= tenant.most() {
            return Err(format!(
                "{tenant} {MAX_PAGES_PER_TENANT} open pages on this replica, and can't open more: close one"
            ));
        }
        *own += 1;
        Ok(PagePlace {
            places: self.clone(),
            tenant,
        })
    }
}

impl Drop for PagePlace {
    fn drop(&mut self) {
        let mut taken = self.places.0.lock();
        if let Some(own) = taken.get_mut(&self.tenant) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_all_places() {
        let places = Places::default();
        let user = |number: usize| Some(format!("user-{number}").into());
        let mut taken = Vec::new();
        for _ in 0..MAX_PAGES_PER_TENANT {
            taken.push(places.take(user(0)).ok().unwrap());
        }
        let refusal = places.take(user(0)).err().unwrap();
        assert!(refusal.starts_with("you have 12 open pages"), "{refusal}");
        for number in MAX_PAGES_PER_TENANT..MAX_PAGES {
            taken.push(places.take(user(number)).ok().unwrap());
        }
        let refusal = places.take(user(MAX_PAGES)).err().unwrap();
        assert!(
            refusal.starts_with("this replica already serves 64"),
            "{refusal}"
        );
        taken.pop();
        taken.push(places.take(user(MAX_PAGES)).ok().unwrap());
        taken.clear();
        assert!(places.0.lock().is_empty());

        // Without authentication there may be many clients.
        taken.extend((0..MAX_PAGES).map(|_| places.take(None).ok().unwrap()));
        assert!(places.take(None).is_err());
    }

    #[test]
    fn who_shares_places() {
        let tenant = |user: &str| Tenant::of(Some(user.into()));
        let namespace = |name: &str| Tenant::Namespace(name.into());
        let account = |name: &str| tenant(&format!("system:serviceaccount:{name}"));
        assert_eq!(account("team-a:viewer"), namespace("team-a"));
        assert_eq!(account("team-a:other"), namespace("team-a"));
        assert_eq!(account("team-a2:viewer"), namespace("team-a2"));
        for user in [
            "jane",
            "team-a",
            "system:serviceaccount:team-a",
            "system:node:a",
        ] {
            assert_eq!(tenant(user), Tenant::User(user.into()));
        }
        assert_eq!(Tenant::of(None), Tenant::Anybody);
    }

    #[test]
    fn many_service_accounts_of_a_namespace_take_no_more_places_than_one() {
        let places = Places::default();
        let viewer = |namespace: &str, number: usize| {
            Some(format!("system:serviceaccount:{namespace}:viewer-{number}").into())
        };
        let mut taken = Vec::new();
        let mut refusal = String::new();
        for number in 0..MAX_PAGES {
            match places.take(viewer("team-a", number)) {
                Ok(place) => taken.push(place),
                Err(why) => refusal = why,
            }
        }
        assert_eq!(taken.len(), MAX_PAGES_PER_TENANT);
        assert!(
            refusal.starts_with("the ServiceAccounts of the namespace team-a have 12"),
            "{refusal}"
        );
        assert!(places.take(viewer("team-b", 0)).is_ok());
        assert!(places.take(Some("jane".into())).is_ok());
    }
}
