//! Workloads that ask for slots of several semaphores.

use super::*;

fn waiting(index: &Index, name: &str) -> Vec<String> {
    let waiting = index.slice(&queue(name), 9).waiting;
    names(&waiting).into_iter().map(ToOwned::to_owned).collect()
}

#[test]
fn one_that_asks_for_several_is_in_all_their_queues_or_in_none() {
    let index = with_db();
    let asks = tracked("a", |tracked| {
        let requests = ["db", "licenses"].map(|name| SlotRequest::one(name, None));
        workload(tracked).requests = requests.to_vec();
    });
    put(&index, asks);
    assert_eq!(waiting(&index, "db"), [""; 0], "one is missing");
    assert_eq!(names_of(&index.unclaimed()), ["a"]);
    add(&index, "licenses", "licenses", false);
    for name in ["db", "licenses"] {
        assert_eq!(waiting(&index, name), ["a"], "{name}");
    }
    assert_eq!(names_of(&index.unclaimed()), [""; 0]);
    let marked = index.take_marked();
    assert!(marked.contains(&queue("db")) && marked.contains(&queue("licenses")));
    index.remove(&"a".into());
    assert_eq!(waiting(&index, "licenses"), [""; 0]);
}
