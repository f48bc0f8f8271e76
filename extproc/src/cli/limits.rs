//! `attache limits`: how a caller's limits stand, drawn for people, and a limit that begins anew.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use http::Method;
use serde_json::Value;

use super::AdminTokenArgs;
use super::http::{Answer, ask_sidecar};
use super::table::draw_table;

#[derive(Debug, Subcommand)]
pub(super) enum LimitsCommand {
    /// Show what limits a key or a tenant, and what is left; without either, what there is to ask for.
    Show(ShowArgs),
    /// Forget what a key has used of one limit. What its requests in flight hold stays. A counter that is not the key's alone,
    /// such as that of a limit per tenant or model, begins anew for all who share it; they are named.
    Reset(ResetArgs),
}

#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    /// The ClientKey, as NAMESPACE/NAME or as a NAME in `default`.
    #[arg(long, conflicts_with = "tenant")]
    key: Option<String>,
    /// All keys of this tenant.
    #[arg(long)]
    tenant: Option<String>,
    /// Print the admin page as it is, for programs.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(Debug, Args)]
pub(super) struct ResetArgs {
    /// The ClientKey, as NAMESPACE/NAME or as a NAME in `default`. Where no keys are demanded, leave it out.
    #[arg(long)]
    key: Option<String>,
    /// The limit, as NAMESPACE/POLICY/LIMIT or as much of its end as tells it apart.
    #[arg(long)]
    limit: String,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(Debug, Args)]
struct AdminArgs {
    /// A sidecar's admin port. Any sidecar of a Redis shows the counters; its own last decision only the one that took it.
    #[arg(long, env = "ATTACHE_ADMIN_LISTEN", default_value = "127.0.0.1:10002", value_name = "HOST:PORT")]
    admin: String,
    #[command(flatten)]
    token: AdminTokenArgs,
}

impl AdminArgs {
    fn ask(&self, method: Method, target: &str) -> Result<Answer, String> {
        ask_sidecar(method, &self.admin, self.token.token()?.as_deref(), target, b"")
    }
}

