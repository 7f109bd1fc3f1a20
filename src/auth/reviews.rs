//! Asks the API server for reviews: who owns a token (`TokenReview`), and what that user may do
//! (`SubjectAccessReview`).
//!
//! An answer is valid for half a minute. Wrong tokens cost the API server little, because each of them holds one of a
//! few turns for a while. Clients at other addresses still have turns then: see [`FairTurns`].

use std::{collections::HashMap, sync::Arc, time::Duration};

use axum::body::{self, Body};
use http::StatusCode;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus, UserInfo},
    authorization::v1::{
        NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
        SubjectAccessReviewStatus,
    },
};
use kube::{Client, Resource, api::PostParams, core::Request};
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    sync::{Semaphore, oneshot},
    time::{sleep, timeout},
};

use super::{Refusal, Token};
use consul_client::{clock::Moment, text::one_line, turns::FairTurns};
use consul_semaphore_api::GROUP;

/// The time for which an answer is valid.
const ANSWER_LASTS: Duration = Duration::from_secs(30);

/// The time that a review may take, including the wait for its turn.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);

/// The number of reviews of known tokens and of rights that run at once.
const KNOWN_TOKEN_TURNS: usize = 8;

/// The number of unknown tokens that have turns at once. All addresses together can have the API server review so many
/// wrong tokens in each [`WRONG_TOKEN_REST`], and one address can have half as many reviewed.
const UNKNOWN_TOKEN_TURNS: usize = 16;

/// The time for which the turn of a token is kept after the answer, unless the token is good.
const WRONG_TOKEN_REST: Duration = Duration::from_millis(500);

/// The longest answer that is read, in bytes.
const LONGEST_ANSWER: usize = 1 << 20;

/// The number of tokens that are remembered.
const REMEMBERED_TOKENS: usize = 256;

/// The purpose for which users show their tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Purpose {
    /// The audience of tokens that are valid only for this purpose.
    pub(crate) audience: &'static str,
    /// The manifest that gives the operator the right to ask.
    pub(crate) role: &'static str,
}

/// A right in Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Right {
    /// The right to list and watch the `ConsulSemaphores` of a namespace; `None`: of all namespaces.
    SeeSemaphores(Option<Arc<str>>),
    /// The right to GET a path that is no resource.
    Get(&'static str),
}

/// Asks the API server, and caches its answers.
pub(crate) struct Reviews {
    reviewer: Reviewer,
    tokens: Mutex<HashMap<Token, KnownToken>>,
    turns: Semaphore,
    /// The turns for unknown tokens. The owner of a turn is the address of a client.
    unknown_token_turns: FairTurns,
    wrong_token_rest: Duration,
}

/// The user of a token, and the time until which the answer is valid.
#[derive(Clone)]
struct KnownToken {
    user: Option<Arc<TokenUser>>,
    until: Moment,
}

/// The user of a token.
pub(crate) struct TokenUser {
    pub(crate) name: Arc<str>,
    /// The user as the API server describes it.
    subject: UserInfo,
    /// Whether the user has each right, and the time until which the answer is valid.
    rights: Mutex<HashMap<Right, (bool, Moment)>>,
}

impl Reviews {
    pub(crate) fn new(client: Client, purpose: Purpose) -> Self {
        Self {
            reviewer: Reviewer { client, purpose },
            tokens: Mutex::default(),
            turns: Semaphore::new(KNOWN_TOKEN_TURNS),
            unknown_token_turns: FairTurns::new(UNKNOWN_TOKEN_TURNS),
            wrong_token_rest: WRONG_TOKEN_REST,
        }
    }

    /// Returns the user of a token, which a client at this address has shown.
    pub(crate) async fn user(
        &self,
        token: &Token,
        address: &Arc<str>,
    ) -> Result<Arc<TokenUser>, Refusal> {
        let before = self.tokens.lock().get(token).cloned();
        if let Some(known) = before.as_ref().filter(|known| known.until > Moment::now()) {
            return known.user.clone().ok_or(Refusal::Unknown);
        }
        let user_before = before.and_then(|known| known.user);
        let asked = timeout(REVIEW_TIMEOUT, self.review(token, address, user_before));
        let user = asked.await.unwrap_or(Err(Refusal::silent()))?;
        self.remember(token, user.clone());
        user.ok_or(Refusal::Unknown)
    }

