//! Reports the health of a watch of the API server: to `/readyz`, the metric and the log.

use std::{sync::Arc, time::Duration};

use kube::runtime::watcher;
use tokio::time::sleep;

use crate::{
    call::watch_refusal,
    manifests::Source,
    telemetry::{Health, Metrics, Part},
    watch_scope::WatchScope,
};
use consul_client::{
    clock::{self, Moment},
    text::one_line,
};

/// Time without another error after which a watch counts as working again. A failed watch is restarted within half a
/// minute, and the API server sends nothing while nothing changes.
const RECOVERED_AFTER: Duration = Duration::from_mins(2);

/// Time after which a persistent error is logged again. Each further time is twice as long.
const FIRST_REMINDER_AFTER: Duration = Duration::from_mins(1);

/// Longest time between two log lines about one problem.
const LONGEST_REMINDER_PAUSE: Duration = Duration::from_hours(1);

/// Length to which the text of an error is cut, in characters.
const LONGEST_ERROR_TEXT: usize = 400;

/// The reported state of a watch.
pub(super) struct Watching {
    /// Resource that is watched, as the API calls it.
    what: Arc<str>,
    /// Resource that is watched, with the scope.
    title: String,
    source: Source,
    part: Part,
    metrics: Metrics,
    /// Whether everything was listed once.
    synced: bool,
    trouble: Option<Trouble>,
}

/// Returns what to do if the cluster lacks a resource that comes from this source.
fn missing(what: &str, source: &Source) -> String {
    let then = match source {
        Source::Operator => {
            "install the CustomResourceDefinition with `kubectl apply -k crds`".to_owned()
        }
        Source::Switch(name) => {
            format!("install the software that defines them, or leave {name} out of --workloads")
        }
        Source::Row(_) => {
            "install their CustomResourceDefinition, or correct apiVersion and plural in the row"
                .to_owned()
        }
    };
    format!("this cluster has no {what}: {then}")
}

/// Returns what to do if the operator may not list and watch a resource from this source, or if there is no such
/// resource.
fn advice(what: &str, source: &Source, code: u16) -> Option<String> {
    let allow = format!("allow the operator to list and watch {what}");
    Some(match (code, source) {
        (401, _) => {
            "the API server does not know the credentials: check the ServiceAccount or the kubeconfig".into()
        }
        (403, _) if what.starts_with("configmaps") => {
            "allow the operator to get, list and watch the ConfigMap of --kinds".into()
        }
        (403, source) => match source.apply() {
            None => format!("{allow}: the rule is in config/rbac/role.yaml"),
            Some(apply) if matches!(source, Source::Row(_)) => {
                format!("{allow}: {apply}, with the ConfigMap as FILE, before you apply the ConfigMap")
            }
            Some(apply) => format!("{allow}: {apply}"),
        },
        (404, source) => missing(what, source),
        _ => return None,
    })
}

/// Adds to an error with this HTTP status, which says why a resource can't be listed or watched, what to do about it.
pub(super) fn with_advice(words: &str, what: &str, source: &Source, code: Option<u16>) -> String {
    let advice = code
        .and_then(|code| advice(what, source, code))
        .map(|advice| format!("; {advice}"))
        .unwrap_or_default();
    format!("{}{advice}", one_line(words, LONGEST_ERROR_TEXT))
}

/// Consecutive errors of a watch.
struct Trouble {
    /// HTTP status of the API server's refusal, if the last error was one.
    code: Option<u16>,
    /// Time of the first error, for people.
    since: jiff::Timestamp,
    /// Moment of the last error.
    last: Moment,
    /// Moment at which the error is logged again, and the pause before that log line.
    reminder: (Moment, Duration),
}

impl Watching {
    /// Begins to report on a watch. The operator is not ready before everything is listed.
    pub(super) fn begin(
        what: &str,
        reach: &WatchScope,
        health: &Health,
        metrics: &Metrics,
    ) -> Self {
        Self::titled(reach.of(what), what, health, metrics)
    }

    fn titled(title: String, what: &str, health: &Health, metrics: &Metrics) -> Self {
        Self {
            what: what.into(),
            part: health.part(title.clone()),
            title,
            source: Source::Operator,
            metrics: metrics.clone(),
            synced: false,
            trouble: None,
        }
    }

    /// Returns what to do if the cluster has no such resource. The watch then shows an empty list, and no error.
    pub(super) fn if_missing(&self) -> String {
        missing(&self.title, &self.source)
    }

    /// Sets the source that the watched resource comes from.
    pub(super) fn of(mut self, source: Source) -> Self {
        self.source = source;
        self
    }

