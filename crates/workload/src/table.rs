//! The rows of users. A `ConfigMap` describes kinds, with one row in each of its entries.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{Kind, Kinds, row::Row, yaml};

/// The number of entries that are read.
const MOST_ROWS: usize = 32;

/// The contents of a `ConfigMap` with rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// The kinds, by the names of their entries.
    pub kinds: BTreeMap<String, Kind>,
    /// The mistakes in the other entries, by their names. Each says what is wrong and what is allowed, for people.
    pub mistakes: BTreeMap<String, String>,
}

/// The part of a manifest that is read.
#[derive(Deserialize)]
struct ConfigMap {
    #[serde(default)]
    data: BTreeMap<String, String>,
}

impl Table {
    /// Reads the manifest of a `ConfigMap` from YAML.
    ///
    /// # Errors
    /// The manifest is not a `ConfigMap`.
    pub fn parse(manifest: &str, taken: &Kinds) -> Result<Self, String> {
        let map: ConfigMap =
            yaml::parse(manifest).map_err(|why| format!("this is not a ConfigMap: {why}"))?;
        Ok(Self::read(&map.data, taken))
    }

    /// Reads the entries of a `ConfigMap`. A row is a mistake if its kind is among `taken`, or if an entry before it
    /// describes the kind.
    pub fn read(data: &BTreeMap<String, String>, taken: &Kinds) -> Self {
        let mut table = Self::default();
        for (entry, text) in data.iter().take(MOST_ROWS) {
            match table.row(text, taken) {
                Ok(kind) => {
                    table.kinds.insert(entry.clone(), kind);
                }
                Err(why) => {
                    table.mistakes.insert(entry.clone(), why);
                }
            }
        }
        if let Some(first) = data.keys().nth(MOST_ROWS) {
            let why = format!("only the first {MOST_ROWS} entries are read");
            table.mistakes.insert(first.clone(), why);
        }
        table
    }

    fn row(&self, text: &str, taken: &Kinds) -> Result<Kind, String> {
        let kind: Kind = Row::parse(text).map_err(|error| error.to_string())?.into();
        let it = kind.resource();
        if let Some(other) = taken.iter().find(|one| one.resource().kind == it.kind) {
            return Err(format!(
                "kind: {} is already served: remove this row, or remove {} from --workloads",
                kind.name(),
                other.switch()
            ));
        }
        // The admission policies and the access rights of a kind are named after its plural.
        let is_named = |one: &Kind| {
            let name = it.plural == one.switch() || it.plural == one.resource().plural;
            name && one.resource().group != it.group
        };
        if it.plural == Kinds::ALL || Kind::all().iter().any(is_named) {
            return Err(format!(
                "plural: {} already means another kind of this operator: a row can't describe a kind with this plural",
                it.plural
            ));
        }
        if let Some((entry, _)) = self.kinds.iter().find(|(_, one)| one.is_alike(&kind)) {
            return Err(format!(
                "kind, plural: the row {entry} already describes this kind: remove one of the two rows"
            ));
        }
        Ok(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(kind: &str, plural: &str) -> String {
        format!(
            "{{ apiVersion: example.com/v1, kind: {kind}, plural: {plural}, pods: {{ labels: ['run={{uid}}'] }}, life: {{
                hold: {{ path: spec.suspend, held: true }},
                suspended: [{{ condition: Suspended }}], finished: [{{ condition: Done }}] }} }}"
        )
    }

    fn read(rows: &[(&str, String)], taken: &str) -> Table {
        let entries = rows.iter();
        let data = entries.map(|(entry, text)| ((*entry).to_owned(), text.clone()));
        Table::read(&data.collect(), &taken.parse().unwrap())
    }

    #[test]
    fn a_wrong_row_says_what_is_wrong_and_the_others_are_read() {
        let table = read(
            &[
                ("a", row("Run", "runs")),
                ("b", row("Run", "others")),
                ("c", row("RayJob", "rayjobs")),
                ("d", "kind: Run".to_owned()),
                ("e", row("Other", "jobs")),
                ("f", row("Job", "runs2")),
            ],
            "rayjobs",
        );
        let names: Vec<&str> = table.kinds.keys().map(String::as_str).collect();
        assert_eq!(names, ["a"]);
        for (entry, part) in [
            ("e", "plural: jobs already means another kind"),
            ("b", "the row a already describes this kind"),
            ("c", "remove this row, or remove rayjobs from --workloads"),
            ("d", "missing field `apiVersion`"),
            ("f", "Job is already served"),
        ] {
            let why = &table.mistakes[entry];
            assert!(why.contains(part), "{entry}: {why}");
        }
        // The row of a user may describe a kind that comes with the operator and is switched off.
        let own = row("RayJob", "rayjobs").replace("example.com", "ray.io");
        let table = read(&[("c", own)], "");
        assert_eq!(table.kinds.len(), 1, "{:?}", table.mistakes);
    }

    #[test]
    fn no_more_rows_are_read_than_there_may_be() {
        let rows = (0..40).map(|n| (format!("r{n:02}"), row(&format!("R{n}"), &format!("r{n}"))));
        let table = Table::read(&rows.collect(), &Kinds::default());
        assert_eq!((table.kinds.len(), table.mistakes.len()), (32, 1));
    }

    #[test]
    fn the_row_in_the_docs_is_one() {
        let page = include_str!("../../../docs/kinds.md");
        let manifest = page
            .split("```")
            .find_map(|block| block.strip_prefix("yaml\n"));
        let table = Table::parse(manifest.unwrap(), &Kinds::default()).unwrap();
        assert_eq!(
            (table.kinds.len(), table.mistakes.len()),
            (1, 0),
            "{table:?}"
        );
    }

    #[test]
    fn a_manifest_of_a_config_map_is_read() {
        let manifest = format!(
            "kind: ConfigMap\ndata:\n  run: |\n    {}\n",
            row("Run", "runs").replace('\n', " ")
        );
        let table = Table::parse(&manifest, &Kinds::default()).unwrap();
        assert_eq!(table.kinds.len(), 1, "{:?}", table.mistakes);
        assert!(Table::parse("data: 7", &Kinds::default()).is_err());
    }
}
