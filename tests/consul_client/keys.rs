//! Keys and values.

use consul_client::{Error, PutMode};
use testbed::consul_minor;

use crate::server::{on_server, start};

#[tokio::test]
async fn a_prefix_is_listed_as_it_is_given() {
    let (_consul, client) = start().await;
    for key in ["jobs/a/.lock", "jobs/a/1", "jobs/ab/1"] {
        assert!(
            client
                .put(key, key.as_bytes(), 7, PutMode::Set)
                .await
                .unwrap()
        );
    }
    let listing = client.list("jobs/a/").await.unwrap();
    let keys: Vec<_> = listing.entries.iter().map(|e| e.key.as_str()).collect();
    assert_eq!(keys, ["jobs/a/.lock", "jobs/a/1"]);
    assert_eq!(listing.entries[0].value, b"jobs/a/.lock");
    assert_eq!(listing.entries[1].value, b"", "nobody has locked it");
    assert_eq!(listing.entries[0].flags, 7);
    assert_eq!(listing.index, listing.entries[1].modify_index);
    assert!(!listing.reset);

    let nothing = client.list("nothing/").await.unwrap();
    assert!(nothing.entries.is_empty());
    assert!(nothing.index >= listing.index);
}

#[tokio::test]
async fn keys_are_found_by_their_ending_without_their_values() {
    let (_consul, client) = start().await;
    let large = vec![b'x'; 400_000];
    for number in 0..50 {
        let key = format!("jobs/a/{number}");
        assert!(client.put(&key, &large, 0, PutMode::Set).await.unwrap());
    }
    for key in [
        "jobs/a/.lock",
        "jobs/b/.lock",
        "jobs/b/.locked",
        "other/.lock",
    ] {
        assert!(client.put(key, b"", 0, PutMode::Set).await.unwrap());
    }
    let too_large = client.list("jobs/").await;
    assert!(matches!(too_large, Err(Error::AnswerTooLarge(_))));
    let found = client.keys("jobs/", "/.lock").await.unwrap();
    assert_eq!(
        (found.keys.as_slice(), found.complete),
        (
            &["jobs/a/.lock".to_owned(), "jobs/b/.lock".to_owned()][..],
            true
        )
    );
    let all = client.keys("", "/.lock").await.unwrap();
    assert_eq!(all.keys.last().map(String::as_str), Some("other/.lock"));
    let none = client.keys("nothing/", "").await.unwrap();
    assert_eq!(none.keys.len(), 0);
}

#[tokio::test]
async fn a_check_and_set_needs_the_index_of_the_last_write() {
    let (_consul, client) = start().await;
    let put = |value: &'static [u8], index| client.put("k", value, 0, PutMode::Cas(index));
    assert!(put(b"1", 0).await.unwrap());
    assert!(!put(b"2", 0).await.unwrap());
    let entry = client.get("k").await.unwrap().unwrap();
    assert_eq!(entry.value, b"1");
    assert!(put(b"2", entry.modify_index).await.unwrap());

    assert!(!client.delete("k", Some(entry.modify_index)).await.unwrap());
    let entry = client.get("k").await.unwrap().unwrap();
    assert!(client.delete("k", Some(entry.modify_index)).await.unwrap());
    assert_eq!(client.get("k").await.unwrap(), None);
    assert!(client.delete("k", None).await.unwrap());
}

#[tokio::test]
async fn any_key_and_any_value_comes_back_as_it_was() {
    let (_consul, client) = start().await;
    let value: Vec<u8> = (0..=255).collect();
    let keys = [
        "a b", "ä/€", "50%25", "q?x=1&y", "h#1", "a+b", "~._-", "a..b/..c", ".a/b.",
    ];
    for key in &keys {
        let flags = 0xe0f6_9a2b_aa41_4de0;
        assert!(
            client.put(key, &value, flags, PutMode::Set).await.unwrap(),
            "{key}"
        );
        let entry = client.get(key).await.unwrap().unwrap();
        assert_eq!((entry.key.as_str(), entry.flags), (*key, flags));
        assert_eq!(entry.value, value);
    }
    assert_eq!(client.list("").await.unwrap().entries.len(), keys.len());
    assert!(client.put("empty", b"", 0, PutMode::Set).await.unwrap());
    assert_eq!(client.get("empty").await.unwrap().unwrap().value, b"");
}

#[tokio::test]
async fn a_key_that_consul_does_not_take_is_refused_as_such() {
    let (consul, client) = start().await;
    let put = |key| client.put(key, b"", 0, PutMode::Set);
    for key in ["a//b", "a/./b", "a/../b", "/a", ".."] {
        assert_eq!(put(key).await, Err(Error::InvalidKey(format!("{key:?}"))));
    }
    // Its own words, without another try: only Consul itself knows what it refuses.
    let refuses = consul_minor().unwrap() >= 22;
    for key in [" a", "a ", "a%20b", "%2e%2e"] {
        match put(key).await {
            Err(Error::InvalidKey(said)) if refuses => {
                assert!(said.starts_with("invalid key name, "), "{said}");
            }
            taken => assert_eq!((refuses, taken), (false, Ok(true)), "{key:?}"),
        }
    }
    let found = consul.list("").await.len();
    assert_eq!(found, if refuses { 0 } else { 4 });
}

#[tokio::test]
async fn a_lock_is_acquired_by_one_session_and_released_by_it() {
    let (_consul, client) = start().await;
    let one = client.create_session(&on_server()).await.unwrap();
    let two = client.create_session(&on_server()).await.unwrap();
    let put = |mode| client.put("lock", b"me", 0, mode);
    assert!(put(PutMode::Acquire(one.clone())).await.unwrap());
    assert!(!put(PutMode::Acquire(two.clone())).await.unwrap());
    let entry = client.get("lock").await.unwrap().unwrap();
    assert_eq!((entry.session, entry.lock_index), (Some(one.clone()), 1));
    assert!(!put(PutMode::Release(two.clone())).await.unwrap());
    assert!(put(PutMode::Release(one.clone())).await.unwrap());
    assert_eq!(client.get("lock").await.unwrap().unwrap().session, None);

    client.destroy_session(&one).await.unwrap();
    assert_eq!(put(PutMode::Acquire(one)).await, Err(Error::Gone));
}

#[tokio::test]
async fn too_much_at_once_is_refused_as_such() {
    let (_consul, client) = start().await;
    let value = vec![0; 600_000];
    let error = client.put("k", &value, 0, PutMode::Set).await.unwrap_err();
    assert_eq!(error.reason(), "TooLarge");
    assert!(!error.may_have_been_applied());
    assert_eq!(client.transaction_capacity(), 128);
}
