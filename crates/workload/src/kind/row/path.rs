//! Paths to fields of an object.

use std::fmt;

use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::object::Object;

/// The greatest length of a path, in bytes.
const MOST_PATH_BYTES: usize = 253;

/// The number of items of a list that are read. An object with as many pod templates can't be started.
pub(super) const MOST_ITEMS: usize = 501;

/// A path of fields, as in `spec.workers[*].template.metadata`. The step `[*]` stands for each item of a list, and
/// occurs at most once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Path(Vec<Step>);

/// A step of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// Step to a field of an object.
    Field(String),
    /// Step to each item of a list.
    Each,
}

impl TryFrom<String> for Path {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::read(&text).ok_or_else(|| {
            format!(
                "{:?} is not a path: write fields of spec or status with dots, as in spec.suspend, and at most one [*] for each \
                 item of a list, at most {MOST_PATH_BYTES} bytes",
                super::shown(&text)
            )
        })
    }
}

/// The names that CEL, the language of the admission policies, does not accept as names of fields.
const NO_FIELDS: [&str; 4] = ["true", "false", "null", "in"];

/// Whether this can be the name of a field, also in CEL.
pub(super) fn is_field(name: &str) -> bool {
    let usual = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let begins = |c: char| c.is_ascii_alphabetic();
    name.starts_with(begins) && name.chars().all(usual) && !NO_FIELDS.contains(&name)
}

impl Path {
    fn read(text: &str) -> Option<Self> {
        let mut steps = Vec::new();
        for part in text.split('.') {
            let field = part.strip_suffix("[*]");
            let name = field.unwrap_or(part);
            if !is_field(name) {
                return None;
            }
            steps.push(Step::Field(name.to_owned()));
            steps.extend(field.map(|_| Step::Each));
        }
        let lists = steps.iter().filter(|step| **step == Step::Each).count();
        let path = Self(steps);
        let inside = path.0.len() > 1 && (path.is_in("spec") || path.is_in("status"));
        (text.len() <= MOST_PATH_BYTES && lists <= 1 && inside).then_some(path)
    }

    /// Returns the steps of the path.
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    /// Whether the path begins in this part of an object, `spec` or `status`.
    pub(super) fn is_in(&self, part: &str) -> bool {
        matches!(self.0.first(), Some(Step::Field(first)) if first == part)
    }

    /// Whether the path contains the step `[*]`.
    pub(super) fn has_each(&self) -> bool {
        self.0.contains(&Step::Each)
    }

    /// Returns the value at the path, or one for each item if the path contains `[*]`. A value is `None` if it is
    /// absent.
    pub(super) fn find<'a>(&self, object: &'a Object) -> Vec<Option<&'a RawValue>> {
        find(object, &self.0)
    }

    /// Returns the value at the path, or one for each item, each after the value of its parent.
    pub(super) fn find_in_parent<'a>(
        &self,
        object: &'a Object,
    ) -> Vec<(Option<&'a RawValue>, Option<&'a RawValue>)> {
        match self.0.as_slice() {
            [parent @ .., Step::Field(name)] if parent.len() > 1 => {
                let parents = find(object, parent).into_iter();
                let within = |parent: Option<&'a RawValue>| {
                    (parent, parent.and_then(|parent| field(parent, name)))
                };
                parents.map(within).collect()
            }
            // The parent of the value is the part itself. If the path ends with `[*]`, its items exist, and the part
            // stands for their parent.
            [first, ..] => {
                let part = part(object, first);
                let found = find(object, &self.0).into_iter();
                found.map(|found| (part, found)).collect()
            }
            [] => Vec::new(),
        }
    }

    /// Returns the path as a JSON Pointer, with `place` as the place of an item.
    pub(super) fn pointer(&self, place: usize) -> String {
        let steps = self.0.iter().map(|step| match step {
            Step::Field(name) => format!("/{name}"),
            Step::Each => format!("/{place}"),
        });
        steps.collect()
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, step) in self.0.iter().enumerate() {
            match step {
                Step::Field(name) if place == 0 => f.write_str(name)?,
                Step::Field(name) => write!(f, ".{name}")?,
                Step::Each => f.write_str("[*]")?,
            }
        }
        Ok(())
    }
}

fn part<'a>(object: &'a Object, first: &Step) -> Option<&'a RawValue> {
    match first {
        Step::Field(name) if name == "spec" => object.spec(),
        Step::Field(name) if name == "status" => object.status(),
        Step::Field(_) | Step::Each => None,
    }
}

fn find<'a>(object: &'a Object, steps: &[Step]) -> Vec<Option<&'a RawValue>> {
    let Some((first, steps)) = steps.split_first() else {
        return Vec::new();
    };
    let mut found = vec![part(object, first)];
    for step in steps {
        found = match step {
            Step::Field(name) => {
                let found = found.into_iter();
                found.map(|it| it.and_then(|it| field(it, name))).collect()
            }
            Step::Each => found.into_iter().flatten().flat_map(items).collect(),
        };
    }
    found
}

/// Returns a field of an object; `None` if the field is absent or null, or if the value is not an object.
pub(super) fn field<'a>(object: &'a RawValue, name: &str) -> Option<&'a RawValue> {
    let mut text = serde_json::Deserializer::from_str(object.get());
    let found = Field(name).deserialize(&mut text).ok()??;
    (found.get() != "null").then_some(found)
}

/// Returns the items of a list, at most the first [`MOST_ITEMS`].
pub(super) fn items(list: &RawValue) -> Vec<Option<&RawValue>> {
    let mut text = serde_json::Deserializer::from_str(list.get());
    let items = text.deserialize_any(Items).unwrap_or_default();
    items.into_iter().map(Some).collect()
}

/// Finds one field, and stores nothing of the other fields.
struct Field<'n>(&'n str);

impl<'de> DeserializeSeed<'de> for Field<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, text: D) -> Result<Self::Value, D::Error> {
        text.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Field<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(is_it) = map.next_key_seed(Is(self.0))? {
            if is_it {
                found = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// Compares a key with this one.
struct Is<'n>(&'n str);

impl<'de> DeserializeSeed<'de> for Is<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, key: D) -> Result<bool, D::Error> {
        key.deserialize_str(self)
    }
}

impl Visitor<'_> for Is<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<bool, E> {
        Ok(key == self.0)
    }
}

struct Items;

impl<'de> Visitor<'de> for Items {
    type Value = Vec<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while items.len() < MOST_ITEMS {
            match list.next_element()? {
                Some(item) => items.push(item),
                None => return Ok(items),
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(items)
    }
}
