//! The custom resource `ConsulSemaphore` and its spec.

#![expect(
    unreachable_pub,
    reason = "KubeSchema copies the types into a function, where their pub reaches nobody"
)]
#![expect(
    clippy::duplicated_attributes,
    reason = "each printer column has a type"
)]

use super::{ConsulSemaphoreStatus, Seconds, Ttl, schema::plain_descriptions};
use consul_semaphore::{LONGEST_COOLDOWN, LimitPolicy, Mode, OnSlotLost, Prefix};
use kube::{
    CustomResource, KubeSchema, ResourceExt,
    core::{Message, Rule},
};
use serde::{Deserialize, Serialize};

/// What the user wants of a semaphore.
// Optional fields have `with`: without it the schema calls them nullable, and the API server would keep a null, which
// means "not set" everywhere in Kubernetes, as a value.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = plain_descriptions)]
#[kube(
    group = "consul-semaphore.io",
    version = "v1alpha1",
    kind = "ConsulSemaphore",
    plural = "consulsemaphores",
    shortname = "csem",
    category = "consul",
    namespaced,
    status = "ConsulSemaphoreStatus",
    derive = "PartialEq",
    doc = "A semaphore in Consul whose slots the Jobs of this namespace wait for. A Job asks for a slot with the annotation \
           consul-semaphore.io/semaphore: <name>; it is started when it has one, and gives it back when its pods are gone. \
           The limit holds across all clusters and programs that use the same prefix in the same Consul.",
    printcolumn(
        name = "Limit",
        type_ = "integer",
        json_path = ".spec.limit",
        description = "How many may hold a slot at once"
    ),
    printcolumn(
        name = "Held",
        type_ = "integer",
        json_path = ".status.held",
        description = "Slots held, wherever the holders are"
    ),
    printcolumn(
        name = "Waiting",
        type_ = "integer",
        json_path = ".status.waiting",
        description = "Jobs of this cluster in line"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
        description = "Whether slots can be granted and released"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#,
        description = "Why it is ready or not"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[x_kube(
    validation = immutable("prefix"),
    validation = unchanged("mode", "self.mode == oldSelf.mode".to_owned()),
    validation = Rule::new("self.mode != 'Mutex' || self.limit == 1")
        .message("limit must be 1 when mode is Mutex: one session locks the key")
        .field_path(".limit"),
    validation = unchanged("keyed", "self.keyed == oldSelf.keyed".to_owned()),
    validation = immutable("consul.datacenter"),
    validation = immutable("consul.namespace"),
    validation = immutable("consul.partition")
)]
pub struct ConsulSemaphoreSpec {
    /// How many may hold a slot at once, from 1 to 5000. May be changed at any time: a lower limit
    /// takes no slot away from those that hold one.
    #[schemars(range(min = 1, max = 5000))]
    pub limit: i32,

    /// How the slots stand in Consul. Semaphore, the default: as `consul lock -n 3` and the Go
    /// client's Semaphore keep them, a list of holders. Mutex: as `consul lock` with one holder and
    /// the Go client's Lock do, a key that a session has locked; the limit must be 1. Can't be
    /// changed later.
    #[serde(default)]
    pub mode: Mode,

    /// Whether each value of the Jobs' annotation `consul-semaphore.io/key` has a semaphore of its
    /// own, at `<prefix>/<key>`, with this limit. A Job without that annotation stays suspended then. The
    /// default is false. Can't be changed later.
    #[serde(default)]
    pub keyed: bool,

    /// What to do when Consul holds another limit that this `ConsulSemaphore` did not write.
    /// Refuse, the default: grant nothing until both agree. Enforce: write the limit of this spec.
    #[serde(default)]
    pub limit_policy: LimitPolicy,

    /// What to do when a running Job loses its slot: its session was ended, its place in Consul was
    /// removed, or Consul can't be asked for so long that the session may have ended. Reacquire, the
    /// default: have a slot again at once, else suspend the Job, first in line. Suspend: always
    /// suspend it, first in line. Continue: as Reacquire, but the Job runs on if there is none.
    #[serde(default)]
    pub on_slot_lost: OnSlotLost,

    /// How long a slot stays taken after its Job is done: whole hours, minutes and seconds from 0s to
    /// 24h, such as 30s or 1h. With it and the annotation `consul-semaphore.io/on-contention: Skip`,
    /// the same `CronJob` in several clusters runs each time in one of them: make it longer than their
    /// clocks and schedules differ. The default is 0s.
    #[serde(default)]
    #[schemars(with = "String", length(max = 32))]
    #[x_kube(validation = Rule::new(
            "self.matches('^([0-9]{1,5}[hms])+$') && duration(self) <= duration('24h')",
        )
        .message("cooldown must be whole hours, minutes and seconds from 0s to 24h, such as 30s or 1h"))]
    pub cooldown: Cooldown,

    /// Where the semaphore lives in Consul's key-value store: everyone who uses the same prefix
    /// shares its slots. Segments of letters, digits, '.', '_' and '-' joined by '/'; none of only
    /// dots, none '.lock'. The default is `semaphores/<namespace>/<name>`. Can't be changed, added or
    /// removed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = Prefix::MAX_LENGTH))]
    #[x_kube(
        validation = Rule::new("self.matches('^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$')")
            .message("prefix must be segments of letters, digits, '.', '_' and '-' joined by '/', such as team/db, with no '/' at either end"),
        validation = Rule::new("!self.matches('(^|/)([.]+|[.]lock)(/|$)')")
            .message("no segment of prefix may be '.lock' or consist of only dots")
    )]
    pub prefix: Option<Prefix>,

    /// Whether to grant nothing more for now. Jobs that hold a slot go on and give it back when
    /// they are done. The default is false.
    #[serde(default)]
    pub paused: bool,

    /// The Consul sessions that hold the slots.
    #[serde(default)]
    pub session: SessionSpec,

    /// Which part of Consul to use. The address is the operator's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ConsulSpec")]
    pub consul: Option<ConsulSpec>,
}