    /// Whether a user has a right.
    pub(crate) async fn has(&self, user: &TokenUser, right: &Right) -> Result<bool, Refusal> {
        let known = user.rights.lock().get(right).copied();
        if let Some((has, _)) = known.filter(|(_, until)| *until > Moment::now()) {
            return Ok(has);
        }
        let asked = timeout(REVIEW_TIMEOUT, async {
            // The wait can't fail, because the semaphore is never closed.
            let _turn = self.turns.acquire().await;
            for spec in right.specs() {
                let answer = self.reviewer.ask(&access_review(user, spec)).await?;
                if !answer.status.is_some_and(|status| allows(&status)) {
                    return Ok(false);
                }
            }
            Ok(true)
        });
        let has = asked.await.unwrap_or(Err(Refusal::silent()))?;
        let (mut known, now) = (user.rights.lock(), Moment::now());
        known.retain(|_, (_, until)| *until > now);
        known.insert(right.clone(), (has, now + ANSWER_LASTS));
        Ok(has)
    }

    /// Asks for the user of a token; `before` is its earlier user.
    async fn review(
        &self,
        token: &Token,
        address: &Arc<str>,
        before: Option<Arc<TokenUser>>,
    ) -> Result<Option<Arc<TokenUser>>, Refusal> {
        let Some(before) = before else {
            let user = self.review_unknown(token, address).await?;
            return Ok(user.map(Arc::new));
        };
        // The wait can't fail, because the semaphore is never closed.
        let _turn = self.turns.acquire().await;
        let user = self.reviewer.user_of(token).await?;
        Ok(user.map(|user| {
            if before.subject == user.subject {
                before
            } else {
                Arc::new(user)
            }
        }))
    }

    /// Asks for the user of a token whose user is not known from before. If the client goes away, the turn is not free
    /// any sooner, because a flood of short connections would have no bound otherwise.
    async fn review_unknown(
        &self,
        token: &Token,
        address: &Arc<str>,
    ) -> Result<Option<TokenUser>, Refusal> {
        let turn = self.unknown_token_turns.take(address).await;
        let (reviewer, token) = (self.reviewer.clone(), token.clone());
        let rest = self.wrong_token_rest;
        let (sender, answer) = oneshot::channel();
        tokio::spawn(async move {
            let review = timeout(REVIEW_TIMEOUT, reviewer.user_of(&token)).await;
            let user = review.unwrap_or(Err(Refusal::silent()));
            let is_good = matches!(user, Ok(Some(_)));
            // The client may be gone.
            let _ = sender.send(user);
            if !is_good {
                sleep(rest).await;
            }
            drop(turn);
        });
        answer.await.unwrap_or(Err(Refusal::silent()))
    }

    fn remember(&self, token: &Token, user: Option<Arc<TokenUser>>) {
        let now = Moment::now();
        let mut tokens = self.tokens.lock();
        if tokens.len() >= REMEMBERED_TOKENS && !tokens.contains_key(token) {
            // Wrong tokens don't evict known ones.
            tokens.retain(|_, known| known.user.is_some());
            if tokens.len() >= REMEMBERED_TOKENS {
                let first_to_expire = tokens.iter().min_by_key(|(_, known)| known.until);
                let oldest = first_to_expire.map(|(token, _)| token.clone());
                oldest.and_then(|oldest| tokens.remove(&oldest));
            }
        }
        let until = now + ANSWER_LASTS;
        tokens.insert(token.clone(), KnownToken { user, until });
    }
}

/// A client that asks the API server. Clones share its connections.
#[derive(Clone)]
struct Reviewer {
    client: Client,
    purpose: Purpose,
}

