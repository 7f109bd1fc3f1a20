//! Advises users about annotations that have no effect: misspelt annotations of this program's domain, annotations of
//! this domain in another place than on the workload, and annotations of a domain that was probably meant to be this
//! one.

use std::collections::BTreeMap;

use super::annotations::{OF_THE_OPERATOR, OF_USERS, SEMAPHORE, WAITS_LABEL};

/// Domain of this program's annotations and labels, with the slash that begins every one of their names.
const DOMAIN: &str = "consul-semaphore.io/";

/// Words that a misspelt domain still contains. A name of another domain is compared with the known names only if its
/// domain contains one of these words.
const TRACES: [&str; 2] = ["consul", "semaphore"];

/// Largest number of mistakes that one advice lists.
const MOST_MISTAKES: usize = 3;

/// Least similarity, from 0 to 1, that a known name must have to be suggested.
const LEAST_LIKENESS: f64 = 0.7;

/// Number of characters of a name that an advice quotes, because a name of another domain may have 317.
const LONGEST_QUOTE: usize = 100;

type Map = BTreeMap<String, String>;

/// The places in a workload where people write such names.
#[derive(Clone, Copy, Debug)]
pub struct AnnotationPlaces<'a> {
    /// Kind of the workload, as the advice names it.
    pub kind: &'a str,
    /// Place of the annotations in an object that makes such workloads, for people: `in a CronJob: spec...`. Empty if
    /// there is no such object.
    pub made_by: &'a str,
    /// Annotations of the workload, where the operator reads them.
    pub annotations: &'a Map,
    /// Labels of the workload.
    pub labels: &'a Map,
    /// Annotations of the workload's pod template.
    pub template: &'a Map,
}

/// Returns the advice about a workload's annotations that have no effect, for an event on the workload; `None` if there
/// are none. The cost is that of one look-up of the domain in each place, and of a search for two words in the names of
/// the annotations.
pub fn advise(places: AnnotationPlaces<'_>) -> Option<String> {
    let AnnotationPlaces {
        kind,
        made_by,
        annotations,
        labels,
        template,
    } = places;
    let asks = annotations.contains_key(SEMAPHORE);
    let alone = |name: &str| !asks && OF_USERS.contains(&name);
    let on_job = ours(annotations).filter_map(|name| {
        if alone(name) {
            let advice = format!(
                "the annotation {name} has no effect without {SEMAPHORE}, which names the ConsulSemaphore: add that \
                 annotation, or remove this one"
            );
            return Some(advice);
        }
        unknown("the annotation", name, places)
    });
    let of_others = annotations.keys().filter_map(|name| {
        let meant = meant(name)?;
        let quoted = beginning(name);
        let advice = correction(meant, places);
        Some(format!(
            "the annotation {quoted} has another domain: {advice}"
        ))
    });
    let made_by = match made_by {
        "" => String::new(),
        made_by => format!(" ({made_by})"),
    };
    let misplaced = |what: &'static str, place: &'static str| {
        let made_by = &made_by;
        move |name: &str| {
            if !OF_USERS.contains(&name) {
                return unknown(what, name, places);
            }
            // A name on both the workload and its pods is not a mistake, because on the pods it lets users select
            // them.
            (!annotations.contains_key(name)).then(|| {
                format!(
                    "{what} {name} {place}, where it has no effect: make it an annotation of the {kind} itself{made_by}"
                )
            })
        }
    };
    let on_template = misplaced("the annotation", "is on the pod template");
    let label = misplaced("the label", "is not an annotation");
    let mistakes: Vec<String> = on_job
        .chain(of_others)
        .chain(ours(template).filter_map(on_template))
        .chain(
            ours(labels)
                .filter(|name| *name != WAITS_LABEL)
                .filter_map(label),
        )
        .take(MOST_MISTAKES)
        .collect();
    if mistakes.is_empty() {
        return None;
    }
    let so_far = if asks {
        "has no effect".to_owned()
    } else {
        format!("this {kind} does not ask for a slot, so the operator leaves it alone")
    };
    Some(format!("{so_far}: {}", mistakes.join("; ")))
}

/// Returns the names of this program's domain, in order.
fn ours(place: &Map) -> impl Iterator<Item = &str> {
    let names = place.range(DOMAIN.to_owned()..).map(|(name, _)| name);
    names
        .map(String::as_str)
        .take_while(|name| name.starts_with(DOMAIN))
}

