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
    /// `GET /v1/models`
    Models,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Self; 4] = [Self::ChatCompletions, Self::Completions, Self::Embeddings, Self::Models];

    /// The operation that `method path` calls. `path` is the request's `:path`, query included; `prefix` is what the
    /// operator put in front of the API's own paths (`/enterpriseai/gateway`), or empty.
    ///
    /// # Errors
    /// [`PathError`] where no operation has that path, or has it with another method.
    pub fn resolve(method: &str, path: &str, prefix: &str) -> Result<Self, PathError> {
        let path = without_query(path).strip_prefix(prefix).ok_or(PathError::NotFound)?;
        let operation = Self::ALL.into_iter().find(|operation| operation.path() == path).ok_or(PathError::NotFound)?;
        if operation.method() != method {
            return Err(PathError::MethodNotAllowed { allow: operation.method() });
        }
        Ok(operation)
    }

    /// The one method of the operation.
    pub const fn method(self) -> &'static str {
        match self {
            Self::ChatCompletions | Self::Completions | Self::Embeddings => "POST",
            Self::Models => "GET",
        }
    }

    /// The operation's path, without prefix and query.
    pub const fn path(self) -> &'static str {
        match self {
            Self::ChatCompletions => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Embeddings => "/v1/embeddings",
            Self::Models => "/v1/models",
        }
    }

    /// The dialect of the operation's errors.
    pub const fn dialect(self) -> Dialect {
        match self {
            Self::ChatCompletions | Self::Completions | Self::Embeddings | Self::Models => Dialect::OpenAi,
        }
    }

    /// The operation as metrics name it: the well-known values of OpenTelemetry's `gen_ai.operation.name`, and a custom
    /// one, which the convention allows, for the list of models.
    pub const fn metric_name(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat",
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
            ("GET", "/v1/models", Operation::Models),
        ] {
            assert_eq!(Operation::resolve(method, path, ""), Ok(operation));
        }
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
            "/v1/messages",
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
        }
    }
}
