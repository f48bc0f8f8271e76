//! Which of the APIs we serve a request calls, by method and path.
//!
//! Paths are matched to the byte, after an optional prefix and before the query: what we do not recognise we do not
//! forward, so there is no decoding here that an upstream could do differently.

/// The family of APIs whose error form a caller expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// `{"error": {"message", "type", "param", "code"}}`
    OpenAi,
    /// `{"type": "error", "error": {"type", "message"}}`
    Anthropic,
}

impl Dialect {
    /// The dialect in which a caller of `path` expects errors, whether or not an operation is served there.
    pub fn of_path(path: &str, prefix: &str) -> Self {
        let path = without_query(path);
        let path = path.strip_prefix(prefix).unwrap_or(path);
        let is_anthropic = ANTHROPIC_ROOTS
            .iter()
            .filter_map(|root| path.strip_prefix(root))
            .any(|rest| rest.is_empty() || rest.starts_with('/'));
        if is_anthropic { Self::Anthropic } else { Self::OpenAi }
    }
}

/// Under which gateways commonly mount Anthropic's API.
const ANTHROPIC_MOUNT: &str = "/anthropic";

/// Where Anthropic's API lives: its own path, and that prefix.
const ANTHROPIC_ROOTS: [&str; 2] = ["/v1/messages", ANTHROPIC_MOUNT];

/// An API operation that Attaché serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `POST /v1/chat/completions`
    ChatCompletions,
    /// `POST /v1/completions`
    Completions,
    /// `POST /v1/embeddings`
    Embeddings,
    /// `POST /v1/responses`
    Responses,
    /// `POST /v1/responses/compact`: a conversation is condensed by the model. Codex asks for it.
    CompactResponse,
    /// `POST /v1/responses/input_tokens`
    CountInputTokens,
    /// `POST /v1/messages`, which is `POST /anthropic/v1/messages` as well.
    Messages,
    /// `POST /v1/messages/count_tokens`, under `/anthropic` as well.
    CountTokens,
    /// `POST /v1/rerank`, as Jina's API has it and vLLM; `/v2/rerank` of Cohere's; `/rerank`.
    Rerank,
    /// `POST /score`, or `/v1/score`, of vLLM and SGLang.
    Score,
    /// `POST /v1/images/generations`
    ImageGenerations,
    /// `POST /v1/images/edits`
    ImageEdits,
    /// `POST /v1/images/variations`
    ImageVariations,
    /// `POST /v1/audio/speech`
    Speech,
    /// `POST /v1/audio/transcriptions`
    Transcriptions,
    /// `POST /v1/audio/translations`
    Translations,
    /// `POST /tokenize` of vLLM and SGLang.
    Tokenize,
    /// `POST /detokenize` of the same.
    Detokenize,
    /// `GET /v1/models`, which is `GET /anthropic/v1/models` as well.
    Models,
    /// `GET /v1/models/{model}`, under `/anthropic` as well.
    Model,
    /// Whatever else a route names, at the paths that it names.
    PassThrough,
}

/// Which tokens a request to an operation may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenUse {
    /// None, whatever numbers are in its answer.
    None,
    /// Those of what a model reads; it writes no answer.
    Input,
    /// Those of what a model reads and writes.
    InputAndOutput,
}

/// What [`Operation::Model`] has before the model's name.
const MODEL_ROOT: &str = "/v1/models/";

impl Operation {
    /// Every operation.
    pub const ALL: [Self; 21] = [
        Self::ChatCompletions,
        Self::Completions,
        Self::Embeddings,
        Self::Responses,
        Self::CompactResponse,
        Self::CountInputTokens,
        Self::Messages,
        Self::CountTokens,
        Self::Rerank,
        Self::Score,
        Self::ImageGenerations,
        Self::ImageEdits,
        Self::ImageVariations,
        Self::Speech,
        Self::Transcriptions,
        Self::Translations,
        Self::Tokenize,
        Self::Detokenize,
        Self::Models,
        Self::Model,
        Self::PassThrough,
    ];

