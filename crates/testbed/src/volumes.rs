//! What the kubelet provides to a pod: the files of its volumes and the values of its variables.
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::{
    ByteString,
    api::{
        authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
        core::v1::{
            ConfigMap, Container, EnvVar, EnvVarSource, KeyToPath, ObjectFieldSelector, Pod,
            Secret, ServiceAccount, ServiceAccountTokenProjection, Volume, VolumeProjection,
        },
    },
};
use kube::{Api, Client, api::PostParams};

use crate::env::Env;

/// The mounted volumes of a pod's first container, as local folders.
pub(crate) struct Volumes {
    client: Client,
    namespace: String,
    mounts: Vec<Mount>,
}

struct Mount {
    /// Its path in the container.
    path: PathBuf,
    /// The local folder.
    folder: PathBuf,
    /// Whether files may appear later.
    optional: bool,
}

type Files = BTreeMap<String, Vec<u8>>;

impl Volumes {
    /// Writes all mounted files below a folder.
    pub(crate) async fn write(client: &Client, pod: &Pod, below: &Path) -> Result<Self> {
        let namespace = pod.metadata.namespace.clone().context("no namespace")?;
        let spec = pod.spec.as_ref().context("a pod without a spec")?;
        let container = spec.containers.first().context("no container")?;
        let mut this = Self {
            client: client.clone(),
            namespace,
            mounts: Vec::new(),
        };
        for mount in container.volume_mounts.iter().flatten() {
            ensure!(mount.sub_path.is_none(), "a subPath is not played here");
            let mut volumes = spec.volumes.iter().flatten();
            let volume = volumes.find(|volume| volume.name == mount.name);
            let volume = volume.with_context(|| format!("no volume {}", mount.name))?;
            let files = this.files(volume, pod).await;
            let files = files.with_context(|| format!("the volume {}", mount.name))?;
            let folder = below.join(&mount.name);
            fs::create_dir_all(&folder)?;
            for (name, content) in files {
                fs::write(folder.join(name), content)?;
            }
            let secret = volume.secret.as_ref();
            this.mounts.push(Mount {
                path: mount.mount_path.clone().into(),
                folder,
                optional: secret.and_then(|secret| secret.optional) == Some(true),
            });
        }
        Ok(this)
    }

    /// The local path of a file in the container. A path outside all mounts would be in the image, which has no such
    /// file.
    pub(crate) fn place(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let path = path.as_ref();
        let below = |mount: &Mount| {
            let place = mount.folder.join(path.strip_prefix(&mount.path).ok()?);
            Some((place, mount.optional))
        };
        let place = self.mounts.iter().find_map(below);
        let (place, optional) =
            place.with_context(|| format!("nothing is mounted at {}", path.display()))?;
        ensure!(
            optional || place.exists(),
            "{} is not in what is mounted there",
            path.display()
        );
        Ok(place)
    }

    /// The variables of a container.
    pub(crate) async fn env(&self, container: &Container, pod: &Pod) -> Result<Env> {
        ensure!(container.env_from.is_none(), "envFrom is not played here");
        let mut env = Env::default();
        for EnvVar {
            name,
            value,
            value_from,
        } in container.env.iter().flatten()
        {
            let value = match value_from {
                Some(source) => self
                    .value(source, pod)
                    .await
                    .with_context(|| name.clone())?,
                None => value.clone(),
            };
            if let Some(value) = value {
                env.set(name, value);
            }
        }
        Ok(env)
    }

    async fn value(&self, source: &EnvVarSource, pod: &Pod) -> Result<Option<String>> {
        let (files, key, optional) = if let Some(field) = &source.field_ref {
            return self.field(field, pod).map(Some);
        } else if let Some(of) = &source.secret_key_ref {
            (
                self.secret(&of.name, of.optional).await?,
                &of.key,
                of.optional,
            )
        } else if let Some(of) = &source.config_map_key_ref {
            (
                self.config_map(&of.name, of.optional).await?,
                &of.key,
                of.optional,
            )
        } else {
            bail!("such a source is not played here");
        };
        match files.get(key) {
            Some(value) => Ok(Some(String::from_utf8(value.clone())?)),
            None if optional == Some(true) => Ok(None),
            None => bail!("no key {key}"),
        }
    }