/// How long a slot stays taken after its Job is done.
pub type Cooldown = Seconds<0, LONGEST_COOLDOWN>;

/// How long the slot of a dead holder stays unused.
pub type LockDelay = Seconds<0, 60>;

/// The Consul sessions that hold the slots.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionSpec {
    /// How long a slot is held for a Job after the operator's last sign of life: whole hours,
    /// minutes and seconds from 10s to 24h, such as 120s, 2m or 1h30m. A longer one lets Jobs run on
    /// while Consul or the operator is away; a shorter one frees the slots of a lost cluster sooner.
    /// None: for ever. Only Consul's word ends a slot then, and those of a lost cluster stay held
    /// until somebody destroys its sessions. The default is 120s.
    #[serde(default)]
    #[schemars(with = "String", length(max = 32))]
    #[x_kube(validation = Rule::new(
            "self == 'None' || (self.matches('^([0-9]{1,5}[hms])+$') && duration(self) >= duration('10s') && duration(self) <= duration('24h'))",
        )
        .message("ttl must be whole hours, minutes and seconds from 10s to 24h, such as 120s, 2m or 1h30m, or None"))]
    pub ttl: Ttl,

    /// How long the slot of a holder that died rests before this operator uses it again: whole
    /// seconds from 0s to 60s, such as 15s or 1m. It gives what the holder guarded time to come to
    /// rest. The default is 15s.
    #[serde(default = "lock_delay")]
    #[schemars(with = "String", length(max = 32))]
    #[x_kube(validation = Rule::new(
            "self.matches('^([0-9]{1,5}[hms])+$') && duration(self) <= duration('60s')",
        )
        .message("lockDelay must be whole seconds from 0s to 60s, such as 15s or 1m"))]
    pub lock_delay: LockDelay,
}

impl Default for SessionSpec {
    fn default() -> Self {
        Self {
            ttl: Ttl::default(),
            lock_delay: lock_delay(),
        }
    }
}