    /// The operation that `method path` calls. `path` is the request's `:path`, query included; `prefix` is what the
    /// operator put in front of the API's own paths (`/enterpriseai/gateway`), or empty. What passes through is not found
    /// here: its paths are a route's.
    ///
    /// # Errors
    /// [`PathError`] where no operation has that path, or has it with another method.
    pub fn resolve(method: &str, path: &str, prefix: &str) -> Result<Self, PathError> {
        let path = without_query(path).strip_prefix(prefix).ok_or(PathError::NotFound)?;
        let operation = Self::ALL.into_iter().find(|operation| operation.is_at(path)).ok_or(PathError::NotFound)?;
        if operation.method() != method {
            return Err(PathError::MethodNotAllowed { allow: operation.method() });
        }
        Ok(operation)
    }

    /// The one method of the operation. What passes through has that of its request.
    pub const fn method(self) -> &'static str {
        match self {
            Self::Models | Self::Model => "GET",
            _ => "POST",
        }
    }

    /// The paths at which the operation is served, without prefix and query, the best known first. `{model}` stands for the
    /// name of a model.
    pub const fn paths(self) -> &'static [&'static str] {
        match self {
            Self::ChatCompletions => &["/v1/chat/completions"],
            Self::Completions => &["/v1/completions"],
            Self::Embeddings => &["/v1/embeddings"],
            Self::Responses => &["/v1/responses"],
            Self::CompactResponse => &["/v1/responses/compact"],
            Self::CountInputTokens => &["/v1/responses/input_tokens"],
            Self::Messages => &["/v1/messages", "/anthropic/v1/messages"],
            Self::CountTokens => &["/v1/messages/count_tokens", "/anthropic/v1/messages/count_tokens"],
            Self::Rerank => &["/v1/rerank", "/v2/rerank", "/rerank"],
            Self::Score => &["/score", "/v1/score"],
            Self::ImageGenerations => &["/v1/images/generations"],
            Self::ImageEdits => &["/v1/images/edits"],
            Self::ImageVariations => &["/v1/images/variations"],
            Self::Speech => &["/v1/audio/speech"],
            Self::Transcriptions => &["/v1/audio/transcriptions"],
            Self::Translations => &["/v1/audio/translations"],
            Self::Tokenize => &["/tokenize"],
            Self::Detokenize => &["/detokenize"],
            Self::Models => &["/v1/models", "/anthropic/v1/models"],
            Self::Model => &["/v1/models/{model}", "/anthropic/v1/models/{model}"],
            Self::PassThrough => &[],
        }
    }

    /// The name in the path of [`Operation::Model`], as it was sent.
    pub fn model_in_path<'p>(path: &'p str, prefix: &str) -> Option<&'p str> {
        let path = without_query(path).strip_prefix(prefix)?;
        let name = path.strip_prefix(ANTHROPIC_MOUNT).unwrap_or(path).strip_prefix(MODEL_ROOT)?;
        Some(name).filter(|name| !name.is_empty())
    }

    /// The path to send on where servers do not know the one that was called: they know Anthropic's API at its own path,
    /// not under the prefix at which gateways mount it. Prefix and query stay.
    pub fn path_for_server(self, path: &str, prefix: &str) -> Option<String> {
        if self.dialect() != Dialect::Anthropic {
            return None;
        }
        let own = path.strip_prefix(prefix)?.strip_prefix(ANTHROPIC_MOUNT)?;
        Some(format!("{prefix}{own}"))
    }

    /// The dialect of the operation's errors. Of what passes through, the path says it: [`Dialect::of_path`].
    pub const fn dialect(self) -> Dialect {
        match self {
            Self::Messages | Self::CountTokens => Dialect::Anthropic,
            _ => Dialect::OpenAi,
        }
    }

    /// Whether it is a request of a model, which goes on to a server. We answer the others.
    pub const fn is_forwarded(self) -> bool {
        !matches!(self, Self::Models | Self::Model)
    }

    /// Whether a model writes an answer, whose length a request can bound.
    pub const fn generates(self) -> bool {
        matches!(
            self,
            Self::ChatCompletions | Self::Completions | Self::Responses | Self::CompactResponse | Self::Messages
        )
    }

    /// Which tokens it may use: the one place where that is decided. What counts tokens or cuts text into them uses none, as no
    /// model reads or writes anything; what passes through is not looked at. Images, speech and transcripts use them with some
    /// models, so they may.
    pub const fn token_use(self) -> TokenUse {
        match self {
            Self::CountInputTokens
            | Self::CountTokens
            | Self::Tokenize
            | Self::Detokenize
            | Self::Models
            | Self::Model
            | Self::PassThrough => TokenUse::None,
            Self::Embeddings | Self::Rerank | Self::Score => TokenUse::Input,
            Self::ChatCompletions
            | Self::Completions
            | Self::Responses
            | Self::CompactResponse
            | Self::Messages
            | Self::ImageGenerations
            | Self::ImageEdits
            | Self::ImageVariations
            | Self::Speech
            | Self::Transcriptions
            | Self::Translations => TokenUse::InputAndOutput,
        }
    }

    /// Whether it may use any tokens. If not, it counts as a request alone.
    pub const fn uses_tokens(self) -> bool {
        !matches!(self.token_use(), TokenUse::None)
    }

    /// Whether an answer that is complete and reports no tokens used none: models that make images and sound are paid for by the
    /// image or the second, or report tokens. Any other answer has some, whether or not it says so.
    pub const fn is_free_unless_reported(self) -> bool {
        matches!(
            self,
            Self::ImageGenerations
                | Self::ImageEdits
                | Self::ImageVariations
                | Self::Speech
                | Self::Transcriptions
                | Self::Translations
        )
    }

    /// Whether its body may be a form (`multipart/form-data`): where files are sent. JSON it may be everywhere.
    pub const fn takes_forms(self) -> bool {
        matches!(self, Self::ImageEdits | Self::ImageVariations | Self::Transcriptions | Self::Translations)
    }

    /// The operation as metrics name it: the well-known values of OpenTelemetry's `gen_ai.operation.name`, and custom
    /// ones, which the convention allows: those of Envoy AI Gateway where it has one.
    pub const fn metric_name(self) -> &'static str {
        match self {
            Self::ChatCompletions | Self::Responses | Self::CompactResponse | Self::Messages => "chat",
            Self::Completions => "text_completion",
            Self::Embeddings => "embeddings",
            Self::CountInputTokens | Self::CountTokens => "count_tokens",
            Self::Rerank => "rerank",
            Self::Score => "score",
            Self::ImageGenerations => "image_generation",
            Self::ImageEdits => "image_edit",
            Self::ImageVariations => "image_variation",
            Self::Speech => "speech",
            Self::Transcriptions => "transcription",
            Self::Translations => "translation",
            Self::Tokenize => "tokenize",
            Self::Detokenize => "detokenize",
            Self::Models => "list_models",
            Self::Model => "retrieve_model",
            Self::PassThrough => "pass_through",
        }
    }

    /// Whether it is served at a path without prefix and query.
    fn is_at(self, path: &str) -> bool {
        match self {
            Self::Model => Self::model_in_path(path, "").is_some(),
            _ => self.paths().contains(&path),
        }
    }
}

