//! Alarms: when they are raised and cleared, and how people are told.
//!
//! - [`state`]: an alarm is raised when its condition has held for long enough, and cleared when it has been over for
//!   long enough. One that keeps changing is called unstable once, and is silent until it rests.
//! - [`message`]: all changes of a moment go in one message.
//! - [`delivery`]: a message goes to each destination, again and again until it is taken.

pub mod delivery;
pub mod destination;
pub mod message;
pub mod state;

pub use destination::{Destination, MailServer};
pub use message::{Message, MessageLine};
pub use state::{AlarmChange, AlarmState, Alarms, Observation, RaisedAlarm};
