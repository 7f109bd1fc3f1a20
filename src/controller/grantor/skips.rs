//! Jobs that are not to wait: they are deleted, and it is told why.

use super::{Grantor, Strangers, writes::Write};
use crate::controller::events::Reason;
use consul_semaphore::plan::{Skip, Skipped, Taker};
use consul_semaphore_api::annotations::ON_CONTENTION;

impl Grantor {
    /// Has these Jobs deleted, unless something is wrong with Consul: then they wait.
    ///
    /// One is to be told whose contenders say nothing, which can't be told later, when the Job is gone: while
    /// Consul is being asked for a name, the Job stays.
    pub(super) fn skip(&mut self, skips: &[Skip]) {
        if self.view.trouble.is_some() {
            return;
        }
        for skip in skips {
            let unnamed = |taker: &Taker| self.strangers.is_asked(&taker.session);
            let is_told_more = match &skip.why {
                Skipped::Taken { by, .. } => by.iter().any(unnamed),
                Skipped::Late(_) => false,
            };
            if !is_told_more && !self.writes.is_busy(&skip.job.uid) {
                let note = explain(&self.reference.title(), &skip.why, &self.strangers);
                self.write(Write::Skip(skip.clone(), note), None);
            }
        }
    }

    /// Tells the Job that was deleted, and the `CronJob` that made it.
    pub(super) fn tell_skip(&self, skip: &Skip, why: &str) {
        let Skip { job, cron_job, .. } = skip;
        tracing::info!(job = %job.name, semaphore = %self.reference, why, "skipped");
        let note = format!("deleted, as {ON_CONTENTION} says: {why}");
        self.tell_job(&job.name, &job.uid, Reason::Skipped, note);
        if let Some(cron_job) = cron_job {
            let note = format!("its Job {} was deleted: {why}", job.name);
            let (events, namespace) = (&self.context.events, &self.reference.namespace);
            events.cron_job(namespace, cron_job, Reason::Skipped, note);
        }
    }
}

/// Why a Job is not to wait.
fn explain(semaphore: &str, why: &Skipped, strangers: &Strangers) -> String {
    match why {
        Skipped::Taken { by, others } => {
            let by = by
                .iter()
                .map(|taker| taker.describe(strangers.name(&taker.session)));
            let by: Vec<String> = by.collect();
            let others = match others {
                0 => String::new(),
                others => format!("; and {others} more"),
            };
            format!(
                "all slots of {semaphore} are taken: by {}{others}",
                by.join("; by ")
            )
        }
        Skipped::Late(late) => format!(
            "it comes {} s after the time that it was scheduled for, which is longer than \
             spec.cooldown of {semaphore}: another cluster may have done its work, and it would not \
             show any more",
            late.as_secs()
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::controller::grantor::strangers::tests::session;

    fn taker(session: &str, holder: Option<&str>) -> Taker {
        Taker {
            session: session.into(),
            holder: holder.map(Into::into),
            rests: false,
            cools_until: None,
        }
    }

    /// The id of a session.
    fn id(number: u8) -> String {
        format!("00000000-0000-4000-8000-{number:012}")
    }

    #[test]
    fn it_is_told_who_takes_the_slots() {
        let cools = Taker {
            cools_until: jiff::Timestamp::from_second(1_767_225_610).ok(),
            ..taker(&id(1), Some("prod-eu batch/a"))
        };
        let rests = Taker {
            rests: true,
            ..taker(&id(2), None)
        };
        let mut strangers = Strangers::default();
        strangers.settle((id(3).into(), Ok(Some(session("backup")))));
        strangers.settle((id(2).into(), Ok(None)));
        let by = vec![cools, rests, taker(&id(3), None)];
        let note = explain("db", &Skipped::Taken { by, others: 2 }, &strangers);
        assert_eq!(
            note,
            format!(
                "all slots of db are taken: by prod-eu batch/a (session {}), which is done and whose slot \
                 cools until 2026-01-01T00:00:10Z; by session {}, which is dead and whose slot rests for \
                 the lock-delay; by backup on web-1 (session {}); and 2 more",
                id(1),
                id(2),
                id(3)
            )
        );
    }

    #[test]
    fn what_is_no_session_is_not_repeated() {
        let by = vec![Taker {
            rests: true,
            ..taker("x;id>PWNED;#", None)
        }];
        let why = Skipped::Taken { by, others: 0 };
        let note = explain("db", &why, &Strangers::default());
        let rest = "which is dead and whose slot rests for the lock-delay";
        let expected = format!("all slots of db are taken: by an entry that is no session, {rest}");
        assert_eq!(note, expected);
    }

    #[test]
    fn it_is_told_how_late_a_job_comes() {
        let late = Skipped::Late(Duration::from_secs(90));
        let note = explain("db", &late, &Strangers::default());
        assert!(note.contains("comes 90 s after"), "{note}");
    }
}