impl Reviewer {
    /// Returns the user of a token, if the token is valid.
    async fn user_of(&self, token: &Token) -> Result<Option<TokenUser>, Refusal> {
        // The token is for this purpose only, or for the API server, as every client of the API server has one.
        for audience in [Some(self.purpose.audience), None] {
            let answer = self.ask(&token_review(token, audience)).await?;
            let user = answer
                .status
                .and_then(|status| TokenUser::read(status, audience));
            if user.is_some() {
                return Ok(user);
            }
        }
        Ok(None)
    }

    /// Makes one review. The texts of the question and of the answer contain the token. So neither is ever shown, and
    /// the answer is read here, because [`kube::Api`] logs an answer that it can't parse, or that comes with an error.
    async fn ask<K>(&self, question: &K) -> Result<K, Refusal>
    where
        K: Resource<DynamicType = ()> + Serialize + DeserializeOwned,
    {
        let unwritable = || Refusal::unable("the question can't be written");
        let json = serde_json::to_vec(question).map_err(|_| unwritable())?;
        let request = Request::new(K::url_path(&(), None))
            .create(&PostParams::default(), json)
            .map_err(|_| unwritable())?;
        let sent = self.client.send(request.map(Into::into)).await;
        let answer = sent.map_err(|error| Refusal::unable(&one_line(&error.to_string(), 200)))?;
        self.succeeded(answer.status())?;
        let text = body::to_bytes(Body::new(answer.into_body()), LONGEST_ANSWER)
            .await
            .map_err(|_| Refusal::unable("its answer ends early, or is too long"))?;
        serde_json::from_slice(&text).map_err(|_| Refusal::unable("its answer can't be understood"))
    }

    /// Checks the HTTP status. The error says why the API server did not answer, and what to do.
    fn succeeded(&self, status: StatusCode) -> Result<(), Refusal> {
        match status {
            StatusCode::FORBIDDEN => Err(Refusal::Unable(format!(
                "the operator may not ask it: give the operator the rules in {}",
                self.purpose.role
            ))),
            status if status.is_success() => Ok(()),
            status => Err(Refusal::Unable(format!("it answers {status}"))),
        }
    }
}

impl Right {
    /// Returns all single permissions of the right, without the user.
    fn specs(&self) -> Vec<SubjectAccessReviewSpec> {
        match self {
            Self::SeeSemaphores(namespace) => ["list", "watch"]
                .map(|verb| SubjectAccessReviewSpec {
                    resource_attributes: Some(ResourceAttributes {
                        group: Some(GROUP.to_owned()),
                        resource: Some("consulsemaphores".to_owned()),
                        verb: Some(verb.to_owned()),
                        // An empty name means all namespaces.
                        namespace: Some(namespace.as_deref().unwrap_or_default().to_owned()),
                        ..ResourceAttributes::default()
                    }),
                    ..SubjectAccessReviewSpec::default()
                })
                .into(),
            Self::Get(path) => vec![SubjectAccessReviewSpec {
                non_resource_attributes: Some(NonResourceAttributes {
                    path: Some((*path).to_owned()),
                    verb: Some("get".to_owned()),
                }),
                ..SubjectAccessReviewSpec::default()
            }],
        }
    }
}

impl TokenUser {
    /// Returns the user in the answer to a review, if the token is valid. An API server that does not support audiences
    /// does not confirm the audience.
    fn read(status: TokenReviewStatus, audience: Option<&str>) -> Option<Self> {
        let meant = audience.is_none_or(|audience| {
            let audiences = status.audiences.iter().flatten();
            audiences.into_iter().any(|named| named == audience)
        });
        let subject = status.user?;
        let name = subject
            .username
            .as_deref()
            .filter(|name| !name.is_empty())?;
        let known = status.authenticated == Some(true) && meant;
        known.then(|| Self {
            name: name.into(),
            subject: subject.clone(),
            rights: Mutex::default(),
        })
    }
}

fn token_review(token: &Token, audience: Option<&str>) -> TokenReview {
    TokenReview {
        spec: TokenReviewSpec {
            token: Some(token.text().to_owned()),
            audiences: audience.map(|audience| vec![audience.to_owned()]),
        },
        ..TokenReview::default()
    }
}

