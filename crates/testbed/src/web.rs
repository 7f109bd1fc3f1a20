//! Operators with the web page, and its users.
#![expect(
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a step of a story fails the story"
)]

use crate::{Bed, Namespace, Operator};
use tokio::sync::Mutex;

/// If two processes apply a file for the first time at once, one of them gets an error.
static APPLYING: Mutex<()> = Mutex::const_new(());

/// A loopback address that stays reserved, even while its replica is down.
pub fn free_address() -> String {
    let port = crate::lasting_port().expect("a free port");
    format!("127.0.0.1:{port}")
}

/// A replica that serves the page, and its address. The bed's own operator leads.
pub async fn replica<const N: usize>(bed: &Bed, name: &str, args: [&str; N]) -> (Operator, String) {
    let address = free_address();
    let args = ["--web-address", &address].into_iter().chain(args);
    let operator = bed.another_operator(name, args, []);
    operator.start().await;
    (operator, address)
}

/// Gives the operator the rights that docs/web.md says it needs.
pub async fn may_review(bed: &Bed) {
    may_review_by(bed, "web").await;
}

/// Gives the operator the rights to review tokens, by the roles of this component in `config/`.
pub async fn may_review_by(bed: &Bed, component: &str) {
    let files = ["role", "role_binding"].map(|file| format!("config/{component}/{file}.yaml"));
    let alone = APPLYING.lock().await;
    bed.kubectl(["apply", "-f", &files[0], "-f", &files[1]])
        .await;
    drop(alone);
    let operator = "system:serviceaccount:consul-semaphore-system:consul-semaphore-operator";
    for what in [
        "tokenreviews.authentication.k8s.io",
        "subjectaccessreviews.authorization.k8s.io",
    ] {
        bed.lets(operator, ["create", what], None, true).await;
    }
}

/// A user who may not view any namespace yet: `namespace:name` of its `ServiceAccount`.
pub async fn somebody(namespace: &Namespace, name: &str) -> String {
    namespace.kubectl(["create", "serviceaccount", name]).await;
    format!("{}:{name}", namespace.name())
}

/// A token of this account for the page, made as docs/web.md says.
pub async fn token(bed: &Bed, account: &str) -> String {
    token_for(bed, account, "consul-semaphore-web").await
}

/// A token of this account for this audience.
pub async fn token_for(bed: &Bed, account: &str, audience: &str) -> String {
    let (namespace, name) = account.split_once(':').expect("namespace:name");
    let args = [
        "create",
        "token",
        name,
        "-n",
        namespace,
        "--audience",
        audience,
    ];
    bed.kubectl(args).await.trim().to_owned()
}

/// Lets this account view a namespace.
pub async fn may_look(account: &str, into: &Namespace) {
    let account = format!("--serviceaccount={account}");
    let role = "--clusterrole=consul-semaphore-viewer";
    let args = ["create", "rolebinding", "looks", role, &account];
    into.kubectl(args).await;
}