    fn field(&self, field: &ObjectFieldSelector, pod: &Pod) -> Result<String> {
        match field.field_path.as_str() {
            "metadata.name" => pod.metadata.name.clone().context("no name"),
            "metadata.namespace" => Ok(self.namespace.clone()),
            path => bail!("the field {path} is not played here"),
        }
    }

    async fn files(&self, volume: &Volume, pod: &Pod) -> Result<Files> {
        if let Some(of) = &volume.secret {
            let name = of.secret_name.as_deref().unwrap_or_default();
            return chosen(
                self.secret(name, of.optional).await?,
                of.items.as_deref(),
                of.optional,
            );
        }
        if let Some(of) = &volume.config_map {
            let files = self.config_map(&of.name, of.optional).await?;
            return chosen(files, of.items.as_deref(), of.optional);
        }
        if volume.empty_dir.is_some() {
            return Ok(Files::new());
        }
        let projected = volume.projected.as_ref().context("it is not played here")?;
        let mut files = Files::new();
        for source in projected.sources.iter().flatten() {
            files.extend(self.projected(source, pod).await?);
        }
        Ok(files)
    }

    async fn projected(&self, source: &VolumeProjection, pod: &Pod) -> Result<Files> {
        if let Some(of) = &source.service_account_token {
            let token = self.token(of, pod).await?;
            return Ok(Files::from([(of.path.clone(), token.into_bytes())]));
        }
        if let Some(of) = &source.config_map {
            let files = self.config_map(&of.name, of.optional).await?;
            return chosen(files, of.items.as_deref(), of.optional);
        }
        if let Some(of) = &source.secret {
            let files = self.secret(&of.name, of.optional).await?;
            return chosen(files, of.items.as_deref(), of.optional);
        }
        let fields = source
            .downward_api
            .as_ref()
            .context("it is not played here")?;
        let mut files = Files::new();
        for file in fields.items.iter().flatten() {
            let field = file.field_ref.as_ref().context("it is not played here")?;
            files.insert(file.path.clone(), self.field(field, pod)?.into_bytes());
        }
        Ok(files)
    }

    async fn token(&self, of: &ServiceAccountTokenProjection, pod: &Pod) -> Result<String> {
        let account = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.service_account_name.as_deref());
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: of.audience.iter().cloned().collect(),
                expiration_seconds: of.expiration_seconds,
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: pod.metadata.name.clone(),
                    uid: pod.metadata.uid.clone(),
                }),
            },
            ..Default::default()
        };
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), &self.namespace);
        let account = account.context("a pod without a ServiceAccount")?;
        let account = accounts
            .create_token_request(account, &PostParams::default(), &request)
            .await?;
        Ok(account.status.context("no token in the answer")?.token)
    }

    async fn secret(&self, name: &str, optional: Option<bool>) -> Result<Files> {
        let secrets = Api::<Secret>::namespaced(self.client.clone(), &self.namespace);
        let Some(secret) = secrets.get_opt(name).await? else {
            return missing("Secret", name, optional);
        };
        let data = secret.data.unwrap_or_default().into_iter();
        Ok(data.map(|(key, ByteString(value))| (key, value)).collect())
    }

    async fn config_map(&self, name: &str, optional: Option<bool>) -> Result<Files> {
        let maps = Api::<ConfigMap>::namespaced(self.client.clone(), &self.namespace);
        let Some(map) = maps.get_opt(name).await? else {
            return missing("ConfigMap", name, optional);
        };
        let data = map.data.unwrap_or_default().into_iter();
        Ok(data.map(|(key, value)| (key, value.into_bytes())).collect())
    }
}

/// A real kubelet would wait for a missing object.
fn missing(kind: &str, name: &str, optional: Option<bool>) -> Result<Files> {
    match optional {
        Some(true) => Ok(Files::new()),
        _ => bail!("there is no {kind} {name}"),
    }
}

/// The selected keys, under their new names; all of them if none are selected.
fn chosen(mut files: Files, items: Option<&[KeyToPath]>, optional: Option<bool>) -> Result<Files> {
    let Some(items) = items else {
        return Ok(files);
    };
    let mut chosen = Files::new();
    for KeyToPath { key, path, .. } in items {
        let content = files.remove(key);
        ensure!(content.is_some() || optional == Some(true), "no key {key}");
        chosen.extend(content.map(|content| (path.clone(), content)));
    }
    Ok(chosen)
}
