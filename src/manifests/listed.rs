//! Makes the CEL of kinds that are rows of the table of kinds.

use std::collections::BTreeMap;

use consul_semaphore_workload::{
    Kind,
    row::{Check, Failed, ManagedBy, Path, Requirement, Row, Scalar, Step, Value},
};

use super::rows::{HoldChange, LifeExpressions, Writes, as_it_was_or, rest_of};

/// Returns how the kind of a row is held and ends.
pub(super) fn life(row: &Row) -> LifeExpressions {
    let field = row.managed_by.as_ref();
    let manager = field.map(|ManagedBy { path, own }| (fields(path).into(), own.clone().into()));
    let templates: Vec<String> = row.pods.metadata.iter().map(maps).collect();
    let held = is(&row.life.hold.path, &row.life.hold.held);
    LifeExpressions {
        freed: format!("!({held})").into(),
        held: held.into(),
        hold: HoldChange::Patches(hold(&row.life.hold.path, &row.life.hold.held)),
        exempt: "false".into(),
        manager,
        ended: any(&row.life.finished).into(),
        again: true,
        templates: templates.join("\n").into(),
        copied: "".into(),
    }
}

/// Returns what an object must be like to be held, in CEL and for people; `None` if anything will do.
pub(super) fn requires(row: &Row) -> Option<Vec<(String, String)>> {
    let each = row.requires.iter().map(|requirement| {
        let Requirement {
            path,
            one_of,
            optional,
        } = requirement;
        let field = fields(path);
        let absent = format!("!it.{field}.hasValue()");
        let one_of = format!("it.{field}.orValue(dyn('')) in [{}]", listed(one_of));
        let required = match (requirement.one_of.is_empty(), optional) {
            (true, _) => absent,
            (false, true) => format!("{absent} || {one_of}"),
            (false, false) => one_of,
        };
        (required, requirement.title())
    });
    let requires: Vec<_> = each.collect();
    (!requires.is_empty()).then_some(requires)
}

/// Returns a path from an object to a field, as the rest of an expression: `?spec.?suspend`.
fn fields(path: &Path) -> String {
    rest(path.steps())
}

fn rest(steps: &[Step]) -> String {
    let steps: Vec<String> = steps
        .iter()
        .filter_map(name)
        .map(|name| format!("?{name}"))
        .collect();
    steps.join(".")
}

fn name(step: &Step) -> Option<&str> {
    match step {
        Step::Field(name) => Some(name),
        Step::Each => None,
    }
}

fn value(scalar: &Scalar) -> String {
    match scalar {
        Scalar::Bool(it) => format!("dyn({it})"),
        Scalar::Number(it) => format!("dyn({it})"),
        Scalar::Text(it) => format!("dyn('{}')", it.as_ref()),
    }
}

fn listed(values: &[Scalar]) -> String {
    let values: Vec<String> = values.iter().map(value).collect();
    values.join(", ")
}

fn is(path: &Path, held: &Scalar) -> String {
    format!("it.{} == optional.of({})", fields(path), value(held))
}

fn any(checks: &[Check]) -> String {
    let checks: Vec<String> = checks
        .iter()
        .map(|check| match check {
            Check::Condition(type_) => format!(
                "it.?status.?conditions.orValue([])
  .exists(condition, condition.type == '{type_}' && condition.status == 'True')"
            ),
            Check::Field(path, one_of) => {
                format!(
                    "it.{}.orValue(dyn('')) in [{}]",
                    fields(path),
                    listed(one_of)
                )
            }
            Check::Present(path) => format!("it.{}.hasValue()", fields(path)),
        })
        .collect();
    checks.join("\n|| ")
}

/// Returns the JSON Patches that hold an object, even if the parent of the field does not exist yet.
fn hold(path: &Path, held: &Scalar) -> String {
    let names: Vec<&str> = path.steps().iter().filter_map(name).collect();
    let add = |names: &[&str], value: &str| {
        format!(
            "[JSONPatch{{op: 'add', path: '/{}', value: {value}}}]",
            names.join("/")
        )
    };
    let mut patches = add(&names, &value(held));
    // The loop goes from the inside to the spec, which always exists.
    for depth in (2..names.len()).rev() {
        let (outer, inner) = names.split_at(depth);
        let whole = inner
            .iter()
            .rev()
            .fold(value(held), |value, name| format!("{{'{name}': {value}}}"));
        let there: Vec<String> = outer.iter().map(|name| format!("?{name}")).collect();
        patches = format!(
            "(object.{}.hasValue()\n    ? {patches}\n    : {})",
            there.join("."),
            add(outer, &whole)
        );
    }
    patches
}

/// Returns the steps to a list and the steps from an item of the list, if there is a list on the path.
fn around_list(path: &Path) -> Option<(&[Step], &[Step])> {
    let place = path.steps().iter().position(|step| *step == Step::Each)?;
    let (list, item) = path.steps().split_at(place);
    Some((list, &item[1..]))
}

/// Returns the annotations and labels at a path to metadata, to be added to a list.
fn maps(path: &Path) -> String {
    let parts = ["annotations", "labels"];
    match around_list(path) {
        None => {
            let maps = parts.map(|part| format!("it.{}.?{part}.orValue({{}})", fields(path)));
            format!("+ [{}]", maps.join(",\n  "))
        }
        Some((list, item)) => {
            let steps: Vec<String> = item
                .iter()
                .filter_map(name)
                .map(|name| format!("?{name}."))
                .collect();
            let inner = steps.concat();
            let each = parts.map(|part| {
                format!(
                    "+ it.{}.orValue([]).map(item,\n  item.{inner}?{part}.orValue({{}}))",
                    rest(list)
                )
            });
            each.join("\n")
        }
    }
}

