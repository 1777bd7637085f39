//! `/v1/alarms`: alarms.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};

use super::{Answer, ApiError, ApiState, parsed_query, put};
use crate::report::{AlarmTestQuestion, AlarmTestReport, AlarmsReport};

pub(super) async fn list(State(api): State<ApiState>) -> Answer<AlarmsReport> {
    api.ask(|engine| Ok(engine.alarms_report())).await
}

/// Sends the messages outside of the loop: a destination may take half a minute to fail.
pub(super) async fn test(
    State(api): State<ApiState>,
    question: Result<Query<AlarmTestQuestion>, QueryRejection>,
) -> Answer<AlarmTestReport> {
    let question = parsed_query(question)?;
    let trial = put(&api.jobs, move |engine| {
        engine.alarm_trial(question.name.as_deref())
    });
    Ok(Json(trial.await.map_err(ApiError)?.run().await))
}
