//! Several replicas, and which of them leads.

use testbed::{Operator, eventually, helpers::metric, same};

/// Calls to Consul that change something.
const CHANGES: [&str; 6] = [
    "txn",
    "kv_put",
    "kv_delete",
    "session_create",
    "session_destroy",
    "catalog_register",
];

/// Waits until exactly one of these replicas says that it leads, and the others follow it.
pub(crate) async fn leader_of<'a>(replicas: &[&'a Operator]) -> &'a Operator {
    eventually("one leads", || async {
        let mut leaders = Vec::new();
        for replica in replicas {
            let metrics = replica.try_get("/metrics").await;
            let metrics = metrics.map_err(|error| format!("{error:#}"))?;
            if metric(&metrics, "leader") == Some(1.0) {
                leaders.push(*replica);
            }
        }
        let names: Vec<_> = leaders.iter().map(|leader| leader.name()).collect();
        let [leader] = leaders[..] else {
            return Err(format!("{names:?} lead"));
        };
        for replica in replicas {
            let says = replica.try_get("/readyz").await;
            let says = says.map_err(|error| format!("{error:#}"))?;
            same(says, ready_text(leader, replica))?;
        }
        Ok(leader)
    })
    .await
}

/// The text of a replica's `/readyz` when this one leads.
fn ready_text(leader: &Operator, replica: &Operator) -> String {
    let (leader, name) = (leader.name(), replica.name());
    if leader == name {
        format!("ok\nleader election: {name} (this replica) leads\n")
    } else {
        format!("ok\nleader election: {leader} leads, {name} (this replica) stands by\n")
    }
}

/// The replicas except this one.
pub(crate) fn others<'a>(replicas: &[&'a Operator], but: &Operator) -> Vec<&'a Operator> {
    let others = replicas.iter().filter(|other| other.name() != but.name());
    others.copied().collect()
}

/// How often a replica has changed something in Consul.
pub(crate) async fn changes_in_consul(replica: &Operator) -> u64 {
    let page = replica.get("/metrics").await;
    let calls = page.lines().filter_map(|line| {
        let call = line.strip_prefix("consul_semaphore_operator_consul_calls_total{")?;
        let (labels, count) = call.rsplit_once(' ')?;
        let change = |kind| labels.contains(&format!("kind=\"{kind}\""));
        let sent = !labels.contains("result=\"Withheld\"");
        (CHANGES.into_iter().any(change) && sent).then(|| count.parse::<u64>().ok())?
    });
    calls.sum()
}
