//! `GET /v1/stream`: the state of now, again and again, for pages that show it live.
//!
//! A snapshot is made once a second for all viewers together, and at once after an event; without a viewer
//! none is made. A viewer that reads slowly misses snapshots, never events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName};
use axum::response::{IntoResponse, Response};
use braid_host::web::LiveSession;
use futures_util::stream::unfold;
use serde::Serialize;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::{ApiState, Job, put};

/// Time between two snapshots.
const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(1);
/// Least time between two, when events follow each other.
const EVENT_PAUSE: Duration = Duration::from_millis(100);
/// Events that a new viewer gets.
const MAX_PAST_EVENTS: usize = 200;
/// Number of the last event that a browser had before its connection broke (HTML, server-sent events).
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The current frame, as all viewers get it.
#[derive(Clone)]
pub(crate) struct LiveFeed(Arc<Shared>);

struct Shared {
    frames: watch::Sender<Frame>,
    /// Signals that there is a viewer.
    arrival: Notify,
}

/// A snapshot and the latest events, as text of the stream.
#[derive(Clone, Default)]
struct Frame {
    /// False before the first.
    made: bool,
    snapshot: Bytes,
    events: Arc<VecDeque<(u64, Bytes)>>,
}

impl LiveFeed {
    pub fn new() -> LiveFeed {
        LiveFeed(Arc::new(Shared {
            frames: watch::Sender::new(Frame::default()),
            arrival: Notify::new(),
        }))
    }

    /// Makes frames while there are viewers, until the loop ends.
    pub async fn make(self, jobs: mpsc::Sender<Job>) {
        let started = Instant::now();
        let mut events: Arc<VecDeque<(u64, Bytes)>> = Arc::default();
        loop {
            while self.0.frames.receiver_count() == 0 {
                self.0.arrival.notified().await;
            }
            let made = Instant::now();
            let after = events.back().map_or(0, |(number, _)| *number);
            let up = made - started;
            let read = put(&jobs, move |engine| {
                let latest = engine.latest_event();
                Ok((engine.snapshot(up)?, engine.events(after), latest))
            });
            let mut latest = match read.await {
                Ok((snapshot, news, latest)) => {
                    let known = Arc::make_mut(&mut events);
                    known.extend(news.iter().map(|event| {
                        let id = format!("id: {}\n", event.number);
                        (event.number, message(&id, "event", event))
                    }));
                    let excess = known.len().saturating_sub(MAX_PAST_EVENTS);
                    known.drain(..excess);
                    self.0.frames.send_replace(Frame {
                        made: true,
                        snapshot: message("", "snapshot", &snapshot),
                        events: events.clone(),
                    });
                    latest
                }
                Err(failure) if failure.code == "ending" => return,
                Err(failure) => {
                    tracing::debug!(%failure, "no snapshot");
                    sleep_until(made + SNAPSHOT_INTERVAL).await;
                    continue;
                }
            };
            tokio::select! {
                () = sleep_until(made + SNAPSHOT_INTERVAL) => {}
                changed = latest.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    sleep(EVENT_PAUSE.saturating_sub(made.elapsed())).await;
                }
            }
        }
    }

    fn subscribe(&self) -> watch::Receiver<Frame> {
        // While others watch, the latest frame is that of now.
        let watched = self.0.frames.receiver_count() > 0;
        let mut frames = self.0.frames.subscribe();
        if watched && frames.borrow().made {
            frames.mark_changed();
        }
        self.0.arrival.notify_one();
        frames
    }
}

fn message(id: &str, event: &str, data: &impl Serialize) -> Bytes {
    let data = serde_json::to_string(data).expect("reports are plain data");
    format!("{id}event: {event}\ndata: {data}\n\n").into()
}

/// One viewer.
struct Viewer {
    frames: watch::Receiver<Frame>,
    /// Number of the last event that it has.
    last: u64,
    session: Option<LiveSession>,
}

impl Viewer {
    /// Waits for the next frame, and returns what is new in it; none when the stream is over.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Viewer)> {
        self.frames.changed().await.ok()?;
        if self
            .session
            .as_ref()
            .is_some_and(|session| !session.holds())
        {
            return None;
        }
        let frame = self.frames.borrow_and_update().clone();
        let known = frame
            .events
            .partition_point(|(number, _)| *number <= self.last);
        let mut text = Vec::new();
        for (number, event) in frame.events.range(known..) {
            text.extend_from_slice(event);
            self.last = *number;
        }
        text.extend_from_slice(&frame.snapshot);
        Some((Ok(text.into()), self))
    }
}

pub(super) async fn stream(
    State(api): State<ApiState>,
    session: Option<Extension<LiveSession>>,
    headers: HeaderMap,
) -> Response {
    let last = headers
        .get(LAST_EVENT_ID)
        .and_then(|number| number.to_str().ok()?.parse().ok());
    let viewer = Viewer {
        frames: api.feed.subscribe(),
        last: last.unwrap_or(0),
        session: session.map(|Extension(session)| session),
    };
    let body = Body::from_stream(unfold(viewer, Viewer::next));
    ([(CONTENT_TYPE, "text/event-stream")], body).into_response()
}
