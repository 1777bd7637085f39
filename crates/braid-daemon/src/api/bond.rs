//! `/v1/bond`: the way over all uplinks at once.

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;

use super::{Answer, Desk, Refusal};
use crate::engine::Engine;
use crate::failure::Failure;
use crate::report::{BondReport, JoinRequest};

pub(super) async fn show(State(desk): State<Desk>) -> Answer<BondReport> {
    desk.ask(Engine::bond_report).await
}

pub(super) async fn join(
    State(desk): State<Desk>,
    body: Result<Json<JoinRequest>, JsonRejection>,
) -> Answer<BondReport> {
    let Json(join) = body.map_err(|why| {
        let fix = "docs/api.schema.json describes what is wanted";
        Refusal(Failure::new("usage", why.body_text()).fix(fix))
    })?;
    desk.change(move |engine| engine.join_bond(&join.token))
        .await
}

pub(super) async fn leave(State(desk): State<Desk>) -> Answer<BondReport> {
    desk.change(Engine::leave_bond).await
}
