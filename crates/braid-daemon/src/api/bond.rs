//! `/v1/bond`: the bond.

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use braid_host::user_error::UserError;

use super::{Answer, ApiError, ApiState};
use crate::engine::Engine;
use crate::report::{BondReport, JoinRequest};

pub(super) async fn show(State(api): State<ApiState>) -> Answer<BondReport> {
    api.ask(Engine::bond_report).await
}

pub(super) async fn join(
    State(api): State<ApiState>,
    body: Result<Json<JoinRequest>, JsonRejection>,
) -> Answer<BondReport> {
    let Json(join) = body.map_err(|why| {
        let fix = "docs/api.schema.json describes what is wanted";
        ApiError(UserError::new("usage", why.body_text()).fix(fix))
    })?;
    api.change(move |engine| engine.join_bond(&join.token))
        .await
}

pub(super) async fn leave(State(api): State<ApiState>) -> Answer<BondReport> {
    api.change(Engine::leave_bond).await
}
