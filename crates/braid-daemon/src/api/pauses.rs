//! `/v1/uplinks/{name}/pause` and `/v1/rules`: uplinks that are set aside, and rules that are switched off.

use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{Path, State};
use axum::{Extension, Json};
use braid_host::user_error::UserError;
use braid_host::web::LiveSession;
use tokio::sync::oneshot;

use super::{Answer, ApiError, ApiState, Job, change, malformed, parsed_body};
use crate::report::{
    PauseOrigin, RulePauseRequest, RulesReport, UplinkPauseRequest, UplinksReport,
};

type Named = Result<Path<String>, PathRejection>;
type Session = Option<Extension<LiveSession>>;

pub(super) async fn pause_uplink(
    State(api): State<ApiState>,
    name: Named,
    session: Session,
    body: Result<Json<UplinkPauseRequest>, JsonRejection>,
) -> Answer<UplinksReport> {
    let (name, by, request) = (parsed(name)?, origin(&session), parsed_body(body)?);
    api.change(move |engine| engine.pause_uplink(&name, &request, by))
        .await
}

pub(super) async fn resume_uplink(
    State(api): State<ApiState>,
    name: Named,
    session: Session,
) -> Answer<UplinksReport> {
    let (name, by) = (parsed(name)?, origin(&session));
    api.change(move |engine| engine.resume_uplink(&name, by))
        .await
}

pub(super) async fn rules(State(api): State<ApiState>) -> Answer<RulesReport> {
    api.ask(|engine| Ok(engine.rules_report())).await
}

pub(super) async fn pause_rule(
    State(api): State<ApiState>,
    name: Named,
    session: Session,
    body: Result<Json<RulePauseRequest>, JsonRejection>,
) -> Answer<RulesReport> {
    let (name, by, request) = (parsed(name)?, origin(&session), parsed_body(body)?);
    let paused = change(&api.jobs, move |engine| {
        engine.pause_rule(&name, &request, by)
    });
    paused.await.map_err(ApiError)?;
    follow_rules(&api).await
}

pub(super) async fn resume_rule(
    State(api): State<ApiState>,
    name: Named,
    session: Session,
) -> Answer<RulesReport> {
    let (name, by) = (parsed(name)?, origin(&session));
    let resumed = change(&api.jobs, move |engine| engine.resume_rule(&name, by));
    resumed.await.map_err(ApiError)?;
    follow_rules(&api).await
}

async fn follow_rules(api: &ApiState) -> Answer<RulesReport> {
    let (answer, answered) = oneshot::channel();
    api.pass(Job::FollowRules(answer), answered).await
}

fn parsed(name: Named) -> Result<String, ApiError> {
    let parsed = name.map(|Path(name)| name);
    parsed.map_err(|why| malformed(UserError::new("usage", why.body_text())))
}

/// A request of the page comes with a session.
fn origin(session: &Session) -> PauseOrigin {
    match session {
        Some(_) => PauseOrigin::Page,
        None => PauseOrigin::CommandLine,
    }
}
