//! All requests of the API.

use axum::extract::State;
use braid_host::api_table::{ApiInfo, ApiRequest};
use braid_host::metrics::CONTENT_TYPE as OPEN_METRICS;
use braid_host::web::{TokenReport, TokenRequest};

use super::{
    ApiState, alarms, bond, down, events, explain, failback, flows, history, measurements, pauses,
    reload, runs, scrape, stream, version, web,
};
use crate::config::Config;
use crate::engine::Engine;
use crate::report::{
    AlarmTestQuestion, AlarmTestReport, AlarmsReport, BondReport, DownReport, EventsReport,
    ExplainQuestion, ExplainReport, FlowsQuestion, FlowsReport, HistoryQuestion, HistoryReport,
    JoinRequest, LookupQuestion, LookupReport, MeasurementRequest, PathsReport, RulePauseRequest,
    RulesReport, RunRequest, RunsReport, StatusReport, UplinkPauseRequest, UplinkReport,
    UplinksReport, VersionReport,
};

pub(crate) const INFO: ApiInfo = ApiInfo {
    title: "Braid's local API",
    description: "HTTP and JSON on the Unix socket /run/braid/braid.sock, for root and the groups of [api]. \
        Requests with x-page are also behind the page for browsers, for sessions of that role; those that \
        change something need the session's X-CSRF-Token there.",
};

type Request = ApiRequest<ApiState>;

/// Returns the table: what everybody may see who may see anything, what an operator of the page may change, and what is
/// for the socket alone.
pub(crate) fn requests() -> Vec<Request> {
    let mut all = showing();
    all.extend(changing());
    all.extend(private());
    all
}

fn showing() -> Vec<Request> {
    let all = [
        Request::get(
            "/v1/status",
            "Shows uplinks, flows, the bond and health problems",
            |State(api): State<ApiState>| async move { api.ask(Engine::status).await },
        )
        .answers::<StatusReport>(),
        Request::get(
            "/v1/uplinks",
            "Shows every uplink",
            |State(api): State<ApiState>| async move { api.ask(Engine::uplinks).await },
        )
        .answers::<UplinksReport>(),
        Request::get("/v1/flows", "Shows flows, all or some", flows::flows)
            .asks::<FlowsQuestion>()
            .answers::<FlowsReport>(),
        Request::get(
            "/v1/paths",
            "Shows the path cache",
            |State(api): State<ApiState>| async move { api.ask(Engine::paths).await },
        )
        .answers::<PathsReport>(),
        Request::get(
            "/v1/history",
            "Shows the last day of an uplink",
            history::history,
        )
        .asks::<HistoryQuestion>()
        .answers::<HistoryReport>(),
        Request::get("/v1/bond", "Shows the bond", bond::show).answers::<BondReport>(),
        Request::get(
            "/v1/rules",
            "Shows the rules of the configuration",
            pauses::rules,
        )
        .answers::<RulesReport>(),
        Request::get(
            "/v1/events",
            "Shows events, and waits for the next",
            events::events,
        )
        .asks::<events::Since>()
        .answers::<EventsReport>(),
        Request::get(
            "/v1/stream",
            "Shows snapshots and events as they come, as server-sent events",
            stream::stream,
        )
        .answers_as("text/event-stream"),
        Request::get(
            "/v1/explain",
            "Explains which uplink a flow takes, and why",
            explain::explain,
        )
        .asks::<ExplainQuestion>()
        .answers::<ExplainReport>(),
        Request::get(
            "/v1/lookup",
            "Looks up the addresses of a name",
            explain::lookup,
        )
        .asks::<LookupQuestion>()
        .answers::<LookupReport>(),
        Request::get("/v1/version", "Shows versions", version).answers::<VersionReport>(),
    ];
    all.into_iter().map(Request::on_page).collect()
}

