//! A lead that is given back is taken at once. With a lease of ten minutes, a test that waits for it to run out would
//! time out.

use testbed::{Bed, Operator};

use crate::{
    load::Load,
    replicas::{leader_of, others},
};

#[tokio::test]
async fn whoever_ends_hands_over_at_once() {
    let bed = Bed::builder().without_operator().start().await;
    let mut load = None;
    for mode in ["kubernetes", "consul"] {
        let args = ["--lease-duration", "10m", "--leader-election", mode];
        let replicas = ["a", "b", "c"].map(|name| {
            let name = format!("{mode}-{name}");
            bed.another_operator(&name, args, [])
        });
        for replica in &replicas {
            replica.start().await;
        }
        let all: Vec<_> = replicas.iter().collect();
        let load = match &mut load {
            Some(load) => load,
            none => none.insert(Load::start(&bed, "120s").await),
        };
        one_after_another(&all, load).await;
    }

    // One without an election.
    let alone = bed.another_operator("alone", ["--leader-election", "off"], []);
    alone.start().await;
    assert_eq!(alone.get("/readyz").await, "ok\nleader election: off\n");
    let mut load = load.expect("a load");
    load.goes_on().await;
    load.was_kept().await;
}

async fn one_after_another(all: &[&Operator], load: &mut Load) {
    let leader = leader_of(all).await;
    load.goes_on().await;

    // Killed, and started again under its name: no replica has to wait. In Consul another replica may be quicker,
    // because the key is free for a moment.
    leader.kill().await;
    leader.start().await;
    let leader = leader_of(all).await;
    load.goes_on().await;

    let hold = load.hold().await;
    assert!(leader.stop().await.success());
    let rest = others(all, leader);
    let leader = leader_of(&rest).await;
    assert_eq!(load.hold().await, hold);
    load.goes_on().await;

    // Losing a standby has no effect.
    for standby in others(&rest, leader) {
        assert!(standby.stop().await.success());
    }
    load.goes_on().await;
    assert!(leader.stop().await.success());
}
