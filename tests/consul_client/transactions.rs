//! Transactions.

use consul_client::{Error, Op};

use crate::server::{is_old, on_server, start};

fn set(key: &str) -> Op {
    Op::Set {
        key: key.to_owned(),
        value: b"x".to_vec(),
        flags: 0,
    }
}

#[tokio::test]
async fn a_contender_is_locked_and_the_lock_body_made_in_one_step() {
    let (_consul, client) = start().await;
    let session = client.create_session(&on_server()).await.unwrap();
    let contender = format!("p/{session}");
    let lock = Op::Lock {
        key: contender.clone(),
        value: b"{}".to_vec(),
        flags: 1 << 63,
        session: session.clone(),
    };
    let make = Op::Cas {
        key: "p/.lock".to_owned(),
        value: b"[]".to_vec(),
        flags: 1 << 63,
        index: 0,
    };
    let written = client.transaction(&[lock, make.clone()]).await.unwrap();
    assert_eq!(written.len(), 2);
    assert_eq!(written[0].key, contender);
    assert_eq!(written[0].session, Some(session.clone()));
    assert_eq!(written[0].modify_index, written[1].modify_index);
    assert_eq!(
        client.list("p/").await.unwrap().index,
        written[0].modify_index
    );

    let give_back = [
        Op::CheckSession {
            key: contender.clone(),
            session: session.clone(),
        },
        Op::CheckIndex {
            key: "p/.lock".to_owned(),
            index: written[1].modify_index,
        },
        Op::Unlock {
            key: contender.clone(),
            value: Vec::new(),
            flags: 0,
            session,
        },
        Op::Delete {
            key: contender.clone(),
        },
        Op::CheckNotExists {
            key: contender.clone(),
        },
        Op::Get {
            key: "p/.lock".to_owned(),
        },
        Op::DeleteCas {
            key: "p/.lock".to_owned(),
            index: written[1].modify_index,
        },
        set("done"),
    ];
    let answered = client.transaction(&give_back).await.unwrap();
    let answered: Vec<_> = answered
        .iter()
        .map(|entry| (entry.key.as_str(), entry.value.as_slice()))
        .collect();
    // Two checks, the unlock, the read and the write; deleted keys have no entry.
    assert_eq!(
        answered,
        [
            (contender.as_str(), b"".as_slice()),
            ("p/.lock", b""),
            (&contender, b""),
            ("p/.lock", b"[]"),
            ("done", b"")
        ]
    );
    assert!(client.list("p/").await.unwrap().entries.is_empty());
}

#[tokio::test]
async fn a_conflict_names_each_operation_and_changes_nothing() {
    let (_consul, client) = start().await;
    client.transaction(&[set("a")]).await.unwrap();
    let operations = [
        set("b"),
        Op::Cas {
            key: "a".to_owned(),
            value: Vec::new(),
            flags: 0,
            index: 0,
        },
        Op::Lock {
            key: "c".to_owned(),
            value: Vec::new(),
            flags: 0,
            session: "11111111-2222-3333-4444-555555555555".into(),
        },
    ];
    let Err(Error::Conflict(errors)) = client.transaction(&operations).await else {
        panic!("no conflict");
    };
    assert_eq!(errors.len(), 2);
    assert_eq!(errors[0].operation, 1);
    assert_eq!(errors[0].what, "failed to set key \"a\", index is stale");
    assert_eq!(errors[1].operation, 2);
    assert!(errors[1].what.contains("invalid session"));
    assert_eq!(client.get("b").await.unwrap(), None);
}

#[tokio::test]
async fn none_is_none() {
    let (_consul, client) = start().await;
    assert_eq!(client.transaction(&[]).await.unwrap(), []);
}

#[tokio::test]
async fn as_many_operations_as_the_capacity_says_and_not_one_more() {
    let (_consul, client) = start().await;
    let takes = if is_old() { 64 } else { 128 };
    let operations: Vec<_> = (0..129).map(|n| set(&n.to_string())).collect();
    assert_eq!(client.transaction_capacity(), 128);
    let error = client.transaction(&operations).await.unwrap_err();
    assert_eq!(error.reason(), "TooLarge");
    assert!(!error.may_have_been_applied());
    assert_eq!(client.transaction_capacity(), takes);
    let written = client.transaction(&operations[..takes]).await.unwrap();
    assert_eq!(written.len(), takes);
}
