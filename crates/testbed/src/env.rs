//! Environment variables for a program.
use std::fmt::{Debug, Formatter, Result};

/// Names and values; a later value of a name wins. Debug shows no values: some are tokens.
#[derive(Clone, Default)]
pub(crate) struct Env(Vec<(String, String)>);

impl Env {
    /// Adds a variable.
    pub(crate) fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.push((name.into(), value.into()));
    }

    /// The value of a variable.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().rev().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// All variables.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl FromIterator<(String, String)> for Env {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(variables: I) -> Self {
        Self(variables.into_iter().collect())
    }
}

impl Extend<(String, String)> for Env {
    fn extend<I: IntoIterator<Item = (String, String)>>(&mut self, variables: I) {
        self.0.extend(variables);
    }
}

impl Debug for Env {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_set()
            .entries(self.0.iter().map(|(name, _)| name))
            .finish()
    }
}