fn changing() -> Vec<Request> {
    let all = [
        Request::post(
            "/v1/failback",
            "Returns new flows to uplinks that failback holds back",
            failback,
        )
        .answers::<UplinksReport>(),
        Request::post("/v1/reload", "Reads the configuration again", reload)
            .answers::<UplinksReport>(),
        Request::post(
            "/v1/uplinks/{name}/pause",
            "Sets an uplink aside",
            pauses::pause_uplink,
        )
        .takes::<UplinkPauseRequest>()
        .answers::<UplinksReport>(),
        Request::delete(
            "/v1/uplinks/{name}/pause",
            "Uses an uplink again that was set aside",
            pauses::resume_uplink,
        )
        .answers::<UplinksReport>(),
        Request::post(
            "/v1/rules/{name}/pause",
            "Switches a rule off",
            pauses::pause_rule,
        )
        .takes::<RulePauseRequest>()
        .answers::<RulesReport>(),
        Request::delete(
            "/v1/rules/{name}/pause",
            "Switches a rule on again",
            pauses::resume_rule,
        )
        .answers::<RulesReport>(),
        Request::post(
            "/v1/alarms/test",
            "Sends a message to each destination of alarms",
            alarms::test,
        )
        .asks::<AlarmTestQuestion>()
        .answers::<AlarmTestReport>(),
    ];
    all.into_iter().map(Request::on_page).collect()
}

/// The configuration and the alarms may hold secrets, and the rest is for those who may administer the machine.
fn private() -> Vec<Request> {
    vec![
        Request::get(
            "/v1/config",
            "Shows the configuration in force",
            |State(api): State<ApiState>| async move {
                api.ask(|engine| Ok(engine.settings.config.clone())).await
            },
        )
        .answers::<Config>(),
        Request::get(
            "/v1/metrics",
            "Shows metrics for Prometheus",
            |State(api): State<ApiState>| async move { scrape(&api.jobs).await },
        )
        .answers_as(OPEN_METRICS),
        Request::get("/v1/alarms", "Shows alarms", alarms::list).answers::<AlarmsReport>(),
        Request::get(
            "/v1/runs",
            "Shows programs that run on one uplink",
            runs::list,
        )
        .answers::<RunsReport>(),
        Request::post(
            "/v1/runs",
            "Directs the flows of a control group to one uplink",
            runs::begin,
        )
        .takes::<RunRequest>()
        .answers::<RunRequest>(),
        Request::delete("/v1/runs/{id}", "Ends a run", runs::end).answers::<RunRequest>(),
        Request::post(
            "/v1/measurements",
            "Takes the result of a measurement as an uplink's capacity",
            measurements::note,
        )
        .takes::<MeasurementRequest>()
        .answers::<UplinkReport>(),
        Request::post("/v1/bond", "Joins a hub", bond::join)
            .takes::<JoinRequest>()
            .answers::<BondReport>(),
        Request::delete("/v1/bond", "Leaves the hub", bond::leave).answers::<BondReport>(),
        Request::post(
            "/v1/web/token",
            "Shows or replaces a login token of the page",
            web::token,
        )
        .takes::<TokenRequest>()
        .answers::<TokenReport>(),
        Request::post("/v1/down", "Undoes all changes and ends the daemon", down)
            .answers::<DownReport>(),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    fn document() -> serde_json::Value {
        braid_host::api_table::document(INFO, &requests())
    }

    /// `BLESS=1 cargo test -p braid-daemon` writes it anew; read the difference before you commit it.
    #[test]
    fn the_documented_api_is_the_real_one() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
        let document = serde_json::to_string_pretty(&document()).unwrap() + "\n";
        if std::env::var_os("BLESS").is_some() {
            fs::write(&path, &document).unwrap();
        }
        let documented = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            documented == document,
            "docs/openapi.json differs from the API"
        );
    }

    #[test]
    fn the_schema_has_every_path_and_no_other() {
        let document = document();
        let paths = document["paths"].as_object().unwrap().keys();
        let paths: BTreeSet<&str> = paths.map(String::as_str).collect();
        let schema = serde_json::to_value(crate::report::schema()).unwrap();
        let requests = schema["properties"].as_object().unwrap().keys();
        let words = requests.flat_map(|request| request.split([' ', ',']));
        let mut named: BTreeSet<&str> = words.filter(|word| word.starts_with("/v1/")).collect();
        // They answer with no JSON of ours, or only with these messages.
        named.extend(["/v1/metrics", "/v1/openapi.json"]);
        assert_eq!(paths, named);
    }
}
