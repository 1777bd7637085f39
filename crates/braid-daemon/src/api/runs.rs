//! `/v1/runs`: programs that run on one uplink.

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{Path, State};

use super::{Answer, Desk, Refusal};
use crate::failure::Failure;
use crate::report::{RunRequest, RunsReport};

pub(super) async fn list(State(desk): State<Desk>) -> Answer<RunsReport> {
    desk.ask(|engine| {
        Ok(RunsReport {
            runs: engine.runs.all().to_vec(),
        })
    })
    .await
}

pub(super) async fn begin(
    State(desk): State<Desk>,
    body: Result<Json<RunRequest>, JsonRejection>,
) -> Answer<RunRequest> {
    let Json(run) = body.map_err(|why| misunderstood(why.body_text()))?;
    desk.change(move |engine| engine.begin_run(run)).await
}

pub(super) async fn end(
    State(desk): State<Desk>,
    id: Result<Path<u64>, PathRejection>,
) -> Answer<RunRequest> {
    let Path(id) = id.map_err(|why| misunderstood(why.body_text()))?;
    desk.change(move |engine| engine.end_run(id)).await
}

fn misunderstood(why: String) -> Refusal {
    let fix = "docs/api.schema.json describes what is wanted";
    Refusal(Failure::new("usage", why).fix(fix))
}
