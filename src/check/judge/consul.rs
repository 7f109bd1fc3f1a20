//! Makes the lines about Consul.

use std::time::Duration;

use jiff::SignedDuration;

use crate::{
    check::{
        consul::{self, ConsulFacts, Step, Tried},
        report::{Area, Line, Outcome},
    },
    telemetry,
};
use command_line::page;
use consul_client::{ConfigError, Error, Exposure};
use consul_semaphore_api::Ttl;

/// The first version of Consul that no test has run with yet.
const FIRST_UNTESTED_CONSUL: (u32, u32) = (2, 0);

/// The oldest Consul that the calls are tested with, as major and minor version.
const OLDEST_CONSUL: (u32, u32) = (1, 8);

/// The greatest difference between clocks without a warning.
const MAX_CLOCK_DIFFERENCE: SignedDuration = SignedDuration::from_secs(5);

/// The place where the rules are documented.
const RULES: &str = concat!(page!("consul-acl.md"), " has all rules");

/// Returns the line about invalid Consul settings.
pub(in crate::check) fn unusable(error: &ConfigError) -> Line {
    line("settings", Outcome::Failed, error.to_string())
        .todo("correct the flag or the environment variable that the message names")
}

/// Returns the line about what others on the way to Consul can do.
pub(in crate::check) fn exposed(exposure: &Exposure) -> Line {
    line("transport", Outcome::Warning, exposure.problem()).todo(exposure.advice())
}

/// Returns the lines about the Consul at these addresses.
pub(in crate::check) fn lines(addresses: &str, seen: &ConsulFacts) -> Vec<Line> {
    let status = match &seen.status {
        Ok(status) => status,
        Err(error) => {
            let line = line(
                "reachable",
                Outcome::Failed,
                format!("{addresses}: {error}"),
            );
            return vec![line.todo(advice(error))];
        }
    };
    let mut lines = vec![line("reachable", Outcome::Ok, addresses)];
    lines.extend(seen.version.iter().map(version));
    lines.push(match &status.leader {
        Some(leader) => line("leader", Outcome::Ok, leader),
        None => line(
            "leader",
            Outcome::Failed,
            "there is no leader: nothing can be read or written",
        )
        .todo("check the Consul servers: a majority must be up and know each other"),
    });
    lines.push(clock(seen.ahead));
    if let Some(tried) = &seen.tried {
        lines.extend(steps(Area::Consul, tried, "the operator's token"));
        lines.extend(tried.shortest.map(shortest_ttl));
    }
    for (name, tried) in [("identity", &seen.identity), ("election", &seen.election)] {
        let Some(tried) = tried else { continue };
        let of_own_keys = steps(Area::Consul, tried, "the operator's token");
        lines.extend(of_own_keys.into_iter().map(|line| Line {
            what: format!("{name}: {}", line.what),
            ..line
        }));
    }
    lines
}

fn line(what: &str, outcome: Outcome, message: impl std::fmt::Display) -> Line {
    Line::new(Area::Consul, what, outcome, message)
}

fn version(version: &Result<String, Error>) -> Line {
    match version {
        Ok(version) => {
            let tested = telemetry::CONSUL.trim_start_matches('v');
            let message = format!("{version} (tested with {tested})");
            match minor(version) {
                Some(minor) if minor < OLDEST_CONSUL => line("version", Outcome::Warning, message)
                    .todo("use Consul 1.8 or newer: older ones are not tested"),
                Some(minor) if minor >= FIRST_UNTESTED_CONSUL => {
                    line("version", Outcome::Warning, message).todo(
                        "Consul 2 is not tested with this operator: use 1.22, or try Consul 2 in an environment where \
                         failures do no harm",
                    )
                }
                _ => line("version", Outcome::Ok, message),
            }
        }
        Err(Error::Denied(_)) => line(
            "version",
            Outcome::Unknown,
            "unknown: the token has no agent:read (the operator does not need it)",
        ),
        Err(error) => line("version", Outcome::Unknown, error),
    }
}

/// Returns the first two numbers of a version.
pub(super) fn minor(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.trim_start_matches('v').split('.');
    let major = numbers.next()?.parse().ok()?;
    Some((major, numbers.next()?.parse().ok()?))
}

