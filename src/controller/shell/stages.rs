//! Turns a workload's stages into a trace: the workload waits for a slot, and then holds one.
//!
//! This needs no state, because the ids are derived. The trace id is the workload's uid, and the two spans of a grant
//! have the halves of its session's id. The times are in the workload and its contender. So the trace is the same
//! whichever replica leads, and however often the operator was restarted.

use jiff::Timestamp;

use crate::telemetry::{Span, SpanRef};
use consul_client::SessionId;
use consul_semaphore::{Settings, Uid};

/// Grant of a slot to a workload.
pub(super) struct Passage<'a> {
    uid: &'a Uid,
    session: &'a SessionId,
    /// Attributes of both spans.
    attributes: Vec<(&'static str, String)>,
}

impl<'a> Passage<'a> {
    /// Creates the grant by the queue with these settings.
    pub(super) fn new(
        settings: &Settings,
        workload: &str,
        uid: &'a Uid,
        session: &'a SessionId,
    ) -> Self {
        let mut attributes = vec![
            ("k8s.cluster.name", settings.cluster.name.clone()),
            ("k8s.namespace.name", settings.namespace.clone()),
            ("k8s.job.name", workload.to_owned()),
            ("k8s.job.uid", uid.to_string()),
            ("consul_semaphore.name", settings.name.clone()),
            ("consul_semaphore.lock_key", settings.prefix.lock_key()),
            ("consul_semaphore.session", session.to_string()),
        ];
        let key = settings.key.as_ref();
        attributes.extend(key.map(|key| ("consul_semaphore.key", key.to_string())));
        Self {
            uid,
            session,
            attributes,
        }
    }
}

impl Passage<'_> {
    /// Returns the span for the time that the workload waited; `links` are the spans whose end made room for it, if
    /// they are known.
    pub(super) fn waiting(
        self,
        since: Timestamp,
        granted: Timestamp,
        links: Vec<SpanRef>,
    ) -> Option<Span> {
        let this = waiting_of(self.uid, self.session)?;
        Some(Span {
            links,
            ..self.span("waiting", this, since, granted)
        })
    }

    /// Returns the span for the time that the workload held its slot.
    pub(super) fn holding(self, granted: Timestamp, end: Timestamp) -> Option<Span> {
        let this = holding_of(self.uid, self.session)?;
        let parent = waiting_of(self.uid, self.session).map(|waiting| waiting.id);
        Some(Span {
            parent,
            ..self.span("holding", this, granted, end)
        })
    }

    /// Returns a span. Because clocks differ, this makes sure that it does not start after its end.
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

/// Returns the reference to the span for a workload's wait for the slot that it was granted under this session;
/// `None` if either id is not a UUID. The ids of Kubernetes and Consul are UUIDs.
fn waiting_of(uid: &Uid, session: &SessionId) -> Option<SpanRef> {
    let [waiting, _] = halves(uuid(session.as_str())?);
    span_ref(uid, waiting)
}

/// Returns the reference to the span for the time that the workload held that slot.
fn holding_of(uid: &Uid, session: &SessionId) -> Option<SpanRef> {
    let [_, holding] = halves(uuid(session.as_str())?);
    span_ref(uid, holding)
}

/// Returns the reference to a span; `None` for an id of only zeros, which OpenTelemetry rejects.
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
    fn the_ids_are_those_of_the_workload_and_the_session() {
        let (uid, session) = (UID.into(), SESSION.to_owned().into());
        let waiting = passage(&uid, &session)
            .waiting(at(10), at(20), Vec::new())
            .unwrap();
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
