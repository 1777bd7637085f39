//! Delivery of messages: each destination has its own queue, so that one that hangs holds up no other.
//!
//! - A failed delivery is tried again after [`FIRST_RETRY`], then twice as long, up to [`MAX_RETRY`], for [`MAX_AGE`]:
//!   an alarm about a dead internet arrives when it is back.
//! - At most [`MAX_WAITING`] messages wait for a destination; the oldest are given up first.

mod command;
#[cfg(feature = "messages")]
mod mail;
#[cfg(feature = "messages")]
mod webhook;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::destination::{Destination, MailServer};
use crate::message::Message;

/// Delay until the first retry.
pub const FIRST_RETRY: Duration = Duration::from_secs(5);
/// Longest delay until a retry.
pub const MAX_RETRY: Duration = Duration::from_secs(600);
/// Age at which a message is given up.
pub const MAX_AGE: Duration = Duration::from_secs(24 * 3600);
/// Messages that wait for one destination.
pub const MAX_WAITING: usize = 64;
/// Time for one attempt.
pub const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);

/// Delivers a message once.
///
/// # Errors
/// Why it was not taken, for people.
pub async fn deliver(
    destination: &Destination,
    server: Option<&MailServer>,
    message: &Message,
) -> Result<(), String> {
    match destination {
        Destination::Command(words) => command::run(words, message).await,
        #[cfg(feature = "messages")]
        Destination::Webhook(url) => {
            blocking({
                let (url, message) = (url.clone(), message.clone());
                move || webhook::post(&url, &message)
            })
            .await
        }
        #[cfg(feature = "messages")]
        Destination::Mail(address) => {
            let server = server.ok_or("there is no [mail] in the configuration")?;
            let (address, server, message) = (address.clone(), server.clone(), message.clone());
            blocking(move || mail::send(&server, &address, &message)).await
        }
        #[cfg(not(feature = "messages"))]
        Destination::Webhook(_) | Destination::Mail(_) => {
            let _ = server;
            Err("this build has no webhooks and no e-mail, only commands".into())
        }
    }
}

#[cfg(feature = "messages")]
async fn blocking(
    attempt: impl FnOnce() -> Result<(), String> + Send + 'static,
) -> Result<(), String> {
    match tokio::task::spawn_blocking(attempt).await {
        Ok(outcome) => outcome,
        Err(error) => Err(error.to_string()),
    }
}

/// Messages under way to their destinations.
#[derive(Debug, Default)]
pub struct Deliveries {
    queues: BTreeMap<Destination, DeliveryQueue>,
}

#[derive(Debug)]
struct DeliveryQueue {
    shared: Arc<Shared>,
    worker: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<QueueState>,
    added: Notify,
}

#[derive(Debug, Default)]
struct QueueState {
    waiting: VecDeque<(Instant, Message)>,
    server: Option<MailServer>,
    error: Option<String>,
}

impl Shared {
    fn with<T>(&self, change: impl FnOnce(&mut QueueState) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Deliveries {
    /// Hands a message over.
    pub fn send(
        &mut self,
        destination: &Destination,
        server: Option<&MailServer>,
        message: Message,
    ) {
        let new = || {
            let shared = Arc::new(Shared::default());
            let worker = tokio::spawn(work(destination.clone(), Arc::clone(&shared)));
            DeliveryQueue { shared, worker }
        };
        let queue = self.queues.entry(destination.clone()).or_insert_with(new);
        queue.shared.with(|state| {
            state.server = server.cloned();
            if state.waiting.len() == MAX_WAITING {
                tracing::warn!(
                    destination = destination.display(),
                    "an alarm's message is given up: too many wait"
                );
                state.waiting.pop_front();
            }
            state.waiting.push_back((Instant::now(), message));
        });
        queue.shared.added.notify_one();
    }

    /// Ends deliveries to destinations that are not configured any more.
    pub fn retain(&mut self, configured: impl Fn(&Destination) -> bool) {
        self.queues.retain(|destination, queue| {
            let stays = configured(destination);
            if !stays {
                queue.worker.abort();
            }
            stays
        });
    }

    /// Returns the messages that wait, oldest first for each destination.
    #[must_use]
    pub fn waiting(&self) -> Vec<(Destination, Message)> {
        let waiting = self.queues.iter().flat_map(|(destination, queue)| {
            let messages: Vec<Message> = queue.shared.with(|state| {
                state
                    .waiting
                    .iter()
                    .map(|(_, message)| message.clone())
                    .collect()
            });
            messages
                .into_iter()
                .map(|message| (destination.clone(), message))
        });
        waiting.collect()
    }

    /// Returns the destinations whose last attempt failed, with the error.
    #[must_use]
    pub fn failing(&self) -> Vec<(Destination, String)> {
        let failing = self.queues.iter().filter_map(|(destination, queue)| {
            let error = queue.shared.with(|state| state.error.clone())?;
            Some((destination.clone(), error))
        });
        failing.collect()
    }
}

impl Drop for Deliveries {
    fn drop(&mut self) {
        self.queues.values().for_each(|queue| queue.worker.abort());
    }
}

/// Delivers one destination's messages in order.
async fn work(destination: Destination, shared: Arc<Shared>) {
    let mut retry = FIRST_RETRY;
    loop {
        let next = shared.with(|state| {
            let (since, message) = state.waiting.front().cloned()?;
            Some((since, message, state.server.clone()))
        });
        let Some((since, message, server)) = next else {
            shared.added.notified().await;
            continue;
        };
        let outcome = deliver(&destination, server.as_ref(), &message).await;
        let given_up = since.elapsed() >= MAX_AGE;
        shared.with(|state| {
            // A flood may have pushed it out meanwhile.
            let same = state
                .waiting
                .front()
                .is_some_and(|(_, first)| *first == message);
            if same && (outcome.is_ok() || given_up) {
                state.waiting.pop_front();
            }
            state.error = outcome.as_ref().err().cloned();
        });
        match outcome {
            Ok(()) => retry = FIRST_RETRY,
            Err(error) => {
                tracing::warn!(destination = destination.display(), %error, "an alarm's message was not taken");
                sleep(retry).await;
                retry = (retry * 2).min(MAX_RETRY);
            }
        }
    }
}
