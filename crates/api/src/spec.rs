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
use consul_semaphore::{
    LONGEST_COOLDOWN, LimitPolicy, Mode, OnSlotLost, Period, Prefix, ReplaceAfter, Reserved,
    Restrictions, WaitTimeout,
    windows::{LONGEST_SCHEDULE, WindowSpec, Windows},
};
use kube::{
    CustomResource, KubeSchema, ResourceExt,
    core::{Message, Rule},
};
use serde::{Deserialize, Serialize};

/// The desired state of the semaphore.
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
    doc = "A semaphore in Consul for the Jobs of this namespace. A Job asks for a slot with the annotation \
           consul-semaphore.io/semaphore: <name>. The Job starts when it has a slot, and releases the slot when its pods \
           have ended. The limit holds across all clusters and programs that use the same prefix in the same Consul.",
    printcolumn(
        name = "Limit",
        type_ = "integer",
        json_path = ".spec.limit",
        description = "Number of slots"
    ),
    printcolumn(
        name = "Held",
        type_ = "integer",
        json_path = ".status.held",
        description = "Slots held, in all clusters and by all programs"
    ),
    printcolumn(
        name = "Waiting",
        type_ = "integer",
        json_path = ".status.waiting",
        description = "Waiting Jobs of this cluster"
    ),
    printcolumn(
        name = "Keys",
        type_ = "integer",
        json_path = ".status.keysInUse",
        description = "Number of keys in use, if the semaphore is keyed; each key has its own limit"
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
        description = "The reason why the semaphore is ready or not"
    ),
    printcolumn(
        name = "Mode",
        type_ = "string",
        json_path = ".spec.mode",
        priority = 1,
        description = "How the semaphore is stored in Consul"
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
    validation = Rule::new("(self.mode == 'Rate') == has(self.period)")
        .message("period must be set when mode is Rate, such as 1m, and left out otherwise")
        .field_path(".period"),
    validation = Rule::new("self.mode != 'Rate' || !has(self.cooldown) || duration(self.cooldown) == duration('0s')")
        .message("cooldown must be 0s or left out when mode is Rate: each slot stays held for the period anyway")
        .field_path(".cooldown"),
    validation = Rule::new("self.mode != 'Rate' || self.onSlotLost != 'Suspend'")
        .message("onSlotLost can't be Suspend when mode is Rate: a Job that has started keeps no slot that it could lose")
        .field_path(".onSlotLost"),
    validation = Rule::new("!has(self.reserved) || self.reserved.slots <= self.limit")
        .message("reserved.slots must be at most limit")
        .field_path(".reserved.slots"),
    validation = Rule::new("!has(self.slotNames) || size(self.slotNames) == self.limit")
        .message("slotNames must have as many names as limit, one for each slot")
        .field_path(".slotNames"),
    validation = Rule::new("self.mode != 'Rate' || !has(self.slotNames)")
        .message("slotNames must be left out when mode is Rate: its slots count starts, and a start has no place")
        .field_path(".slotNames"),
    validation = unchanged("keyed", "self.keyed == oldSelf.keyed".to_owned()),
    validation = immutable("consul.datacenter"),
    validation = immutable("consul.namespace"),
    validation = immutable("consul.partition")
)]
pub struct ConsulSemaphoreSpec {
    /// The number of slots, from 1 to 5000. You can change it at any time. A lower limit takes
    /// no slot away: the number of holders falls as Jobs end.
    #[schemars(range(min = 1, max = 5000))]
    pub limit: i32,

