//! The fields of a request that generates no text: a JSON object's members, or the fields and files of a form.

use axum::http::{HeaderMap, header::CONTENT_TYPE};
use bytes::Bytes;
use futures_util::{future::ready, stream::once};
use multer::Multipart;
use serde_json::{Map, Value};

use crate::dialect::ApiError;

/// A request's fields, by name. A form's values are texts.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    values: Map<String, Value>,
    /// Uploaded files, in their order.
    files: Vec<Bytes>,
}

impl Fields {
    /// Reads a body by its content type.
    pub(crate) async fn read(headers: &HeaderMap, body: &Bytes) -> Result<Self, ApiError> {
        let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if content_type.starts_with("multipart/") {
            Self::of_form(content_type, body).await
        } else {
            Self::of_json(body)
        }
    }

    fn of_json(body: &[u8]) -> Result<Self, ApiError> {
        let values = serde_json::from_slice(body)
            .map_err(|error| ApiError::malformed(format!("the request's body is wrong: {error}")))?;
        Ok(Self { values, files: Vec::new() })
    }

    async fn of_form(content_type: &str, body: &Bytes) -> Result<Self, ApiError> {
        let wrong = |error: multer::Error| ApiError::malformed(format!("the request's form is wrong: {error}"));
        let boundary = multer::parse_boundary(content_type).map_err(wrong)?;
        let mut form = Multipart::new(once(ready(Ok::<_, std::io::Error>(body.clone()))), boundary);
        let mut fields = Self::default();
        while let Some(field) = form.next_field().await.map_err(wrong)? {
            let name = field.name().unwrap_or_default().to_owned();
            if field.file_name().is_some() {
                fields.files.push(field.bytes().await.map_err(wrong)?);
            } else {
                fields.values.insert(name, Value::String(field.text().await.map_err(wrong)?));
            }
        }
        Ok(fields)
    }

    pub(crate) fn files(&self) -> &[Bytes] {
        &self.files
    }

    pub(crate) fn value(&self, name: &str) -> Option<&Value> {
        self.values.get(name).filter(|value| !value.is_null())
    }

    /// A text that must be there.
    pub(crate) fn text(&self, name: &'static str) -> Result<&str, ApiError> {
        let text = self.value(name).ok_or_else(|| ApiError::malformed(format!("`{name}` is missing")).about(name))?;
        text.as_str().ok_or_else(|| ApiError::malformed(format!("`{name}` is no string")).about(name))
    }

    /// A text that need not be there.
    pub(crate) fn option(&self, name: &str) -> Option<&str> {
        self.value(name)?.as_str()
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        let value = self.value(name)?;
        value.as_u64().or_else(|| value.as_str()?.parse().ok())
    }

    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.value(name).is_some_and(|value| value == true || value == "true")
    }

    /// The texts of a field that has one or an array of them; an object's is its `text`.
    pub(crate) fn texts(&self, name: &'static str) -> Result<Vec<String>, ApiError> {
        let wrong = || ApiError::malformed(format!("`{name}` is no text and no array of texts")).about(name);
        let text = |value: &Value| value.as_str().or_else(|| value.get("text")?.as_str()).map(str::to_owned);
        let texts = match self.value(name).ok_or_else(wrong)? {
            Value::Array(items) => items.iter().map(text).collect(),
            value => text(value).map(|text| vec![text]),
        };
        texts.ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: &str = "--b\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nm\r\n\
        --b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\ncontent-type: audio/wav\r\n\r\n\0\x01\r\n\
        --b\r\ncontent-disposition: form-data; name=\"n\"\r\n\r\n2\r\n\
        --b\r\ncontent-disposition: form-data; name=\"stream\"\r\n\r\ntrue\r\n--b--\r\n";

    async fn read(content_type: &str, body: &'static str) -> Result<Fields, ApiError> {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, content_type.parse().unwrap())]);
        Fields::read(&headers, &Bytes::from_static(body.as_bytes())).await
    }

    #[tokio::test]
    async fn a_form_and_an_object_are_read_alike() {
        let form = read("multipart/form-data; boundary=b", FORM).await.unwrap();
        let json = read("application/json", r#"{"model":"m","n":2,"stream":true,"x":null}"#).await.unwrap();
        for fields in [&form, &json] {
            assert_eq!((fields.text("model").unwrap(), fields.number("n")), ("m", Some(2)));
            assert!(fields.is_set("stream") && !fields.is_set("x") && fields.text("x").is_err());
        }
        assert_eq!(form.files(), [Bytes::from_static(b"\0\x01")]);
    }

    #[tokio::test]
    async fn what_is_neither_is_refused() {
        for (content_type, body) in [
            ("application/json", "["),
            ("application/json", "[]"),
            ("multipart/form-data", FORM),
            ("multipart/form-data; boundary=b", "--b\r\ncontent-dis"),
        ] {
            assert!(read(content_type, body).await.is_err(), "{content_type}");
        }
    }
}
