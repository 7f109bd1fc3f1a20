//! How many pages may be open: in all, and by one user.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// How many there may be.
pub(super) const ALL: usize = 64;

/// How many of them one user may have. Where nobody says who it is, all together have them all.
pub(super) const EACH: usize = 12;

/// The places of all who look.
#[derive(Clone, Default)]
pub(super) struct Places(Arc<Mutex<HashMap<Option<Arc<str>>, usize>>>);

/// A place, until it is dropped.
pub(super) struct Place {
    places: Places,
    user: Option<Arc<str>>,
}

impl Places {
    /// A place for this user, or why there is none.
    pub(super) fn take(&self, user: Option<Arc<str>>) -> Result<Place, String> {
        let mut taken = self.taken();
        if taken.values().sum::<usize>() >= ALL {
            return Err(format!(
                "this replica shows {ALL} open pages already, and no more: close one, or ask another replica"
            ));
        }
        let own = taken.entry(user.clone()).or_default();
        if user.is_some() && *own >= EACH {
            return Err(format!(
                "you have {EACH} open pages here already, and no more: close one"
            ));
        }
        *own += 1;
        Ok(Place {
            places: self.clone(),
            user,
        })
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<Option<Arc<str>>, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        if let Some(own) = taken.get_mut(&self.user) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.user);
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
        for _ in 0..EACH {
            taken.push(places.take(user(0)).ok().unwrap());
        }
        let refusal = places.take(user(0)).err().unwrap();
        assert!(refusal.starts_with("you have 12 open pages"), "{refusal}");
        for number in EACH..ALL {
            taken.push(places.take(user(number)).ok().unwrap());
        }
        let refusal = places.take(user(ALL)).err().unwrap();
        assert!(refusal.starts_with("this replica shows 64"), "{refusal}");
        taken.pop();
        taken.push(places.take(user(ALL)).ok().unwrap());
        taken.clear();
        assert!(places.taken().is_empty());

        // They are many, or may be.
        taken.extend((0..ALL).map(|_| places.take(None).ok().unwrap()));
        assert!(places.take(None).is_err());
    }
}