    /// Names for the slots, as many as the limit, each at most once: at most 256 names of at most 63 letters, digits,
    /// '.', '_' and '-'. Each holder has a slot index, a number from 0 that no other holder at the prefix has, and the
    /// name at that place of this list: for example the GPU that the Job is to use. A new holder gets the smallest
    /// index that no other holder has and that is not reserved: the index of a Job that runs is reserved even if the Job
    /// has lost its slot. So until such a Job has ended or has a slot again, a new holder can get an index that is not
    /// below the limit, and then has no name. Holders keep the name that they were granted. Not allowed for mode Rate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 256),
        inner(
            length(min = 1, max = 63),
            regex(pattern = "^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
        )
    )]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub slot_names: Vec<String>,

    /// How the semaphore is stored in Consul. Semaphore, the default: as a list of holders, like
    /// `consul lock -n 3` and the Go client's Semaphore. Mutex: as a key that one session locks, like
    /// `consul lock` with one holder and the Go client's Lock; the limit must be 1. Rate: like Semaphore,
    /// but the limit is how many Jobs may start in any `period`, and not how many may run. Can't be changed
    /// later.
    #[serde(default)]
    pub mode: SemaphoreMode,

    /// Required for mode Rate, and allowed only there: at most `limit` Jobs start within any period of this
    /// length. Whole hours, minutes and seconds from 1s to 12h, such as 1m. The limit applies to all clients
    /// that use mode Rate with the same period on this prefix. After a change, the longer of the old and the
    /// new period counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 32))]
    #[x_kube(validation = Rule::new(
            "self.matches('^([0-9]{1,5}[hms])+$') && duration(self) >= duration('1s') && duration(self) <= duration('12h')",
        )
        .message("period must be whole hours, minutes and seconds from 1s to 12h, such as 10s or 1m"))]
    pub period: Option<Period>,

    /// If true, each key that a Job names, for example in the annotation `consul-semaphore.io/key`, has a semaphore of
    /// its own at `<prefix>/<key>`, with this limit. A Job that names no key stays suspended. The default is false.
    /// Can't be changed later.
    #[serde(default)]
    pub keyed: bool,

    /// What the operator does when Consul has another limit that this `ConsulSemaphore` did not write. Refuse, the
    /// default: it grants no slots until both limits agree. Enforce: it writes the limit of this spec.
    #[serde(default)]
    pub limit_policy: LimitPolicy,

    /// What happens when a running Job loses its slot, for example because its session was destroyed or Consul is
    /// unreachable for too long. Reacquire, the default: the Job gets a slot again at once; if no slot is free, the Job
    /// is suspended and put first in the queue. Suspend: the Job is always suspended and put first in the queue.
    /// Continue: as with Reacquire, but if no slot is free, the Job continues without a slot.
    #[serde(default)]
    pub on_slot_lost: OnSlotLost,

    /// How long a slot stays held after its Job is done: whole hours, minutes and seconds from 0s to
    /// 24h, such as 30s or 1h. With a cooldown and the annotation `consul-semaphore.io/on-contention: Skip`, a
    /// `CronJob` that exists in several clusters runs in only one of them each time. The default is 0s.
    #[serde(default)]
    #[schemars(with = "String", length(max = 32))]
    #[x_kube(validation = Rule::new(
            "self.matches('^([0-9]{1,5}[hms])+$') && duration(self) <= duration('24h')",
        )
        .message("cooldown must be whole hours, minutes and seconds from 0s to 24h, such as 30s or 1h"))]
    pub cooldown: Cooldown,

    /// The longest time that a Job may wait if it has no annotation `consul-semaphore.io/wait-timeout`: whole hours,
    /// minutes and seconds from 1s to 720h, such as 30m or 2h. A Job that has waited for this time fails. Time in
    /// which no slot could be granted doesn't count. By default, a Job waits without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 32))]
    #[x_kube(validation = Rule::new(
            "self.matches('^([0-9]{1,7}[hms])+$') && duration(self) >= duration('1s') && duration(self) <= duration('720h')",
        )
        .message("waitTimeout must be whole hours, minutes and seconds from 1s to 720h, such as 30m or 2h"))]
    pub wait_timeout: Option<WaitTimeout>,

    /// The most Jobs that may wait in the queue, from 1 to 100000; each key of a keyed semaphore has a queue of its own.
    /// A Job that comes while so many Jobs of this cluster wait, and that can't have its slots at once, fails. You can
    /// change it at any time: Jobs that wait already go on waiting. By default, any number of Jobs may wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32", range(min = 1, max = 100_000))]
    pub max_waiting: Option<i32>,

    /// How long a Job that holds a slot is protected before a newer Job with the annotation
    /// `consul-semaphore.io/on-contention: ReplaceRunning` may end it: whole hours, minutes and seconds from 0s to
    /// 720h, such as 10m. The default is 0s.
    #[serde(default)]
    #[schemars(with = "String", length(max = 32))]
    #[x_kube(validation = Rule::new(
            "self.matches('^([0-9]{1,7}[hms])+$') && duration(self) <= duration('720h')",
        )
        .message("replaceAfter must be whole hours, minutes and seconds from 0s to 720h, such as 10m"))]
    pub replace_after: ReplaceAfter,

    /// Where the semaphore is in Consul's key-value store. All clients that use the same prefix share its slots.
    /// Segments of letters, digits, '.', '_' and '-' joined by '/'; no segment is '.lock' or has only
    /// dots. The default is `semaphores/<namespace>/<name>`. By default a namespace may use prefixes below
    /// `semaphores/<namespace>/`, or any prefix with its own token (consul.tokenSecretRef). Can't be
    /// changed, added or removed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = Prefix::MAX_LENGTH))]
    #[x_kube(
        validation = Rule::new("self.matches('^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$')")
            .message("prefix must be segments of letters, digits, '.', '_' and '-' joined by '/', such as team/db, with no '/' at either end"),
        validation = Rule::new("!self.matches('(^|/)([.]+|[.]lock)(/|$)')")
            .message("no segment of prefix may be '.lock' or consist of only dots")
    )]
    pub prefix: Option<Prefix>,

    /// When slots are granted: outside all of these windows, no slot is granted. Jobs that hold a slot continue,
    /// and a running Job that loses its slot can get a slot again. At most 20. The default is none: slots are always
    /// granted. Other operators and programs on the same prefix do not know these windows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub windows: Vec<Window>,

    /// Reserves the last free slots for Jobs with at least a certain priority. The default is none. Other
    /// operators and programs on the same prefix do not know this setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ReservedSlots")]
    pub reserved: Option<ReservedSlots>,

    /// If true, no new slots are granted. Jobs that hold a slot continue, and the slot is released when they
    /// are done. The default is false.
    #[serde(default)]
    pub paused: bool,

    /// The Consul sessions that hold the slots.
    #[serde(default)]
    pub session: SessionSpec,

    /// Which part of Consul to use. The address is part of the operator's configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ConsulSpec")]
    pub consul: Option<ConsulSpec>,
}

