//! Forms: their `model`, and what takes its place.

use std::convert::Infallible;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use attache_proto::multipart::{is_form, scan};
use attache_proto::request::{ModelSyntax, UsageEvent};
use bytes::Bytes;
use multer::Multipart;

use crate::edited::edited;
use crate::head::Head;

/// The name that forms are made to ask for: what JSON would escape stands in a form as it is.
const TARGET: &str = "team/\"the\" model";

/// Of a form that passes, the value of `model` is replaced and no other byte; no other parser finds another model in it.
///
/// The first line of an input is the `content-type`.
pub fn multipart(input: &[u8]) {
    let Some((head, input)) = Head::split(input) else { return };
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let (content_type, body) = input.split_at(end);
    let Ok(content_type) = str::from_utf8(content_type) else { return };
    let body = body.get(1..).unwrap_or_default();
    let Ok(form) = scan(content_type, body) else { return };

    let span = form.model_span.clone();
    let (before, after) = (body.get(..span.start).unwrap_or_default(), body.get(span.end..).unwrap_or_default());
    assert_eq!(body.get(span), Some(form.model.as_bytes()));
    assert_eq!(form.model_syntax, ModelSyntax::FormField);
    assert!(form.segments.len() <= 1, "only the prompt is text that matters");
    let prompt = form.segments.first().map(|segment| segment.text(body));

    let asked = edited(form.edits(TARGET, UsageEvent::Ask), body, head.cuts());
    assert_eq!(asked, [before, TARGET.as_bytes(), after].concat());
    assert_eq!(edited(form.edits(&form.model, UsageEvent::Ask), body, head.cuts()), body, "it asks for that already");
    let again = scan(content_type, &asked);
    assert!(again.is_ok(), "no value makes it another form: {again:?}");
    if let Ok(again) = again {
        assert_eq!((again.model.as_str(), again.stream), (TARGET, form.stream));
        assert_eq!(again.segments.first().map(|segment| segment.text(&asked)), prompt);
    }
    if is_form(content_type)
        && let Some(models) = models_by_multer(content_type, body)
    {
        assert!(models.iter().all(|model| *model == form.model), "another parser finds {models:?}");
    }
}

/// The values of all fields of that name, by a parser that has nothing in common with ours, and finds some that are there in no
/// grammar; `None` where it takes no such form.
fn models_by_multer(content_type: &str, body: &[u8]) -> Option<Vec<Bytes>> {
    let boundary = multer::parse_boundary(content_type).ok()?;
    let body = Ok::<_, Infallible>(Bytes::copy_from_slice(body));
    at_once(async {
        let mut form = Multipart::new(futures_util::stream::iter([body]), boundary);
        let mut models = Vec::new();
        while let Some(field) = form.next_field().await.ok()? {
            if field.name() == Some("model") {
                models.push(field.bytes().await.ok()?);
            }
        }
        Some(models)
    })
}

/// What comes of a future that waits for nobody.
fn at_once<T>(future: impl Future<Output = Option<T>>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => None,
    }
}
