//! `/v1/runs`: programs that run on one uplink.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{Path, State};
use braid_host::user_error::UserError;
use tokio::sync::oneshot;

use super::{Answer, ApiError, ApiState, Job, change, malformed, parsed_body, pass};
use crate::report::{RunRequest, RunsReport};

/// Time for a bridge to obey the rule of a run.
const EFFECT_TIMEOUT: Duration = Duration::from_secs(5);

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
    let id = run.id;
    let begun = api.change(move |engine| engine.begin_run(run)).await?;
    if let Err(failure) = wait_for_effect(&api).await {
        // Its program would run without its rule. That the run is gone already is as good.
        let _ = change(&api.jobs, move |engine| engine.end_run(id)).await;
        return Err(ApiError(failure));
    }
    Ok(begun)
}

/// Waits until the datapath obeys the rules of all runs.
async fn wait_for_effect(api: &ApiState) -> Result<(), UserError> {
    let (answer, told) = oneshot::channel();
    let Some(acceptance) = pass(&api.jobs, Job::TellSenders(answer), told).await? else {
        return Ok(());
    };
    if acceptance.wait(EFFECT_TIMEOUT).await {
        return Ok(());
    }
    let text = "the bridge does not follow the program's rule";
    Err(UserError::new("openflow", text).fix("see braid status"))
}

pub(super) async fn end(
    State(api): State<ApiState>,
    id: Result<Path<u64>, PathRejection>,
) -> Answer<RunRequest> {
    let Path(id) = id.map_err(|why| malformed(UserError::new("usage", why.body_text())))?;
    api.change(move |engine| engine.end_run(id)).await
}
