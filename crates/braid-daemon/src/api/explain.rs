//! `GET /v1/explain`: the uplink that a flow takes, and why; `GET /v1/lookup`: the addresses to ask about.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use braid_host::user_error::UserError;

use super::{Answer, ApiError, ApiState, parsed_query};
use crate::name_lookup::resolve;
use crate::plumbing::own_route::own_route;
use crate::report::{ExplainQuestion, ExplainReport, LookupQuestion, LookupReport};

pub(super) async fn explain(
    State(api): State<ApiState>,
    query: Result<Query<ExplainQuestion>, QueryRejection>,
) -> Answer<ExplainReport> {
    let question = parsed_query(query)?;
    if question
        .source
        .is_some_and(|source| source.is_ipv4() != question.destination.is_ipv4())
    {
        let text = "the source and the destination are of different IP versions";
        return Err(ApiError(UserError::new("usage", text)));
    }
    let route = own_route(question.destination).await.map_err(ApiError)?;
    let back = match question.source {
        None => None,
        Some(source) => own_route(source).await.map_err(ApiError)?,
    };
    api.ask(move |engine| {
        let route = route.as_ref().map(|route| route.text.as_str());
        engine.explain(&question, route, back.as_ref())
    })
    .await
}

pub(super) async fn lookup(
    query: Result<Query<LookupQuestion>, QueryRejection>,
) -> Answer<LookupReport> {
    let LookupQuestion { name } = parsed_query(query)?;
    let found = resolve(name.as_str(), 0).await.map_err(|why| {
        let failure = UserError::new("not-found", format!("{name} has no address: {why}"));
        ApiError(failure.fix("check the spelling, or ask for an address"))
    })?;
    let mut addresses: Vec<_> = found.into_iter().map(|found| found.ip()).collect();
    addresses.sort();
    addresses.dedup();
    Ok(Json(LookupReport { name, addresses }))
}