fn clock(ahead: Option<SignedDuration>) -> Line {
    let Some(ahead) = ahead else {
        return line("clock", Outcome::Unknown, "Consul's answer has no time");
    };
    let seconds = ahead.abs().as_secs();
    if ahead.abs() < MAX_CLOCK_DIFFERENCE {
        let message = "Consul's clock and this machine's clock agree within seconds";
        return line("clock", Outcome::Ok, message);
    }
    let than = if ahead.is_negative() {
        "behind"
    } else {
        "ahead of"
    };
    let message = format!(
        "Consul's clock is {seconds} s {than} the clock of this machine. The TTLs of sessions and the evidence for \
         slots don't depend on these clocks, but cooldowns, the order by age among contenders of several clusters, \
         and certificates do"
    );
    line("clock", Outcome::Warning, message).todo(
        "synchronize both clocks with NTP; until then, make cooldowns longer than this difference",
    )
}

fn shortest_ttl(shortest: Duration) -> Line {
    let seconds = shortest.as_secs();
    let default = Ttl::default().get().unwrap_or(Duration::MAX);
    let message = format!("the shortest TTL that Consul accepts is {seconds} s (session_ttl_min)");
    if shortest <= default {
        return line("session TTL", Outcome::Ok, message);
    }
    let message = format!(
        "{message}: the default of {} s is refused",
        default.as_secs()
    );
    line("session TTL", Outcome::Failed, message).todo(format!(
        "set spec.session.ttl of all ConsulSemaphores to {seconds}s or more, or lower session_ttl_min in \
         the configuration of the Consul servers"
    ))
}

/// Returns the lines about the steps that were tried with a token; `whose` says which token it is.
pub(super) fn steps(area: Area, tried: &Tried, whose: &str) -> Vec<Line> {
    let steps = tried.steps.iter();
    steps
        .map(|(step, outcome)| {
            let line = |outcome, message: String| Line::new(area, step.what(), outcome, message);
            match outcome {
                consul::StepOutcome::Done => line(Outcome::Ok, step.done(tried)),
                consul::StepOutcome::Untried(why) => {
                    line(Outcome::Unknown, format!("not tried: {why}"))
                }
                consul::StepOutcome::Refused(error) if error.is_unknown_token() => {
                    line(Outcome::Failed, error.to_string()).todo(format!(
                        "use a token that this Consul knows: {whose} was deleted, has expired, or belongs to another \
                         Consul; {RULES}"
                    ))
                }
                consul::StepOutcome::Refused(error @ Error::Denied(_)) => {
                    let rule = step.rule(tried);
                    line(Outcome::Failed, error.to_string())
                        .todo(format!("give {whose} this rule: {rule}; {RULES}"))
                }
                consul::StepOutcome::Refused(error) => {
                    line(Outcome::Failed, error.to_string()).todo(advice(error))
                }
            }
        })
        .collect()
}

impl Step {
    fn what(self) -> &'static str {
        match self {
            Self::Register => "external node",
            Self::Make => "session: make",
            Self::Renew => "session: renew",
            Self::End => "session: end",
            Self::List => "keys: list",
            Self::Write => "keys: write",
            Self::Lock => "keys: lock",
        }
    }

    fn done(self, tried: &Tried) -> String {
        let node = tried.node.as_deref().unwrap_or_default();
        let folder = &tried.keys.folder;
        match self {
            Self::Register if tried.known == Some(false) => {
                format!("{node} was missing and is now registered: the operator needs it")
            }
            Self::Register => format!("{node} is registered"),
            Self::Make => format!("made on {node}"),
            Self::Renew => "renewed".to_owned(),
            Self::End => "ended".to_owned(),
            Self::List => format!("listed and read below {folder}"),
            Self::Write => format!("written, checked and set, and deleted below {folder}"),
            Self::Lock => format!("acquired and released below {folder}"),
        }
    }

    fn rule(self, tried: &Tried) -> String {
        let node = tried.node.as_deref().unwrap_or_default();
        match self {
            Self::Register => format!("node \"{node}\" {{ policy = \"write\" }}"),
            Self::Make | Self::Renew | Self::End => {
                format!("session \"{node}\" {{ policy = \"write\" }}")
            }
            Self::List | Self::Write | Self::Lock => {
                format!(
                    "key_prefix \"{}\" {{ policy = \"write\" }}",
                    tried.keys.rule
                )
            }
        }
    }
}

