//! The operators of a campaign. All of them connect through the doors.

use anyhow::Result;
use testbed::{Bed, Operator, WallClock};

use super::{access, consul::Doors, kubernetes::Kubernetes};
use crate::record::WorkloadKind;

/// The operators of a campaign.
pub(crate) struct Operators {
    /// The regular one.
    pub(crate) first: Operator,
    /// The same one with its own wall clock, if the library for that is available.
    pub(crate) jumping: Option<(Operator, WallClock)>,
    /// Another one for the same objects, which works without leader election.
    pub(crate) second: Operator,
}

impl Operators {
    pub(super) fn of(
        bed: &Bed,
        kinds: &[WorkloadKind],
        doors: &Doors,
        kubernetes: &Kubernetes,
    ) -> Result<Self> {
        let token = access::OPERATOR.secret.to_owned();
        let by_the_doors = [
            ("KUBECONFIG", kubernetes.kubeconfig.display().to_string()),
            (
                "CONSUL_HTTP_ADDR",
                format!("https://{}", doors.link.address()),
            ),
            ("CONSUL_HTTP_TOKEN", token),
        ];
        let env: Vec<_> = by_the_doors
            .into_iter()
            .chain(doors.certificates.env())
            .collect();
        let operator = |name, election, clock: Option<&WallClock>| {
            let clock = clock.map(WallClock::env).into_iter().flatten();
            let env = env.iter().cloned().chain(clock);
            bed.another_operator(name, flags(kinds, election), env)
        };
        let clock = WallClock::new(bed.folder())?;
        Ok(Self {
            first: operator("operator", "kubernetes", None),
            jumping: clock.map(|clock| (operator("operator", "kubernetes", Some(&clock)), clock)),
            second: operator("second-operator", "off", None),
        })
    }
}

/// The flags of an operator for these kinds of workloads.
pub(super) fn flags(kinds: &[WorkloadKind], election: &str) -> [String; 3] {
    let kinds: Vec<String> = kinds.iter().map(|kind| kind.resource().plural).collect();
    [
        format!("--leader-election={election}"),
        // As soon as faults are over: a Job that asks for several slots is passed over for a TTL of the load.
        "--pass-over=10s".to_owned(),
        format!("--workloads={}", kinds.join(",")),
    ]
}