fn access_review(user: &TokenUser, spec: SubjectAccessReviewSpec) -> SubjectAccessReview {
    let UserInfo {
        extra,
        groups,
        uid,
        username,
    } = user.subject.clone();
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            extra,
            groups,
            uid,
            user: username,
            ..spec
        },
        ..SubjectAccessReview::default()
    }
}

fn allows(status: &SubjectAccessReviewStatus) -> bool {
    status.allowed && status.denied != Some(true)
}

#[cfg(test)]
pub(super) mod tests {
    use futures::FutureExt as _;
    use http::Uri;
    use tracing::Dispatch;
    use wiremock::{
        Mock, MockServer, Request, ResponseTemplate,
        matchers::{method, path},
    };

    use serde_json::{Value, json};

    use super::*;

    const PAGE: Purpose = Purpose {
        audience: "consul-semaphore-web",
        role: "config/web/role.yaml",
    };

    const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
    const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

    /// Starts an API server that knows two tokens, each for one audience, and their rights.
    async fn api_server() -> (MockServer, Reviews) {
        let server = MockServer::start().await;
        let review = |request: &Request| {
            let asked: Value = request.body_json().unwrap();
            let spec = &asked["spec"];
            let user = match (spec["token"].as_str().unwrap(), &spec["audiences"][0]) {
                ("for-the-page", audience) if audience == PAGE.audience => "viewer",
                ("for-kubernetes", Value::Null) => "admin",
                _ => "",
            };
            let status = json!({
                "authenticated": !user.is_empty(),
                "audiences": spec["audiences"],
                "user": { "username": user, "groups": ["people"] },
            });
            ResponseTemplate::new(201).set_body_json(json!({ "status": status }))
        };
        let access = |request: &Request| {
            let asked: Value = request.body_json().unwrap();
            let spec = &asked["spec"];
            assert_eq!(spec["groups"], json!(["people"]));
            let (attributes, other) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
            assert_ne!(attributes.is_null(), other.is_null(), "{spec}");
            let resource = &attributes["resource"];
            assert!(resource.is_null() || resource == "consulsemaphores");
            let allowed = spec["user"] == "admin"
                || *other == json!({ "path": "/open", "verb": "get" })
                || attributes["namespace"] == "team-a"
                || (attributes["namespace"] == "team-b" && attributes["verb"] == "list");
            let status = json!({ "allowed": allowed });
            ResponseTemplate::new(201).set_body_json(json!({ "status": status }))
        };
        let post = |at| Mock::given(method("POST")).and(path(at));
        post(TOKEN_REVIEWS)
            .respond_with(review)
            .mount(&server)
            .await;
        post(ACCESS_REVIEWS)
            .respond_with(access)
            .mount(&server)
            .await;
        let reviews = reviews_by(&server.uri());
        (server, reviews)
    }

    /// Makes reviews that ask the API server at this address.
    pub(crate) fn reviews_by(uri: &str) -> Reviews {
        // `Err` means a provider is already installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut config = kube::Config::new(uri.parse::<Uri>().unwrap());
        config.default_retry = false;
        Reviews::new(Client::try_from(config).unwrap(), PAGE)
    }

    fn token(text: &str) -> Token {
        Token::parse(text).unwrap()
    }

    /// Returns the address of the client that asks, for cases in which it does not matter.
    fn here() -> Arc<str> {
        "127.0.0.1".into()
    }

    async fn has(reviews: &Reviews, of: &str, right: Right) -> bool {
        let user = reviews.user(&token(of), &here()).await.unwrap();
        reviews.has(&user, &right).await.unwrap()
    }

    async fn sees(reviews: &Reviews, of: &str, namespace: &str) -> bool {
        has(reviews, of, Right::SeeSemaphores(None)).await
            || has(reviews, of, Right::SeeSemaphores(Some(namespace.into()))).await
    }

    #[tokio::test]
    async fn a_path_is_a_right_of_its_own() {
        let (_server, reviews) = api_server().await;
        assert!(has(&reviews, "for-the-page", Right::Get("/open")).await);
        assert!(!has(&reviews, "for-the-page", Right::Get("/metrics")).await);
        assert!(has(&reviews, "for-kubernetes", Right::Get("/metrics")).await);
    }

