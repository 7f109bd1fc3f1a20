//! Finds out whether the installed definition of the resource matches this program.

use consul_semaphore_api::to_yaml;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition as Definition, CustomResourceDefinitionSpec as Spec,
    CustomResourceDefinitionVersion as Version, JSONSchemaProps as Schema, JSONSchemaPropsOrArray,
};

/// Difference of an installed definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Difference {
    /// The installed definition lacks this version, or does not store it.
    Version,
    /// The installed definition lacks this property, so the API server drops the property's values.
    Property(String),
    /// Another difference: a line of this program's YAML, and the installed line in its place.
    Line { ours: String, theirs: String },
}

/// Returns the most important difference.
pub(super) fn difference(ours: &Definition, theirs: &Definition) -> Option<Difference> {
    let [version] = &ours.spec.versions[..] else {
        return Some(Difference::Version);
    };
    let mut versions = theirs.spec.versions.iter();
    let Some(installed) = versions.find(|installed| installed.name == version.name) else {
        return Some(Difference::Version);
    };
    if !installed.served || !installed.storage {
        return Some(Difference::Version);
    }
    if let (Some(ours), Some(theirs)) = (schema(version), schema(installed))
        && let Some(path) = missing(ours, theirs)
    {
        return Some(Difference::Property(path));
    }
    let (ours, theirs) = (yaml(ours, version), yaml(ours, installed));
    let mut lines = ours.lines().zip(theirs.lines());
    let differing = lines.find(|(ours, theirs)| ours != theirs);
    // One text may be longer than the other.
    let differ = differing.or_else(|| (ours != theirs).then_some(("", "")));
    differ.map(|(ours, theirs)| Difference::Line {
        ours: ours.trim().to_owned(),
        theirs: theirs.trim().to_owned(),
    })
}

fn schema(version: &Version) -> Option<&Schema> {
    version.schema.as_ref()?.open_api_v3_schema.as_ref()
}

/// Returns the path of a property of ours that is missing.
fn missing(ours: &Schema, theirs: &Schema) -> Option<String> {
    for (name, ours) in ours.properties.iter().flatten() {
        let Some(theirs) = theirs.properties.as_ref().and_then(|all| all.get(name)) else {
            return Some(format!(".{name}"));
        };
        if let Some(path) = missing(ours, theirs) {
            return Some(format!(".{name}{path}"));
        }
    }
    let (ours, theirs) = (items(ours)?, items(theirs)?);
    missing(ours, theirs).map(|path| format!("[]{path}"))
}

fn items(schema: &Schema) -> Option<&Schema> {
    match schema.items.as_ref()? {
        JSONSchemaPropsOrArray::Schema(items) => Some(items),
        JSONSchemaPropsOrArray::Schemas(_) => None,
    }
}

/// Returns the YAML of a version as `crd` writes it, without what the API server adds.
fn yaml(of: &Definition, version: &Version) -> String {
    let definition = Definition {
        spec: Spec {
            versions: vec![version.clone()],
            ..of.spec.clone()
        },
        ..of.clone()
    };
    to_yaml(&definition).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt as _;

    use super::*;
    use consul_semaphore_api::ConsulSemaphore;

    fn differs(change: impl FnOnce(&mut Definition)) -> Option<Difference> {
        let ours = ConsulSemaphore::crd();
        let mut theirs = ours.clone();
        change(&mut theirs);
        difference(&ours, &theirs)
    }

    fn root(definition: &mut Definition) -> &mut Schema {
        let schema = definition.spec.versions[0].schema.as_mut().unwrap();
        schema.open_api_v3_schema.as_mut().unwrap()
    }

    fn property<'a>(of: &'a mut Schema, name: &str) -> &'a mut Schema {
        of.properties.as_mut().unwrap().get_mut(name).unwrap()
    }

    #[test]
    fn what_the_api_server_adds_is_no_difference() {
        let same = differs(|theirs| {
            theirs.metadata.uid = Some("u".to_owned());
            theirs.spec.names.list_kind = Some("ConsulSemaphoreList".to_owned());
            let other = Version {
                name: "v1".to_owned(),
                storage: false,
                ..theirs.spec.versions[0].clone()
            };
            theirs.spec.versions.push(other);
        });
        assert_eq!(same, None);
    }

    #[test]
    fn another_version_is_one() {
        let other = differs(|theirs| "v1".clone_into(&mut theirs.spec.versions[0].name));
        assert_eq!(other, Some(Difference::Version));
        let unserved = differs(|theirs| theirs.spec.versions[0].served = false);
        assert_eq!(unserved, Some(Difference::Version));
        let unstored = differs(|theirs| theirs.spec.versions[0].storage = false);
        assert_eq!(unstored, Some(Difference::Version));
    }

    #[test]
    fn a_property_that_is_missing_is_named() {
        let missing = differs(|theirs| {
            let status = property(root(theirs), "status");
            status.properties.as_mut().unwrap().remove("appliedLimits");
            // The change of the description is a second, less important difference.
            root(theirs).description = None;
        });
        let expected = Difference::Property(".status.appliedLimits".to_owned());
        assert_eq!(missing, Some(expected));
        let nested = differs(|theirs| {
            let holders = property(property(root(theirs), "status"), "holders");
            let Some(JSONSchemaPropsOrArray::Schema(holder)) = &mut holders.items else {
                panic!("no holders");
            };
            holder.properties.as_mut().unwrap().remove("session");
        });
        let expected = Difference::Property(".status.holders[].session".to_owned());
        assert_eq!(nested, Some(expected));
    }

    #[test]
    fn any_other_difference_is_shown() {
        let limit = differs(|theirs| {
            property(property(root(theirs), "spec"), "limit").maximum = Some(9.0);
        });
        let Some(Difference::Line { ours, theirs }) = limit else {
            panic!("{limit:?}");
        };
        assert!(
            ours.contains("5000") && theirs.contains('9'),
            "{ours}, {theirs}"
        );
        let columns = differs(|theirs| theirs.spec.versions[0].subresources = None);
        assert!(
            matches!(columns, Some(Difference::Line { .. })),
            "{columns:?}"
        );
    }
}