impl LimitsCommand {
    pub(super) fn run(self) -> Result<ExitCode, String> {
        let text = match self {
            Self::Show(args) => args.run()?,
            Self::Reset(args) => args.run()?,
        };
        io::stdout().lock().write_all(text.as_bytes()).map_err(|error| format!("cannot write: {error}"))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl ShowArgs {
    fn run(self) -> Result<String, String> {
        let target = target("/limits", &[("key", self.key), ("tenant", self.tenant)]);
        let answer = self.admin.ask(Method::GET, &target)?;
        let page = page(&answer)?;
        Ok(if self.json { String::from_utf8_lossy(&answer.body).into_owned() } else { draw(&page) })
    }
}

impl ResetArgs {
    fn run(self) -> Result<String, String> {
        let target = target("/limits/reset", &[("key", self.key), ("limit", Some(self.limit))]);
        let page = &page(&self.admin.ask(Method::POST, &target)?)?;
        let mut said = format!("{}\n", text(field(page, "says")));
        for counter in list(field(page, "before")) {
            let _ = writeln!(said, "  {}: {} were used", of(field(counter, "of")), plain(field(counter, "used")));
        }
        let _ = write!(said, "{}", also_of(page));
        let _ = writeln!(said, "{}", text(field(page, "note")));
        Ok(said)
    }
}

/// Whom a reset concerned besides the key that was named.
fn also_of(page: &Value) -> String {
    let mut others: Vec<String> = list(field(page, "alsoOf")).map(|key| text(key).to_owned()).collect();
    if let Some(more) = field(page, "alsoOfMore").as_u64().filter(|more| *more > 0) {
        others.push(format!("{more} more"));
    }
    if others.is_empty() { String::new() } else { format!("also of those who share it: {}\n", others.join(", ")) }
}

/// A path with its query.
fn target(path: &str, parameters: &[(&str, Option<String>)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, value) in parameters {
        if let Some(value) = value {
            query.append_pair(name, value);
        }
    }
    match query.finish() {
        query if query.is_empty() => path.to_owned(),
        query => format!("{path}?{query}"),
    }
}

/// The page, or the error that it tells of.
fn page(answer: &Answer) -> Result<Value, String> {
    let page: Value = serde_json::from_slice(&answer.body)
        .map_err(|_| format!("the sidecar answered {} and no JSON; is it of another release?", answer.status))?;
    if answer.status == 200 {
        return Ok(page);
    }
    let mut error = text(field(&page, "error")).to_owned();
    let known: Vec<&str> = list(field(&page, "known")).map(text).collect();
    if !known.is_empty() {
        let _ = write!(error, "; there is {}", known.join(", "));
    }
    Err(error)
}

fn draw(page: &Value) -> String {
    let mut drawn = String::new();
    if field(page, "keys").is_array() && field(page, "tenant").is_string() {
        for key in list(field(page, "keys")) {
            draw_caller(key, &mut drawn);
            drawn.push('\n');
        }
    } else if field(page, "keys").is_array() {
        draw_index(page, &mut drawn);
    } else {
        draw_caller(page, &mut drawn);
    }
    drawn
}

fn draw_index(page: &Value, drawn: &mut String) {
    let mut rows = vec![["LIMIT", "", "AT"].map(str::to_owned)];
    for limit in list(field(page, "limits")) {
        let at: Vec<&str> = list(field(limit, "at")).map(text).collect();
        rows.push([text(field(limit, "id")).to_owned(), text(field(limit, "says")).to_owned(), at.join(", ")]);
    }
    draw_table(&rows, drawn);
    let keys: Vec<&str> = list(field(page, "keys")).map(text).collect();
    if !keys.is_empty() {
        let _ = writeln!(drawn, "\nkeys: {}", keys.join(", "));
    }
    if field(page, "everyone").is_object() {
        drawn.push('\n');
        draw_caller(field(page, "everyone"), drawn);
    }
}

/// One caller: who it is, a line for each counter, and the last decision.
fn draw_caller(page: &Value, drawn: &mut String) {
    let _ = match field(page, "key").as_str() {
        Some(key) => {
            writeln!(
                drawn,
                "{key}   tenant {}   priority {}",
                text(field(page, "tenant")),
                text(field(page, "priority"))
            )
        }
        None => writeln!(drawn, "everyone"),
    };
    if let Some(error) = field(page, "error").as_str() {
        let _ = writeln!(drawn, "{error}");
        if let Some(says) = field(page, "says").as_str() {
            let _ = writeln!(drawn, "{says}");
        }
    }
    let mut rows =
        vec![["LIMIT", "OF", "", "USED", "HELD", "UP TO", "LEFT", "ROOM IN", "EMPTY IN", ""].map(str::to_owned)];
    for limit in list(field(page, "limits")) {
        for counter in list(field(limit, "counters")) {
            let shadow = if field(limit, "shadow") == true { "shadow" } else { "" };
            rows.push([
                text(field(limit, "id")).to_owned(),
                of(field(counter, "of")),
                bar(field(counter, "remaining"), field(counter, "upTo")),
                plain(field(counter, "used")),
                plain(field(counter, "held")),
                plain(field(counter, "upTo")),
                plain(field(counter, "remaining")),
                text(field(counter, "roomIn")).to_owned(),
                text(field(counter, "emptyIn")).to_owned(),
                shadow.to_owned(),
            ]);
        }
    }
    match rows.len() {
        1 => drawn.push_str("no limits\n"),
        _ => draw_table(&rows, drawn),
    }
    let last = field(page, "lastDecision");
    if last.is_object() {
        let _ = writeln!(
            drawn,
            "last decision, {} ago, for {}: {}",
            text(field(last, "ago")),
            text(field(last, "model")),
            text(field(last, "says"))
        );
    }
}

/// How much of a limit is gone, as a bar of ten cells; full only when nothing is left, and empty only when all of it is.
fn bar(remaining: &Value, of: &Value) -> String {
    const CELLS: usize = 10;
    let (Some(remaining), Some(of)) = (remaining.as_f64(), of.as_f64()) else { return String::new() };
    let gone = if of > 0.0 { 1.0 - remaining / of } else { 1.0 };
    let filled = match gone {
        gone if gone <= 0.0 => 0,
        gone if gone >= 1.0 => CELLS,
        gone => ((gone * CELLS as f64) as usize).clamp(1, CELLS - 1),
    };
    format!("{}{}", "█".repeat(filled), "░".repeat(CELLS - filled))
}

/// `acme, m`: which counter of a limit.
fn of(values: &Value) -> String {
    match values {
        Value::Object(values) if values.is_empty() => "everyone".to_owned(),
        Value::Object(values) => {
            let words = values.iter().map(|(name, value)| match value.as_str() {
                Some(value) => value.to_owned(),
                None => format!("no {name}"),
            });
            words.collect::<Vec<_>>().join(", ")
        }
        _ => "by header".to_owned(),
    }
}

/// A field of an object; null where there is none.
fn field<'v>(value: &'v Value, name: &str) -> &'v Value {
    value.get(name).unwrap_or(&Value::Null)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "?".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_key_is_drawn_with_a_line_for_each_counter_and_the_last_decision() {
        let page = json!({
            "key": "default/app", "tenant": "acme", "priority": "low",
            "limits": [
                {"id": "default/fair/day", "shadow": false, "counters": [
                    {"of": {"tenant": "acme"}, "upTo": 300, "used": 320, "held": 0, "remaining": 0, "roomIn": "2h0m0s", "emptyIn": "2h0m0s"},
                ]},
                {"id": "default/fair/budget", "shadow": true, "counters": [
                    {"of": {"key": "default/app", "model": "m"}, "upTo": 12.5, "used": 0.25, "held": 0.0, "remaining": 12.25, "roomIn": null, "emptyIn": "9s"},
                    {"of": "what the key's last requests had in their headers", "upTo": 12.5},
                ]},
            ],
            "lastDecision": {"ago": "3s", "model": "m", "says": "refused by default/fair/day: Quota used up."},
        });
        assert_eq!(
            draw(&page),
            "\
default/app   tenant acme   priority low
LIMIT                OF                          USED  HELD  UP TO  LEFT   ROOM IN  EMPTY IN
default/fair/day     acme            ██████████   320     0    300      0   2h0m0s    2h0m0s
default/fair/budget  default/app, m  █░░░░░░░░░  0.25   0.0   12.5  12.25                 9s  shadow
default/fair/budget  by header                   ?     ?      12.5  ?                         shadow
last decision, 3s ago, for m: refused by default/fair/day: Quota used up.
"
        );
    }

