//! Selects by label the `ConsulSemaphores` that an operator manages.

use std::{collections::BTreeMap, fmt, str::FromStr};

use kube::core::{Expression, Selector, SelectorExt as _};

use super::annotations::is_object_name;

/// A label selector as `kubectl -l` accepts it: requirements joined by commas, all of which an object must meet. The
/// default has no requirements and selects every object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SemaphoreSelector(Selector);

/// The text is not a [`SemaphoreSelector`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a requirement on labels: use one or more of key=value, key!=value, key in (a,b), key notin (a,b), \
     key and !key, joined by commas; to select all, leave the selector out"
)]
pub struct InvalidSelector(String);

impl SemaphoreSelector {
    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.matches(labels)
    }

    /// Whether every object is selected.
    pub fn selects_all(&self) -> bool {
        self.0.selects_all()
    }
}

impl FromStr for SemaphoreSelector {
    type Err = InvalidSelector;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut in_set = false;
        let between_requirements = |character: char| {
            match character {
                '(' => in_set = true,
                ')' => in_set = false,
                _ => {}
            }
            character == ',' && !in_set
        };
        let expression = |requirement: &str| {
            let invalid = || InvalidSelector(requirement.trim().to_owned());
            parse(requirement.trim()).ok_or_else(invalid)
        };
        let requirements = text.split(between_requirements);
        let selector: Result<Selector, _> = requirements.map(expression).collect();
        selector.map(Self)
    }
}

impl fmt::Display for SemaphoreSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Reads one requirement.
fn parse(text: &str) -> Option<Expression> {
    if let Some(name) = text.strip_prefix('!') {
        return Some(Expression::DoesNotExist(key(name)?));
    }
    if let Some(set) = text.strip_suffix(')') {
        let (operation, values) = set.split_once('(')?;
        let (name, operator) = operation.trim().split_once(char::is_whitespace)?;
        let values = values.split(',').map(value).collect::<Option<_>>()?;
        return match operator.trim() {
            "in" => Some(Expression::In(key(name)?, values)),
            "notin" => Some(Expression::NotIn(key(name)?, values)),
            _ => None,
        };
    }
    let Some((name, wanted)) = text.split_once('=') else {
        return Some(Expression::Exists(key(text)?));
    };
    if let Some(name) = name.strip_suffix('!') {
        return Some(Expression::NotEqual(key(name)?, value(wanted)?));
    }
    let wanted = wanted.strip_prefix('=').unwrap_or(wanted);
    Some(Expression::Equal(key(name)?, value(wanted)?))
}

/// A valid key of a label: a word, with or without a prefix such as `example.com/`.
fn key(text: &str) -> Option<String> {
    let text = text.trim();
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    let valid = prefix.is_none_or(is_object_name) && is_word(name);
    valid.then(|| text.to_owned())
}

/// A valid value of a label: a word, or nothing.
fn value(text: &str) -> Option<String> {
    let text = text.trim();
    (text.is_empty() || is_word(text)).then(|| text.to_owned())
}

fn is_word(text: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let at_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63 && text.bytes().all(inside) && at_end(bytes.first()) && at_end(bytes.last())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The ones of these semaphores that a selector selects.
    fn selected(selector: &str) -> Vec<&'static str> {
        let selector: SemaphoreSelector = selector.parse().unwrap();
        let semaphores: [(_, &[_]); 4] = [
            ("a", &[("shard", "a"), ("example.com/tier", "1")]),
            ("b", &[("shard", "b")]),
            ("empty", &[("shard", "")]),
            ("bare", &[]),
        ];
        let labels = |pairs: &[(&str, &str)]| {
            let owned = pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            owned.collect()
        };
        let matching = semaphores
            .iter()
            .filter(|(_, pairs)| selector.matches(&labels(pairs)));
        matching.map(|(name, _)| *name).collect()
    }

    #[test]
    fn it_selects_as_kubectl_does() {
        for (selector, expected) in [
            ("shard=a", &["a"][..]),
            (" shard == a ", &["a"]),
            ("shard!=a", &["b", "empty", "bare"]),
            ("shard=", &["empty"]),
            ("shard in (a, b)", &["a", "b"]),
            ("shard in(a,)", &["a", "empty"]),
            ("shard notin (a,b)", &["empty", "bare"]),
            ("shard", &["a", "b", "empty"]),
            ("!shard", &["bare"]),
            ("! shard", &["bare"]),
            ("shard in (a,b),shard notin (b)", &["a"]),
            ("shard, !example.com/tier", &["b", "empty"]),
            ("example.com/tier=1,shard=a", &["a"]),
        ] {
            assert_eq!(selected(selector), expected, "{selector}");
        }
        let all = SemaphoreSelector::default();
        assert!(all.selects_all() && all.matches(&BTreeMap::new()));
    }

    #[test]
    fn what_is_no_selector_is_refused_with_what_to_write() {
        for text in [
            "",
            ",",
            "shard=a,",
            "=a",
            "!",
            "!=a",
            "shard a",
            "shard=a b",
            "shard=a=b",
            "shard===a",
            "shard>1",
            "shard in a",
            "shard in (a",
            "shard within (a)",
            "in (a)",
            "shard in (a,b c)",
            "shard in (a),(b)",
            "a/b/c=d",
            "Example.com/shard=a",
            "-shard=a",
            "shard=a.",
            &"x".repeat(64),
        ] {
            let refused = text.parse::<SemaphoreSelector>().unwrap_err().to_string();
            assert!(refused.contains("key in (a,b)"), "{text}: {refused}");
        }
    }

    proptest! {
        /// An accepted selector still means the same after it was printed and parsed again.
        #[test]
        fn any_text_is_read_or_refused(text in "[a-b!=, ()]{0,9}|(a|b|shard|=|==|!=|!| |in|notin|,|\\(|\\)){0,9}") {
            if let Ok(selector) = text.parse::<SemaphoreSelector>() {
                prop_assert_eq!(selector.to_string().parse(), Ok(selector));
            }
        }
    }
}
