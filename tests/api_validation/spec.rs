//! The behaviour of a semaphore: limits, policies and times.

use consul_semaphore_api::{Cooldown, LockDelay, Ttl};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::semaphores::Semaphores;

pub(crate) async fn is_checked(api: &Semaphores) {
    fills_in_defaults(api).await;
    checks_the_limit(api).await;
    checks_the_names_of_slots(api).await;
    checks_the_limit_policy(api).await;
    checks_what_a_lost_slot_means(api).await;
    checks_the_ttl(api).await;
    checks_the_lock_delay(api).await;
    checks_the_cooldown(api).await;
    checks_what_ends_waits(api).await;
    checks_the_windows(api).await;
    checks_what_is_reserved(api).await;
    checks_rates(api).await;
    checks_the_mode(api).await;
}

async fn fills_in_defaults(api: &Semaphores) {
    let full = json!({
        "limit": 3, "limitPolicy": "Refuse", "onSlotLost": "Reacquire", "paused": false,
        "mode": "Semaphore", "keyed": false, "cooldown": "0s", "replaceAfter": "0s",
        "session": { "ttl": "120s", "lockDelay": "15s" },
    });
    for sparse in [
        json!({ "limit": 3 }),
        json!({ "limit": 3, "session": {} }),
        json!({ "limit": 3, "session": null, "prefix": null, "consul": null, "limitPolicy": null, "paused": null }),
    ] {
        let made = api
            .create(&sparse)
            .await
            .expect("only the limit is required");
        assert_eq!(made.data["spec"], full, "{sparse}");
    }
    api.refuse([json!({})], "spec.limit", "Required value")
        .await;

    let bare = api.accept(json!({ "limit": 3 })).await;
    let default = format!("semaphores/default/{}", bare.name_any());
    assert_eq!(bare.prefix().as_str(), default);
}

async fn checks_the_limit(api: &Semaphores) {
    for limit in [json!(1), json!(2), json!(5000), json!(3.0)] {
        api.accept(json!({ "limit": limit })).await;
    }
    let low = [0, -1, i64::from(i32::MIN)].map(|limit| json!({ "limit": limit }));
    api.refuse(low, "spec.limit", "greater than or equal to 1")
        .await;
    let high = [5001, i64::from(i32::MAX), i64::MAX].map(|limit| json!({ "limit": limit }));
    api.refuse(high, "spec.limit", "less than or equal to 5000")
        .await;
    let other = [json!("3"), json!(1.5), json!(true)].map(|limit| json!({ "limit": limit }));
    api.refuse(other, "spec.limit", "must be of type int").await;
}

async fn checks_the_names_of_slots(api: &Semaphores) {
    api.accept(json!({ "limit": 2, "slotNames": ["gpu-a", "B.1_x"] }))
        .await;
    api.accept(json!({ "limit": 1, "mode": "Mutex", "slotNames": ["a".repeat(63)] }))
        .await;
    let names = |limit: i64, names: Value| json!({ "limit": limit, "slotNames": names });
    let too_few_or_many = [names(2, json!(["a"])), names(1, json!(["a", "b"]))];
    api.refuse(too_few_or_many, "spec.slotNames", "as many names as limit")
        .await;
    let twice = names(2, json!(["a", "a"]));
    api.refuse([twice], "spec.slotNames", "Duplicate value")
        .await;
    let odd = ["a/b", "-a", "a-", "a b"].map(|name| names(1, json!([name])));
    api.refuse(odd, "spec.slotNames", "should match").await;
    api.refuse([names(1, json!([""]))], "spec.slotNames", "at least 1")
        .await;
    let long = names(1, json!(["a".repeat(64)]));
    api.refuse([long], "spec.slotNames", "Too long").await;
    let many: Vec<_> = (0..257).map(|number| format!("s{number}")).collect();
    api.refuse([names(257, json!(many))], "spec.slotNames", "Too many")
        .await;
    let rate = json!({ "limit": 1, "mode": "Rate", "period": "1m", "slotNames": ["a"] });
    api.refuse([rate], "spec.slotNames", "mode is Rate").await;
}

async fn checks_the_limit_policy(api: &Semaphores) {
    for policy in ["Refuse", "Enforce"] {
        api.accept(json!({ "limit": 1, "limitPolicy": policy }))
            .await;
    }
    let unknown =
        ["", "refuse", "Ignore"].map(|policy| json!({ "limit": 1, "limitPolicy": policy }));
    let allowed = r#"supported values: "Refuse", "Enforce""#;
    api.refuse(unknown, "spec.limitPolicy", allowed).await;
}

async fn checks_what_a_lost_slot_means(api: &Semaphores) {
    for policy in ["Reacquire", "Suspend", "Continue"] {
        api.accept(json!({ "limit": 1, "onSlotLost": policy }))
            .await;
    }
    let unknown =
        ["", "suspend", "Ignore"].map(|policy| json!({ "limit": 1, "onSlotLost": policy }));
    let allowed = r#"supported values: "Reacquire", "Suspend", "Continue""#;
    api.refuse(unknown, "spec.onSlotLost", allowed).await;
}

