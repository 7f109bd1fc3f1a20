//! What becomes of the writes to a program that several queues decide by themselves.

use std::sync::Arc;

use super::*;
use crate::{
    Mode, Prefix, Restrictions,
    plan::{GiveBack, Rename, Suspend, Target},
    samples,
};
use consul_client::SessionId;

fn prefix(name: &str) -> Prefix {
    name.parse().unwrap()
}

/// A program that asks for slots of `a` and `b`, and has not asked Consul yet.
fn holder() -> Holder {
    let semaphore = |name| SlotsOf {
        prefix: prefix(name),
        mode: Mode::Semaphore,
        period: None,
        limit: 2,
        slots: 1.try_into().unwrap(),
        restrictions: Restrictions::default(),
    };
    let settings = samples::program(Request::new(vec![semaphore("a"), semaphore("b")]).unwrap());
    let consul = Client::new(consul::Config::default()).unwrap();
    Holder::new(settings, consul, |_| {})
}

impl Holder {
    fn target(&self) -> Target {
        Target::from(&self.program.workload)
    }

    fn writes(&mut self, number: u64, at: &str, write: Write) -> Option<Written> {
        self.write(&prefix(at), CallId::sample(number), write)
    }
}

fn give_back(workload: Target, session: &str) -> Write {
    Write::GiveBack(GiveBack {
        workload,
        sessions: vec![session.into()],
        hold: false,
    })
}

#[tokio::test]
async fn a_part_that_is_given_back_makes_what_was_decided_before_outdated() {
    let mut holder = holder();
    let before = holder.target();
    let done = holder.writes(1, "a", give_back(before.clone(), "s"));
    assert!(matches!(done, Some(Written::Done)), "{done:?}");
    assert_eq!(holder.program.workload.reported, [SessionId::from("s")]);
    assert!(matches!(holder.program.proof(), Answer::Proof(Ok((_, left))) if left.is_empty()));
    for write in [
        give_back(before.clone(), "t"),
        Write::Rename(Rename {
            workload: before,
            sessions: vec!["t".into()],
        }),
    ] {
        let outdated = holder.writes(2, "b", write);
        assert!(
            matches!(outdated, Some(Written::Outdated(Some(_)))),
            "{outdated:?}"
        );
    }
    assert_eq!(holder.program.workload.reported, [SessionId::from("s")]);
}

#[tokio::test]
async fn the_first_slot_that_is_lost_ends_the_work() {
    let mut holder = holder();
    holder.change(|workload| workload.phase = Phase::Running);
    let suspend = |holder: &Holder, why| {
        Write::Suspend(Suspend::new(&Arc::clone(&holder.program.workload), why))
    };
    let (lost, unproved) = (
        suspend(&holder, Suspended::SlotLost),
        suspend(&holder, Suspended::Unproved),
    );
    assert!(holder.writes(1, "b", lost).is_none());
    // Decided in the same moment, on the same version.
    assert!(matches!(
        holder.writes(2, "a", unproved),
        Some(Written::Done)
    ));
    let wanted = holder.wanted.take().map(|(_, wanted)| wanted);
    let Some(Wanted::Stop(lost)) = wanted else {
        panic!("{wanted:?}");
    };
    assert_eq!(lost.prefix, prefix("b"));
    assert_eq!(lost.why, Suspended::SlotLost);
}
