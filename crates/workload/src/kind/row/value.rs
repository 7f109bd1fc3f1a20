//! The values that a row compares and writes.

use std::{collections::BTreeMap, fmt};

use super::path::is_field;
use serde::Deserialize;
use serde_json::{Value as Json, value::RawValue};

/// The greatest length of a text, in bytes.
const MOST_TEXT_BYTES: usize = 253;

/// A value of a field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "Json")]
pub enum Scalar {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Number(i64),
    /// A text.
    Text(Text),
}

impl TryFrom<Json> for Scalar {
    type Error = String;

    fn try_from(json: Json) -> Result<Self, String> {
        match json {
            Json::Bool(it) => Ok(Self::Bool(it)),
            Json::Number(it) => it
                .as_i64()
                .map(Self::Number)
                .ok_or_else(|| format!("{it} is not a whole number")),
            Json::String(it) => it.try_into().map(Self::Text),
            Json::Null | Json::Array(_) | Json::Object(_) => {
                Err("this can't be a value: write true, false, a whole number or a text".to_owned())
            }
        }
    }
}

impl Scalar {
    /// Whether a field has this value.
    pub(super) fn is(&self, value: &RawValue) -> bool {
        match self {
            Self::Bool(it) => value.get() == it.to_string(),
            Self::Number(it) => {
                serde_json::from_str(value.get()).is_ok_and(|value: i64| value == *it)
            }
            // The text in JSON is not equal if it is longer than this text with an escape for each character.
            Self::Text(it) => {
                value.get().len() <= 2 + 6 * it.0.len()
                    && serde_json::from_str(value.get()).is_ok_and(|value: String| value == it.0)
            }
        }
    }

    /// Returns the value as JSON.
    pub(super) fn json(&self) -> Json {
        match self {
            Self::Bool(it) => (*it).into(),
            Self::Number(it) => (*it).into(),
            Self::Text(it) => it.0.clone().into(),
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(it) => it.fmt(f),
            Self::Number(it) => it.fmt(f),
            Self::Text(it) => f.write_str(&it.0),
        }
    }
}

/// A text that is written in the same way in JSON and in the expressions of admission policies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Text(String);

impl TryFrom<String> for Text {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let usual = |c: char| c.is_ascii_graphic() && !"'\"\\@`".contains(c) || c == ' ';
        if text.len() <= MOST_TEXT_BYTES && text.chars().all(usual) {
            return Ok(Self(text));
        }
        Err(format!(
            "{:?} can't be written: use printable ASCII without quotes, backslashes and @, at most {MOST_TEXT_BYTES} \
             bytes",
            super::shown(&text)
        ))
    }
}

impl AsRef<str> for Text {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// A value that is written to a field. Its texts may contain places for what is not known when the row is written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "Json")]
pub enum Value {
    /// A single value.
    Scalar(Scalar),
    /// An object with these fields.
    Object(BTreeMap<Text, Self>),
}

impl TryFrom<Json> for Value {
    type Error = String;

    fn try_from(json: Json) -> Result<Self, String> {
        let Json::Object(fields) = json else {
            return json.try_into().map(Self::Scalar);
        };
        let read = fields.into_iter().map(|(name, value)| {
            if !is_field(&name) {
                let name = super::shown(&name);
                return Err(format!(
                    "{name:?} is not a field: use letters, digits and _"
                ));
            }
            Ok((name.try_into()?, value.try_into()?))
        });
        read.collect::<Result<_, String>>().map(Self::Object)
    }
}

/// The texts that replace `{reason}`, `{message}` and `{now}`.
pub(super) struct Filling<'a> {
    pub(super) reason: &'a str,
    pub(super) message: &'a str,
    pub(super) now: &'a str,
}

impl Value {
    /// Returns the default value for a reason: why the operator ended the workload.
    pub(super) fn reason() -> Self {
        Self::Scalar(Scalar::Text(Text("{reason}".to_owned())))
    }

    /// Returns the value as JSON.
    pub(super) fn json(&self, filling: &Filling<'_>) -> Json {
        match self {
            Self::Scalar(Scalar::Text(text)) => text
                .0
                .replace("{reason}", filling.reason)
                .replace("{message}", filling.message)
                .replace("{now}", filling.now)
                .into(),
            Self::Scalar(scalar) => scalar.json(),
            Self::Object(fields) => {
                let fields = fields.iter();
                Json::Object(
                    fields
                        .map(|(name, value)| (name.0.clone(), value.json(filling)))
                        .collect(),
                )
            }
        }
    }
}
