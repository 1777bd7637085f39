//! `/v1/measurements`: results of measurements.

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;

use super::{Answer, ApiState, parsed_body};
use crate::report::{MeasurementRequest, UplinkReport};

pub(super) async fn note(
    State(api): State<ApiState>,
    body: Result<Json<MeasurementRequest>, JsonRejection>,
) -> Answer<UplinkReport> {
    let measured = parsed_body(body)?;
    api.change(move |engine| engine.note_measurement(&measured))
        .await
}
