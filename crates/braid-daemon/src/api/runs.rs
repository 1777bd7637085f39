//! `/v1/runs`: programs that run on one uplink.

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{Path, State};
use braid_host::user_error::UserError;

use super::{Answer, ApiState, malformed, parsed_body};
use crate::report::{RunRequest, RunsReport};

pub(super) async fn list(State(api): State<ApiState>) -> Answer<RunsReport> {
    api.ask(|engine| {
        Ok(RunsReport {
            runs: engine.runs.all().to_vec(),
        })
    })
    .await
}

pub(super) async fn begin(
    State(api): State<ApiState>,
    body: Result<Json<RunRequest>, JsonRejection>,
) -> Answer<RunRequest> {
    let run = parsed_body(body)?;
    api.change(move |engine| engine.begin_run(run)).await
}

pub(super) async fn end(
    State(api): State<ApiState>,
    id: Result<Path<u64>, PathRejection>,
) -> Answer<RunRequest> {
    let Path(id) = id.map_err(|why| malformed(UserError::new("usage", why.body_text())))?;
    api.change(move |engine| engine.end_run(id)).await
}
