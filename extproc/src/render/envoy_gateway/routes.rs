//! HTTPRoutes: the way in, on which the filters run, and one rule for each value of `x-attache-cluster`.

use attache_proto::ErrorKind;
use attache_proto::headers::{CLUSTER, DESTINATION_ENDPOINT, EXTERNAL_ADDRESS, OWNED};
use serde_json::{Map, Value, json};

use super::backends::refs;
use super::object::{ENVOY_GATEWAY, HTTP_ROUTE, HTTP_ROUTE_FILTER, gateway_ref, object};
use super::options::GatewayOptions;
use super::plan::{Group, Hosts, Plan, RuleTimeout, Target, TargetRoute};
use crate::config::Config;
use crate::render::local_replies::{UNAVAILABLE, error_body};
use crate::render::timeouts::seconds;

/// The HTTPRouteFilters and HTTPRoutes.
pub(super) fn routes(config: &Config, plan: &Plan<'_>, options: &GatewayOptions) -> Vec<Value> {
    let prefix = &config.settings.path_prefix;
    let mut objects = vec![refusal(options)];
    if plan.has_names() {
        objects.push(host_rewrite(prefix, options));
    }
    objects.push(way_in(prefix, options));
    for group in &plan.groups {
        objects.extend(group.routes.iter().map(|route| to_targets(route, group, prefix, options)));
    }
    objects
}

/// The name of the HTTPRoute on which requests come in.
pub(super) fn way_in_name(options: &GatewayOptions) -> String {
    options.base()
}

fn refusal(options: &GatewayOptions) -> Value {
    let body = error_body(ErrorKind::Unavailable, UNAVAILABLE).to_string();
    filter(
        &refusal_name(options),
        options,
        "What a request gets that the sidecar did not see: nothing here fails open.",
        json!({"directResponse": {
            "statusCode": 503,
            "contentType": "application/json",
            "header": {"set": [{"name": "retry-after", "value": "1"}]},
            "body": {"type": "Inline", "inline": body},
        }}),
    )
}

fn refusal_name(options: &GatewayOptions) -> String {
    options.named("unprocessed")
}

fn host_rewrite_name(options: &GatewayOptions) -> String {
    options.named("host")
}

/// For model servers with names. The path's prefix goes in the same filter: a rule may have one that rewrites URLs.
fn host_rewrite(prefix: &str, options: &GatewayOptions) -> Value {
    let mut rewrite = json!({"hostname": {"type": "Backend"}, "appendXForwardedHost": false});
    if !prefix.is_empty()
        && let Some(fields) = rewrite.as_object_mut()
    {
        let pattern = format!("^{}/*", prefix.replace('.', "\\."));
        let path = json!({"type": "ReplaceRegexMatch", "replaceRegexMatch": {"pattern": pattern, "substitution": "/"}});
        fields.insert("path".to_owned(), path);
    }
    let comment = "The host header becomes the model server's name.";
    filter(&host_rewrite_name(options), options, comment, json!({"urlRewrite": rewrite}))
}

fn filter(name: &str, options: &GatewayOptions, comment: &str, spec: Value) -> Value {
    object(HTTP_ROUTE_FILTER, &options.gateway.namespace, name, options, comment, json!({"spec": spec}))
}

fn way_in(prefix: &str, options: &GatewayOptions) -> Value {
    let rules = json!([{
        "matches": [{"path": path(prefix)}],
        "filters": [
            {
                "type": "ResponseHeaderModifier",
                "responseHeaderModifier": {"remove": OWNED},
            },
            {
                "type": "ExtensionRef",
                "extensionRef": {"group": ENVOY_GATEWAY, "kind": "HTTPRouteFilter", "name": refusal_name(options)},
            },
        ],
    }]);
    route(
        &way_in_name(options),
        options,
        "The way in. Every request comes in here, and the filters of the EnvoyExtensionPolicy run. When the sidecar has read the \
         body it names a cluster, the route is chosen anew, and a rule below matches. Other HTTPRoutes of this Gateway stay as \
         they are; where they match the same host and path, the longer path goes first, then the older route. \
         Decide: which host names and paths are for models (--hostname, --path-prefix).",
        rules,
    )
}

fn to_targets(to: &TargetRoute<'_>, group: &Group<'_>, prefix: &str, options: &GatewayOptions) -> Value {
    let rules = to.targets.iter().map(|target| rule(target, group, prefix, options)).collect();
    let comment = "To model servers. No client can send x-attache-cluster: the ClientTrafficPolicy removes it.";
    route(&to.name, options, comment, Value::Array(rules))
}

fn route(name: &str, options: &GatewayOptions, comment: &str, rules: Value) -> Value {
    let mut spec = Map::new();
    spec.insert("parentRefs".to_owned(), json!([gateway_ref(options)]));
    if !options.hostnames.is_empty() {
        spec.insert("hostnames".to_owned(), json!(options.hostnames));
    }
    spec.insert("rules".to_owned(), rules);
    object(HTTP_ROUTE, &options.gateway.namespace, name, options, comment, json!({"spec": spec}))
}

fn rule(target: &Target<'_>, group: &Group<'_>, prefix: &str, options: &GatewayOptions) -> Value {
    let mut rule = Map::new();
    rule.insert(
        "matches".to_owned(),
        json!([{
            "path": path(prefix),
            "headers": [{"name": CLUSTER, "value": target.cluster}],
        }]),
    );
    let mut filters = vec![
        json!({"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": headers_kept_from_upstreams()}}),
        json!({"type": "ResponseHeaderModifier", "responseHeaderModifier": {"remove": OWNED}}),
    ];
    match group.policy.hosts {
        Hosts::Names => filters.push(json!({
            "type": "ExtensionRef",
            "extensionRef": {"group": ENVOY_GATEWAY, "kind": "HTTPRouteFilter", "name": host_rewrite_name(options)},
        })),
        Hosts::Addresses if !prefix.is_empty() => filters.push(json!({
            "type": "URLRewrite",
            "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}},
        })),
        Hosts::Addresses => {}
    }
    rule.insert("filters".to_owned(), Value::Array(filters));
    if matches!(target.timeout, RuleTimeout::Longest(_)) {
        let comment = "# Rules of several timeouts lead here; this is the longest. Envoy Gateway has one for each rule of an \
                       HTTPRoute: give such rules Backends of their own.";
        rule.insert(comment.to_owned(), Value::Null);
    }
    // Without it, Envoy's 15 s would hold. 0s is no bound.
    let timeout = target.timeout.duration().map_or_else(|| "0s".to_owned(), seconds);
    rule.insert("timeouts".to_owned(), json!({"request": timeout}));
    rule.insert("backendRefs".to_owned(), Value::Array(refs(&target.backends)));
    Value::Object(rule)
}

fn path(prefix: &str) -> Value {
    json!({"type": "PathPrefix", "value": if prefix.is_empty() { "/" } else { prefix }})
}

/// [`DESTINATION_ENDPOINT`] stays: the load balancer reads it after these removals, and Envoy Gateway has no word for later ones.
fn headers_kept_from_upstreams() -> Vec<&'static str> {
    OWNED.into_iter().filter(|name| *name != DESTINATION_ENDPOINT).chain([EXTERNAL_ADDRESS]).collect()
}
