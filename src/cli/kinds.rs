//! `kinds`: which kinds of workloads there are, and what each needs in a cluster.
#![allow(
    clippy::doc_markdown,
    reason = "these comments are the help, which is shown as it stands"
)]

use std::{fmt::Write as _, fs, path::PathBuf};

use anyhow::{Context as _, anyhow};
use clap::Args;
use consul_semaphore_operator::manifests::{self, Account};
use consul_semaphore_workload::{Kind, Kinds, Table};

/// The kinds that an operator serves.
#[derive(Args, Debug, Default)]
pub(crate) struct WorkloadFlags {
    /// The kinds of workloads to serve besides Jobs, separated by commas: plural names such as jobsets, kueue, or all. You
    /// can repeat the flag
    #[arg(long, env, value_name = "NAMES")]
    workloads: Vec<Kinds>,
}

impl WorkloadFlags {
    /// The kinds of workloads for the library.
    pub(crate) fn kinds(&self) -> Kinds {
        self.workloads.iter().cloned().collect()
    }
}

/// The flags of `kinds`.
#[derive(Args, Debug)]
pub(crate) struct ListKinds {
    #[command(flatten)]
    workloads: WorkloadFlags,

    /// Print the rights and the admission policies of these kinds as YAML instead
    #[arg(long, value_name = "NAMES")]
    manifests: Option<String>,

    /// The operator's ServiceAccount, in these manifests
    #[arg(
        long,
        value_name = "NAMESPACE:NAME",
        default_value_t,
        requires = "manifests"
    )]
    service_account: Account,

    /// A file with the manifest of the ConfigMap whose rows describe more kinds; `run` reads this ConfigMap in the
    /// cluster
    #[arg(long, value_name = "FILE")]
    kinds: Option<PathBuf>,
}

impl ListKinds {
    /// What to print.
    ///
    /// # Errors
    /// A file can't be read, one of its rows is wrong, or a name is no kind's.
    pub(crate) fn text(&self) -> anyhow::Result<String> {
        let on = self.workloads.kinds();
        let rows = self.rows(&on)?;
        let mut all = Kinds::all();
        for kind in &rows {
            all.replace(kind.clone());
        }
        let Some(names) = &self.manifests else {
            let on = |kind: &Kind| on.iter().any(|one| one == kind) || rows.contains(kind);
            return Ok(table(&all, on));
        };
        let kinds = all.only(names)?;
        let each = kinds
            .iter()
            .map(|kind| manifests::of_kind_for(kind, &self.service_account));
        let some: Vec<String> = each.filter(|yaml| !yaml.is_empty()).collect();
        if some.is_empty() {
            return Ok(
                "# The rights and policies for Jobs are in config/rbac and config/policies, and in the chart.\n"
                    .into(),
            );
        }
        Ok(some.join("---\n"))
    }

    /// The kinds of the file.
    fn rows(&self, on: &Kinds) -> anyhow::Result<Vec<Kind>> {
        let Some(file) = &self.kinds else {
            return Ok(Vec::new());
        };
        let name = file.display();
        let manifest = fs::read_to_string(file).with_context(|| format!("{name} can't be read"))?;
        let table = Table::parse(&manifest, on).map_err(|why| anyhow!("{name}: {why}"))?;
        if let Some((entry, why)) = table.mistakes.iter().next() {
            return Err(anyhow!("{name}: the row {entry}: {why}"));
        }
        Ok(table.kinds.into_values().collect())
    }
}

/// The kinds, each with whether it is on.
fn table(all: &Kinds, on: impl Fn(&Kind) -> bool) -> String {
    let mut table = String::new();
    let mut row = |columns: [&str; 4]| {
        let [name, kind, api, on] = columns;
        // Writing to a text can't fail.
        let _ = writeln!(table, "{name:<19}{kind:<18}{api:<33}{on}");
    };
    row(["NAME", "KIND", "API VERSION", "ON"]);
    for kind in all.iter() {
        let resource = kind.resource();
        let is_on = match kind {
            Kind::Job => "always",
            kind if on(kind) => "yes",
            _ => "no",
        };
        row([&kind.switch(), &resource.kind, &resource.api_version, is_on]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(workloads: &[&str], manifests: Option<&str>) -> String {
        let parsed = |names: &str| names.parse::<Kinds>().unwrap();
        let flags = ListKinds {
            workloads: WorkloadFlags {
                workloads: workloads.iter().map(|names| parsed(names)).collect(),
            },
            manifests: manifests.map(str::to_owned),
            service_account: Account::default(),
            kinds: None,
        };
        flags.text().unwrap()
    }

    #[test]
    fn the_table_says_which_are_on() {
        let table = kinds(&["jobsets", "pods"], None);
        let on: Vec<(&str, &str)> = table
            .lines()
            .filter_map(|line| {
                let mut words = line.split_whitespace();
                Some((words.next()?, words.last()?))
            })
            .collect();
        let expected = [
            ("NAME", "ON"),
            ("jobs", "always"),
            ("jobsets", "yes"),
            ("pipelineruns", "no"),
            ("taskruns", "no"),
            ("workflows", "no"),
            ("pods", "yes"),
            ("kueue", "no"),
            ("mpijobs", "no"),
            ("rayjobs", "no"),
            ("sparkapplications", "no"),
            ("trainjobs", "no"),
        ];
        assert_eq!(on, expected);
    }

    #[test]
    fn the_manifests_of_several_kinds_are_one_text() {
        let one = |name| kinds(&[], Some(name));
        let both = one("jobsets") + "---\n" + &one("pods");
        assert_eq!(one("pods,jobsets"), both);
        assert!(one("pods").contains("kind: ClusterRole\n"));
        assert!(
            one("jobs").starts_with('#'),
            "those of Jobs come with the operator"
        );
    }
}
