//! The slots that a program asks for.

use std::{num::NonZeroU32, time::Duration};

use crate::{MOST_SEMAPHORES, MOST_SLOTS, Mode, Prefix, Restrictions};

/// A semaphore, and how many of its slots a program asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotsOf {
    /// The prefix of the semaphore in Consul.
    pub prefix: Prefix,
    /// The form in which the semaphore is stored in Consul.
    pub mode: Mode,
    /// The period of a rate, in which at most `limit` programs and workloads start; `None` if the limit is on how many
    /// run. All users of the prefix must have the same period.
    pub period: Option<Duration>,
    /// Number of slots of the semaphore; 1 for a mutex. All users of the prefix must have the same limit.
    pub limit: u32,
    /// Number of slots that the program asks for.
    pub slots: NonZeroU32,
    /// The restrictions on when slots are granted, and to which programs.
    pub restrictions: Restrictions,
}

impl SlotsOf {
    /// Returns the slots that are asked for, for people: `a slot of shared/db`, or `2 of 3 slots of shared/db`.
    pub fn asked(&self) -> String {
        let Self {
            prefix,
            limit,
            slots,
            ..
        } = self;
        match slots.get() {
            1 => format!("a slot of {prefix}"),
            slots => format!("{slots} of {limit} slots of {prefix}"),
        }
    }

    /// Whether the program would be granted its slots if all holders ended now, where others wait before it for
    /// `before` slots. This is never so for a rate, whose slots do not end, or for a mutex, whose slot is granted in
    /// no order.
    pub(super) fn is_ready_behind(&self, before: usize) -> bool {
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let own = usize::try_from(self.slots.get()).unwrap_or(usize::MAX);
        before.saturating_add(own) <= limit && self.mode == Mode::Semaphore && self.period.is_none()
    }
}

/// All slots that a program asks for: all of them are granted at once, or none. Each semaphore has enough slots to
/// grant its part, and no semaphore occurs twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request(Vec<SlotsOf>);

/// Slots that can't be asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequest {
    /// The request names no semaphore, or too many.
    #[error("ask for slots of 1 to {MOST_SEMAPHORES} semaphores, not of {0}")]
    Semaphores(usize),
    /// The request is for too many slots of all semaphores together.
    #[error("ask for at most {MOST_SLOTS} slots in all, not for {0}")]
    Slots(u64),
    /// Two parts of the request name one lock key.
    #[error("{0} is named twice: name it once, with the number of its slots")]
    Twice(Prefix),
    /// The limit is 0, and no semaphore has that limit.
    #[error("the limit of {0} is 0: set at least 1")]
    NoSlots(Prefix),
    /// The limit of a mutex is not 1, although a mutex has one slot.
    #[error("{0} is a mutex, which has one slot: set its limit to 1")]
    Mutex(Prefix),
    /// A mutex has a period, although a mutex is held as long as its holder runs.
    #[error("{0} is a mutex, which has no period: leave the period out, or use a semaphore")]
    MutexPeriod(Prefix),
    /// The request is for more slots than the semaphore has.
    #[error("{prefix} has {limit} slots: ask for at most {limit}, and not for {slots}")]
    BeyondLimit {
        /// The semaphore.
        prefix: Prefix,
        /// Number of slots of the semaphore.
        limit: u32,
        /// Number of slots that are asked for.
        slots: u32,
    },
    /// The request is for more slots than windows and reserved slots ever leave for the program.
    #[error(
        "{prefix} grants this program at most {most} slots, because of its windows and of the slots that it reserves \
         for higher priorities: ask for at most {most}, and not for {slots}"
    )]
    OutOfReach {
        /// The semaphore.
        prefix: Prefix,
        /// The most slots that the program may have.
        most: u32,
        /// Number of slots that are asked for.
        slots: u32,
    },
}

impl SlotsOf {
    /// Returns one slot of a semaphore without restrictions, which is no rate.
    pub fn one(prefix: Prefix, mode: Mode, limit: u32) -> Self {
        Self {
            prefix,
            mode,
            period: None,
            limit,
            slots: NonZeroU32::MIN,
            restrictions: Restrictions::default(),
        }
    }
}

impl Request {
    /// Returns a request for one slot of one semaphore.
    ///
    /// # Errors
    /// The limit is impossible.
    pub fn one(prefix: Prefix, mode: Mode, limit: u32) -> Result<Self, InvalidRequest> {
        Self::new(vec![SlotsOf::one(prefix, mode, limit)])
    }

    /// Checks that a program of this priority can have all requested slots at some time.
    ///
    /// # Errors
    /// Windows and reserved slots always leave fewer slots than requested.
    pub fn check_reach(&self, priority: i32) -> Result<(), InvalidRequest> {
        for semaphore in &self.0 {
            let (limit, slots) = (semaphore.limit, semaphore.slots.get());
            let most = semaphore.restrictions.most(limit, priority);
            if slots > most {
                let prefix = semaphore.prefix.clone();
                return Err(InvalidRequest::OutOfReach {
                    prefix,
                    most,
                    slots,
                });
            }
        }
        Ok(())
    }

