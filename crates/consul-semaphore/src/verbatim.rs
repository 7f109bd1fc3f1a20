//! Keeps foreign JSON exactly as it was written: no number is rounded, whatever its size.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, Visitor},
};
use serde_json::value::RawValue;

/// A JSON value, as text.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct Verbatim(Box<RawValue>);

impl Verbatim {
    /// Reads the text of a value; `None` if it is not JSON. The parser does not recurse, however deep the value is.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    /// Returns the value as a `T`, if it is one.
    pub(super) fn read<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_str(self.0.get()).ok()
    }

    /// Whether the value is an object. This reads only its beginning.
    pub(super) fn is_object(&self) -> bool {
        self.0.get().starts_with('{')
    }

    /// Returns the text of the value.
    pub(super) fn raw(&self) -> &RawValue {
        &self.0
    }
}

impl PartialEq for Verbatim {
    fn eq(&self, other: &Self) -> bool {
        self.0.get() == other.0.get()
    }
}

impl Eq for Verbatim {}

/// The fields of a JSON object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct JsonFields {
    pub(super) by_name: BTreeMap<String, Verbatim>,
    /// Whether a name occurs twice: readers differ in which of the two values they use.
    pub(super) twice: bool,
}

impl<'de> Deserialize<'de> for JsonFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;
        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = JsonFields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonFields, A::Error> {
                let mut fields = JsonFields::default();
                while let Some((name, value)) = map.next_entry()? {
                    fields.twice |= fields.by_name.insert(name, value).is_some();
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(FieldsVisitor)
    }
}
