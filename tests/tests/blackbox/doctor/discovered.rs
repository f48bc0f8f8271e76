//! An Envoy that discovers its filter (ECDS) and its routes (SRDS), and routes that wait for our header otherwise than ours do.

use std::fs;

use attache_tests::Stack;

use super::{chat, diagnose, ids, stack};
use crate::second_envoy::envoy_with;

/// The part of the bootstrap between two lines, the first of them included.
fn part(stack: &Stack, from: &str, to: &str) -> String {
    let text = fs::read_to_string(stack.directory().join("envoy-0.yaml")).unwrap();
    let (_, rest) = text.split_once(from).unwrap();
    format!("{from}{}", rest.split_once(to).unwrap().0)
}

/// As the value of a resource of a file that Envoy watches.
fn resource(stack: &Stack, name: &str, type_url: &str, yaml: &str) -> String {
    let file = stack.directory().join(name);
    let body: String = yaml.lines().map(|line| format!("  {line}\n")).collect();
    fs::write(&file, format!("resources:\n- \"@type\": type.googleapis.com/{type_url}\n{body}")).unwrap();
    format!("{{path_config_source: {{path: {}}}, resource_api_version: V3}}", file.display())
}

/// Lines as they are with this much less before them.
fn dedent(text: &str, spaces: usize) -> String {
    text.lines().map(|line| format!("{}\n", line.get(spaces..).unwrap_or_default())).collect()
}

#[tokio::test]
async fn a_filter_by_ecds_and_routes_by_srds_are_examined_as_if_they_stood_in_the_listener() {
    let stack = stack().await;
    let filter = part(
        &stack,
        "          - name: envoy.filters.http.ext_proc\n",
        "          - name: envoy.filters.http.router\n",
    );
    // The one for HTTP/2, which serves every version.
    let processor = filter.rsplit_once(".http.ext_proc.v3.ExternalProcessor\n").unwrap().1;
    let processor = dedent(processor, 30);
    let processor: String = processor.lines().map(|line| format!("  {line}\n")).collect();
    let extension = format!(
        "name: attache\ntyped_config:\n  \"@type\": \
         type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor\n{processor}"
    );
    let ecds = resource(&stack, "ecds.yaml", "envoy.config.core.v3.TypedExtensionConfig", &extension);
    let discovered = format!(
        "          - name: attache\n            config_discovery:\n              config_source: {ecds}\n              \
         type_urls: [type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor]\n"
    );
    let routes = part(&stack, "          route_config:\n", "  clusters:\n");
    let table = dedent(routes.split_once('\n').unwrap().1, 12);
    let rds = resource(&stack, "rds.yaml", "envoy.config.route.v3.RouteConfiguration", &table);
    let scope = "name: all\nroute_configuration_name: attache\nkey: {fragments: [{string_key: gateway}]}\n";
    let srds = resource(&stack, "srds.yaml", "envoy.config.route.v3.ScopedRouteConfiguration", scope);
    let scoped = format!(
        "          scoped_routes:\n            name: scopes\n            scope_key_builder: {{fragments: \
         [{{header_value_extractor: {{name: x-scope, index: 0, element_separator: \",\"}}}}]}}\n            \
         rds_config_source: {rds}\n            scoped_rds: {{scoped_rds_config_source: {srds}}}\n"
    );
    let node = ("static_resources:\n", "node: {id: doctor, cluster: doctor}\nstatic_resources:\n");
    let envoy = envoy_with(&stack, &[node, (&filter, &discovered), (&routes, &scoped)]).await;
    let client = envoy.client().unwrap().with_header("x-scope", "gateway");
    assert_eq!(client.chat(&chat()).await.unwrap().status, 200);
    let (status, found, proxy) = diagnose(&envoy, None).await;
    assert_eq!((status, found), (Some(0), ids(&[])), "{proxy}");
    let attachment = &proxy["attachments"][0];
    assert_eq!((&attachment["ext_proc"], &attachment["targets"]), (&"attache".into(), &1.into()), "{proxy}");
}

#[tokio::test]
async fn a_route_that_waits_for_any_value_of_our_header_is_a_target() {
    let stack = stack().await;
    for matcher in
        ["present_match: true", "string_match: {safe_regex: {regex: \"default/.*\"}}", "string_match: {suffix: pool}"]
    {
        let envoy = envoy_with(&stack, &[("string_match: {exact: default/pool}", matcher)]).await;
        assert_eq!(envoy.client().unwrap().chat(&chat()).await.unwrap().status, 200, "{matcher}");
        let admin = super::address(&stack.gateway.sidecar.admin_url());
        let (status, found, proxy) = diagnose(&envoy, Some(&admin)).await;
        assert_eq!((status, found), (Some(0), ids(&[])), "{matcher}: {proxy}");
    }
}
