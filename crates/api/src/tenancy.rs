//! Decides which prefixes a namespace may use with the operator's own token.

use std::{collections::BTreeSet, fmt, str::FromStr};

use consul_semaphore::Prefix;

/// The placeholder for the namespace of a `ConsulSemaphore`.
const NAMESPACE: &str = "{namespace}";

/// The name for all namespaces.
pub(super) const ALL: &str = "*";

/// The folder in Consul that belongs to a namespace: a [`Prefix`] in which `{namespace}` is replaced by the
/// namespace's name, such as `semaphores/{namespace}/`. The slash at its end may be left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantPrefix(String);

/// The text is not a [`TenantPrefix`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} must be segments of letters, digits, '.', '_', '-' and {{namespace}} joined by '/', such as \
     semaphores/{{namespace}}/, and no segment may be '.lock' or consist of only dots; to let namespaces use any \
     prefix, trust them"
)]
pub struct InvalidTenantPrefix(String);

impl TenantPrefix {
    /// The default: the folder of each `ConsulSemaphore` whose spec names no prefix.
    pub const DEFAULT: &'static str = "semaphores/{namespace}/";

    /// Returns the folder of this namespace, with a slash at its end.
    fn of(&self, namespace: &str) -> String {
        format!("{}/", self.0.replace(NAMESPACE, namespace))
    }
}

impl FromStr for TenantPrefix {
    type Err = InvalidTenantPrefix;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let folder = text.strip_suffix('/').unwrap_or(text);
        // Any namespace gives the same result: its name is a DNS label.
        let valid = folder.replace(NAMESPACE, "n").parse::<Prefix>().is_ok();
        valid
            .then(|| Self(folder.to_owned()))
            .ok_or_else(|| InvalidTenantPrefix(text.to_owned()))
    }
}

impl fmt::Display for TenantPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.0)
    }
}

/// The namespaces whose `ConsulSemaphores` may use every prefix that the operator's token may use: names joined by
/// commas, or `*` for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedNamespaces(BTreeSet<String>);

/// The text names no namespaces.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the name of a namespace: use names joined by commas, or * for all")]
pub struct InvalidNamespace(pub(super) String);

impl TrustedNamespaces {
    fn contains(&self, namespace: &str) -> bool {
        self.0.contains(ALL) || self.0.contains(namespace)
    }
}

impl FromStr for TrustedNamespaces {
    type Err = InvalidNamespace;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        namespaces(text).map(Self)
    }
}

/// Reads names joined by commas, one of which may be [`ALL`].
pub(super) fn namespaces(text: &str) -> Result<BTreeSet<String>, InvalidNamespace> {
    let names = text
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty());
    let name = |name: &str| {
        if name == ALL || is_namespace(name) {
            Ok(name.to_owned())
        } else {
            Err(InvalidNamespace(name.to_owned()))
        }
    };
    names.map(name).collect()
}

/// Whether the name is a DNS label, as the names of namespaces are.
pub fn is_namespace(name: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&name.len())
        && name.bytes().all(inside)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// The rules for which namespaces may use which prefixes with the operator's own token.
#[derive(Clone, Debug)]
pub struct Tenancy {
    /// The folder of each namespace.
    pub prefix: TenantPrefix,
    /// The namespaces that are not confined to their folders.
    pub trusted: TrustedNamespaces,
}

/// The prefix is outside the namespace's folder. The message says what is allowed and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the prefix {prefix} is not below {folder}, where the semaphores of the namespace {namespace} live. The operator \
     reads and writes nothing in Consul for this ConsulSemaphore. Create another one with a prefix such as \
     {folder}{example}, set a token for this one in spec.consul.tokenSecretRef, or ask the administrator of the \
     operator to add the namespace to --trusted-namespaces"
)]
pub struct PrefixNotAllowed {
    prefix: Prefix,
    folder: String,
    namespace: String,
    example: String,
}

impl Tenancy {
    /// Returns the folder of a namespace, with a slash at its end.
    pub fn folder(&self, namespace: &str) -> String {
        self.prefix.of(namespace)
    }

    /// Returns the folder that contains the folders of all namespaces, with a slash at its end; empty if the folders
    /// have no folder in common.
    pub fn common_folder(&self) -> String {
        let folder = self.prefix.to_string();
        let before_name = folder.split(NAMESPACE).next().unwrap_or_default();
        let common = before_name.rsplit_once('/').map(|(common, _)| common);
        common.map_or_else(String::new, |common| format!("{common}/"))
    }

