//! `/v1/alarms`: alarms.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};

use braid_host::user_error::UserError;

use super::{Answer, ApiError, ApiState, parsed_query, put};
use crate::report::{AlarmTestQuestion, AlarmTestReport, AlarmsReport};

pub(super) async fn list(State(api): State<ApiState>) -> Answer<AlarmsReport> {
    api.ask(|engine| Ok(engine.alarms_report())).await
}

/// Sends the messages beside the loop: a destination may take half a minute to fail. It is the loop's runtime that does so, not
/// the page's thread, which has no privileges and would start a command without any.
pub(super) async fn test(
    State(api): State<ApiState>,
    question: Result<Query<AlarmTestQuestion>, QueryRejection>,
) -> Answer<AlarmTestReport> {
    let question = parsed_query(question)?;
    let trial = put(&api.jobs, move |engine| {
        let trial = engine.alarm_trial(question.name.as_deref())?;
        Ok(tokio::spawn(trial.run()))
    });
    let report = trial.await.map_err(ApiError)?.await;
    Ok(Json(report.map_err(|error| {
        ApiError(UserError::new("internal", error.to_string()))
    })?))
}