/// Returns what to do about an error.
pub(super) fn advice(error: &Error) -> &'static str {
    match error {
        Error::Unreachable { .. } => {
            "check --consul-address (CONSUL_HTTP_ADDR), its scheme and port (8501 with TLS), \
             --consul-ca-file, and what is between this machine and Consul: firewalls, NetworkPolicies"
        }
        Error::NotSent(_) => "check how long Consul takes to answer, and try again",
        Error::NoLeader { .. } => {
            "check the Consul servers: a majority must be up and know each other"
        }
        Error::Denied(_) => concat!("check the token: ", page!("consul-acl.md")),
        Error::LoginFailed(_) => {
            concat!(
                "check --consul-auth-method, --consul-bearer-token-file, and the auth method and its binding rules in \
                 Consul: ",
                page!("consul-acl.md#log-in-with-an-auth-method")
            )
        }
        Error::NoToken => "set a token; if Consul has no ACLs, leave the settings for a token out",
        Error::TooManyRequests(_) => {
            "raise limits.http_max_conns_per_client or the rate limits of the Consul servers, or try again later"
        }
        Error::Unsupported(_) => {
            "leave CONSUL_NAMESPACE, CONSUL_PARTITION, spec.consul.namespace and partition out: they need \
             Consul Enterprise"
        }
        Error::UnknownDatacenter => {
            "name a datacenter that this Consul knows in spec.consul.datacenter"
        }
        Error::MissingNode => concat!("let the token register the node: ", page!("consul-acl.md")),
        Error::InvalidKey(_) => {
            "use a prefix without '..', which Consul 1.21.5 refuses, or a newer Consul"
        }
        Error::Conflict(_)
        | Error::Gone
        | Error::TooLarge(_)
        | Error::AnswerTooLarge(_)
        | Error::PrefixTooLarge(_)
        | Error::NoTurn(_)
        | Error::Withheld(_)
        | Error::Unexpected { .. }
        | Error::Decode(_) => {
            "try again; if it persists, check that this is Consul's address, and read Consul's log"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::consul::ScratchKeys;
    use consul_client::Status;

    fn tried(outcome: &consul::StepOutcome) -> Tried {
        use Step::{End, List, Lock, Make, Register, Renew, Write};
        let steps = [Register, Make, Renew, List, Write, Lock, End];
        Tried {
            node: Some("k8s-1".to_owned()),
            known: Some(true),
            keys: ScratchKeys {
                folder: "semaphores/default/".to_owned(),
                rule: "semaphores/".to_owned(),
            },
            steps: steps.map(|step| (step, outcome.clone())).into(),
            shortest: Some(Duration::from_secs(10)),
        }
    }

    fn seen() -> ConsulFacts {
        ConsulFacts {
            status: Ok(Status {
                leader: Some("10.0.0.1:8300".to_owned()),
                time: None,
            }),
            ahead: Some(SignedDuration::from_millis(-300)),
            version: Some(Ok("1.20.5".to_owned())),
            tried: Some(tried(&consul::StepOutcome::Done)),
            identity: None,
            election: None,
        }
    }

    /// Returns the lines that report a problem, with their advice.
    fn bad(seen: &ConsulFacts) -> Vec<(String, Outcome, String, String)> {
        let lines = lines("http://consul:8500", seen).into_iter();
        lines
            .filter(|line| line.outcome != Outcome::Ok)
            .map(|line| {
                (
                    line.what,
                    line.outcome,
                    line.message,
                    line.todo.unwrap_or_default(),
                )
            })
            .collect()
    }

    #[track_caller]
    fn only(seen: &ConsulFacts, what: &str, outcome: Outcome, words: &[&str]) {
        let bad = bad(seen);
        let [(found, how, message, todo)] = &bad[..] else {
            panic!("{bad:#?}");
        };
        assert_eq!((found.as_str(), *how), (what, outcome));
        for word in words {
            assert!(
                message.contains(word) || todo.contains(word),
                "{word}: {bad:#?}"
            );
        }
    }

    #[test]
    fn where_all_is_well_nothing_is_to_be_done() {
        assert_eq!(bad(&seen()), []);
        let all = lines("http://consul:8500", &seen());
        assert!(all.iter().all(|line| line.todo.is_none()), "{all:#?}");
        let expected = [
            "reachable",
            "version",
            "leader",
            "clock",
            "external node",
            "session: make",
            "session: renew",
            "keys: list",
            "keys: write",
            "keys: lock",
            "session: end",
            "session TTL",
        ];
        let found: Vec<_> = all.iter().map(|line| line.what.as_str()).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn one_that_is_away_is_asked_nothing_more() {
        let error = Error::Unreachable {
            message: "consul: refused".to_owned(),
            undecided: false,
        };
        let seen = ConsulFacts {
            status: Err(error),
            version: None,
            tried: None,
            ..seen()
        };
        let words = ["http://consul:8500", "consul: refused", "CONSUL_HTTP_ADDR"];
        only(&seen, "reachable", Outcome::Failed, &words);
        assert_eq!(lines("", &seen).len(), 1);
    }

    #[test]
    fn a_leader_is_needed() {
        let status = Status {
            leader: None,
            time: None,
        };
        let seen = ConsulFacts {
            status: Ok(status),
            tried: None,
            ..seen()
        };
        only(&seen, "leader", Outcome::Failed, &["a majority"]);
    }

    #[test]
    fn a_version_that_may_not_be_read_is_no_failure() {
        let of = |version| ConsulFacts {
            version: Some(version),
            ..seen()
        };
        let denied = of(Err(Error::Denied("agent:read".to_owned())));
        only(&denied, "version", Outcome::Unknown, &["does not need"]);
        let old = of(Ok("1.7.14".to_owned()));
        only(
            &old,
            "version",
            Outcome::Warning,
            &["1.7.14", "1.8 or newer"],
        );
        for version in ["1.8.7", "1.21.5+ent", "1.22.7", "1.22.0-rc1", "strange"] {
            assert_eq!(bad(&of(Ok(version.to_owned()))), [], "{version}");
        }
        let untested = of(Ok("2.0.0".to_owned()));
        only(
            &untested,
            "version",
            Outcome::Warning,
            &["2.0.0", "Consul 2 is not tested"],
        );
    }

    #[test]
    fn a_clock_difference_is_reported_with_what_depends_on_it() {
        let of = |seconds| ConsulFacts {
            ahead: Some(SignedDuration::from_secs(seconds)),
            ..seen()
        };
        only(
            &of(90),
            "clock",
            Outcome::Warning,
            &["90 s ahead", "cooldown", "NTP"],
        );
        only(&of(-90), "clock", Outcome::Warning, &["90 s behind"]);
        assert_eq!(bad(&of(-4)), []);
        let unknown = ConsulFacts {
            ahead: None,
            ..seen()
        };
        only(&unknown, "clock", Outcome::Unknown, &["has no time"]);
    }

    #[test]
    fn the_shortest_ttl_may_be_longer_than_the_default() {
        let of = |seconds| {
            let mut tried = tried(&consul::StepOutcome::Done);
            tried.shortest = Some(Duration::from_secs(seconds));
            ConsulFacts {
                tried: Some(tried),
                ..seen()
            }
        };
        assert_eq!(bad(&of(120)), []);
        let words = [
            "accepts is 180 s",
            "120 s is refused",
            "to 180s or more",
            "session_ttl_min",
        ];
        only(&of(180), "session TTL", Outcome::Failed, &words);
    }

    #[test]
    fn what_is_denied_is_reported_with_the_rule_that_allows_it() {
        let denied = consul::StepOutcome::Refused(Error::Denied("Permission denied".to_owned()));
        let seen = ConsulFacts {
            tried: Some(tried(&denied)),
            ..seen()
        };
        let rules: Vec<String> = bad(&seen)
            .into_iter()
            .map(|(what, _, _, todo)| {
                let rule = todo.split(": ").nth(1).unwrap_or_default();
                format!("{what}: {}", rule.split(';').next().unwrap_or_default())
            })
            .collect();
        let expected = [
            r#"external node: node "k8s-1" { policy = "write" }"#,
            r#"session: make: session "k8s-1" { policy = "write" }"#,
            r#"session: renew: session "k8s-1" { policy = "write" }"#,
            r#"keys: list: key_prefix "semaphores/" { policy = "write" }"#,
            r#"keys: write: key_prefix "semaphores/" { policy = "write" }"#,
            r#"keys: lock: key_prefix "semaphores/" { policy = "write" }"#,
            r#"session: end: session "k8s-1" { policy = "write" }"#,
        ];
        assert_eq!(rules, expected);
    }

    #[test]
    fn what_was_not_tried_is_not_known() {
        let mut with_one = tried(&consul::StepOutcome::Done);
        with_one.steps[1].1 = consul::StepOutcome::Untried("because");
        let seen = ConsulFacts {
            tried: Some(with_one),
            ..seen()
        };
        only(
            &seen,
            "session: make",
            Outcome::Unknown,
            &["not tried: because"],
        );
    }

    #[test]
    fn an_election_in_consul_needs_keys_of_its_own() {
        let mut election = tried(&consul::StepOutcome::Refused(Error::Denied(
            "no".to_owned(),
        )));
        election.steps.retain(|(step, _)| *step == Step::Write);
        let seen = ConsulFacts {
            election: Some(election),
            ..seen()
        };
        only(
            &seen,
            "election: keys: write",
            Outcome::Failed,
            &["key_prefix"],
        );
    }
}
