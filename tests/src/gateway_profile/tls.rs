//! BackendTLSPolicies, and `tls` of Backends, into transport sockets.

use serde_json::{Value, json};

use super::TYPE;
use super::objects::{Objects, list, only, text};
use crate::error::{Error, Result};

/// Of a rule's Backends, which are alike in this; `None` is clear text.
pub(super) fn transport_socket(objects: &Objects, refs: &[Value]) -> Result<Option<Value>> {
    let Some(name) = refs.first().map(|one| text(one, "/name")) else { return Ok(None) };
    if let Some(tls) = objects.named("Backend", name)?.pointer("/spec/tls") {
        only(tls, &["insecureSkipVerify", "sni"])?;
        return Ok(Some(socket(text(tls, "/sni"), None, objects)));
    }
    let Some(validation) = objects.tls_of(name).and_then(|policy| policy.pointer("/spec/validation")) else {
        return Ok(None);
    };
    only(validation, &["wellKnownCACertificates", "caCertificateRefs", "hostname", "subjectAltNames"])?;
    let authorities = match list(validation, "/caCertificateRefs") {
        [] => json!({"filename": "/etc/ssl/certs/ca-certificates.crt"}),
        [one] => {
            let config_map = objects.named("ConfigMap", text(one, "/name"))?;
            let text = config_map.pointer("/data/ca.crt").and_then(Value::as_str);
            json!({"inline_string": text.ok_or_else(|| Error::unexpected("no ca.crt in", config_map.to_string()))?})
        }
        several => return Err(Error::unexpected("several ConfigMaps are not translated", json!(several).to_string())),
    };
    let hostname = text(validation, "/hostname");
    let names = match list(validation, "/subjectAltNames") {
        [] => vec![json!({"san_type": "DNS", "matcher": {"exact": hostname}})],
        names => names.iter().map(alternative_name).collect(),
    };
    let validation = json!({"trusted_ca": authorities, "match_typed_subject_alt_names": names});
    Ok(Some(socket(hostname, Some(validation), objects)))
}

fn alternative_name(name: &Value) -> Value {
    match text(name, "/type") {
        "URI" => json!({"san_type": "URI", "matcher": {"exact": text(name, "/uri")}}),
        _ => json!({"san_type": "DNS", "matcher": {"exact": text(name, "/hostname")}}),
    }
}

fn socket(sni: &str, validation: Option<Value>, objects: &Objects) -> Value {
    let mut common = json!({});
    let settings = objects.of_kind("EnvoyProxy").find_map(|proxy| proxy.pointer("/spec/backendTLS"));
    if let (Some(settings), Some(fields)) = (settings, common.as_object_mut()) {
        let version = format!("TLSv{}", text(settings, "/maxVersion").replace('.', "_"));
        let params = json!({
            "tls_maximum_protocol_version": version,
            "ecdh_curves": list(settings, "/ecdhCurves"),
            "signature_algorithms": list(settings, "/signatureAlgorithms"),
        });
        fields.insert("tls_params".to_owned(), params);
    }
    if let (Some(validation), Some(fields)) = (validation, common.as_object_mut()) {
        fields.insert("validation_context".to_owned(), validation);
    }
    json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": format!("{TYPE}/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"),
            "sni": sni,
            "common_tls_context": common,
        },
    })
}