async fn checks_the_ttl(api: &Semaphores) {
    let spec = |ttl: &str| json!({ "limit": 1, "session": { "ttl": ttl } });
    for ttl in ["10s", "120s", "2m", "1h30m", "90m", "24h", "1h60s", "None"] {
        let made = api.accept(spec(ttl)).await;
        assert_eq!(Ok(made.spec.session.ttl), ttl.parse());
    }
    let invalid = [
        "", "0", "9s", "5s", "24h1s", "25h", "99999h", "999999s", "120", "abc", "-120s", "+120s",
        "1.5h", "10.5s", "12000ms", "1d", "2 m", "2m\n", "none", "١٢٠s",
    ];
    let taken: Vec<_> = invalid
        .iter()
        .filter(|ttl| ttl.parse::<Ttl>().is_ok())
        .collect();
    assert!(
        taken.is_empty(),
        "the operator agrees with the API server, but not on {taken:?}"
    );
    let allowed = "ttl must be whole hours, minutes and seconds from 10s to 24h, such as 120s, 2m or 1h30m, or None";
    api.refuse(invalid.map(spec), "spec.session.ttl", allowed)
        .await;

    let too_long = [spec(&"1s".repeat(20))];
    api.refuse(too_long, "spec.session.ttl", "may not be more than 32")
        .await;
    let number = [json!({ "limit": 1, "session": { "ttl": 120 } })];
    api.refuse(number, "spec.session.ttl", "must be of type string")
        .await;
}

async fn checks_the_lock_delay(api: &Semaphores) {
    let spec = |delay: &str| json!({ "limit": 1, "session": { "lockDelay": delay } });
    for delay in ["0s", "1s", "15s", "60s", "1m", "0h0m60s"] {
        let made = api.accept(spec(delay)).await;
        assert_eq!(Ok(made.spec.session.lock_delay), delay.parse());
    }
    let invalid = [
        "", "0", "61s", "1m1s", "2m", "1h", "-1s", "1.5s", "100ms", "None", "1d",
    ];
    let taken: Vec<_> = invalid
        .iter()
        .filter(|delay| delay.parse::<LockDelay>().is_ok())
        .collect();
    assert!(
        taken.is_empty(),
        "the operator agrees with the API server, but not on {taken:?}"
    );
    let allowed = "lockDelay must be whole seconds from 0s to 60s, such as 15s or 1m";
    api.refuse(invalid.map(spec), "spec.session.lockDelay", allowed)
        .await;
    let number = [json!({ "limit": 1, "session": { "lockDelay": 15 } })];
    api.refuse(number, "spec.session.lockDelay", "must be of type string")
        .await;
}

async fn checks_the_cooldown(api: &Semaphores) {
    let spec = |cooldown: &str| json!({ "limit": 1, "cooldown": cooldown });
    for cooldown in ["0s", "90s", "1h30m", "24h"] {
        let made = api.accept(spec(cooldown)).await;
        assert_eq!(Ok(made.spec.cooldown), cooldown.parse());
    }
    let invalid = ["", "0", "-1s", "24h1s", "1.5h", "1d", "None"];
    assert!(invalid.iter().all(|text| text.parse::<Cooldown>().is_err()));
    let allowed =
        "cooldown must be whole hours, minutes and seconds from 0s to 24h, such as 30s or 1h";
    api.refuse(invalid.map(spec), "spec.cooldown", allowed)
        .await;
}

async fn checks_what_ends_waits(api: &Semaphores) {
    let waits = |time: &str| json!({ "limit": 1, "waitTimeout": time });
    let replaces = |time: &str| json!({ "limit": 1, "replaceAfter": time });
    for time in ["1s", "30m", "720h", "2592000s"] {
        let made = api.accept(waits(time)).await;
        assert_eq!(made.spec.wait_timeout, time.parse().ok());
        let made = api.accept(replaces(time)).await;
        assert_eq!(Ok(made.spec.replace_after), time.parse());
    }
    api.accept(replaces("0s")).await;
    let invalid = ["", "0s", "720h1s", "1.5h", "1d", "None"];
    let allowed =
        "waitTimeout must be whole hours, minutes and seconds from 1s to 720h, such as 30m or 2h";
    api.refuse(invalid.map(waits), "spec.waitTimeout", allowed)
        .await;
    let invalid = ["", "0", "-1s", "720h1s", "1d"];
    let allowed =
        "replaceAfter must be whole hours, minutes and seconds from 0s to 720h, such as 10m";
    api.refuse(invalid.map(replaces), "spec.replaceAfter", allowed)
        .await;
    let bounds = |most: i32| json!({ "limit": 1, "maxWaiting": most });
    for most in [1, 100_000] {
        let made = api.accept(bounds(most)).await;
        assert_eq!(made.spec.max_waiting, Some(most));
    }
    let allowed = "spec.maxWaiting in body should be";
    api.refuse([0, 100_001].map(bounds), "spec.maxWaiting", allowed)
        .await;
}

