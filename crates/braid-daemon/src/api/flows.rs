//! `GET /v1/flows`: all flows, or a part of them.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};

use super::{Answer, ApiState, parsed_query};
use crate::report::{FlowsQuestion, FlowsReport};

pub(super) async fn flows(
    State(api): State<ApiState>,
    query: Result<Query<FlowsQuestion>, QueryRejection>,
) -> Answer<FlowsReport> {
    let question = parsed_query(query)?;
    api.ask(move |engine| engine.flows(&question)).await
}
