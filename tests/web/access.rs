//! Who may see what.

use serde_json::json;
use testbed::{
    Bed, eventually,
    web::{may_look, may_review, replica, somebody, token},
};

use crate::reader::{Reader, events, http};

#[tokio::test]
async fn without_a_token_there_is_only_an_empty_page() {
    let bed = Bed::shared().await;
    may_review(&bed).await;
    let (_operator, address) = replica(&bed, "empty-page", []).await;

    let page = http()
        .get(format!("http://{address}/"))
        .send()
        .await
        .unwrap();
    assert_eq!(page.status(), 200);
    let policy = page.headers()["content-security-policy"].to_str().unwrap();
    assert!(
        policy.starts_with("default-src 'none'; script-src 'self';"),
        "{policy}"
    );
    assert_eq!(page.headers()["x-content-type-options"], "nosniff");
    assert!(page.text().await.unwrap().contains("page.js"));

    let refused = events(&address, None).await.unwrap();
    assert_eq!(refused.status(), 401);
    assert_eq!(refused.headers()["www-authenticate"], "Bearer");
    let wrong = events(&address, Some("ey.wrong.token")).await.unwrap();
    assert_eq!(wrong.status(), 401);
    let words = wrong.text().await.unwrap();
    assert!(words.contains("does not know this token"), "{words}");

    // It can only be read.
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        let method = method.parse().unwrap();
        let request = http().request(method, format!("http://{address}/events"));
        assert_eq!(request.send().await.unwrap().status(), 405);
    }
    let nowhere = http().get(format!("http://{address}/metrics")).send().await;
    assert_eq!(nowhere.unwrap().status(), 404);
}

#[tokio::test]
async fn a_user_sees_the_namespaces_that_it_may_list() {
    let bed = Bed::shared().await;
    may_review(&bed).await;
    let (operator, address) = replica(&bed, "namespaces", []).await;
    let (a, b) = (bed.namespace("sees-a").await, bed.namespace("sees-b").await);
    for namespace in [&a, &b] {
        namespace.semaphore("db").create().await.is_ready().await;
    }
    let in_a = format!("{}/db", a.name());
    let in_b = format!("{}/db", b.name());
    let account = somebody(&a, "viewer").await;
    let own = token(&bed, &account).await;
    let reader = Reader::open(&address, Some(&own));
    reader.sees_exactly(&[]).await;

    // Granted and revoked rights take effect without a new login.
    may_look(&account, &a).await;
    reader.sees_exactly(&[&in_a]).await;
    may_look(&account, &b).await;
    reader.sees_exactly(&[&in_a, &in_b]).await;
    a.kubectl(["delete", "rolebinding", "looks"]).await;
    reader.sees_exactly(&[&in_b]).await;
    let user = format!("system:serviceaccount:{}:viewer", a.name());
    assert_eq!(reader.seen().user, json!(user));

    // A user who may list everywhere sees all namespaces.
    let all = format!("{}-everywhere", a.name());
    let role = "--clusterrole=consul-semaphore-viewer";
    let whole = format!("--serviceaccount={}", somebody(&a, "all").await);
    bed.kubectl(["create", "clusterrolebinding", &all, role, &whole])
        .await;
    // A token for the API server works as well as one for the page.
    let for_api_server = ["create", "token", "all", "-n", a.name()];
    let for_api_server = bed.kubectl(for_api_server).await;
    let reader = Reader::open(&address, Some(for_api_server.trim()));
    reader
        .until("both are shown", |seen| {
            !seen.is(&in_a).is_null() && !seen.is(&in_b).is_null()
        })
        .await;

    // A deleted account no longer has a token.
    let reader = Reader::open(&address, Some(&own));
    reader.sees_exactly(&[&in_b]).await;
    a.kubectl(["delete", "serviceaccount", "viewer"]).await;
    reader
        .until("the open page is ended, and no other opened", |seen| {
            seen.refusal
                .as_ref()
                .is_some_and(|(status, _)| *status == 401)
        })
        .await;
    for text in [own.as_str(), for_api_server.trim()] {
        assert!(!operator.logs().contains(text), "no token in the log");
    }
}

#[tokio::test]
async fn a_right_that_the_operator_lacks_is_named() {
    let bed = Bed::start().await;
    let (_operator, address) = replica(&bed, "without-a-role", []).await;
    let team = bed.namespace("lacks").await;
    let own = token(&bed, &somebody(&team, "viewer").await).await;

    let reader = Reader::open(&address, Some(&own));
    let seen = reader
        .until("it is refused", |seen| seen.refusal.is_some())
        .await;
    let (status, words) = seen.refusal.unwrap();
    assert_eq!(status, 503);
    assert!(words.contains("config/web/role.yaml"), "{words}");

    // With only a part of it, the user is known, but not the user's rights.
    let resource = "--resource=tokenreviews.authentication.k8s.io";
    let role = ["clusterrole", "half", "--verb=create", resource];
    let operator = "--serviceaccount=consul-semaphore-system:consul-semaphore-operator";
    let binding = ["clusterrolebinding", "half", "--clusterrole=half", operator];
    for object in [role, binding] {
        bed.kubectl(["create"].into_iter().chain(object)).await;
    }
    eventually("it is known whose a token is", || async {
        let answer = events(&address, Some("ey.wrong.token")).await;
        testbed::same(answer.unwrap().status().as_u16(), 401)
    })
    .await;
    let answer = events(&address, Some(&own)).await.unwrap();
    assert_eq!(answer.status(), 503);
    let words = answer.text().await.unwrap();
    assert!(words.contains("config/web/role.yaml"), "{words}");

    // Nothing has to be restarted once it exists.
    may_review(&bed).await;
    reader.sees_exactly(&[]).await;
}