async fn checks_the_windows(api: &Semaphores) {
    let window = |schedule: &str, duration: &str, zone: &str| json!({ "schedule": schedule, "duration": duration, "timeZone": zone });
    let spec = |window: Value| json!({ "limit": 3, "windows": [window] });
    api.accept(spec(window("0 22 * * *", "6h", "Europe/Berlin")))
        .await;
    api.accept(spec(
        json!({ "schedule": "*/5 0-6 1,15 * MON-FRI", "duration": "168h", "limit": 2 }),
    ))
    .await;
    let schedules = ["", "0 22 * *", "0 22 * * * UTC", "@daily", "0  22 * * *"];
    let schedules = schedules.map(|schedule| spec(window(schedule, "6h", "UTC")));
    let allowed = "schedule must be the five fields of cron";
    api.refuse(schedules, "spec.windows[0].schedule", allowed)
        .await;
    let durations = ["0s", "59s", "168h1s", "1d", "6"];
    let durations = durations.map(|duration| spec(window("0 22 * * *", duration, "UTC")));
    let allowed = "duration must be whole hours, minutes and seconds from 1m to 168h";
    api.refuse(durations, "spec.windows[0].duration", allowed)
        .await;
    let zones = ["", "Europe Berlin", "../etc/passwd", "/etc/localtime"];
    let zones = zones.map(|zone| spec(window("0 22 * * *", "6h", zone)));
    api.refuse(
        zones,
        "spec.windows[0].timeZone",
        "such as Europe/Berlin or UTC",
    )
    .await;
    let many = vec![window("0 22 * * *", "6h", "UTC"); 21];
    let many = [json!({ "limit": 3, "windows": many })];
    api.refuse(many, "spec.windows", "must have at most 20 items")
        .await;
}

async fn checks_what_is_reserved(api: &Semaphores) {
    let spec =
        |slots: i64| json!({ "limit": 3, "reserved": { "slots": slots, "minPriority": 10 } });
    api.accept(spec(3)).await;
    api.refuse(
        [spec(4)],
        "spec.reserved.slots",
        "reserved.slots must be at most limit",
    )
    .await;
    let none = "should be greater than or equal to 1";
    api.refuse([spec(0)], "spec.reserved.slots", none).await;
}

async fn checks_rates(api: &Semaphores) {
    let rate = |more: Value| {
        let mut spec = json!({ "limit": 3, "mode": "Rate", "period": "1m" });
        let (spec_map, more) = (spec.as_object_mut(), more.as_object().cloned());
        if let Some((map, more)) = spec_map.zip(more) {
            map.extend(more);
        }
        spec
    };
    for good in [
        json!({}),
        json!({ "period": "12h", "keyed": true }),
        json!({ "cooldown": "0s" }),
    ] {
        api.accept(rate(good)).await;
    }
    let missing = "period must be set when mode is Rate";
    let alone = [
        json!({ "limit": 3, "mode": "Rate" }),
        json!({ "limit": 3, "period": "1m" }),
        json!({ "limit": 1, "mode": "Mutex", "period": "1m" }),
    ];
    api.refuse(alone, "spec.period", missing).await;
    let allowed = "period must be whole hours, minutes and seconds from 1s to 12h";
    let lengths = ["0s", "13h", "1d", ""].map(|period| rate(json!({ "period": period })));
    api.refuse(lengths, "spec.period", allowed).await;
    let cooldown = [rate(json!({ "cooldown": "1s" }))];
    api.refuse(
        cooldown,
        "spec.cooldown",
        "cooldown must be 0s or left out when mode is Rate",
    )
    .await;
    let suspend = [rate(json!({ "onSlotLost": "Suspend" }))];
    api.refuse(
        suspend,
        "spec.onSlotLost",
        "onSlotLost can't be Suspend when mode is Rate",
    )
    .await;
}

async fn checks_the_mode(api: &Semaphores) {
    api.accept(json!({ "limit": 1, "mode": "Mutex" })).await;
    api.accept(json!({ "limit": 1, "mode": "Mutex", "keyed": true }))
        .await;
    let several = [json!({ "limit": 2, "mode": "Mutex" })];
    api.refuse(several, "spec.limit", "limit must be 1 when mode is Mutex")
        .await;
    let unknown = ["", "mutex", "Lock"].map(|mode| json!({ "limit": 1, "mode": mode }));
    let allowed = r#"supported values: "Semaphore", "Mutex""#;
    api.refuse(unknown, "spec.mode", allowed).await;
}