/// The same as Consul's own default.
fn lock_delay() -> LockDelay {
    LockDelay::new(15).unwrap_or(LockDelay::MAX)
}

/// Which part of Consul to use.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConsulSpec {
    /// The datacenter, such as dc1. The default is that of the Consul that the operator talks to.
    /// Can't be changed, added or removed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 64))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9_-]+$')")
        .message("datacenter must be the name of a Consul datacenter: lower case letters, digits, '-' and '_', such as dc1"))]
    pub datacenter: Option<String>,

    /// The Consul namespace, which is not a Kubernetes namespace. Needs Consul Enterprise: this
    /// operator was tested with it only as far as what it sends. The default is that of the
    /// operator's configuration. Can't be changed, added or removed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 64))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$')")
        .message("namespace must be the name of a Consul namespace: letters, digits and '-', such as team-a"))]
    pub namespace: Option<String>,

    /// The Consul admin partition. Needs Consul Enterprise: this operator was tested with it only
    /// as far as what it sends. The default is that of the operator's configuration. Can't be
    /// changed, added or removed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 64))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$')")
        .message("partition must be the name of a Consul partition: letters, digits and '-', such as default"))]
    pub partition: Option<String>,

    /// A Secret in the same namespace with a Consul token for this semaphore. With one, any prefix
    /// may be used: Consul's ACL decides. The operator must be given the right to read that Secret.
    /// Without, the operator's own token is used, and the prefix must be one that this namespace
    /// may use. Another Secret can be named at any time. Add or remove it while no Job runs: sessions
    /// made before are not taken over when the operator starts again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "TokenSecretRef")]
    pub token_secret_ref: Option<TokenSecretRef>,
}

/// Where a token is stored.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenSecretRef {
    /// The name of the Secret.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')")
        .message("name must be the name of a Secret in the same namespace, such as consul-token"))]
    pub name: String,

    /// The key in the Secret's data. The default is token.
    #[serde(default = "token_key")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z0-9._-]+$')")
        .message("key must be a key of the Secret's data: letters, digits, '-', '_' and '.', such as token"))]
    pub key: String,
}

fn token_key() -> String {
    "token".to_owned()
}

/// A rule for the spec: this optional field, given by its path, can't be changed, added or removed.
///
/// A rule on the field itself would not be checked when the field is added or removed, nor one on `consul` when that
/// is. The field's own rules refuse an empty text, so an empty text can represent a missing field. (CEL's optional
/// values would be shorter, but the API server can't bound the cost of comparing them.)
fn immutable(field: &str) -> Rule {
    // How a rule must write a word that CEL reserves.
    let field_in_cel = field.replace("namespace", "__namespace__");
    let value_in = |spec: &str| {
        let path = format!("{spec}.{field_in_cel}");
        let ends_of_parents = path.match_indices('.').skip(1).map(|(dot, _)| dot);
        let there: Vec<_> = ends_of_parents
            .chain([path.len()])
            .map(|end| format!("has({})", &path[..end]))
            .collect();
        format!("({} ? {path} : '')", there.join(" && "))
    };
    let same = format!("{} == {}", value_in("self"), value_in("oldSelf"));
    unchanged(field, same)
}

/// A rule for the spec: `same`, in CEL, is true if this field has not changed.
fn unchanged(field: &str, same: String) -> Rule {
    Rule::new(same)
        .message(Message::Message(format!(
            "{field} can't be changed, added or removed: make another ConsulSemaphore for another place"
        )))
        .field_path(format!(".{field}"))
}

impl ConsulSemaphore {
    /// The prefix of this semaphore's keys: the spec's, or `semaphores/<namespace>/<name>`.
    pub fn prefix(&self) -> Prefix {
        let of_object =
            || Prefix::of_object(&self.namespace().unwrap_or_default(), &self.name_any());
        self.spec.prefix.clone().unwrap_or_else(of_object)
    }
}