/// Why a method and path call no operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// No operation is served at the path.
    #[error("no operation is served at this path")]
    NotFound,
    /// An operation is served at the path, with another method.
    #[error("this path takes {allow} only")]
    MethodNotAllowed {
        /// The method that it takes, for the `allow` header (RFC 9110, section 15.5.6).
        allow: &'static str,
    },
}

fn without_query(path: &str) -> &str {
    path.split_once('?').map_or(path, |(path, _)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_found_at_its_own_method_and_path() {
        for (method, path, operation) in [
            ("POST", "/v1/chat/completions", Operation::ChatCompletions),
            ("POST", "/v1/completions", Operation::Completions),
            ("POST", "/v1/embeddings", Operation::Embeddings),
            ("POST", "/v1/responses", Operation::Responses),
            ("POST", "/v1/responses/compact", Operation::CompactResponse),
            ("POST", "/v1/responses/input_tokens", Operation::CountInputTokens),
            ("POST", "/v1/messages", Operation::Messages),
            ("POST", "/anthropic/v1/messages", Operation::Messages),
            ("POST", "/v1/messages/count_tokens", Operation::CountTokens),
            ("POST", "/anthropic/v1/messages/count_tokens", Operation::CountTokens),
            ("POST", "/v1/rerank", Operation::Rerank),
            ("POST", "/v2/rerank", Operation::Rerank),
            ("POST", "/rerank", Operation::Rerank),
            ("POST", "/score", Operation::Score),
            ("POST", "/v1/score", Operation::Score),
            ("POST", "/v1/images/generations", Operation::ImageGenerations),
            ("POST", "/v1/images/edits", Operation::ImageEdits),
            ("POST", "/v1/images/variations", Operation::ImageVariations),
            ("POST", "/v1/audio/speech", Operation::Speech),
            ("POST", "/v1/audio/transcriptions", Operation::Transcriptions),
            ("POST", "/v1/audio/translations", Operation::Translations),
            ("POST", "/tokenize", Operation::Tokenize),
            ("POST", "/detokenize", Operation::Detokenize),
            ("GET", "/v1/models", Operation::Models),
            ("GET", "/anthropic/v1/models", Operation::Models),
            ("GET", "/v1/models/meta/llama%2F3", Operation::Model),
            ("GET", "/anthropic/v1/models/meta/llama%2F3", Operation::Model),
        ] {
            assert_eq!(Operation::resolve(method, path, ""), Ok(operation));
        }
    }

    #[test]
    fn the_list_of_all_is_complete_and_no_two_share_a_path() {
        let mut paths = std::collections::HashSet::new();
        for (at, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, at);
            assert!(operation.paths().iter().all(|path| paths.insert(*path)), "{operation:?}");
            assert_eq!(operation.paths().is_empty(), operation == Operation::PassThrough);
        }
        assert_eq!(Operation::PassThrough as usize + 1, Operation::ALL.len());
    }

    #[test]
    fn what_a_model_writes_uses_tokens_of_both_kinds_and_what_we_answer_uses_none() {
        for operation in Operation::ALL {
            let tokens = operation.token_use();
            assert!(!operation.generates() || tokens == TokenUse::InputAndOutput, "{operation:?}");
            assert!(operation.is_forwarded() || tokens == TokenUse::None, "{operation:?}");
            assert_eq!(operation.uses_tokens(), tokens != TokenUse::None, "{operation:?}");
        }
    }

    #[test]
    fn a_models_name_is_all_that_stands_behind_the_list() {
        let name = |path| Operation::model_in_path(path, "/gw");
        assert_eq!(name("/gw/v1/models/org/name%20x?y=/z"), Some("org/name%20x"));
        assert_eq!(name("/gw/v1/models/"), None);
        assert_eq!(name("/v1/models/m"), None);
    }

    #[test]
    fn a_server_is_called_at_the_operations_own_path() {
        let sent = |path: &str, prefix: &str| Operation::Messages.path_for_server(path, prefix);
        assert_eq!(sent("/anthropic/v1/messages?beta=true", ""), Some("/v1/messages?beta=true".to_owned()));
        assert_eq!(sent("/gw/anthropic/v1/messages", "/gw"), Some("/gw/v1/messages".to_owned()));
        assert_eq!(sent("/v1/messages", ""), None);
        assert_eq!(
            Operation::CountTokens.path_for_server("/anthropic/v1/messages/count_tokens", ""),
            Some("/v1/messages/count_tokens".to_owned())
        );
        assert_eq!(Operation::Rerank.path_for_server("/rerank", ""), None, "a server gets the path that was called");
        assert_eq!(Operation::Responses.path_for_server("/v1/responses", ""), None);
    }

    #[test]
    fn the_query_is_no_part_of_the_path() {
        assert_eq!(
            Operation::resolve("POST", "/v1/chat/completions?api-version=1?/x", ""),
            Ok(Operation::ChatCompletions)
        );
        assert_eq!(Operation::resolve("GET", "/?/v1/models", ""), Err(PathError::NotFound));
    }

    #[test]
    fn a_prefix_is_demanded_where_there_is_one() {
        let prefix = "/enterpriseai/gateway";
        assert_eq!(
            Operation::resolve("POST", "/enterpriseai/gateway/v1/embeddings", prefix),
            Ok(Operation::Embeddings)
        );
        assert_eq!(Operation::resolve("POST", "/v1/embeddings", prefix), Err(PathError::NotFound));
        assert_eq!(Operation::resolve("POST", "/enterpriseai/gatewayv1/embeddings", prefix), Err(PathError::NotFound));
    }

    #[test]
    fn a_path_that_only_resembles_an_operation_is_not_found() {
        for path in [
            "",
            "/",
            "*",
            "/v1",
            "/v1/chat/completions/",
            "/v1/chat//completions",
            "/v1/chat/../chat/completions",
            "/v1/%63hat/completions",
            "/V1/chat/completions",
            "/v1/chat/completions#x",
            "/v1/chat/completions;x",
            "/v1/models/",
            "/v1/modelsx",
            "/v1/messages/count_tokens/",
            "/v2/score",
            "/anthropic/rerank",
            "/anthropic",
            "/anthropic/v1/chat/completions",
            "/anthropic/anthropic/v1/messages",
            "/v1/responses/resp_1",
            "http://x/v1/models",
        ] {
            assert_eq!(Operation::resolve("POST", path, ""), Err(PathError::NotFound), "{path}");
        }
    }

    #[test]
    fn another_method_on_a_known_path_is_told_the_right_one() {
        for method in ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "post", ""] {
            assert_eq!(
                Operation::resolve(method, "/v1/completions", ""),
                Err(PathError::MethodNotAllowed { allow: "POST" })
            );
        }
        for path in ["/v1/models", "/v1/models/m"] {
            assert_eq!(Operation::resolve("POST", path, ""), Err(PathError::MethodNotAllowed { allow: "GET" }));
        }
    }

    #[test]
    fn errors_at_anthropics_paths_are_in_its_dialect() {
        for path in
            ["/v1/messages", "/v1/messages?beta=true", "/v1/messages/count_tokens", "/anthropic", "/anthropic/x"]
        {
            assert_eq!(Dialect::of_path(path, ""), Dialect::Anthropic, "{path}");
            assert_eq!(Dialect::of_path(&format!("/gw{path}"), "/gw"), Dialect::Anthropic, "{path}");
        }
        for path in ["/", "", "/v1/messagesx", "/anthropical", "/x?/v1/messages", "/v1/chat/completions"] {
            assert_eq!(Dialect::of_path(path, ""), Dialect::OpenAi, "{path}");
        }
    }

    #[test]
    fn an_operations_dialect_is_that_of_its_path() {
        // What we answer ourselves, we answer in either.
        for operation in Operation::ALL.into_iter().filter(|operation| operation.is_forwarded()) {
            for path in operation.paths() {
                assert_eq!(operation.dialect(), Dialect::of_path(path, ""), "{path}");
            }
        }
    }
}
