//! The operator's documents as a ConfigMap, without Secrets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::error::GatewayError;
use super::names::name;
use super::object::{CONFIG_MAP, object};
use super::options::GatewayOptions;
use crate::config::model::ObjectName;
use crate::config::{Config, DocumentText, published};

/// Kubernetes's own bound, `MaxSecretSize`.
const MOST_BYTES: usize = 1024 * 1024;

/// The ConfigMap's name and contents, and what was left out.
#[derive(Debug)]
pub(super) struct ConfigFiles {
    pub(super) name: String,
    files: Vec<(String, String)>,
    pub(super) secrets: Vec<SecretFile>,
}

/// A Secret that has to be mounted beside it.
#[derive(Debug)]
pub(super) struct SecretFile {
    pub(super) namespace: String,
    pub(super) name: String,
    /// The volume's name.
    pub(super) volume: String,
}

impl ConfigFiles {
    /// # Errors
    /// What a ConfigMap cannot hold, or must not.
    pub(super) fn new(
        texts: &[DocumentText],
        config: &Config,
        options: &GatewayOptions,
    ) -> Result<Self, Vec<GatewayError>> {
        let mut errors = Vec::new();
        let mut files = Vec::new();
        // Those that stand in a cluster alone, and, below, those among the documents.
        let mut secrets = config.secrets.clone();
        for text in texts {
            match published(text) {
                Ok(published) => {
                    secrets.extend(published.secrets);
                    if !published.text.trim().is_empty() {
                        files.push((text.name.clone(), published.text));
                    }
                }
                Err(_) => errors.push(GatewayError::SecretInList { path: text.name.clone().into() }),
            }
        }
        let is_alone = files.len() == 1;
        for (index, (name, _)) in files.iter_mut().enumerate() {
            *name = key(name, (!is_alone).then_some(index));
        }
        let bytes = files.iter().map(|(name, text)| name.len() + text.len()).sum();
        if bytes > MOST_BYTES {
            errors.push(GatewayError::ConfigMapTooLarge { bytes, most: MOST_BYTES });
        }
        if options.runs_sidecar() {
            errors.extend(secrets_of_one_name(&secrets));
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let secret = |secret: &ObjectName| SecretFile {
            namespace: secret.namespace.as_ref().to_owned(),
            name: secret.name.as_ref().to_owned(),
            volume: name(&["secret", &*secret.namespace, &*secret.name]),
        };
        let secrets = secrets.iter().map(secret).collect();
        Ok(Self { name: options.named_across_namespaces("config"), files, secrets })
    }

    pub(super) fn config_map(&self, options: &GatewayOptions) -> Value {
        let data: Map<String, Value> = self.files.iter().map(|(name, text)| (name.clone(), json!(text))).collect();
        let mut comment =
            "Your documents as they were read. The sidecar takes up a change of them within a minute; what Envoy is \
                           told (Backends, timeouts, keys of the Wasm filter) changes when this is rendered anew."
                .to_owned();
        if !self.secrets.is_empty() {
            let names: Vec<String> =
                self.secrets.iter().map(|secret| format!("{}/{}", secret.namespace, secret.name)).collect();
            comment.push_str(" Secrets are not in it, for everybody may read a ConfigMap: ");
            comment.push_str(&names.join(", "));
            comment.push_str(". They are mounted from the Secrets of these names, which you apply in the namespace of this ConfigMap.");
        }
        object(CONFIG_MAP, options.sidecar_namespace(), &self.name, options, &comment, json!({"data": data}))
    }
}

/// A volume names a Secret without its namespace, which is the pod's: of two with one name, both paths would hold the same key,
/// and one tenant's requests would go upstream with another's.
fn secrets_of_one_name(secrets: &BTreeSet<ObjectName>) -> Vec<GatewayError> {
    let mut namespaces: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for secret in secrets {
        namespaces.entry(&secret.name).or_default().push(secret.namespace.as_ref().to_owned());
    }
    let several = namespaces.into_iter().filter(|(_, namespaces)| namespaces.len() > 1);
    several.map(|(name, namespaces)| GatewayError::SecretsOfOneName { name: name.to_owned(), namespaces }).collect()
}

/// A key that Kubernetes takes and the sidecar reads, in the order in which the files were read.
fn key(path: &str, index: Option<usize>) -> String {
    const LONGEST: usize = 200;
    let name = Path::new(path).file_stem().and_then(|name| name.to_str()).unwrap_or("documents");
    let plain = |letter: char| if letter.is_ascii_alphanumeric() || "-_.".contains(letter) { letter } else { '-' };
    // A name that starts with a dot is skipped where a directory is read.
    let name: String = name.trim_start_matches('.').chars().map(plain).take(LONGEST).collect();
    let name = if name.is_empty() { "documents" } else { &name };
    match index {
        Some(index) => format!("{index:03}-{name}.yaml"),
        None => format!("{name}.yaml"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_files_key_is_what_kubernetes_takes_and_the_sidecar_reads() {
        assert_eq!(key("/etc/x/routes.yml", None), "routes.yaml");
        assert_eq!(key("a b.yaml", Some(7)), "007-a-b.yaml");
        assert_eq!(key(".hidden.yaml", None), "hidden.yaml");
        assert_eq!(key("", None), "documents.yaml");
        assert_eq!(key(&"x".repeat(400), None).len(), 205);
    }
}
