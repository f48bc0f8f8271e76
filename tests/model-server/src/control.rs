//! The paths beside the models': health, metrics, and `/sim`, where tests read the journal and arm faults. They are neither recorded nor counted.

use std::sync::Arc;

use axum::{
    Json,
    body::to_bytes,
    extract::Request,
    http::{Method, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};
use serde::Deserialize;

use crate::{
    dialect::{ApiError, Dialect},
    faults::{Fault, FaultSpan},
    server::Server,
};

/// The largest body of a control request.
const MAX_BODY_BYTES: usize = 64 * 1024;

pub(crate) async fn serve(server: &Arc<Server>, request: Request) -> Response {
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/health") => StatusCode::OK.into_response(),
        (&Method::GET, "/metrics") => {
            let page = server.figures.page(&server.config, server.journal.total());
            ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response()
        }
        (&Method::GET, "/sim/requests") => Json(server.journal.records()).into_response(),
        (&Method::DELETE, "/sim/requests") => {
            server.journal.clear();
            StatusCode::NO_CONTENT.into_response()
        }
        (&Method::PUT, "/sim/fault") => match arm(server, request).await {
            Ok(()) => StatusCode::NO_CONTENT.into_response(),
            Err(error) => refuse(&error),
        },
        (&Method::DELETE, "/sim/fault") => {
            server.armed_fault.clear();
            StatusCode::NO_CONTENT.into_response()
        }
        (_, path) => refuse(&ApiError::unknown_path(path)),
    }
}

/// The body of `PUT /sim/fault`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arming {
    /// As in the header `x-sim-fault`.
    fault: String,
    /// How many exchanges it lasts for; without it, until it is cleared.
    requests: Option<u64>,
}

async fn arm(server: &Server, request: Request) -> Result<(), ApiError> {
    let wrong = |error: &dyn std::error::Error| ApiError::malformed(format!("no fault was armed: {error}"));
    let body = to_bytes(request.into_body(), MAX_BODY_BYTES).await.map_err(|error| wrong(&error))?;
    let arming: Arming = serde_json::from_slice(&body).map_err(|error| wrong(&error))?;
    let fault: Fault = arming.fault.parse().map_err(|error| wrong(&error))?;
    server.armed_fault.arm(fault, arming.requests.map_or(FaultSpan::UntilCleared, FaultSpan::Exchanges));
    Ok(())
}

fn refuse(error: &ApiError) -> Response {
    (error.status, Json(error.body(Dialect::OpenAi))).into_response()
}
