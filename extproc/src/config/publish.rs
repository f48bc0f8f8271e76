//! Documents as they may be shown to everybody who may read a ConfigMap: without Secrets.
//!
//! What stays is the operator's text, comments included. It assumes a text that was read without errors.

use std::sync::Arc;

use super::diagnostic::Source;
use super::model::ObjectName;
use super::node::{self, Node, Value};
use super::source::DocumentText;

/// What is left of a text, and what is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The text without its Secrets.
    pub text: String,
    /// Those.
    pub secrets: Vec<ObjectName>,
}

/// A Secret stands where it cannot be cut out: in a `List`, or in a document that is not read alone as it is with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a Secret stands in a List, or in what cannot be read without the documents around it")]
pub struct SecretInList;

/// Takes the Secrets out.
///
/// # Errors
/// [`SecretInList`] where a Secret is no document of its own.
pub fn published(text: &DocumentText) -> Result<Published, SecretInList> {
    let mut kept = String::with_capacity(text.text.len());
    let mut secrets = Vec::new();
    for document in split(&text.text) {
        let parsed = node::parse(&Arc::new(Source::new(&text.name, document.to_owned())));
        let roots: Vec<&Node> = parsed.documents.iter().map(|document| &document.root).collect();
        match roots.as_slice() {
            _ if parsed.broken.is_some() => return Err(SecretInList),
            [root] if is_secret(root) => secrets.push(name(root)),
            roots if roots.iter().any(|root| holds_secret(root)) => return Err(SecretInList),
            _ => kept.push_str(document),
        }
    }
    Ok(Published { text: kept, secrets })
}

/// A text's documents, each with the line that begins it. Wherever it stands, `---` at the beginning of a line begins one: no
/// scalar may go on with it (YAML 1.2.2, 9.1.2).
fn split(text: &str) -> Vec<&str> {
    let mut documents = Vec::new();
    let (mut start, mut end) = (0, 0);
    for line in text.split_inclusive('\n') {
        let is_marker =
            line.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace));
        if is_marker && end > start {
            documents.extend(text.get(start..end));
            start = end;
        }
        end += line.len();
    }
    documents.extend(text.get(start..end).filter(|last| !last.is_empty()));
    documents
}

fn is_secret(node: &Node) -> bool {
    node.get("kind").and_then(Node::text).is_some_and(|kind| kind.eq_ignore_ascii_case("secret"))
}

fn holds_secret(node: &Node) -> bool {
    is_secret(node)
        || match &node.value {
            Value::Sequence(items) => items.iter().any(holds_secret),
            Value::Mapping(entries) => entries.iter().any(|entry| &*entry.key == "items" && holds_secret(&entry.value)),
            Value::Plain(_) | Value::Quoted(_) => false,
        }
}

fn name(secret: &Node) -> ObjectName {
    let field = |field| secret.get("metadata").and_then(|metadata| metadata.get(field)).and_then(Node::text).cloned();
    ObjectName {
        namespace: field("namespace").unwrap_or_else(|| Arc::from("default")),
        name: field("name").unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Published, SecretInList> {
        published(&DocumentText { name: "a.yaml".to_owned(), text: text.to_owned() })
    }

    #[test]
    fn a_secret_is_taken_out_and_everything_else_stays_as_it_is() {
        let key = "# A caller.\nkind: ClientKey\nmetadata: {name: a}\n";
        let secret = "---\n# openai\napiVersion: v1\nkind: 'Secret'\nmetadata: {name: openai, namespace: models}\nstringData: {k: sk-1}\n";
        let last = "--- # more\nkind: Backend\nspec:\n  note: |\n    ---\n    kind: Secret\n";
        let published = of(&format!("{key}{secret}{last}")).unwrap();
        assert_eq!(published.text, format!("{key}{last}"));
        let names: Vec<String> = published.secrets.iter().map(ObjectName::to_string).collect();
        assert_eq!(names, ["models/openai"]);
    }

    #[test]
    fn no_form_of_a_secret_gets_through() {
        for form in [
            "{kind: Secret, metadata: {name: a}, data: {k: c2stMQ==}}",
            "\"kind\": \"Secret\"\nmetadata: {name: a}\ndata: {k: c2stMQ==}\n",
            "kind: &k Secret\nmetadata: {name: a}\ndata: {k: c2stMQ==}\n",
            "--- {kind: Secret, metadata: {name: a}, data: {k: c2stMQ==}}\n",
            "---\nkind: \"\\u0053ecret\"\nmetadata: {name: a}\ndata: {k: c2stMQ==}\n",
        ] {
            let published = of(form).unwrap();
            assert!(!published.text.contains("c2stMQ") && published.secrets.len() == 1, "{form}");
        }
    }

    #[test]
    fn a_secret_in_a_list_is_an_error() {
        let list = "apiVersion: v1\nkind: List\nitems:\n- {kind: ClientKey}\n- {kind: List, items: [{kind: Secret}]}\n";
        assert_eq!(of(list), Err(SecretInList));
        assert!(of("kind: List\nitems: [{kind: ClientKey}]\n").is_ok());
    }

    #[test]
    fn a_text_without_secrets_is_the_same_bytes() {
        let text = "a: 1\n...\n---\r\nb: |\n  --- x\n---\n\n# end";
        assert_eq!(of(text).unwrap().text, text);
    }
}
