//! The objects of a release go together: what one names is what the other has.

use serde_json::Value;

use crate::chart::cases;

/// Those of a kind.
fn of<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    let of = |object: &&Value| object["kind"] == kind;
    objects.iter().filter(of).collect()
}

/// Whether labels are found by a selector's `matchLabels`.
fn is_found(labels: &Value, selector: &Value) -> bool {
    let wanted = selector["matchLabels"].as_object().expect("labels");
    wanted.iter().all(|(name, value)| labels[name] == *value)
}

#[tokio::test]
async fn prometheus_scrapes_the_metrics_and_not_the_page() {
    let mut scraped = 0;
    for case in cases() {
        let objects = case.objects().await;
        for monitor in of(&objects, "ServiceMonitor") {
            let spec = &monitor["spec"];
            let ports = of(&objects, "Service")
                .into_iter()
                .filter(|service| is_found(&service["metadata"]["labels"], &spec["selector"]))
                .flat_map(|service| service["spec"]["ports"].as_array().expect("ports"))
                .filter(|port| port["name"] == spec["endpoints"][0]["port"]);
            let targets: Vec<_> = ports.map(|port| &port["targetPort"]).collect();
            assert_eq!(targets, ["http"], "{}", case.name);
            scraped += 1;
        }
    }
    assert!(scraped > 0, "no values file turns the ServiceMonitor on");
}