/// Returns the advice about a name of this program's domain, if this program does not know the name.
fn unknown(what: &str, name: &str, places: AnnotationPlaces<'_>) -> Option<String> {
    if OF_USERS.contains(&name) || OF_THE_OPERATOR.contains(&name) {
        return None;
    }
    let advice = match nearest(name.trim_start_matches(DOMAIN)) {
        Some(nearest) => correction(nearest, places),
        None => format!("the known names are {}", OF_USERS.join(", ")),
    };
    Some(format!("{what} {name} is unknown: {advice}"))
}

/// Returns the name of this program's domain that a name of another domain was probably meant to be.
fn meant(name: &str) -> Option<&'static str> {
    let (domain, word) = name.split_once('/')?;
    if domain == domain_name() || !TRACES.iter().any(|trace| domain.contains(trace)) {
        return None;
    }
    // Consul's own tools use Consul's name in their domains, and none of the words below.
    let nearest = nearest(word)?;
    let is_ours =
        domain.contains("consul-semaphore") || alike(domain, domain_name()) >= LEAST_LIKENESS;
    (is_ours || nearest == SEMAPHORE).then_some(nearest)
}

fn domain_name() -> &'static str {
    DOMAIN.trim_end_matches('/')
}

/// Returns what to do about a name that was probably meant to be `known`.
fn correction(known: &str, places: AnnotationPlaces<'_>) -> String {
    if places.annotations.contains_key(known) {
        format!("remove it, because the {} has {known}", places.kind)
    } else {
        format!("write {known}")
    }
}

/// Returns the name for users whose word is the most similar to this one, if one is similar enough.
fn nearest(word: &str) -> Option<&'static str> {
    let word = word.to_lowercase();
    let likeness = |known: &&str| alike(&word, known.trim_start_matches(DOMAIN));
    OF_USERS
        .into_iter()
        .filter(|known| likeness(known) >= LEAST_LIKENESS)
        .max_by(|a, b| likeness(a).total_cmp(&likeness(b)))
}

/// Returns the similarity of two words, from 0 to 1.
fn alike(one: &str, other: &str) -> f64 {
    strsim::normalized_damerau_levenshtein(one, other)
}

