//! `GET /v1/history`: the last day of an uplink.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};

use super::{Answer, ApiState, parsed_query};
use crate::report::{HistoryQuestion, HistoryReport};

pub(super) async fn history(
    State(api): State<ApiState>,
    query: Result<Query<HistoryQuestion>, QueryRejection>,
) -> Answer<HistoryReport> {
    let question = parsed_query(query)?;
    api.ask(move |engine| engine.history(&question)).await
}