    #[tokio::test]
    async fn a_user_sees_where_it_may_list_and_watch() {
        let (_server, reviews) = api_server().await;
        assert!(sees(&reviews, "for-the-page", "team-a").await);
        assert!(
            !sees(&reviews, "for-the-page", "team-b").await,
            "it may not watch"
        );
        assert!(!sees(&reviews, "for-the-page", "team-c").await);
        assert!(
            sees(&reviews, "for-kubernetes", "team-c").await,
            "it may everywhere"
        );
    }

    #[tokio::test]
    async fn what_was_answered_is_not_asked_again() {
        let (server, reviews) = api_server().await;
        for _ in 0..3 {
            sees(&reviews, "for-the-page", "team-a").await;
            sees(&reviews, "for-kubernetes", "team-a").await;
        }
        let asked = server.received_requests().await.unwrap();
        // The API server was asked about two tokens, once and twice (the second token is not for the page), and about
        // rights: everywhere once and twice, and for team-a twice.
        assert_eq!(asked.len(), 3 + 5);
    }

    #[tokio::test]
    async fn a_wrong_token_is_refused_and_remembered() {
        let (server, reviews) = api_server().await;
        for _ in 0..3 {
            let refusal = reviews.user(&token("wrong"), &here()).await.err().unwrap();
            assert!(matches!(refusal, Refusal::Unknown), "{refusal}");
        }
        assert_eq!(server.received_requests().await.unwrap().len(), 2);
    }

    #[tokio::test]
    async fn many_tokens_take_no_more_memory() {
        let (_server, reviews) = api_server().await;
        let known = token("for-the-page");
        let user = reviews.user(&known, &here()).await.unwrap();
        // An expired answer still shows that this is not an unknown client.
        reviews.tokens.lock().get_mut(&known).unwrap().until = Moment::now();
        for number in 0..2 * REMEMBERED_TOKENS {
            reviews.remember(&token(&number.to_string()), None);
            assert!(reviews.tokens.lock().len() <= REMEMBERED_TOKENS);
        }
        assert!(reviews.tokens.lock().contains_key(&known));
        for number in 0..2 * REMEMBERED_TOKENS {
            reviews.remember(&token(&number.to_string()), Some(user.clone()));
            assert!(reviews.tokens.lock().len() <= REMEMBERED_TOKENS);
        }
        assert!(
            !reviews.tokens.lock().contains_key(&known),
            "the oldest goes"
        );
    }

    /// Without an answer from the API server nobody is let in.
    #[tokio::test]
    async fn without_an_answer_nobody_is_let_in() {
        let reviews = reviews_by("http://127.0.0.1:1");
        let refusal = reviews.user(&token("secret"), &here()).await.err().unwrap();
        assert!(matches!(refusal, Refusal::Unable(_)), "{refusal}");
        assert!(!refusal.to_string().contains("secret"));
    }

    #[tokio::test]
    async fn a_right_that_the_operator_lacks_is_named() {
        let server = MockServer::start().await;
        let status = json!({ "kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no" });
        let refused = ResponseTemplate::new(403).set_body_json(status);
        Mock::given(method("POST"))
            .respond_with(refused)
            .mount(&server)
            .await;
        let refusal = reviews_by(&server.uri())
            .user(&token("t"), &here())
            .await
            .err()
            .unwrap();
        assert!(refusal.to_string().contains(PAGE.role), "{refusal}");
    }

    /// Returns how many unknown tokens of a client at this address could be reviewed at once now.
    fn free(reviews: &Reviews, address: &str) -> usize {
        let address = address.into();
        let turns = &reviews.unknown_token_turns;
        let free = std::iter::from_fn(|| turns.take(&address).now_or_never());
        free.collect::<Vec<_>>().len()
    }

