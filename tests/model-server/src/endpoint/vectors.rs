//! Embeddings, and what is made of comparing texts: reranking and scores.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use super::{Answer, Exchange, RerankForm};
use crate::{
    content::{embedding, similarity},
    dialect::{ApiError, Call, VectorFormat, usage_json},
    prompt::Prompt,
};

pub(super) async fn embed(exchange: &Exchange<'_>) -> Result<Answer, ApiError> {
    let call = Call::parse(exchange.body)?;
    exchange.serves(&call.model)?;
    let prompts = call.inputs()?;
    let format = call.vector_format()?;
    let usage = exchange.compute(&prompts).await;
    let vectors = prompts.iter().map(embedding).map(|vector| match format {
        VectorFormat::Numbers => json!(vector),
        VectorFormat::Base64 => {
            let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
            json!(BASE64_STANDARD.encode(bytes))
        }
    });
    let data = vectors.enumerate();
    let data = data.map(|(index, vector)| json!({"index": index, "object": "embedding", "embedding": vector}));
    let mut body = exchange.envelope(&call.model).list("embd-", "list", "data", data.collect());
    body.insert("usage".to_owned(), usage_json(usage));
    Ok(Answer::Json(Value::Object(body)))
}

/// Each document is computed with the query before it.
pub(super) async fn rerank(exchange: &Exchange<'_>, form: RerankForm) -> Result<Answer, ApiError> {
    let fields = exchange.fields().await?;
    let query = fields.text("query")?;
    let documents = fields.texts("documents")?;
    let prompts: Vec<Prompt> = documents.iter().map(|document| Prompt::from_pair(query, document)).collect();
    let tokens = exchange.compute(&prompts).await.prompt_tokens;
    let mut ranked: Vec<(usize, &String, f64)> = documents
        .iter()
        .zip(&prompts)
        .enumerate()
        .map(|(index, (document, prompt))| (index, document, similarity(prompt)))
        .collect();
    ranked.sort_by(|left, right| right.2.total_cmp(&left.2));
    ranked.truncate(fields.number("top_n").map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX)));
    let model = fields.text("model")?;
    let id = exchange.envelope(model).id("rerank-");
    Ok(Answer::Json(match form {
        RerankForm::Jina => {
            let results = ranked.iter().map(|(index, document, score)| {
                json!({"index": index, "document": {"text": document}, "relevance_score": score})
            });
            json!({
                "id": id,
                "model": model,
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
                "results": results.collect::<Vec<_>>(),
            })
        }
        RerankForm::Cohere => {
            let results = ranked.iter().map(|(index, _, score)| json!({"index": index, "relevance_score": score}));
            // A search unit is a query with up to 100 documents.
            let units = documents.len().div_ceil(100);
            json!({
                "id": id,
                "results": results.collect::<Vec<_>>(),
                "meta": {
                    "api_version": {"version": "2"},
                    "billed_units": {"search_units": units},
                    "tokens": {"input_tokens": tokens},
                },
            })
        }
    }))
}

/// One text with each of the others, or as many with as many.
pub(super) async fn score(exchange: &Exchange<'_>) -> Result<Answer, ApiError> {
    let fields = exchange.fields().await?;
    let (left, right) = (fields.texts("text_1")?, fields.texts("text_2")?);
    if left.len() != 1 && left.len() != right.len() {
        return Err(ApiError::malformed("`text_1` has one text, or as many as `text_2`").about("text_1"));
    }
    let pairs = left.iter().cycle().zip(&right);
    let prompts: Vec<Prompt> = pairs.map(|(left, right)| Prompt::from_pair(left, right)).collect();
    let tokens = exchange.compute(&prompts).await.prompt_tokens;
    let scores = prompts.iter().map(similarity).enumerate();
    let data = scores.map(|(index, score)| json!({"index": index, "object": "score", "score": score}));
    let mut body = exchange.envelope(fields.text("model")?).list("score-", "list", "data", data.collect());
    let usage =
        json!({"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": null});
    body.insert("usage".to_owned(), usage);
    Ok(Answer::Json(Value::Object(body)))
}