    /// Begins to report on a watch that readiness does not wait for.
    pub(super) fn begin_later(
        what: &str,
        reach: &WatchScope,
        health: &Health,
        metrics: &Metrics,
    ) -> Self {
        let mut this = Self::begin(what, reach, health, metrics);
        this.synced();
        this
    }

    /// Begins to report on a watch of the objects that belong to those of another resource, `of`. Readiness does not
    /// wait for it.
    pub(super) fn begin_part(
        what: &str,
        of: &str,
        reach: &WatchScope,
        health: &Health,
        metrics: &Metrics,
    ) -> Self {
        let title = reach.of(&format!("{what} of {of}"));
        let mut this = Self::titled(title, what, health, metrics);
        this.synced();
        this
    }

    /// Notes that everything was listed.
    pub(super) fn synced(&mut self) {
        self.synced = true;
        self.part.ready();
        self.works();
    }

    /// Notes that an event was received.
    pub(super) fn works(&mut self) {
        if self.trouble.take().is_some() {
            tracing::info!(what = self.title, "the watch works again");
            if self.synced {
                self.part.ready();
            }
        }
    }

    /// Completes when a problem is over because no more errors came.
    pub(super) async fn quiet(&self) {
        let last = self.trouble.as_ref().map(|trouble| trouble.last);
        match last.filter(|_| self.synced) {
            Some(last) => sleep((last + RECOVERED_AFTER).since(Moment::now())).await,
            None => std::future::pending().await,
        }
    }

    /// Notes that the watch has failed; it restarts automatically. A watch that worked before stays ready, because no
    /// other replica could do better, and a restart would not help.
    pub(super) fn failed(&mut self, error: &watcher::Error) {
        self.metrics.watch_failed(&self.what);
        let now = Moment::now();
        let (code, why) = explain(&self.title, &self.source, error);
        let (since, log_it) = Trouble::note(&mut self.trouble, code, now);
        if log_it {
            tracing::warn!(what = self.title, why, "starting the watch again");
        }
        if self.synced {
            let remark = format!("the watch has failed since {since:.0}, trying again: {why}");
            self.part.ready_and(remark);
        } else {
            self.part.not_ready(format!("can't be listed: {why}"));
        }
    }
}

impl Trouble {
    /// Records one more error. Returns the time since which there are errors, and whether to log this one: the first
    /// error, one of another kind, and one that comes when a reminder is due are logged.
    fn note(trouble: &mut Option<Self>, code: Option<u16>, now: Moment) -> (jiff::Timestamp, bool) {
        let Some(known) = trouble else {
            let since = clock::time();
            *trouble = Some(Self {
                code,
                since,
                last: now,
                reminder: (now + FIRST_REMINDER_AFTER, FIRST_REMINDER_AFTER),
            });
            return (since, true);
        };
        let (due, pause) = known.reminder;
        let log_it = known.code != code || due <= now;
        if log_it {
            let pause = (pause * 2).min(LONGEST_REMINDER_PAUSE);
            known.reminder = (now + pause, pause);
        }
        known.code = code;
        known.last = now;
        (known.since, log_it)
    }
}

/// Returns the status of the API server's refusal, and one line that says what is wrong and what to do.
fn explain(what: &str, source: &Source, error: &watcher::Error) -> (Option<u16>, String) {
    let status = watch_refusal(error);
    let words = status.map_or_else(|| error.to_string(), |status| status.message.clone());
    let code = status.map(|status| status.code);
    (code, with_advice(&words, what, source, code))
}

#[cfg(test)]
mod tests {
    use consul_semaphore_workload::Kind;
    use kube::core::Status;

    use super::*;

