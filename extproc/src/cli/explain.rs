//! `attache explain`: what the prompt of a request's body is for a cache. Lengths and hashes are printed, never text: prompts
//! are private.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use attache::affinity::PrefixScope;
use attache::affinity::prefix::{Canon, Measured, Prompt};
use attache::config::model::{Config, MatchId, Target};
use attache::config::{self, Outcome};
use attache_proto::Operation;
use attache_proto::request::{self, SegmentKind};
use clap::{Args, ValueEnum};

use super::placement::PlacementArgs;
use super::table::draw_table;
use super::{SettingsArgs, complain};

/// English text and code are near four bytes a token in the vocabularies in use.
const BYTES_PER_TOKEN: u64 = 4;

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// Files and directories with the operator's YAML.
    #[arg(required_unless_present = "admin")]
    paths: Vec<PathBuf>,
    /// The request's body.
    #[arg(long, value_name = "FILE")]
    body: PathBuf,
    /// The API that it is for.
    #[arg(long, default_value = "chat")]
    operation: BodyOf,
    /// Explain it as if it asked for this model.
    #[arg(long, value_name = "MODEL", conflicts_with = "admin")]
    model_as: Option<String>,
    #[command(flatten)]
    placement: PlacementArgs,
    #[command(flatten)]
    settings: SettingsArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum BodyOf {
    /// /v1/chat/completions
    Chat,
    /// /v1/completions
    Completions,
    /// /v1/responses
    Responses,
    /// /v1/messages
    Messages,
}

impl From<BodyOf> for Operation {
    fn from(body: BodyOf) -> Self {
        match body {
            BodyOf::Chat => Self::ChatCompletions,
            BodyOf::Completions => Self::Completions,
            BodyOf::Responses => Self::Responses,
            BodyOf::Messages => Self::Messages,
        }
    }
}