    #[tokio::test]
    async fn the_turn_of_a_wrong_token_rests_and_only_those_of_its_address() {
        let (_server, mut reviews) = api_server().await;
        reviews.wrong_token_rest = Duration::from_hours(1);
        let (flood, other): (Arc<str>, Arc<str>) = ("10.0.0.1".into(), "10.0.0.2".into());
        let share = free(&reviews, &flood);
        for number in 0..share {
            let wrong = token(&format!("wrong-{number}"));
            let refusal = reviews.user(&wrong, &flood).await.err().unwrap();
            assert!(matches!(refusal, Refusal::Unknown), "{refusal}");
        }
        assert_eq!(free(&reviews, &flood), 0);
        reviews.user(&token("for-the-page"), &other).await.unwrap();
        assert!(free(&reviews, &other) > 0, "a good token's turn is free");
    }

    #[tokio::test]
    async fn a_client_that_goes_away_takes_its_turn_all_the_same() {
        let server = MockServer::start().await;
        let never = ResponseTemplate::new(201).set_delay(Duration::from_hours(1));
        let silent = Mock::given(method("POST")).respond_with(never);
        silent.mount(&server).await;
        let reviews = reviews_by(&server.uri());
        let (address, wrong) = (here(), token("wrong"));
        let before = free(&reviews, &address);
        let asks = async {
            while server.received_requests().await.unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            _ = reviews.user(&wrong, &address) => panic!("nobody answers"),
            () = asks => {}
        }
        assert!(free(&reviews, &address) < before);
    }

    /// The writer of everything that is logged while this thread works, at every level.
    #[derive(Clone, Default)]
    struct Logged(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Logged {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn no_answer_puts_a_token_into_the_log_or_into_an_error() {
        let logged = Logged::default();
        let writer = logged.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(move || writer.clone())
            .finish();
        // A thread of another test without a subscriber could switch records off for all if there were only one
        // subscriber.
        let _second = Dispatch::new(tracing_subscriber::registry());
        let _logging = tracing::subscriber::set_default(subscriber);
        let answer = |code| ResponseTemplate::new(code);
        let echoed = json!({ "spec": { "token": "s3cr3t" }, "status": "s3cr3t" });
        let status =
            json!({ "kind": "Status", "status": "Failure", "code": 400, "message": "bad s3cr3t" });
        for answer in [
            answer(201).set_body_json(&echoed),
            answer(201).set_body_string("s3cr3t"),
            answer(201).set_body_bytes(b"\xff s3cr3t"),
            answer(201).set_body_string("s3cr3t".repeat(LONGEST_ANSWER / 6 + 1)),
            answer(302).set_body_string("s3cr3t"),
            answer(400).set_body_json(&status),
            answer(403).set_body_json(&status),
            answer(500).set_body_string("s3cr3t"),
            answer(502).set_body_bytes(b"\xff s3cr3t"),
        ] {
            let server = MockServer::start().await;
            let answers = Mock::given(method("POST")).respond_with(answer);
            answers.mount(&server).await;
            let reviews = reviews_by(&server.uri());
            let refusal = reviews.user(&token("s3cr3t"), &here()).await.err().unwrap();
            assert!(matches!(refusal, Refusal::Unable(_)), "{refusal}");
            assert!(!refusal.to_string().contains("s3cr3t"), "{refusal}");
        }
        let logged = String::from_utf8_lossy(&logged.0.lock()).into_owned();
        assert!(logged.contains("requesting"), "the client's log: {logged}");
        let leaks: Vec<_> = logged
            .lines()
            .filter(|line| line.contains("s3cr3t"))
            .collect();
        assert!(leaks.is_empty(), "{leaks:#?}");
    }

    #[test]
    fn a_review_for_another_audience_does_not_count() {
        let user = json!({ "username": "a" });
        let known = |status: Value| {
            let status = serde_json::from_value(status).unwrap();
            TokenUser::read(status, Some("own")).is_some()
        };
        assert!(known(
            json!({ "authenticated": true, "user": user, "audiences": ["own"] })
        ));
        assert!(!known(
            json!({ "authenticated": true, "user": user, "audiences": ["other"] })
        ));
        assert!(!known(json!({ "authenticated": true, "user": user })));
        assert!(!known(
            json!({ "authenticated": false, "user": user, "audiences": ["own"] })
        ));
        assert!(!known(
            json!({ "authenticated": true, "user": {}, "audiences": ["own"] })
        ));
    }
}