fn beginning(name: &str) -> String {
    match name.char_indices().nth(LONGEST_QUOTE) {
        Some((end, _)) => format!("{}...", &name[..end]),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::annotations::{HOLD, PRIORITY, SESSION};

    fn map(names: &[&str]) -> Map {
        let entry = |name: &&str| ((*name).to_owned(), "db".to_owned());
        names.iter().map(entry).collect()
    }

    fn advice(annotations: &[&str], labels: &[&str], template: &[&str]) -> Option<String> {
        advise(AnnotationPlaces {
            kind: "Job",
            made_by: "in a CronJob: spec.jobTemplate.metadata.annotations",
            annotations: &map(annotations),
            labels: &map(labels),
            template: &map(template),
        })
    }

    #[track_caller]
    fn says(advice: Option<String>, words: &[&str]) {
        let advice = advice.expect("something is wrong");
        for word in words {
            assert!(advice.contains(word), "{word:?} is not in: {advice}");
        }
    }

    #[test]
    fn what_is_right_or_none_of_ours_needs_no_advice() {
        assert_eq!(advice(&[], &[], &[]), None);
        let others = [
            "batch.kubernetes.io/job-tracking",
            "consul.hashicorp.com/connect-inject",
            "consul.hashicorp.com/key",
            "example.com/semaphore",
            "semaphore",
            "zzz",
        ];
        assert_eq!(advice(&others, &others, &others), None);
        assert_eq!(advice(&OF_USERS, &[], &[]), None);
        assert_eq!(advice(&OF_USERS, &[SEMAPHORE], &OF_USERS), None);
        assert_eq!(advice(&OF_USERS, &[WAITS_LABEL], &[]), None);
        // The operator's names stay on a Job that no longer asks for a slot, and on its copies.
        assert_eq!(advice(&[SESSION], &[], &OF_THE_OPERATOR), None);
    }

    #[test]
    fn a_misspelt_one_is_told_with_the_nearest() {
        for (written, meant) in [
            ("semaphor", SEMAPHORE),
            ("Semaphore", SEMAPHORE),
            ("semaphores", SEMAPHORE),
            ("sempahore", SEMAPHORE),
            ("priorty", PRIORITY),
            ("hould", HOLD),
        ] {
            let name = format!("{DOMAIN}{written}");
            let write = format!("write {meant}");
            let found = advice(&[&name], &[], &[]);
            says(found, &[&name, &write, "does not ask for a slot"]);
        }
        let found = advice(&["consul-semaphore.io/limit"], &[], &[]);
        says(
            found,
            &["is unknown: the known names are", SEMAPHORE, PRIORITY],
        );
    }

    #[test]
    fn one_of_a_misspelt_domain_is_told_the_right_one() {
        for (name, meant) in [
            ("consul-semaphore/semaphore", SEMAPHORE),
            ("consul.io/semaphore", SEMAPHORE),
            ("consul-semaphore.io.example.com/semaphore", SEMAPHORE),
            ("consul-semaphores.io/semaphore", SEMAPHORE),
            ("consul-semaphor.io/priority", PRIORITY),
            ("consul-semaphore.ioo/hold", HOLD),
            ("consulsemaphore.io/sempahore", SEMAPHORE),
        ] {
            let write = format!("write {meant}");
            says(
                advice(&[name], &[], &[]),
                &[name, &write, "does not ask for a slot"],
            );
        }
    }

    #[test]
    fn one_too_many_is_to_be_removed() {
        for name in ["consul.io/semaphore", "consul-semaphore.io/semaphores"] {
            let found = advice(&[SEMAPHORE, name], &[], &[]);
            let advice = found.clone().unwrap_or_default();
            says(found, &["has no effect", name, "remove it"]);
            assert!(!advice.contains("write"), "{advice}");
        }
        // The annotation `consul-semaphore.io/priority` is not on the workload, so there is nothing to remove.
        let found = advice(&[SEMAPHORE, "consul.io/priority"], &[], &[]);
        assert_eq!(found, None, "it is not like ours");
        let found = advice(&[SEMAPHORE, "consul-semaphore/priority"], &[], &[]);
        says(found, &["write consul-semaphore.io/priority"]);
    }

    #[test]
    fn one_beside_a_good_one_is_not_followed() {
        let found = advice(&[SEMAPHORE, "consul-semaphore.io/priorty"], &[], &[]);
        says(
            found,
            &["has no effect", "write consul-semaphore.io/priority"],
        );
        let found = advice(&[SEMAPHORE], &[], &[PRIORITY]);
        says(found, &["has no effect", PRIORITY, "pod template"]);
    }

    #[test]
    fn one_in_another_place_is_told_where_it_belongs() {
        let words = [
            SEMAPHORE,
            "annotation of the Job itself",
            "spec.jobTemplate.metadata.annotations",
        ];
        says(advice(&[], &[], &[SEMAPHORE]), &words);
        says(advice(&[], &[], &[SEMAPHORE]), &["pod template"]);
        says(advice(&[], &[SEMAPHORE], &[]), &words);
        says(advice(&[], &[SEMAPHORE], &[]), &["the label"]);
    }

    #[test]
    fn the_others_mean_nothing_without_the_semaphore() {
        for alone in [PRIORITY, HOLD] {
            says(
                advice(&[alone], &[], &[]),
                &[alone, "has no effect without", SEMAPHORE],
            );
        }
    }

    proptest! {
        /// The advice fits into an event, whatever the annotations are.
        #[test]
        fn any_names_are_told_or_not(
            names in prop::collection::vec((0..3_usize, "[A-Za-z0-9._-]{1,63}"), 0..9),
            domains in prop::collection::vec("(consul|semaphore)[a-z0-9.-]{0,240}/(semaphore|hold)", 0..9),
            value in hostile::text(),
        ) {
            let mut places = [Map::new(), Map::new(), Map::new()];
            for (place, name) in names {
                places[place].insert(format!("{DOMAIN}{name}"), value.clone());
            }
            places[0].extend(domains.into_iter().map(|name| (name, value.clone())));
            let [annotations, labels, template] = &places;
            let places = AnnotationPlaces { kind: "Job", made_by: "in a CronJob", annotations, labels, template };
            if let Some(advice) = advise(places) {
                prop_assert!(advice.len() < 1000, "{}", advice);
                prop_assert!(!advice.chars().any(char::is_control), "{}", advice);
            }
        }
    }
}
