use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::{pending, ready},
    rc::Rc,
};

use super::*;

/// What happens to a candidate, in order.
enum Act {
    Wins,
    /// For this long.
    WinsFor(Duration),
    Loses,
}

/// A candidate that follows a script, and then waits for ever.
struct Puppet {
    acts: VecDeque<Act>,
    log: Rc<RefCell<Vec<&'static str>>>,
}

impl Candidate for Puppet {
    async fn win<F: Fn(&Standing)>(&mut self, board: &Board<F>) -> Moment {
        board.follows(Some("other"));
        match self.acts.pop_front() {
            Some(Act::Wins) => Moment::now() + Duration::from_hours(1),
            Some(Act::WinsFor(time)) => Moment::now() + time,
            _ => pending().await,
        }
    }

    async fn keep(&mut self, _: &Term) -> String {
        match self.acts.pop_front_if(|act| matches!(act, Act::Loses)) {
            Some(_) => "asked to".to_owned(),
            None => pending().await,
        }
    }

    async fn resign(&mut self) {
        self.log.borrow_mut().push("resigned");
    }
}

/// Holds an election that follows this script, with work that ends when its term is over. The process is asked to end
/// when as many terms have begun. Returns what happened, and what `/readyz` said about it.
async fn election(
    acts: impl Into<VecDeque<Act>>,
    terms: usize,
) -> (Vec<&'static str>, Vec<String>) {
    let log = Rc::new(RefCell::new(Vec::new()));
    let puppet = Puppet {
        acts: acts.into(),
        log: log.clone(),
    };
    let telemetry = Telemetry::default();
    let remarks = RefCell::new(Vec::new());
    let board = Board::new("me".to_owned(), &telemetry, |_: &Standing| {
        remarks.borrow_mut().push(telemetry.health.remarks());
    });
    let (ask, asked) = tokio::sync::watch::channel(false);
    let shutdown = futures::FutureExt::shared(async move {
        let mut asked = asked;
        drop(asked.wait_for(|asked| *asked).await);
    });
    let begun = Cell::new(0);
    let work = |term: Term| {
        let (log, ask, begun, end) = (log.clone(), &ask, &begun, shutdown.clone());
        async move {
            log.borrow_mut().push("works");
            begun.set(begun.get() + 1);
            if begun.get() == terms {
                ask.send_replace(true);
            }
            tokio::select! {
                biased;
                () = term.over() => log.borrow_mut().push("drops its work"),
                () = end => log.borrow_mut().push("ends"),
            }
            Ok(())
        }
    };
    campaign(puppet, &board, shutdown.clone(), work)
        .await
        .unwrap();
    let happened = log.borrow().clone();
    drop(board);
    (happened, remarks.into_inner())
}

#[tokio::test]
async fn a_replica_that_lost_the_lead_drops_its_work_and_stands_for_election_again() {
    let (happened, remarks) = election([Act::Wins, Act::Loses, Act::Wins], 2).await;
    let order = ["works", "drops its work", "works", "ends", "resigned"];
    assert_eq!(happened, order);
    let remarks: Vec<_> = remarks.iter().map(|remark| remark.trim_end()).collect();
    let expected = [
        "leader election: other leads, me (this replica) stands by",
        "leader election: me (this replica) leads",
        "leader election: no replica leads, me (this replica) stands by",
        "leader election: other leads, me (this replica) stands by",
        "leader election: me (this replica) leads",
    ];
    assert_eq!(remarks, expected);
}

/// Timers are no finer than a millisecond: of two that wait for one moment, either may come first.
#[tokio::test]
async fn work_that_sees_the_end_of_its_term_first_is_no_reason_to_end() {
    let puppet = Puppet {
        acts: [Act::WinsFor(Duration::from_millis(20)), Act::Wins].into(),
        log: Rc::default(),
    };
    let events = RefCell::new(Vec::new());
    let board = Board::new("me".to_owned(), &Telemetry::default(), |it: &Standing| {
        events.borrow_mut().push(it.clone());
    });
    let begun = Cell::new(0);
    let work = |term: Term| {
        begun.set(begun.get() + 1);
        let first = begun.get() == 1;
        async move {
            while first && term.lasts() {
                tokio::task::yield_now().await;
            }
            Ok(())
        }
    };
    let shutdown = futures::FutureExt::shared(pending::<()>());
    campaign(puppet, &board, shutdown, work).await.unwrap();
    assert_eq!(begun.get(), 2, "it stands for election again");
    let lost = Standing::Standby { leader: None };
    assert!(events.borrow().contains(&lost), "{:?}", events.borrow());
}

#[tokio::test]
async fn a_replica_that_comes_to_lead_is_not_taken_for_ready_before_its_work_is() {
    let telemetry = Telemetry::default();
    let ready = RefCell::new(Vec::new());
    let board = Board::new("me".to_owned(), &telemetry, |_: &Standing| {
        ready.borrow_mut().push(telemetry.health.is_ready());
    });
    let puppet = Puppet {
        acts: [Act::Wins].into(),
        log: Rc::default(),
    };
    let work = |_| {
        let part = telemetry.health.part("jobs");
        async move {
            drop(part);
            Ok(())
        }
    };
    let shutdown = futures::FutureExt::shared(pending::<()>());
    campaign(puppet, &board, shutdown, work).await.unwrap();
    assert_eq!(*ready.borrow(), [true, false], "stands by, leads");
}

#[tokio::test]
async fn work_that_fails_ends_it_and_gives_the_lead_back() {
    let log = Rc::new(RefCell::new(Vec::new()));
    let puppet = Puppet {
        acts: [Act::Wins].into(),
        log: log.clone(),
    };
    let board = Board::new("me".to_owned(), &Telemetry::default(), |_: &Standing| {});
    let work = |_| ready(Err(anyhow!("it broke")));
    let shutdown = futures::FutureExt::shared(pending::<()>());
    let failed = campaign(puppet, &board, shutdown, work).await.unwrap_err();
    assert_eq!(failed.to_string(), "it broke");
    assert_eq!(*log.borrow(), ["resigned"]);
}

#[test]
fn a_leader_stops_before_another_may_begin_and_has_time_for_two_tries() {
    for seconds in [5, 15, 600] {
        let lease = Duration::from_secs(seconds);
        let timing = Timing { lease };
        assert!(timing.certain() < lease);
        assert!(timing.call() * 2 <= timing.certain());
        assert!(timing.pause() * 4 < timing.certain());
    }
}
