//! A Job's way as a trace: it waits for a slot, and it holds one.
//!
//! Nothing is kept for it. The ids are those that are there anyway: a trace is called as the Job's uid,
//! and a grant's two spans as the halves of the session that it made. The times are those that the Job
//! and its contender bear. So whoever leads, and however often the operator was restarted meanwhile, the
//! trace is the same.

use jiff::{SignedDuration, Timestamp};

use super::Grantor;
use crate::telemetry::{Span, SpanRef};
use consul_client::{SessionId, clock};
use consul_semaphore::{
    Uid,
    identity::{ContenderBody, Identity},
    plan::{Grant, Suspend, Suspended, Target, Transaction},
};

/// A grant of a slot to a Job.
struct Passage<'a> {
    uid: &'a Uid,
    session: &'a SessionId,
    /// What both its spans say of it.
    attributes: Vec<(&'static str, String)>,
}

impl Passage<'_> {
    /// It waited from one time to another one; for whom at the end, as far as that is known.
    fn waiting(self, since: Timestamp, granted: Timestamp, links: Vec<SpanRef>) -> Option<Span> {
        let this = waiting_of(self.uid, self.session)?;
        Some(Span {
            links,
            ..self.span("waiting", this, since, granted)
        })
    }

    /// It held its slot from one time to another one.
    fn holding(self, granted: Timestamp, end: Timestamp) -> Option<Span> {
        let this = holding_of(self.uid, self.session)?;
        let parent = waiting_of(self.uid, self.session).map(|waiting| waiting.id);
        Some(Span {
            parent,
            ..self.span("holding", this, granted, end)
        })
    }

    /// Whoever wrote its times, a span does not begin after its end: clocks differ.
    fn span(self, name: &'static str, this: SpanRef, start: Timestamp, end: Timestamp) -> Span {
        Span {
            this,
            parent: None,
            name,
            start: start.min(end),
            end,
            attributes: self.attributes,
            events: Vec::new(),
            links: Vec::new(),
            error: None,
        }
    }
}

/// Which span says how a Job waited for the slot that it was granted under this session. `None` if
/// either id is no UUID: those of Kubernetes and Consul are.
fn waiting_of(uid: &Uid, session: &SessionId) -> Option<SpanRef> {
    let [waiting, _] = halves(uuid(session.as_str())?);
    span_ref(uid, waiting)
}

/// Which span says how it held that slot.
fn holding_of(uid: &Uid, session: &SessionId) -> Option<SpanRef> {
    let [_, holding] = halves(uuid(session.as_str())?);
    span_ref(uid, holding)
}

/// OpenTelemetry takes no id of zeros only.
fn span_ref(uid: &Uid, id: u64) -> Option<SpanRef> {
    let trace = uuid(uid.as_ref())?;
    (trace != 0 && id != 0).then_some(SpanRef { trace, id })
}

fn uuid(text: &str) -> Option<u128> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let is_one = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    u128::from_str_radix(&digits, 16).ok().filter(|_| is_one)
}

fn halves(number: u128) -> [u64; 2] {
    let bytes = number.to_be_bytes();
    let half = |from: usize| {
        let mut half = [0; 8];
        half.copy_from_slice(&bytes[from..from + 8]);
        u64::from_be_bytes(half)
    };
    [half(0), half(8)]
}

/// When a Job was done whose slot cooled afterwards.
fn done(body: &ContenderBody) -> Option<Timestamp> {
    let cooldown = SignedDuration::from_secs(body.cooldown.try_into().ok()?);
    body.cools_until?.checked_sub(cooldown).ok()
}

impl Grantor {
    /// The slots that a transaction gives back, as their contenders still tell of them. Nothing if nobody
    /// hears it.
    pub(super) fn ending(&self, transaction: &Transaction) -> Vec<Span> {
        if !self.context.traces.are_on() {
            return Vec::new();
        }
        let held = transaction.releases.iter().filter(|release| release.held);
        let spans = held.filter_map(|release| {
            let body = self.body(&release.session)?;
            let passage = self.passage_of(&release.identity, &release.session);
            let mut span = passage.holding(body.time, body.time)?;
            span.events
                .extend(done(&body).map(|time| ("job done", time)));
            Some(span)
        });
        spans.collect()
    }

    /// Tells of what a transaction ended and granted.
    pub(super) fn trace(&self, transaction: &Transaction, ending: Vec<Span>) {
        if !self.context.traces.are_on() {
            return;
        }
        let now = clock::time();
        let ended: Vec<SpanRef> = ending.iter().map(|span| span.this).collect();
        for span in ending {
            let end = now.max(span.start);
            self.context.traces.tell(Span { end, ..span });
        }
        for grant in &transaction.grants {
            self.trace_grant(grant, now, &ended);
        }
    }

    fn trace_grant(&self, grant: &Grant, now: Timestamp, ended: &[SpanRef]) {
        let Grant {
            job,
            session,
            starts,
            since,
        } = grant;
        let granted = self.body(session).map_or(now, |body| body.time);
        // One that runs did not wait: it lost its slot, and has another one.
        let since = Timestamp::from_second(*since).ok().filter(|_| *starts);
        let links = if *starts { ended.to_vec() } else { Vec::new() };
        let passage = self.passage(&job.name, &job.uid, session);
        if let Some(span) = passage.waiting(since.unwrap_or(granted), granted, links) {
            self.context.traces.tell(span);
        }
    }

