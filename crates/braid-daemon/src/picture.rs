//! What takes long to read, read once for all who ask at about the same time.
//!
//! A monitoring system, a status line and `braid top` may all ask every second, and reading a large
//! flow table holds up the loop that watches the uplinks.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// What is read within this time is read anew for everybody: some ten thousand flows.
const QUICK: Duration = Duration::from_millis(5);
/// Least time between two readings of what takes longer.
const PACE: Duration = Duration::from_secs(1);
/// At most this part of the time, as a divisor, goes into reading.
const SHARE: u32 = 20;

/// The last reading.
#[derive(Debug)]
pub struct Picture<T>(RefCell<Option<Taken<T>>>);

#[derive(Debug)]
struct Taken<T> {
    contents: Rc<T>,
    /// From then on it is taken anew.
    stale: Instant,
}

impl<T> Default for Picture<T> {
    fn default() -> Picture<T> {
        Picture(RefCell::new(None))
    }
}

impl<T> Picture<T> {
    /// The last reading while it is fresh, or a new one. `clock` is asked before and after it.
    ///
    /// # Errors
    /// What reading said.
    pub fn look<E>(
        &self,
        clock: impl Fn() -> Instant,
        read: impl FnOnce() -> Result<T, E>,
    ) -> Result<Rc<T>, E> {
        let begun = clock();
        let last = self.0.borrow();
        if let Some(taken) = last.as_ref().filter(|taken| begun < taken.stale) {
            return Ok(taken.contents.clone());
        }
        drop(last);
        let contents = Rc::new(read()?);
        let done = clock();
        let took = done.saturating_duration_since(begun);
        self.0.replace((took > QUICK).then(|| Taken {
            contents: contents.clone(),
            stale: done + PACE.max(took * SHARE),
        }));
        Ok(contents)
    }

    /// Lets go of a reading that nobody may look at any more, for the memory that it takes.
    pub fn expire(&self, now: Instant) {
        let mut last = self.0.borrow_mut();
        last.take_if(|taken| taken.stale <= now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Readings that take as long as a test says, at times that it says.
    struct World {
        picture: Picture<u32>,
        now: Cell<Instant>,
        readings: Cell<u32>,
    }

    impl World {
        fn new() -> World {
            World {
                picture: Picture::default(),
                now: Cell::new(Instant::now()),
                readings: Cell::new(0),
            }
        }

        fn pass(&self, millis: u64) {
            self.now.set(self.now.get() + Duration::from_millis(millis));
        }

        fn look(&self, takes: u64) -> u32 {
            let read = || {
                self.pass(takes);
                self.readings.set(self.readings.get() + 1);
                Ok::<_, ()>(self.readings.get())
            };
            *self.picture.look(|| self.now.get(), read).unwrap()
        }
    }

    #[test]
    fn many_askers_cost_one_reading_a_second() {
        let world = World::new();
        let begun = world.now.get();
        while world.now.get() - begun < Duration::from_secs(10) {
            world.look(40);
            world.pass(10);
        }
        assert_eq!(world.readings.get(), 10);
    }

    #[test]
    fn what_takes_very_long_is_read_for_a_twentieth_of_the_time() {
        let world = World::new();
        world.look(500);
        world.pass(9_999);
        assert_eq!(world.look(500), 1);
        world.pass(1);
        assert_eq!(world.look(500), 2);
    }

    #[test]
    fn what_is_quick_to_read_is_never_old() {
        let world = World::new();
        assert_eq!((world.look(1), world.look(1)), (1, 2));
        assert!(world.picture.0.borrow().is_none());
    }

    #[test]
    fn an_old_reading_takes_no_memory() {
        let world = World::new();
        world.look(40);
        world.picture.expire(world.now.get());
        assert!(world.picture.0.borrow().is_some());
        world.pass(1_000);
        world.picture.expire(world.now.get());
        assert!(world.picture.0.borrow().is_none());
    }

    #[test]
    fn a_reading_that_failed_is_tried_again() {
        let world = World::new();
        let failed = world.picture.look(|| world.now.get(), || Err("no"));
        assert_eq!(failed.unwrap_err(), "no");
        assert_eq!(world.look(40), 1);
    }
}
