//! `/v1/bond`: the bond.

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;

use super::{Answer, ApiState, parsed_body};
use crate::engine::Engine;
use crate::report::{BondReport, JoinRequest};

pub(super) async fn show(State(api): State<ApiState>) -> Answer<BondReport> {
    api.ask(Engine::bond_report).await
}

pub(super) async fn join(
    State(api): State<ApiState>,
    body: Result<Json<JoinRequest>, JsonRejection>,
) -> Answer<BondReport> {
    let join = parsed_body(body)?;
    api.change(move |engine| engine.join_bond(&join.token))
        .await
}

pub(super) async fn leave(State(api): State<ApiState>) -> Answer<BondReport> {
    api.change(Engine::leave_bond).await
}
