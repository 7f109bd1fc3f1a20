//! What a leader leaves in the Lease for the next one, with an API server that has only this Lease.

use parking_lot::Mutex;
use serde_json::{Value, json};
use wiremock::{Mock, MockServer, Request, ResponseTemplate, matchers::any};

use super::*;
use crate::leader::Mode;

/// The Lease as the API server has it; `None` if there is none.
type Stored = Arc<Mutex<Option<Value>>>;

/// Leaves what was found with a number behind it, which grows each time.
#[derive(Default)]
struct Numbered {
    taken_over: Mutex<Vec<Option<String>>>,
    left: Mutex<u32>,
}

impl Legacy for Numbered {
    fn take_over(&self, found: Option<&str>) {
        self.taken_over.lock().push(found.map(str::to_owned));
    }

    fn leave(&self, found: Option<&str>) -> Option<String> {
        let mut left = self.left.lock();
        *left += 1;
        let before = found.and_then(|text| text.split(' ').next());
        Some(format!("{} {left}", before.unwrap_or("nothing")))
    }
}

/// Answers about the Lease, and refuses to write over a version that is not the stored one.
fn answer(stored: &Stored, request: &Request) -> ResponseTemplate {
    let refused = |code: u16, reason: &str| {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "code": code, "reason": reason, "message": reason,
        });
        ResponseTemplate::new(code).set_body_json(status)
    };
    let mut stored = stored.lock();
    let version = |lease: &Value| lease["metadata"]["resourceVersion"].clone();
    if request.method != "GET" {
        let mut lease: Value = request.body_json().unwrap();
        let current = stored.as_ref().map_or(Value::Null, version);
        if version(&lease) != current {
            return refused(409, "Conflict");
        }
        let next: u64 = current.as_str().map_or(0, |text| text.parse().unwrap()) + 1;
        lease["metadata"]["resourceVersion"] = next.to_string().into();
        *stored = Some(lease);
    }
    stored.as_ref().map_or_else(
        || refused(404, "NotFound"),
        |lease| ResponseTemplate::new(200).set_body_json(lease),
    )
}

/// A candidate, what it leaves, and an API server with this Lease.
async fn candidate(lease: Option<Value>) -> (LeaseCandidate, Arc<Numbered>, Stored, MockServer) {
    let stored = Stored::new(Mutex::new(lease));
    let server = MockServer::start().await;
    let answers = stored.clone();
    Mock::given(any())
        .respond_with(move |request: &Request| answer(&answers, request))
        .mount(&server)
        .await;
    let settings = ElectionSettings {
        mode: Mode::Kubernetes,
        identity: "me".to_owned(),
        namespace: Some("here".to_owned()),
        lease_name: "it".parse().unwrap(),
        lease: Duration::from_secs(6),
    };
    let config = Config::new(server.uri().parse().unwrap());
    let legacy = Arc::new(Numbered::default());
    let candidate = LeaseCandidate::new(&settings, config, legacy.clone()).unwrap();
    (candidate, legacy, stored, server)
}

/// A Lease that nobody holds, in which a leader has left this.
fn with(left: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "it", "resourceVersion": "1", "annotations": { LEGACY: left, "other": "stays" } },
        "spec": { "holderIdentity": "" },
    })
}

async fn take(candidate: &mut LeaseCandidate) -> Result<Moment, LeaseFailure> {
    let seen = candidate.look().await.unwrap().clone();
    candidate.take(&seen).await
}

fn left(stored: &Stored) -> Value {
    let stored = stored.lock();
    stored.as_ref().unwrap()["metadata"]["annotations"][LEGACY].clone()
}

#[tokio::test]
async fn whoever_takes_the_lease_takes_over_what_was_left_in_it_and_leaves_its_own() {
    let (mut candidate, legacy, stored, _server) = candidate(Some(with("a 7"))).await;
    take(&mut candidate).await.unwrap();
    assert_eq!(*legacy.taken_over.lock(), [Some("a 7".to_owned())]);
    assert_eq!(left(&stored), "a 1");
    let annotations = stored.lock().as_ref().unwrap()["metadata"]["annotations"].clone();
    assert_eq!(annotations["other"], "stays");
}

#[tokio::test]
async fn a_lease_that_is_made_has_what_its_first_leader_leaves() {
    let (mut candidate, legacy, stored, _server) = candidate(None).await;
    take(&mut candidate).await.unwrap();
    assert_eq!(*legacy.taken_over.lock(), [None]);
    assert_eq!(left(&stored), "nothing 1");
}

/// Another replica led for a moment in between.
#[tokio::test]
async fn whoever_was_outrun_takes_over_what_the_faster_one_left() {
    let (mut candidate, legacy, stored, _server) = candidate(Some(with("a 7"))).await;
    let seen = candidate.look().await.unwrap().clone();
    let mut other = with("b 9");
    other["metadata"]["resourceVersion"] = "2".into();
    *stored.lock() = Some(other);
    let outrun = candidate.take(&seen).await;
    assert!(matches!(outrun, Err(LeaseFailure::Outrun)), "{outrun:?}");
    assert_eq!(left(&stored), "b 9");
    take(&mut candidate).await.unwrap();
    assert_eq!(
        legacy.taken_over.lock().last(),
        Some(&Some("b 9".to_owned()))
    );
    assert_eq!(left(&stored), "b 2", "the first was refused");
}

#[tokio::test]
async fn each_renewal_leaves_what_there_is_now() {
    let (mut candidate, _legacy, stored, _server) = candidate(Some(with("a 7"))).await;
    let until = take(&mut candidate).await.unwrap();
    let term = Term::new(until);
    let renewed = async {
        while left(&stored) == "a 1" {
            sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        lost = candidate.keep(&term) => panic!("{lost}"),
        renewed = timeout(Duration::from_mins(1), renewed) => renewed.unwrap(),
    }
}

#[tokio::test]
async fn whoever_gives_the_lease_back_leaves_the_latest() {
    let (mut candidate, _legacy, stored, _server) = candidate(Some(with("a 7"))).await;
    take(&mut candidate).await.unwrap();
    candidate.resign().await;
    assert_eq!(left(&stored), "a 2");
    let holder = stored.lock().as_ref().unwrap()["spec"]["holderIdentity"].clone();
    assert_eq!(holder, "");
}
