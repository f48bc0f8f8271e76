//! HTTPRoutes into the route table.

use serde_json::{Map, Value, json};

use super::objects::{Objects, list, only, text};
use super::{TYPE, filters};
use crate::error::{Error, Result};

/// One virtual host for all: the manifests of tests are for every host name.
pub(super) fn route_config(objects: &Objects) -> Result<Value> {
    let mut routes = Vec::new();
    for route in objects.of_kind("HTTPRoute") {
        only(route.get("spec").unwrap_or(&Value::Null), &["parentRefs", "rules"])?;
        for (index, rule) in list(route, "/spec/rules").iter().enumerate() {
            for (at, one) in list(rule, "/matches").iter().enumerate() {
                let specificity = (text(one, "/path/value").len(), list(one, "/headers").len());
                let name = format!("{}/match/{at}/*", cluster_name(route, index));
                routes.push((specificity, translate(objects, route, rule, one, &cluster_name(route, index), name)?));
            }
        }
    }
    // Longer paths first, then more headers; of equals, the order in which they came.
    routes.sort_by(|(one, _), (other, _)| other.cmp(one));
    let routes: Vec<Value> = routes.into_iter().map(|(_, route)| route).collect();
    Ok(json!({
        "name": "gateways/llm/http",
        "ignore_port_in_host_matching": true,
        "virtual_hosts": [{"name": "gateways/llm/http/*", "domains": ["*"], "routes": routes}],
    }))
}

/// The cluster of a rule.
pub(super) fn cluster_name(route: &Value, rule: usize) -> String {
    format!("httproute/{}/{}/rule/{rule}", text(route, "/metadata/namespace"), text(route, "/metadata/name"))
}

fn translate(
    objects: &Objects,
    route: &Value,
    rule: &Value,
    one: &Value,
    cluster: &str,
    name: String,
) -> Result<Value> {
    only(rule, &["matches", "filters", "timeouts", "backendRefs"])?;
    let prefix = text(one, "/path/value");
    let mut translated = Map::new();
    translated.insert("name".to_owned(), json!(name));
    translated.insert("match".to_owned(), matched(one, prefix));
    let mut action = Map::new();
    action.insert("cluster".to_owned(), json!(cluster));
    action.insert("upgrade_configs".to_owned(), json!([{"upgrade_type": "websocket"}]));
    let timeout = text(rule, "/timeouts/request");
    if !timeout.is_empty() {
        action.insert("timeout".to_owned(), json!(timeout));
    }
    let policy = objects.policy_of("BackendTrafficPolicy", text(route, "/metadata/name"));
    if let Some(retry) = policy.and_then(|policy| policy.pointer("/spec/retry")) {
        action.insert("retry_policy".to_owned(), retry_policy(retry)?);
    }
    let mut direct = None;
    for filter in list(rule, "/filters") {
        match text(filter, "/type") {
            "RequestHeaderModifier" => {
                let remove = list(filter, "/requestHeaderModifier/remove");
                translated.insert("request_headers_to_remove".to_owned(), json!(remove));
            }
            "ResponseHeaderModifier" => {
                let remove = list(filter, "/responseHeaderModifier/remove");
                translated.insert("response_headers_to_remove".to_owned(), json!(remove));
            }
            "URLRewrite" => rewrite_prefix(text(filter, "/urlRewrite/path/replacePrefixMatch"), prefix, &mut action)?,
            "ExtensionRef" => {
                let extension = objects.named("HTTPRouteFilter", text(filter, "/extensionRef/name"))?;
                only(extension.get("spec").unwrap_or(&Value::Null), &["directResponse", "urlRewrite"])?;
                if let Some(rewrite) = extension.pointer("/spec/urlRewrite") {
                    rewrite_url(rewrite, &mut action)?;
                }
                direct = direct.or_else(|| extension.pointer("/spec/directResponse"));
            }
            other => return Err(Error::unexpected("a filter that is not translated", other)),
        }
    }
    match direct {
        Some(response) => {
            let headers =
                list(response, "/header/set").iter().map(|one| header(text(one, "/name"), text(one, "/value")));
            let kind = header("content-type", text(response, "/contentType"));
            let headers: Vec<Value> = headers.chain([kind]).collect();
            translated.insert("response_headers_to_add".to_owned(), json!(headers));
            let body = json!({"inline_string": text(response, "/body/inline")});
            let status = response.get("statusCode");
            translated.insert("direct_response".to_owned(), json!({"status": status, "body": body}));
        }
        None => drop(translated.insert("route".to_owned(), Value::Object(action))),
    }
    let enabled = filters::enabled_on(objects, text(route, "/metadata/name"));
    translated.insert("typed_per_filter_config".to_owned(), Value::Object(enabled));
    Ok(Value::Object(translated))
}

fn matched(one: &Value, prefix: &str) -> Value {
    let header =
        |header: &Value| json!({"name": text(header, "/name"), "string_match": {"exact": text(header, "/value")}});
    let headers: Vec<Value> = list(one, "/headers").iter().map(header).collect();
    match prefix {
        "/" => json!({"prefix": "/", "headers": headers}),
        prefix => json!({"path_separated_prefix": prefix, "headers": headers}),
    }
}

fn header(name: &str, value: &str) -> Value {
    json!({"header": {"key": name, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"})
}

/// Of a prefix that becomes `/`, Envoy Gateway takes the slashes after it, too.
fn rewrite_prefix(replacement: &str, prefix: &str, action: &mut Map<String, Value>) -> Result<()> {
    if replacement != "/" {
        return Err(Error::unexpected("a prefix that is not translated", replacement));
    }
    let rewrite = json!({"pattern": {"regex": format!("^{}\\/*", prefix.replace('.', "\\."))}, "substitution": "/"});
    action.insert("regex_rewrite".to_owned(), rewrite);
    Ok(())
}

fn rewrite_url(rewrite: &Value, action: &mut Map<String, Value>) -> Result<()> {
    only(rewrite, &["hostname", "path", "appendXForwardedHost"])?;
    if text(rewrite, "/hostname/type") == "Backend" {
        action.insert("auto_host_rewrite".to_owned(), json!(true));
    }
    if let Some(path) = rewrite.pointer("/path/replaceRegexMatch") {
        let rewrite =
            json!({"pattern": {"regex": text(path, "/pattern")}, "substitution": text(path, "/substitution")});
        action.insert("regex_rewrite".to_owned(), rewrite);
    }
    Ok(())
}

fn retry_policy(retry: &Value) -> Result<Value> {
    only(retry, &["numRetries", "retryOn"])?;
    let triggers: Vec<&str> = list(retry, "/retryOn/triggers").iter().filter_map(Value::as_str).collect();
    Ok(json!({
        "num_retries": retry.get("numRetries"),
        "retry_on": triggers.join(","),
        "retriable_status_codes": list(retry, "/retryOn/httpStatusCodes"),
        "host_selection_retry_max_attempts": 5,
        "retry_host_predicate": [{
            "name": "envoy.retry_host_predicates.previous_hosts",
            "typed_config": {"@type": format!("{TYPE}/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate")},
        }],
    }))
}