/// What the limit is on, and how the semaphore is stored in Consul.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
pub enum SemaphoreMode {
    /// How many run: a list of holders.
    #[default]
    Semaphore,
    /// One at a time: a key that one session locks.
    Mutex,
    /// How many start in a period: a list of holders.
    Rate,
}

impl SemaphoreMode {
    /// How the semaphore is stored in Consul.
    pub fn stored(self) -> Mode {
        match self {
            Self::Semaphore | Self::Rate => Mode::Semaphore,
            Self::Mutex => Mode::Mutex,
        }
    }
}

/// How long a slot stays held after its Job is done.
pub type Cooldown = Seconds<0, LONGEST_COOLDOWN>;

/// How long the slot of a dead holder is not granted again.
pub type LockDelay = Seconds<0, 60>;

/// When slots are granted.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Window {
    /// When the window opens, as in a `CronJob`: minute, hour, day of month, month and day of week, such as
    /// `0 22 * * *`. When the clock is set forward or back for daylight saving time, no window is skipped or
    /// doubled.
    #[schemars(length(max = LONGEST_SCHEDULE))]
    #[x_kube(validation = Rule::new("self.matches('^[^ ]+( [^ ]+){4}$')")
        .message("schedule must be the five fields of cron, minute, hour, day of month, month and day of week, such as 0 22 * * *"))]
    pub schedule: String,

    /// How long the window stays open: whole hours, minutes and seconds from 1m to 168h, such as 6h.
    #[schemars(with = "String", length(max = 32))]
    #[x_kube(validation = Rule::new(
            "self.matches('^([0-9]{1,6}[hms])+$') && duration(self) >= duration('1m') && duration(self) <= duration('168h')",
        )
        .message("duration must be whole hours, minutes and seconds from 1m to 168h, such as 30m or 6h"))]
    pub duration: WindowLength,

    /// The time zone of the schedule, by its name in the IANA database, such as Europe/Berlin. The default
    /// is UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 64))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$')")
        .message("timeZone must be a name of the IANA database, such as Europe/Berlin or UTC"))]
    pub time_zone: Option<String>,

    /// The limit while this window is open, from 1 to 5000: a slot is granted only while fewer slots than this are
    /// held. If several windows are open, the largest value applies. The limit in Consul does not change. The
    /// default is spec.limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32", range(min = 1, max = 5000))]
    pub limit: Option<i32>,
}