/// The places in an object where the operator may write.
#[derive(Default)]
struct WritableFields<'a> {
    inside: BTreeMap<&'a Step, Self>,
    /// Whether this place is a map with labels and annotations, of which the operator may write its own.
    metadata: bool,
}

impl<'a> WritableFields<'a> {
    fn add(&mut self, steps: &'a [Step], metadata: bool) {
        match steps.split_first() {
            Some((first, steps)) => self.inside.entry(first).or_default().add(steps, metadata),
            None => self.metadata = metadata,
        }
    }

    /// Returns everything that the operator may not change at this place and further inside, to be added to a list.
    /// `at` is the path to this place; with `list`, the place is an item of that list.
    fn closed(&self, at: &str, list: Option<&str>) -> Vec<String> {
        let shown = |map: String| match list {
            None => format!("+ [\n{map}\n]"),
            Some(list) => format!("+ {list}.orValue([]).map(item,\n  {map})"),
        };
        if self.metadata {
            return rest_of(at).map(shown).into();
        }
        let names: Vec<String> = self
            .inside
            .keys()
            .filter_map(|step| name(step))
            .map(|name| format!("'{name}'"))
            .collect();
        let mut closed = Vec::new();
        if !names.is_empty() {
            closed.push(shown(format!(
                "dyn({at}.orValue({{}})).transformMap(name, value, !(name in [{}]), value)",
                names.join(", ")
            )));
        }
        for (step, inside) in &self.inside {
            closed.extend(match step {
                Step::Field(name) => inside.closed(&format!("{at}.?{name}"), list),
                Step::Each => inside.closed("optional.of(item)", Some(at)),
            });
        }
        closed
    }
}

/// Returns what the operator may write to the kind of a row.
pub(super) fn writes(kind: &Kind, row: &Row) -> Writes {
    let life = &row.life;
    let (mut spec, mut status) = (WritableFields::default(), WritableFields::default());
    spec.add(&life.hold.path.steps()[1..], false);
    for path in &row.pods.metadata {
        spec.add(&path.steps()[1..], true);
    }
    let mut held = vec![format!("optional.of({})", value(&life.hold.held))];
    held.push(match &life.hold.started {
        Some(started) => format!("optional.of({})", value(started)),
        None => "optional.none()".to_owned(),
    });
    let mut allowed = vec![(
        life.hold.path.to_string(),
        as_it_was_or(&fields(&life.hold.path), &held.join(", ")),
    )];
    let conditions = Step::Field("conditions".to_owned());
    if let Some(failed) = &life.failed {
        for path in failed.fields.keys() {
            status.add(&path.steps()[1..], false);
        }
        if failed.condition.is_some() {
            status.add(std::slice::from_ref(&conditions), false);
        }
        allowed.extend(failure(failed));
    }
    let names = |open: &WritableFields<'_>| -> Vec<String> {
        let names = open.inside.keys().filter_map(|step| name(step));
        names.map(str::to_owned).collect()
    };
    let inside = |part: &str, open: &WritableFields<'_>| -> Vec<String> {
        let places = open.inside.iter();
        let partly = places.filter(|(_, inside)| inside.metadata || !inside.inside.is_empty());
        partly
            .filter_map(|(step, inside)| Some((name(step)?, inside)))
            .flat_map(|(name, inside)| inside.closed(&format!("it.?{part}.?{name}"), None))
            .collect()
    };
    let rest = [inside("spec", &spec), inside("status", &status)].concat();
    Writes {
        resources: vec![kind.resource().plural],
        spec: names(&spec),
        status: names(&status),
        grant: "",
        rest: rest.join("\n"),
        allowed,
    }
}

/// Returns what the operator may write to the status, once the workload is marked as one that is to fail.
fn failure(failed: &Failed) -> Vec<(String, String)> {
    let marked = "object.?status == oldObject.?status || 'consul-semaphore.io/failed' in variables.annotations";
    let mut allowed = vec![("status".to_owned(), marked.to_owned())];
    if let Some(condition) = &failed.condition {
        let type_ = &condition.type_;
        let of = |of: &str, is: &str| {
            format!(
                "{of}.?status.?conditions.orValue([]).filter(condition, condition.type {is} '{type_}')"
            )
        };
        let (before, after) = (of("oldObject", "=="), of("object", "=="));
        allowed.push((
            "status.conditions".to_owned(),
            format!(
                "{} == {}\n&& ({before} == {after}\n  || !{before}.exists(condition, condition.status == 'True'))",
                of("oldObject", "!="),
                of("object", "!="),
            ),
        ));
    }
    for (path, value) in &failed.fields {
        constants(&path.to_string(), &fields(path), value, &mut allowed);
    }
    allowed
}

/// Adds conditions on fields that always get the same value.
fn constants(title: &str, field: &str, written: &Value, allowed: &mut Vec<(String, String)>) {
    match written {
        // The value of a filled-in text is not known beforehand.
        Value::Scalar(Scalar::Text(text)) if text.as_ref().contains('{') => {}
        Value::Scalar(scalar) => {
            let values = format!("optional.of({})", value(scalar));
            allowed.push((title.to_owned(), as_it_was_or(field, &values)));
        }
        Value::Object(inside) => {
            for (name, inside) in inside {
                let name = name.as_ref();
                let (title, field) = (format!("{title}.{name}"), format!("{field}.?{name}"));
                constants(&title, &field, inside, allowed);
            }
        }
    }
}