impl ExplainArgs {
    pub(super) fn run(self) -> Result<ExitCode, String> {
        let Outcome { config, diagnostics, .. } =
            config::compile(config::load(&self.paths), self.settings.into(), 1, None)
                .map_err(|error| error.to_string())?;
        diagnostics.iter().for_each(|diagnostic| complain(&diagnostic.plain().to_string()));
        let file = self.body.display();
        let body = fs::read(&self.body).map_err(|error| format!("cannot read {file}: {error}"))?;
        let scan = request::scan(self.operation.into(), &body).map_err(|error| format!("{file}: {error}"))?;
        let (prompt, segments) = Canon::default().measure(&scan.segments, &body);
        let model = self.model_as.unwrap_or(scan.model);
        let known = (!self.paths.is_empty()).then(|| scopes(&config, &model, prompt.cache_salt));
        let explanation = Explanation { scopes: known, model, prompt, segments };
        let mut drawn = explanation.draw();
        if let Some(placement) = self.placement.draw(self.operation.into(), &body)? {
            drawn.push('\n');
            drawn.push_str(&placement);
        }
        io::stdout().lock().write_all(drawn.as_bytes()).map_err(|error| format!("cannot write: {error}"))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// All there is to say without asking a sidecar.
struct Explanation {
    model: String,
    prompt: Prompt,
    segments: Vec<Measured>,
    /// `None` where no configuration was given.
    scopes: Option<Vec<Scope>>,
}

/// Where such a request may go, and among what its prompt is looked for there.
struct Scope {
    backend: String,
    served_model: String,
    hash: u64,
}

fn scopes(config: &Config, model: &str, cache_salt: Option<u64>) -> Vec<Scope> {
    let matches = config.rules_by_model.get(model).unwrap_or(&config.open_matches);
    let is_about = |id: &&MatchId| config.rule_match(**id).is_some_and(|found| found.is_about(model));
    let mut ids: Vec<_> = matches.iter().filter(is_about).map(|id| id.rule).collect();
    ids.dedup();
    let rules = ids.into_iter().filter_map(|id| config.rule(id));
    let scope = |target: &Target| {
        let backend = config.backends.get(target.backend)?;
        let served_model = target.model_override.as_deref().unwrap_or(model);
        let scope = PrefixScope { pool: &backend.cluster, model: served_model, tenant: None, cache_salt };
        Some(Scope { backend: backend.name.to_string(), served_model: served_model.to_owned(), hash: scope.hash() })
    };
    rules.flat_map(|rule| &rule.targets).filter_map(scope).collect()
}

impl Explanation {
    fn draw(&self) -> String {
        let mut drawn = String::new();
        self.draw_summary(&mut drawn);
        self.draw_scopes(&mut drawn);
        self.draw_segments(&mut drawn);
        self.draw_blocks(&mut drawn);
        drawn
    }

    fn draw_summary(&self, drawn: &mut String) {
        let chain = &self.prompt.chain;
        let _ = writeln!(
            drawn,
            "model {}, {} bytes of prompt, about {} tokens, {} full blocks",
            self.model.escape_debug(),
            chain.bytes,
            chain.bytes / BYTES_PER_TOKEN,
            chain.blocks.len()
        );
        if let Some(key) = self.prompt.explicit {
            let _ = writeln!(drawn, "explicit key {key:016x}: it wins over the prompt");
        }
        if let Some(salt) = self.prompt.cache_salt {
            let _ = writeln!(drawn, "cache salt {salt:016x}: only requests with the same one share a cache");
        }
    }

    fn draw_scopes(&self, drawn: &mut String) {
        let Some(scopes) = &self.scopes else { return };
        if scopes.is_empty() {
            let _ = writeln!(drawn, "no route knows the model");
            return;
        }
        let mut rows = vec![["BACKEND", "SERVED MODEL", "SCOPE"].map(str::to_owned)];
        let row = |scope: &Scope| [scope.backend.clone(), scope.served_model.clone(), format!("{:016x}", scope.hash)];
        rows.extend(scopes.iter().map(row));
        drawn.push('\n');
        draw_table(&rows, drawn);
    }

    fn draw_segments(&self, drawn: &mut String) {
        let mut rows = vec![["SEGMENT", "KIND", "SENT", "IN STREAM"].map(str::to_owned)];
        rows.extend(self.segments.iter().enumerate().map(|(index, segment)| {
            let (sent, stream) = (segment.sent_bytes.to_string(), segment.stream_bytes.to_string());
            [index.to_string(), name(segment.kind).to_owned(), sent, stream]
        }));
        drawn.push('\n');
        draw_table(&rows, drawn);
    }

    fn draw_blocks(&self, drawn: &mut String) {
        let mut rows = vec![["BLOCK", "START", "LENGTH", "HASH"].map(str::to_owned)];
        rows.extend(self.prompt.chain.spans().enumerate().map(|(index, (start, len, hash))| {
            [index.to_string(), start.to_string(), len.to_string(), format!("{hash:016x}")]
        }));
        drawn.push('\n');
        draw_table(&rows, drawn);
    }
}

fn name(kind: SegmentKind) -> &'static str {
    match kind {
        SegmentKind::Template => "template",
        SegmentKind::Tool => "tool",
        SegmentKind::System => "system",
        SegmentKind::Role => "role",
        SegmentKind::Text => "text",
        SegmentKind::Media => "media",
        SegmentKind::ToolCalls => "tool calls",
        SegmentKind::ToolCallId => "tool call id",
        SegmentKind::Name => "name",
        SegmentKind::Reasoning => "reasoning",
        SegmentKind::Tokens => "tokens",
        SegmentKind::CacheSalt => "cache salt",
        SegmentKind::Schema => "schema",
        SegmentKind::Conversation => "conversation",
        SegmentKind::PreviousResponse => "previous response",
    }
}

#[cfg(test)]
mod tests {
    use attache::config::model::Settings;

    use super::*;

    #[test]
    fn lengths_and_hashes_are_drawn_and_no_text() {
        let secret = "What nobody may read. ".repeat(12);
        let body = format!(
            r#"{{"model":"m","cache_salt":"hidden","conversation":"private","instructions":"Be discreet.","input":"{secret}"}}"#
        );
        let scan = request::scan(Operation::Responses, body.as_bytes()).unwrap();
        let (prompt, segments) = Canon::default().measure(&scan.segments, body.as_bytes());
        let scopes = vec![Scope { backend: "default/vllm".to_owned(), served_model: "llama".to_owned(), hash: 0xab }];
        let [salt, key] = [prompt.cache_salt, prompt.explicit].map(Option::unwrap);
        let hash = prompt.chain.blocks[0];
        let drawn = Explanation { model: "m".to_owned(), prompt, segments, scopes: Some(scopes) }.draw();
        assert_eq!(
            drawn,
            format!(
                "\
model m, 297 bytes of prompt, about 74 tokens, 1 full blocks
explicit key {key:016x}: it wins over the prompt
cache salt {salt:016x}: only requests with the same one share a cache

BACKEND       SERVED MODEL  SCOPE
default/vllm  llama         00000000000000ab

SEGMENT  KIND          SENT  IN STREAM
      0  system           0         11
      1  text            12         17
      2  text           264        269
      3  cache salt       6          0
      4  conversation     7          0

BLOCK  START  LENGTH  HASH
    0      0     256  {hash:016x}
"
            )
        );
    }

    #[test]
    fn a_model_that_no_route_knows_is_said_so() {
        let nothing = config::compile(config::load(&[]), Settings::default(), 1, None).unwrap().config;
        assert!(scopes(&nothing, "m", None).is_empty());
    }
}
