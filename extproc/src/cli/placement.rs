//! Where a running sidecar would send a request now, asked over its admin port and drawn for people. The form of the answer is that
//! of `POST /affinity/explain`.

use std::fmt::Write as _;

use attache_proto::Operation;
use clap::Args;
use http::Method;
use serde_json::Value;

use super::AdminTokenArgs;
use super::http::{Answer, ask_sidecar};
use super::table::draw_table;

#[derive(Debug, Args)]
pub(super) struct PlacementArgs {
    /// Ask the sidecar with this admin port, too: what each replica holds of the prompt, has to do and would cost. From its own machine or pod only.
    #[arg(long, value_name = "HOST:PORT", env = "ATTACHE_ADMIN_ADDRESS")]
    admin: Option<String>,
    /// As whose request: a ClientKey, NAMESPACE/NAME or a NAME in `default`.
    #[arg(long, value_name = "NAME", requires = "admin")]
    key: Option<String>,
    #[command(flatten)]
    token: AdminTokenArgs,
}

impl PlacementArgs {
    /// What the sidecar says of the body, drawn; `None` where none is to be asked.
    pub(super) fn draw(&self, operation: Operation, body: &[u8]) -> Result<Option<String>, String> {
        let Some(address) = &self.admin else { return Ok(None) };
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("path", operation.paths().first().copied().unwrap_or_default());
        self.key.iter().for_each(|key| {
            query.append_pair("key", key);
        });
        let target = format!("/affinity/explain?{}", query.finish());
        let Answer { status, body, .. } =
            ask_sidecar(Method::POST, address, self.token.token()?.as_deref(), &target, body)?;
        let page: Value = serde_json::from_slice(&body)
            .map_err(|error| format!("{address} answered {status}, and no JSON: {error}"))?;
        match status {
            200 => Ok(Some(drawn(&page))),
            _ => Err(format!(
                "{address}: {}",
                page.get("error").and_then(Value::as_str).unwrap_or("it does not explain placements")
            )),
        }
    }
}

fn drawn(page: &Value) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut drawn = format!("route {}, model {}\n", text(&page["route"]), text(&page["model"]));
    let chosen = page["chosen"].as_u64();
    for (index, site) in (0..).zip(page["sites"].as_array().into_iter().flatten()) {
        let part = |field: &str| text(&site[field]);
        let _ =
            write!(drawn, "\n{} ({}), weight {}: {}", part("backend"), part("model"), part("weight"), part("reason"));
        if chosen == Some(index) {
            let _ = write!(drawn, "; chosen: {}", text(&page["reason"]));
        }
        drawn.push('\n');
        let order: Vec<&str> = site["order"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let head = ["ENDPOINT", "STATE", "MATCHED BYTES", "PENDING TOKENS", "RANK", "COST s", "TRIED"];
        let mut rows = vec![head.map(str::to_owned)];
        rows.extend(site["endpoints"].as_array().into_iter().flatten().map(|endpoint| {
            let part = |field: &str| text(&endpoint[field]);
            let place = order.iter().position(|id| Some(*id) == endpoint["endpoint"].as_str());
            let tried = place.map_or_else(String::new, |place| (place + 1).to_string());
            [
                part("endpoint"),
                part("state"),
                part("matchedBytes"),
                part("pendingTokens"),
                part("rank"),
                part("cost"),
                tried,
            ]
        }));
        draw_table(&rows, &mut drawn);
    }
    drawn
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_each_replica_would_be_is_drawn_site_by_site() {
        let endpoint = |id: &str, matched: u64, rank: u64, cost: f64| json!({"endpoint": id, "state": "up", "matchedBytes": matched, "pendingTokens": 0.0, "rank": rank, "cost": cost});
        let page = json!({
            "model": "chat", "route": "default/chat", "chosen": 0, "reason": "only",
            "sites": [{"backend": "default/vllm", "model": "qwen", "weight": 1, "reason": "prefix",
                "order": ["b:1", "a:1"], "endpoints": [endpoint("a:1", 0, 1, 1.5), endpoint("b:1", 4864, 0, 0.021)]}],
        });
        let expected = "\
route default/chat, model chat

default/vllm (qwen), weight 1: prefix; chosen: only
ENDPOINT  STATE  MATCHED BYTES  PENDING TOKENS  RANK  COST s  TRIED
a:1       up                 0             0.0     1     1.5      2
b:1       up              4864             0.0     0   0.021      1
";
        assert_eq!(drawn(&page), expected);
    }

    #[test]
    fn a_page_of_another_form_is_drawn_without_complaint() {
        assert_eq!(drawn(&json!({"sites": [{}]})).lines().count(), 4);
    }
}
