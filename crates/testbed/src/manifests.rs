//! Applies the manifests that the project ships, unchanged.
use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DynamicObject, ListParams, Patch, PatchParams},
    core::{GroupVersionKind, TypeMeta},
    discovery::{self, Discovery, Scope},
};
use serde_json::{Value, json};

use crate::{access, wait};

/// All YAML documents in a folder, with the files in order of their names. A missing folder has none.
pub(crate) fn read(folder: &Path) -> Result<Vec<DynamicObject>> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(Vec::new());
    };
    let mut files: Vec<PathBuf> = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    files.retain(|file| {
        file.extension()
            .is_some_and(|extension| extension == "yaml")
    });
    files.sort();
    let objects = files.iter().map(|file| read_file(file));
    Ok(objects.collect::<Result<Vec<_>>>()?.concat())
}

/// All YAML documents in a file.
pub(crate) fn read_file(file: &Path) -> Result<Vec<DynamicObject>> {
    let place = || format!("in {}", file.display());
    let text = fs::read_to_string(file).with_context(place)?;
    let mut objects = Vec::new();
    for document in serde_saphyr::from_multiple::<Value>(&text).with_context(place)? {
        // Kustomize's own, which is not an object.
        if document["kind"] == "Kustomization" {
            continue;
        }
        objects.push(serde_json::from_value(document).with_context(place)?);
    }
    Ok(objects)
}

/// Applies the objects in their order, server-side. A namespace that they name is created first. A CRD counts as
/// applied when its kind is served, and a role binding when the API server has put it into effect.
pub(crate) async fn apply(client: &Client, objects: &[DynamicObject]) -> Result<()> {
    for namespace in objects
        .iter()
        .filter_map(|object| object.metadata.namespace.as_deref())
    {
        let namespace =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
        apply_one(client, &serde_json::from_value(namespace)?).await?;
    }
    for object in objects {
        apply_one(client, object).await?;
    }
    for object in objects
        .iter()
        .filter(|object| kind(object) == "CustomResourceDefinition")
    {
        served(client, object).await?;
    }
    for object in objects
        .iter()
        .filter(|object| kind(object).ends_with("RoleBinding"))
    {
        access::is_in_force(client, object).await?;
    }
    Ok(())
}

/// Applies one object, whatever its kind.
pub(crate) async fn apply_one(client: &Client, object: &DynamicObject) -> Result<DynamicObject> {
    let types = object
        .types
        .as_ref()
        .context("an object without apiVersion and kind")?;
    let name = object.name_any();
    let applied = async {
        let api = api_of(client, types, object.metadata.namespace.as_deref()).await?;
        api.patch(
            &name,
            &PatchParams::apply("bed").force(),
            &Patch::Apply(object),
        )
        .await
    };
    applied
        .await
        .with_context(|| format!("applying {} {name}", types.kind))
}

/// The API for a kind of which only the name is known.
pub(crate) async fn api_of(
    client: &Client,
    types: &TypeMeta,
    namespace: Option<&str>,
) -> Result<Api<DynamicObject>, kube::Error> {
    let kind =
        GroupVersionKind::try_from(types).map_err(|error| kube::Error::Service(error.into()))?;
    let (resource, capabilities) = discovery::pinned_kind(client, &kind).await?;
    Ok(match (capabilities.scope, namespace) {
        (Scope::Namespaced, Some(namespace)) => {
            Api::namespaced_with(client.clone(), namespace, &resource)
        }
        (Scope::Namespaced, None) => Api::default_namespaced_with(client.clone(), &resource),
        (Scope::Cluster, _) => Api::all_with(client.clone(), &resource),
    })
}

/// The name and namespace of the first `ServiceAccount` among them.
pub(crate) fn service_account(objects: &[DynamicObject]) -> Option<(String, String)> {
    let account = objects
        .iter()
        .find(|object| kind(object) == "ServiceAccount")?;
    Some((
        account.namespace().unwrap_or_else(|| "default".to_owned()),
        account.name_any(),
    ))
}

fn kind(object: &DynamicObject) -> &str {
    object.types.as_ref().map_or("", |types| &types.kind)
}

/// Waits until discovery finds each served version of a kind, as kubectl does, and it can be listed: the CRD is
/// Established before either.
async fn served(client: &Client, crd: &DynamicObject) -> Result<()> {
    let spec = &crd.data["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let [group, kind] = [&spec["group"], &spec["names"]["kind"]].map(text);
    let versions = spec["versions"].as_array().into_iter().flatten();
    for version in versions.filter(|version| version["served"] == true) {
        let kind = GroupVersionKind::gvk(&group, &text(&version["name"]), &kind);
        let what = format!("{kind:?} is served");
        wait::until(&what, wait::PATIENCE, || async {
            is_served(client, &kind)
                .await
                .map_err(|error| format!("{error:#}"))
        })
        .await?;
    }
    Ok(())
}

async fn is_served(client: &Client, kind: &GroupVersionKind) -> Result<()> {
    let group = Discovery::new(client.clone()).filter(&[&kind.group]);
    let found = group.run_aggregated().await?.resolve_gvk(kind);
    let (resource, _) = found.context("it is not found")?;
    let all = Api::<DynamicObject>::all_with(client.clone(), &resource);
    all.list(&ListParams::default().limit(1)).await?;
    Ok(())
}
