//! A cache for data that is slow to read, shared by requests at about the same time.
//!
//! A monitoring system, a status line and `braid top` may all ask every second, and reading a large
//! flow table holds up the loop that watches the uplinks.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Reads that take no longer than this are not cached: some ten thousand flows.
const CHEAP_READ: Duration = Duration::from_millis(5);
/// Minimum time between two slow reads.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Divisor of the largest fraction of time that goes into reading.
const READ_TIME_DIVISOR: u32 = 20;

/// The last slow read.
#[derive(Debug)]
pub struct CachedSnapshot<T>(RefCell<Option<Reading<T>>>);

#[derive(Debug)]
struct Reading<T> {
    contents: Rc<T>,
    /// Time from which it is read again.
    stale: Instant,
}

impl<T> Default for CachedSnapshot<T> {
    fn default() -> CachedSnapshot<T> {
        CachedSnapshot(RefCell::new(None))
    }
}

impl<T> CachedSnapshot<T> {
    /// Returns the cached data while it is fresh, else reads it. `clock` is called before and after.
    ///
    /// # Errors
    /// The error of reading.
    pub fn get_or_read<E>(
        &self,
        clock: impl Fn() -> Instant,
        read: impl FnOnce() -> Result<T, E>,
    ) -> Result<Rc<T>, E> {
        let begun = clock();
        let last = self.0.borrow();
        if let Some(reading) = last.as_ref().filter(|reading| begun < reading.stale) {
            return Ok(reading.contents.clone());
        }
        drop(last);
        let contents = Rc::new(read()?);
        let done = clock();
        let took = done.saturating_duration_since(begun);
        self.0.replace((took > CHEAP_READ).then(|| Reading {
            contents: contents.clone(),
            stale: done + MIN_INTERVAL.max(took * READ_TIME_DIVISOR),
        }));
        Ok(contents)
    }

    /// Frees data that is no longer fresh.
    pub fn expire(&self, now: Instant) {
        let mut last = self.0.borrow_mut();
        last.take_if(|reading| reading.stale <= now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Readings that take as long as a test says, at times that it says.
    struct World {
        picture: CachedSnapshot<u32>,
        now: Cell<Instant>,
        readings: Cell<u32>,
    }

    impl World {
        fn new() -> World {
            World {
                picture: CachedSnapshot::default(),
                now: Cell::new(Instant::now()),
                readings: Cell::new(0),
            }
        }

        fn pass(&self, millis: u64) {
            self.now.set(self.now.get() + Duration::from_millis(millis));
        }

        fn get_or_read(&self, takes: u64) -> u32 {
            let read = || {
                self.pass(takes);
                self.readings.set(self.readings.get() + 1);
                Ok::<_, ()>(self.readings.get())
            };
            *self.picture.get_or_read(|| self.now.get(), read).unwrap()
        }
    }

    #[test]
    fn many_askers_cost_one_reading_a_second() {
        let world = World::new();
        let begun = world.now.get();
        while world.now.get() - begun < Duration::from_secs(10) {
            world.get_or_read(40);
            world.pass(10);
        }
        assert_eq!(world.readings.get(), 10);
    }

    #[test]
    fn what_takes_very_long_is_read_for_a_twentieth_of_the_time() {
        let world = World::new();
        world.get_or_read(500);
        world.pass(9_999);
        assert_eq!(world.get_or_read(500), 1);
        world.pass(1);
        assert_eq!(world.get_or_read(500), 2);
    }

    #[test]
    fn what_is_quick_to_read_is_never_old() {
        let world = World::new();
        assert_eq!((world.get_or_read(1), world.get_or_read(1)), (1, 2));
        assert!(world.picture.0.borrow().is_none());
    }

    #[test]
    fn an_old_reading_takes_no_memory() {
        let world = World::new();
        world.get_or_read(40);
        world.picture.expire(world.now.get());
        assert!(world.picture.0.borrow().is_some());
        world.pass(1_000);
        world.picture.expire(world.now.get());
        assert!(world.picture.0.borrow().is_none());
    }

    #[test]
    fn a_reading_that_failed_is_tried_again() {
        let world = World::new();
        let failed = world.picture.get_or_read(|| world.now.get(), || Err("no"));
        assert_eq!(failed.unwrap_err(), "no");
        assert_eq!(world.get_or_read(40), 1);
    }
}