    /// Tells that the slot of a Job that still runs was lost.
    pub(super) fn trace_loss(&self, job: &Uid, why: &'static str) {
        if let Some(job) = self.context.index.job(job)
            && let Some(session) = job.held_by().next()
        {
            self.trace_end(&(&*job).into(), session, job.since, Some(why));
        }
    }

    /// Tells that a Job's slot was lost, and the Job suspended.
    pub(super) fn trace_suspension(&self, suspend: &Suspend) {
        let why = match suspend.why {
            Suspended::SlotLost => "the slot was lost; the Job is suspended",
            Suspended::Unproved => "nothing shows that the slot is held; the Job is suspended",
        };
        if let Some(session) = &suspend.session {
            self.trace_end(&suspend.job, session, suspend.since, Some(why));
        }
    }

    /// Tells of a slot whose contender is gone, so that only the Job's status says since when it ran: in
    /// seconds since 1970.
    pub(super) fn trace_end(
        &self,
        job: &Target,
        session: &SessionId,
        since: i64,
        error: Option<&'static str>,
    ) {
        if !self.context.traces.are_on() {
            return;
        }
        let passage = self.passage(&job.name, &job.uid, session);
        let since = Timestamp::from_second(since).ok();
        let span = since.and_then(|since| passage.holding(since, clock::time()));
        if let Some(span) = span {
            self.context.traces.tell(Span { error, ..span });
        }
    }

    fn body(&self, session: &SessionId) -> Option<ContenderBody> {
        let reading = self.view.reading.as_ref()?;
        ContenderBody::read(&reading.contender(session)?.value)
    }

    fn passage_of<'a>(&self, identity: &'a Identity, session: &'a SessionId) -> Passage<'a> {
        self.passage(&identity.job, &identity.uid, session)
    }

    fn passage<'a>(&self, job: &str, uid: &'a Uid, session: &'a SessionId) -> Passage<'a> {
        let mut attributes = vec![
            ("k8s.cluster.name", self.settings.cluster.name.clone()),
            ("k8s.namespace.name", self.reference.namespace.to_string()),
            ("k8s.job.name", job.to_owned()),
            ("k8s.job.uid", uid.to_string()),
            ("consul_semaphore.name", self.reference.name.to_string()),
            ("consul_semaphore.lock_key", self.settings.prefix.lock_key()),
            ("consul_semaphore.session", session.to_string()),
        ];
        let key = self.reference.key.as_ref();
        attributes.extend(key.map(|key| ("consul_semaphore.key", key.to_string())));
        Passage {
            uid,
            session,
            attributes,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UID: &str = "01234567-89ab-cdef-0123-456789abcdef";
    const SESSION: &str = "11111111-2222-3333-4444-555555555555";

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn passage<'a>(uid: &'a Uid, session: &'a SessionId) -> Passage<'a> {
        let attributes = vec![("k8s.job.name", "a".to_owned())];
        Passage {
            uid,
            session,
            attributes,
        }
    }

    #[test]
    fn the_ids_are_those_of_the_job_and_the_session() {
        let (uid, session) = (UID.into(), SESSION.to_owned().into());
        let waiting = passage(&uid, &session).waiting(at(10), at(20), Vec::new());
        let waiting = waiting.unwrap();
        assert_eq!(
            waiting.this.trace,
            0x0123_4567_89ab_cdef_0123_4567_89ab_cdef
        );
        assert_eq!(waiting.this.id, 0x1111_1111_2222_3333);
        assert_eq!((waiting.start, waiting.end), (at(10), at(20)));
        assert_eq!(waiting.parent, None);
        let holding = passage(&uid, &session).holding(at(20), at(50)).unwrap();
        assert_eq!(holding.this.trace, waiting.this.trace);
        assert_eq!(holding.this.id, 0x4444_5555_5555_5555);
        assert_eq!(holding.parent, Some(waiting.this.id));
        assert_eq!((holding.start, holding.end), (at(20), at(50)));
    }

    #[test]
    fn what_is_no_uuid_has_no_trace() {
        let zeros = "00000000-0000-0000-0000-000000000000";
        for (uid, session) in [
            ("u", SESSION),
            (UID, "s"),
            (zeros, SESSION),
            (UID, zeros),
            ("+1234567-89ab-cdef-0123-456789abcdef", SESSION),
        ] {
            let (uid, session) = (uid.into(), session.to_owned().into());
            assert_eq!(passage(&uid, &session).holding(at(1), at(2)), None);
        }
    }

    proptest! {
        #[test]
        fn any_ids_make_a_span_that_makes_sense_or_none(
            uid in prop_oneof![hostile::text(), Just(UID.to_owned())],
            session in prop_oneof![hostile::text(), Just(SESSION.to_owned())],
            [start, end] in prop::array::uniform2(0..4_000_000_000_i64),
        ) {
            let (uid, session) = (Uid::from(uid.as_str()), SessionId::from(session));
            let waiting = passage(&uid, &session).waiting(at(start), at(end), Vec::new());
            let holding = passage(&uid, &session).holding(at(start), at(end));
            for span in waiting.into_iter().chain(holding) {
                prop_assert!(span.start <= span.end);
                prop_assert_eq!(span.end, at(end));
                prop_assert!(span.this.id != 0 && span.this.trace != 0);
                prop_assert!(span.parent != Some(span.this.id));
            }
        }
    }
}