    /// Returns a request for slots of these semaphores.
    ///
    /// # Errors
    /// The slots can never be granted together.
    pub fn new(semaphores: Vec<SlotsOf>) -> Result<Self, InvalidRequest> {
        if !(1..=MOST_SEMAPHORES).contains(&semaphores.len()) {
            return Err(InvalidRequest::Semaphores(semaphores.len()));
        }
        let slots: u64 = semaphores
            .iter()
            .map(|semaphore| u64::from(semaphore.slots.get()))
            .sum();
        if slots > u64::from(MOST_SLOTS) {
            return Err(InvalidRequest::Slots(slots));
        }
        for (place, semaphore) in semaphores.iter().enumerate() {
            let mut others = semaphores.iter().take(place);
            if others.any(|other| other.prefix == semaphore.prefix) {
                return Err(InvalidRequest::Twice(semaphore.prefix.clone()));
            }
            check(semaphore)?;
        }
        Ok(Self(semaphores))
    }

    /// Returns the semaphores, at least one, in the order in which they were asked for.
    pub fn semaphores(&self) -> &[SlotsOf] {
        &self.0
    }

    /// Returns the semaphore that was named first.
    pub(crate) fn first(&self) -> &SlotsOf {
        &self.0[0]
    }

    /// Returns how many slots are asked for in all.
    pub fn slots(&self) -> u32 {
        let slots = self.0.iter().map(|semaphore| semaphore.slots.get());
        slots.sum()
    }
}

fn check(semaphore: &SlotsOf) -> Result<(), InvalidRequest> {
    let prefix = semaphore.prefix.clone();
    match (semaphore.limit, semaphore.slots.get()) {
        (0, _) => Err(InvalidRequest::NoSlots(prefix)),
        (limit, _) if semaphore.mode == Mode::Mutex && limit != 1 => {
            Err(InvalidRequest::Mutex(prefix))
        }
        _ if semaphore.mode == Mode::Mutex && semaphore.period.is_some() => {
            Err(InvalidRequest::MutexPeriod(prefix))
        }
        (limit, slots) if slots > limit => Err(InvalidRequest::BeyondLimit {
            prefix,
            limit,
            slots,
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Reserved;

    fn semaphore(prefix: &str, limit: u32, slots: u32) -> SlotsOf {
        SlotsOf {
            prefix: prefix.parse().unwrap(),
            mode: Mode::Semaphore,
            period: None,
            limit,
            slots: slots.try_into().unwrap(),
            restrictions: Restrictions::default(),
        }
    }

    #[test]
    fn a_program_asks_for_no_more_than_is_ever_left_for_it() {
        let reserving = SlotsOf {
            restrictions: Restrictions {
                reserved: Some(Reserved {
                    slots: 2,
                    min_priority: 10,
                }),
                ..Restrictions::default()
            },
            ..semaphore("a", 3, 2)
        };
        let request = Request::new(vec![reserving]).unwrap();
        assert_eq!(request.check_reach(10), Ok(()));
        let said = request.check_reach(9).unwrap_err().to_string();
        assert!(
            said.starts_with("a grants this program at most 1 slots"),
            "{said}"
        );
    }

    #[test]
    fn only_slots_that_can_be_granted_together_are_asked_for() {
        let many = |count: usize| (0..count).map(|i| semaphore(&format!("p/{i}"), 9, 1));
        assert!(Request::new(many(8).collect()).is_ok());
        assert_eq!(
            Request::new(many(9).collect()),
            Err(InvalidRequest::Semaphores(9))
        );
        assert_eq!(Request::new(Vec::new()), Err(InvalidRequest::Semaphores(0)));
        let two = |a, b| Request::new(vec![a, b]);
        let slots = two(semaphore("a", 90, 25), semaphore("b", 90, 25)).unwrap();
        assert_eq!(slots.slots(), 50);
        assert_eq!(
            two(semaphore("a", 90, 25), semaphore("b", 90, 26)),
            Err(InvalidRequest::Slots(51))
        );
        assert_eq!(
            two(semaphore("a", u32::MAX, u32::MAX), semaphore("b", 1, 1)),
            Err(InvalidRequest::Slots(u64::from(u32::MAX) + 1))
        );
        assert_eq!(
            two(semaphore("a", 1, 1), semaphore("a", 1, 1)),
            Err(InvalidRequest::Twice("a".parse().unwrap()))
        );
        assert_eq!(
            Request::new(vec![semaphore("a", 2, 3)]),
            Err(InvalidRequest::BeyondLimit {
                prefix: "a".parse().unwrap(),
                limit: 2,
                slots: 3
            })
        );
        let prefix: Prefix = "a".parse().unwrap();
        assert_eq!(
            Request::one(prefix.clone(), Mode::Mutex, 2),
            Err(InvalidRequest::Mutex(prefix.clone()))
        );
        assert_eq!(
            Request::one(prefix.clone(), Mode::Semaphore, 0),
            Err(InvalidRequest::NoSlots(prefix))
        );
    }

    proptest! {
        #[test]
        fn what_is_asked_for_is_within_all_bounds(
            parts in prop::collection::vec((0..6_u8, 0..60_u32, 1..60_u32), 0..12)
        ) {
            let semaphores = parts.into_iter().map(|(prefix, limit, slots)| {
                semaphore(&format!("p/{prefix}"), limit, slots)
            });
            if let Ok(request) = Request::new(semaphores.collect()) {
                let asked = request.semaphores();
                prop_assert!((1..=MOST_SEMAPHORES).contains(&asked.len()));
                prop_assert!((1..=MOST_SLOTS).contains(&request.slots()));
                prop_assert!(asked.iter().all(|one| one.slots.get() <= one.limit));
            }
        }
    }
}
