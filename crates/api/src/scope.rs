//! Describes the part of a cluster that an operator works for.

use std::{collections::BTreeSet, fmt, str::FromStr};

use super::{
    selector::SemaphoreSelector,
    tenancy::{ALL, InvalidNamespace, namespaces},
};

/// Part of a cluster that an operator works for; the whole cluster by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Namespaces in which the operator works. The operator does not see anything in other namespaces.
    pub namespaces: Namespaces,
    /// Selector of the `ConsulSemaphores` that the operator manages in these namespaces. The operator treats all others
    /// as those of another operator.
    pub semaphores: SemaphoreSelector,
}

impl Scope {
    /// Whether the scope is the whole cluster.
    pub fn is_whole(&self) -> bool {
        self.namespaces == Namespaces::All && self.semaphores.selects_all()
    }
}

/// Namespaces: names joined by commas, or `*` for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Namespaces {
    /// All namespaces, including later ones.
    #[default]
    All,
    /// Only the namespaces with these names, of which there is at least one.
    Only(BTreeSet<String>),
}

impl Namespaces {
    /// Whether `namespace` is one of the namespaces.
    pub fn contains(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.contains(namespace),
        }
    }
}

impl FromStr for Namespaces {
    type Err = InvalidNamespace;

    /// An empty text does not mean all: it may be a variable that was not filled in.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let names = namespaces(text)?;
        if names.is_empty() {
            Err(InvalidNamespace(text.to_owned()))
        } else if names.contains(ALL) {
            Ok(Self::All)
        } else {
            Ok(Self::Only(names))
        }
    }
}

impl fmt::Display for Namespaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str(ALL),
            Self::Only(names) => {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                f.write_str(&names.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_named_or_all() {
        let shown = |text: &str| text.parse().map(|read: Namespaces| read.to_string());
        assert_eq!(shown(" team-b ,team-a,"), Ok("team-a,team-b".to_owned()));
        assert_eq!(shown("*"), Ok("*".to_owned()));
        assert_eq!(shown("team-a,*"), Ok("*".to_owned()));
        assert_eq!("*".parse(), Ok(Namespaces::default()));
        for text in ["", " ", ",", "Team", "a/b", "a b", "team*"] {
            let refused = shown(text).unwrap_err().to_string();
            assert!(refused.contains("or * for all"), "{refused}");
        }
    }

    #[test]
    fn a_namespace_is_among_those_that_are_named() {
        let among = |text: &str| {
            let namespaces: Namespaces = text.parse().unwrap();
            namespaces.contains("team-a")
        };
        assert!(among("*") && among("team-b,team-a") && !among("team-b,team"));
    }

    #[test]
    fn the_whole_cluster_is_what_nothing_narrows() {
        let whole = Scope::default();
        assert!(whole.is_whole());
        let narrowed = Scope {
            namespaces: "team".parse().unwrap(),
            ..whole.clone()
        };
        assert!(!narrowed.is_whole());
        let narrowed = Scope {
            semaphores: "shard=a".parse().unwrap(),
            ..whole
        };
        assert!(!narrowed.is_whole());
    }
}