    #[test]
    fn an_index_lists_limits_and_keys() {
        let page = json!({
            "keys": ["default/app"], "tenants": ["acme"],
            "limits": [{"id": "default/fair/day", "says": "300 tokens per day for this tenant", "at": ["default/unified"]}],
        });
        assert_eq!(
            draw(&page),
            "\
LIMIT                                                 AT
default/fair/day  300 tokens per day for this tenant  default/unified

keys: default/app
"
        );
    }

    #[test]
    fn an_outage_says_since_when() {
        let says = "the store has not answered for 12s: what is shown is what this sidecar last saw";
        let page = json!({"key": null, "error": "the store is unreachable: x", "says": says, "limits": []});
        assert_eq!(draw(&page), format!("everyone\nthe store is unreachable: x\n{says}\nno limits\n"));
    }

    #[test]
    fn a_reset_names_those_who_share_the_counter() {
        assert_eq!(also_of(&json!({"alsoOf": [], "alsoOfMore": 0})), "");
        let shared = json!({"alsoOf": ["default/b", "default/c"], "alsoOfMore": 3});
        assert_eq!(also_of(&shared), "also of those who share it: default/b, default/c, 3 more\n");
    }

    #[test]
    fn a_bar_is_full_only_when_nothing_is_left() {
        let bar = |remaining: f64| bar(&json!(remaining), &json!(100)).chars().filter(|cell| *cell == '█').count();
        assert_eq!([100.0, 99.9, 50.0, 0.1, 0.0].map(bar), [0, 1, 5, 9, 10]);
    }

    #[test]
    fn an_error_names_what_is_known() {
        let answer = |status, body: &str| Answer { status, server: String::new(), body: body.as_bytes().to_vec() };
        let error = page(&answer(404, r#"{"error":"there is no key `x`","known":["default/a","default/b"]}"#));
        assert_eq!(error, Err("there is no key `x`; there is default/a, default/b".to_owned()));
        assert!(page(&answer(200, "<html>")).is_err());
    }

    #[test]
    fn names_are_escaped_in_the_query() {
        let target = target("/limits", &[("key", Some("a/b &c".to_owned())), ("tenant", None)]);
        assert_eq!(target, "/limits?key=a%2Fb+%26c");
    }
}
