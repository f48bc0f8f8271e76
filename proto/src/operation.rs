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

/// Where Anthropic's API lives: its own path, and the prefix under which gateways commonly mount it.
const ANTHROPIC_ROOTS: [&str; 2] = ["/v1/messages", "/anthropic"];

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
    /// `POST /v1/messages`, which is `POST /anthropic/v1/messages` as well.
    Messages,
    /// `GET /v1/models`
    Models,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Self; 6] =
        [Self::ChatCompletions, Self::Completions, Self::Embeddings, Self::Responses, Self::Messages, Self::Models];

    /// The operation that `method path` calls. `path` is the request's `:path`, query included; `prefix` is what the
    /// operator put in front of the API's own paths (`/enterpriseai/gateway`), or empty.
    ///
    /// # Errors
    /// [`PathError`] where no operation has that path, or has it with another method.
    pub fn resolve(method: &str, path: &str, prefix: &str) -> Result<Self, PathError> {
        let path = without_query(path).strip_prefix(prefix).ok_or(PathError::NotFound)?;
        let is_at_path = |operation: &Self| operation.path() == path || operation.mounted_path() == Some(path);
        let operation = Self::ALL.into_iter().find(is_at_path).ok_or(PathError::NotFound)?;
        if operation.method() != method {
            return Err(PathError::MethodNotAllowed { allow: operation.method() });
        }
        Ok(operation)
    }

    /// The one method of the operation.
    pub const fn method(self) -> &'static str {
        match self {
            Self::ChatCompletions | Self::Completions | Self::Embeddings | Self::Responses | Self::Messages => "POST",
            Self::Models => "GET",
        }
    }

    /// The operation's path, without prefix and query.
    pub const fn path(self) -> &'static str {
        match self {
            Self::ChatCompletions => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Embeddings => "/v1/embeddings",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
            Self::Models => "/v1/models",
        }
    }

    /// The other path at which gateways commonly mount the operation, if there is one. Servers know it by [`Self::path`] alone.
    pub const fn mounted_path(self) -> Option<&'static str> {
        match self {
            Self::Messages => Some("/anthropic/v1/messages"),
            Self::ChatCompletions | Self::Completions | Self::Embeddings | Self::Responses | Self::Models => None,
        }
    }

    /// The path to send on where servers do not know the one that was called: [`Self::path`] in place of
    /// [`Self::mounted_path`], with the same prefix and query.
    pub fn path_for_server(self, path: &str, prefix: &str) -> Option<String> {
        let called = without_query(path);
        let is_mounted = called.strip_prefix(prefix) == Some(self.mounted_path()?);
        let query = path.get(called.len()..).unwrap_or_default();
        is_mounted.then(|| format!("{prefix}{}{query}", self.path()))
    }

    /// The dialect of the operation's errors.
    pub const fn dialect(self) -> Dialect {
        match self {
            Self::Messages => Dialect::Anthropic,
            Self::ChatCompletions | Self::Completions | Self::Embeddings | Self::Responses | Self::Models => {
                Dialect::OpenAi
            }
        }
    }

    /// Whether a model writes an answer, whose length a request can bound.
    pub const fn generates(self) -> bool {
        match self {
            Self::ChatCompletions | Self::Completions | Self::Responses | Self::Messages => true,
            Self::Embeddings | Self::Models => false,
        }
    }

    /// The operation as metrics name it: the well-known values of OpenTelemetry's `gen_ai.operation.name`, and a custom
    /// one, which the convention allows, for the list of models.
    pub const fn metric_name(self) -> &'static str {
        match self {
            Self::ChatCompletions | Self::Responses | Self::Messages => "chat",
            Self::Completions => "text_completion",
            Self::Embeddings => "embeddings",
            Self::Models => "list_models",
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
            ("POST", "/v1/messages", Operation::Messages),
            ("POST", "/anthropic/v1/messages", Operation::Messages),
            ("GET", "/v1/models", Operation::Models),
        ] {
            assert_eq!(Operation::resolve(method, path, ""), Ok(operation));
        }
    }

    #[test]
    fn a_server_is_called_at_the_operations_own_path() {
        let sent = |path: &str, prefix: &str| Operation::Messages.path_for_server(path, prefix);
        assert_eq!(sent("/anthropic/v1/messages?beta=true", ""), Some("/v1/messages?beta=true".to_owned()));
        assert_eq!(sent("/gw/anthropic/v1/messages", "/gw"), Some("/gw/v1/messages".to_owned()));
        assert_eq!(sent("/v1/messages", ""), None);
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
            "/v1/models/gpt",
            "/v1/messages/count_tokens",
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
        assert_eq!(Operation::resolve("POST", "/v1/models", ""), Err(PathError::MethodNotAllowed { allow: "GET" }));
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
        for operation in Operation::ALL {
            assert_eq!(operation.dialect(), Dialect::of_path(operation.path(), ""));
            if let Some(path) = operation.mounted_path() {
                assert_eq!(operation.dialect(), Dialect::of_path(path, ""));
            }
        }
    }
}