    fn refusal(code: u16, message: &str) -> watcher::Error {
        let status = Status::failure(message, "Reason").with_code(code);
        watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn it_says_where_the_rights_and_the_definition_of_a_kind_come_from() {
        let kind = |switch: &str| {
            let mut all = Kind::all().into_iter();
            all.find(|kind| kind.switch() == switch).unwrap()
        };
        let said = |source: &Source, code| explain("runs", source, &refusal(code, "no")).1;
        let row = Source::Row("runs".to_owned());
        for (source, code, words) in [
            (Source::of(&kind("jobs")), 403, "config/rbac/role.yaml"),
            (
                Source::of(&kind("kueue")),
                403,
                "kinds --manifests kueue | kubectl",
            ),
            (
                row.clone(),
                403,
                "kinds --kinds FILE --manifests runs | kubectl",
            ),
            (Source::Operator, 404, "`kubectl apply -k crds`"),
        ] {
            let said = said(&source, code);
            assert!(said.starts_with("no; ") && said.contains(words), "{said}");
        }
        for (source, words) in [
            (
                Source::of(&kind("rayjobs")),
                "or leave rayjobs out of --workloads",
            ),
            (row, "or correct apiVersion and plural in the row"),
        ] {
            let (health, metrics) = (Health::new(), Metrics::new());
            let watching = Watching::begin("runs", &WatchScope::Cluster, &health, &metrics);
            let said = watching.of(source).if_missing();
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn before_it_was_listed_it_says_why_it_cannot_be() {
        let (health, metrics) = (Health::new(), Metrics::new());
        let mut workloads = Watching::begin("jobs", &WatchScope::Cluster, &health, &metrics);
        assert_eq!(health.obstacles(), "jobs: not synced yet\n");
        workloads.failed(&refusal(
            403,
            "jobs.batch is forbidden:\nUser \"x\" cannot list",
        ));
        assert_eq!(
            health.obstacles(),
            "jobs: can't be listed: jobs.batch is forbidden: User \"x\" cannot list; allow the operator to list and watch \
             jobs: the rule is in config/rbac/role.yaml\n"
        );
        workloads.failed(&refusal(404, "404 page not found"));
        assert!(health.obstacles().contains("kubectl apply -k crds"));
        workloads.synced();
        assert!(health.is_ready());
    }

    #[test]
    fn of_several_namespaces_each_has_to_be_listed() {
        let (health, metrics) = (Health::new(), Metrics::new());
        let begin = |namespace: &str| {
            let reach = WatchScope::Namespace(namespace.into());
            Watching::begin("jobs", &reach, &health, &metrics)
        };
        let (mut a, mut b) = (begin("a"), begin("b"));
        a.synced();
        b.failed(&refusal(403, "forbidden"));
        assert_eq!(
            health.obstacles(),
            "jobs in b: can't be listed: forbidden; allow the operator to list and watch jobs in b: the \
             rule is in config/rbac/role.yaml\n"
        );
        b.synced();
        a.failed(&refusal(500, "broken"));
        assert!(
            health.is_ready()
                && health
                    .remarks()
                    .starts_with("jobs in a: the watch has failed")
        );
        let failed = "watch_errors_total{resource=\"jobs\"} 2";
        assert!(metrics.encode().contains(failed), "for each resource");
    }

    #[test]
    fn a_part_of_what_is_watched_already_has_a_line_of_its_own() {
        let (health, metrics) = (Health::new(), Metrics::new());
        let scope = WatchScope::Cluster;
        let mut jobs = Watching::begin("jobs", &scope, &health, &metrics);
        let mut owners = Watching::begin_part("jobs", "Kueue", &scope, &health, &metrics);
        assert_eq!(health.obstacles(), "jobs: not synced yet\n");
        jobs.synced();
        owners.failed(&refusal(403, "forbidden"));
        let remarks = health.remarks();
        assert!(
            health.is_ready() && remarks.starts_with("jobs of Kueue: the watch has failed"),
            "{remarks}"
        );
        let failed = "watch_errors_total{resource=\"jobs\"} 1";
        assert!(metrics.encode().contains(failed));
    }

    #[test]
    fn afterwards_it_stays_ready_and_says_what_is_wrong() {
        let (health, metrics) = (Health::new(), Metrics::new());
        let mut workloads = Watching::begin("jobs", &WatchScope::Cluster, &health, &metrics);
        workloads.synced();
        workloads.failed(&refusal(403, "forbidden"));
        assert!(health.is_ready());
        let remarks = health.remarks();
        assert!(
            remarks.starts_with("jobs: the watch has failed since 20"),
            "{remarks}"
        );
        assert!(remarks.contains("forbidden"), "{remarks}");
        workloads.works();
        assert_eq!(health.remarks(), "");
        assert!(
            metrics
                .encode()
                .contains("watch_errors_total{resource=\"jobs\"} 1")
        );
    }

    #[test]
    fn each_trouble_is_logged_once_and_again_ever_less_often() {
        let mut trouble = None;
        let at = |seconds| Moment::from_boot(Duration::from_secs(seconds));
        let mut logged = Vec::new();
        for second in (0..36_000).step_by(30) {
            if Trouble::note(&mut trouble, None, at(second)).1 {
                logged.push(second);
            }
        }
        assert_eq!(
            logged,
            [
                0, 60, 180, 420, 900, 1860, 3780, 7380, 10980, 14580, 18180, 21780, 25380, 28980,
                32580
            ]
        );
        assert!(
            Trouble::note(&mut trouble, Some(403), at(36_001)).1,
            "another kind"
        );
        assert!(!Trouble::note(&mut trouble, Some(403), at(36_002)).1);
    }
}
