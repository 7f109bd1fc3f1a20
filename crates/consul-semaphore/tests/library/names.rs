//! Each prefix that may be given works on Consul as it is, which has its own checks of names since 1.22; any other is
//! refused before anything is sent.

use consul_semaphore::Semaphore;

use crate::stage::{Stage, slot_of, soon};

/// Prefixes with this character in each place of a segment, and in one by itself.
fn with(c: char) -> [String; 7] {
    [
        format!("{c}b/db"),
        format!("a{c}b/db"),
        format!("a{c}{c}b/db"),
        format!("a{c}/db"),
        format!("shared/{c}b"),
        format!("shared/b{c}"),
        format!("shared/{c}/db"),
    ]
}

#[tokio::test]
async fn every_character_works_where_it_is_allowed_and_is_refused_elsewhere() {
    let stage = Stage::new().await;
    let client = stage.client();
    for c in ('\0'..='\x7f').chain(['é', '\u{a0}', '\u{202e}', '€', '😀']) {
        for prefix in with(c) {
            let place = format!("{prefix:?}");
            let allowed = c.is_ascii_alphanumeric() || "_-".contains(c);
            let allowed = allowed
                || c == '/' && !prefix.split('/').any(str::is_empty)
                || c == '.' && !prefix.contains("/./");
            let refused = match Semaphore::builder(client.clone(), &*prefix)
                .limit(1)
                .build()
            {
                Ok(semaphore) => {
                    let slot = slot_of(&semaphore).await;
                    let holders = stage.consul.holders(&prefix).await;
                    assert!(holders.contains(slot.session().as_str()), "{place}");
                    let taken = soon(semaphore.try_acquire()).await.unwrap_err();
                    assert!(taken.is_taken(), "{place}: {taken}");
                    slot.release().await.expect(&place);
                    None
                }
                Err(refusal) => Some(refusal.to_string()),
            };
            assert_eq!(refused.is_none(), allowed, "{place}: {refused:?}");
            let says = format!("prefix {place} is not valid: it must be segments of letters");
            assert!(refused.is_none_or(|said| said.starts_with(&says)));
        }
    }
    assert_eq!(stage.consul.list("").await, []);
}