/// How long a window stays open: a minute to a week.
pub type WindowLength = Seconds<60, 604_800>;

/// Slots that are not for every Job.
#[derive(KubeSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReservedSlots {
    /// How many of the last free slots are reserved, at most spec.limit.
    #[schemars(range(min = 1, max = 5000))]
    pub slots: i32,

    /// The lowest priority (annotation `consul-semaphore.io/priority`) of a Job that may have the reserved slots.
    pub min_priority: i32,
}

/// The Consul sessions that hold the slots.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionSpec {
    /// The TTL of the sessions: whole hours, minutes and seconds from 10s to 24h, such as 120s, 2m or 1h30m. If nobody
    /// renews a session any more, Consul frees its slot after one to two TTLs. A longer TTL lets Jobs continue in a
    /// longer outage; a shorter one frees the slots of a lost cluster sooner. None: the session never expires, and the
    /// slots of a lost cluster stay held until somebody destroys its sessions. The default is 120s.
    #[serde(default)]
    #[schemars(with = "String", length(max = 32))]
    #[x_kube(validation = Rule::new(
            "self == 'None' || (self.matches('^([0-9]{1,5}[hms])+$') && duration(self) >= duration('10s') && duration(self) <= duration('24h'))",
        )
        .message("ttl must be whole hours, minutes and seconds from 10s to 24h, such as 120s, 2m or 1h30m, or None"))]
    pub ttl: Ttl,

    /// How long this operator waits before it grants the slot of a dead holder again: whole seconds
    /// from 0s to 60s, such as 15s or 1m. This gives the work of the dead holder time to end. The default is
    /// 15s.
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

/// Returns the default lock-delay, which is also Consul's own.
fn lock_delay() -> LockDelay {
    LockDelay::new(15).unwrap_or(LockDelay::MAX)
}

/// Which part of Consul to use.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConsulSpec {
    /// The datacenter, such as dc1. The default is the datacenter of the Consul servers that the operator uses.
    /// Can't be changed, added or removed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 64))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9_-]+$')")
        .message("datacenter must be the name of a Consul datacenter: lower case letters, digits, '-' and '_', such as dc1"))]
    pub datacenter: Option<String>,

    /// The Consul namespace, which is not a Kubernetes namespace. Needs Consul Enterprise (not tested).
    /// The default is set in the operator's configuration. Can't be changed, added or removed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 64))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$')")
        .message("namespace must be the name of a Consul namespace: letters, digits and '-', such as team-a"))]
    pub namespace: Option<String>,

    /// The Consul admin partition. Needs Consul Enterprise (not tested). The default is set in the operator's
    /// configuration. Can't be changed, added or removed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 64))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$')")
        .message("partition must be the name of a Consul partition: letters, digits and '-', such as default"))]
    pub partition: Option<String>,

    /// A Secret in the same namespace with a Consul token for this semaphore. With it, you may use any
    /// prefix that the token's ACL rules allow. Without it, the operator uses its own token. The operator needs the
    /// right to read the Secret. You can name another Secret at any time. Add or remove this field only
    /// while no Job runs: after a restart, the operator does not adopt the sessions that it created before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "TokenSecretRef")]
    pub token_secret_ref: Option<TokenSecretRef>,
}

/// A key of a Secret.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
            "{field} can't be changed, added or removed: create another ConsulSemaphore instead"
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

    /// When its slots are granted, and to whom. `now`: a window that opens at no time after that is invalid.
    pub fn restrictions(&self, now: jiff::Timestamp) -> Restrictions {
        let windows = self.spec.windows.iter().map(|window| WindowSpec {
            schedule: window.schedule.clone(),
            duration: window.duration.get(),
            time_zone: window.time_zone.clone(),
            limit: window.limit.and_then(|limit| limit.try_into().ok()),
        });
        let reserved = self.spec.reserved.map(|reserved| Reserved {
            slots: reserved.slots.try_into().unwrap_or(0),
            min_priority: reserved.min_priority,
        });
        Restrictions {
            windows: Windows::new(windows.collect(), now),
            reserved,
        }
    }
}