#[tokio::test]
async fn without_a_login_it_answers_under_the_names_of_loopback_alone() {
    let bed = Bed::shared().await;
    let (_operator, address) = replica(&bed, "no-login", ["--web-auth", "none"]).await;
    let team = bed.namespace("no-login").await;
    team.semaphore("db").create().await;
    let id = format!("{}/db", team.name());

    let reader = Reader::open(&address, None);
    reader
        .until("it is shown", |seen| !seen.is(&id).is_null())
        .await;
    assert!(reader.seen().user.is_null());

    let ask = |name: &'static str, value: &'static str| {
        let request = http().get(format!("http://{address}/events"));
        request.header(name, value).send()
    };
    assert_eq!(ask("host", "localhost:8081").await.unwrap().status(), 200);
    let rebound = ask("host", "evil.example:8081").await.unwrap();
    assert_eq!(rebound.status(), 403);
    assert!(rebound.text().await.unwrap().contains("http://localhost"));
    let foreign = ask("sec-fetch-site", "cross-site").await.unwrap();
    assert_eq!(foreign.status(), 403);
}

#[tokio::test]
async fn nobody_takes_all_places() {
    let bed = Bed::shared().await;
    may_review(&bed).await;
    let (_operator, address) = replica(&bed, "places", []).await;
    let team = bed.namespace("places").await;
    let (greedy, alike) = (
        somebody(&team, "greedy").await,
        somebody(&team, "alike").await,
    );
    // Kept, because a namespace is deleted with its handle.
    let others = bed.namespace("other-places").await;
    let other = somebody(&others, "other").await;
    let (greedy, alike) = (token(&bed, &greedy).await, token(&bed, &alike).await);
    let other = token(&bed, &other).await;
    let mut open = Vec::new();
    for _ in 0..12 {
        let answer = events(&address, Some(&greedy)).await.unwrap();
        assert_eq!(answer.status(), 200);
        open.push(answer);
    }

    // Anybody who can create one ServiceAccount can create more.
    for token in [&greedy, &alike] {
        let refused = events(&address, Some(token)).await.unwrap();
        assert_eq!(refused.status(), 503);
        let words = refused.text().await.unwrap();
        assert!(words.contains("12 open pages"), "{words}");
    }
    assert_eq!(events(&address, Some(&other)).await.unwrap().status(), 200);

    drop(open.pop());
    eventually("there is a place again", || async {
        let answer = events(&address, Some(&greedy)).await;
        testbed::same(answer.unwrap().status().as_u16(), 200)
    })
    .await;
}

/// The components do what docs/web.md and docs/operations.md say: a container port, a Service for it, and the two
/// rules; a certificate, and probes over TLS.
#[tokio::test]
async fn the_components_belong_to_the_manifests() {
    let bed = Bed::shared().await;
    let folder = bed.folder().path().join("with-components");
    std::fs::create_dir(&folder).unwrap();
    // A kustomization can name others only by relative paths.
    let up = "../".repeat(folder.canonicalize().unwrap().components().count() - 1);
    let config = format!("{up}{}/config", &env!("CARGO_MANIFEST_DIR")[1..]);
    let components = ["web", "metrics"].map(|name| format!("{config}/{name}"));
    let kustomization =
        json!({ "resources": [format!("{config}/default")], "components": components });
    std::fs::write(folder.join("kustomization.yaml"), kustomization.to_string()).unwrap();

    let objects = bed.kubectl(["kustomize", folder.to_str().unwrap()]).await;

    for line in [
        "- name: WEB_ADDRESS",
        "value: '[::]:8081'",
        "- containerPort: 8081",
        "targetPort: web",
        "name: consul-semaphore-operator-web",
        "- subjectaccessreviews",
        "- name: METRICS_AUTH",
        "scheme: HTTPS",
        "mountPath: /etc/http-tls",
        "secretName: consul-semaphore-operator-http",
        "name: consul-semaphore-operator-metrics-reader",
        // What existed before stays.
        "- name: CONSUL_HTTP_ADDR",
        "- containerPort: 8080",
        "path: /readyz",
        "mountPath: /etc/consul/token",
    ] {
        assert!(objects.contains(line), "{line} is not in:\n{objects}");
    }
}