    /// Whether a `ConsulSemaphore` of this namespace may use the prefix.
    ///
    /// Prefixes are compared byte by byte, as Consul compares keys, and with the slash, so that `semaphores/team`
    /// does not include `semaphores/team-b`.
    pub fn check(&self, namespace: &str, prefix: &Prefix) -> Result<(), PrefixNotAllowed> {
        let folder = self.folder(namespace);
        if self.trusted.contains(namespace) || prefix.as_str().starts_with(&folder) {
            return Ok(());
        }
        let example = prefix.as_str().rsplit('/').next().unwrap_or_default();
        Err(PrefixNotAllowed {
            prefix: prefix.clone(),
            folder,
            namespace: namespace.to_owned(),
            example: example.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tenancy(prefix: &str, trusted: &str) -> Tenancy {
        Tenancy {
            prefix: prefix.parse().unwrap(),
            trusted: trusted.parse().unwrap(),
        }
    }

    fn allowed(tenancy: &Tenancy, namespace: &str, prefix: &str) -> bool {
        tenancy.check(namespace, &prefix.parse().unwrap()).is_ok()
    }

    #[test]
    fn a_namespace_has_its_own_folder_and_no_other() {
        let tenancy = tenancy(TenantPrefix::DEFAULT, "");
        for prefix in [
            "semaphores/team/db",
            "semaphores/team/a/b",
            "semaphores/team/.locks",
        ] {
            assert!(allowed(&tenancy, "team", prefix), "{prefix}");
        }
        for prefix in [
            "semaphores/team",
            "semaphores/team-b/db",
            "semaphores/team-b",
            "semaphores/tea/db",
            "semaphores/TEAM/db",
            "Semaphores/team/db",
            "semaphores/other/db",
            "semaphores/team.x/db",
            "team/db",
            "shared/db",
            "x/semaphores/team/db",
        ] {
            assert!(!allowed(&tenancy, "team", prefix), "{prefix}");
        }
    }

    #[test]
    fn the_folders_of_all_namespaces_have_one_in_common() {
        for (prefix, common) in [
            (TenantPrefix::DEFAULT, "semaphores/"),
            ("a/b/x-{namespace}/c", "a/b/"),
            ("x-{namespace}", ""),
            ("{namespace}/semaphores", ""),
            ("shared", "shared/"),
        ] {
            assert_eq!(tenancy(prefix, "").common_folder(), common, "{prefix}");
        }
    }

    #[test]
    fn trusted_namespaces_may_use_any_prefix() {
        let some = tenancy(TenantPrefix::DEFAULT, " infra, batch ,");
        assert!(allowed(&some, "infra", "shared/db") && allowed(&some, "batch", "shared/db"));
        assert!(!allowed(&some, "infra-2", "shared/db"));
        assert!(allowed(
            &tenancy(TenantPrefix::DEFAULT, "*"),
            "any",
            "shared/db"
        ));
    }

    #[test]
    fn the_folder_is_for_the_operators_administrator_to_choose() {
        let tenancy = tenancy("k8s/eu-{namespace}/locks", "");
        assert_eq!(tenancy.prefix.to_string(), "k8s/eu-{namespace}/locks/");
        assert!(allowed(&tenancy, "team", "k8s/eu-team/locks/db"));
        assert!(!allowed(&tenancy, "team", "k8s/eu-team/locks"));
        assert!(!allowed(&tenancy, "team", "semaphores/team/db"));
    }

    #[test]
    fn what_can_be_no_folder_is_refused() {
        for text in [
            "",
            "/",
            "//",
            "a//b",
            "/a",
            "a/../b",
            "{name}/",
            "a b",
            "{namespace",
            ".lock/",
            "..",
        ] {
            let refused = text.parse::<TenantPrefix>().unwrap_err().to_string();
            assert!(
                refused.contains("such as semaphores/{namespace}/"),
                "{refused}"
            );
        }
        for text in ["Team", "a/b", "a b", "-a", "team*", "**"] {
            assert!(text.parse::<TrustedNamespaces>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_refusal_says_what_is_allowed() {
        let tenancy = tenancy(TenantPrefix::DEFAULT, "");
        let checked = tenancy.check("team", &"shared/db".parse().unwrap());
        let refused = checked.unwrap_err().to_string();
        for words in [
            "the prefix shared/db",
            "such as semaphores/team/db",
            "spec.consul.tokenSecretRef",
            "--trusted-namespaces",
        ] {
            assert!(refused.contains(words), "{refused}");
        }
    }

    proptest! {
        /// A prefix that one namespace may use is refused to every other namespace.
        #[test]
        fn no_two_namespaces_share_a_prefix(
            one in "[a-z0-9]([a-z0-9-]{0,6}[a-z0-9])?",
            other in "[a-z0-9]([a-z0-9-]{0,6}[a-z0-9])?",
            rest in "[A-Za-z0-9._/%-]{0,12}",
        ) {
            prop_assume!(one != other);
            let tenancy = tenancy(TenantPrefix::DEFAULT, "");
            if let Ok(prefix) = format!("semaphores/{one}/{rest}").parse::<Prefix>() {
                prop_assert!(tenancy.check(&one, &prefix).is_ok());
                prop_assert!(tenancy.check(&other, &prefix).is_err());
            }
        }

        #[test]
        fn arbitrary_settings_never_panic(text: String) {
            let _ = text.parse::<TenantPrefix>();
            let _ = text.parse::<TrustedNamespaces>();
        }
    }
}
