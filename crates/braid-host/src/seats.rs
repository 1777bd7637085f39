//! Places for connections, counted by whom they are from, so that nobody uses up the descriptors of all.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Places taken, by holder.
#[derive(Debug)]
pub(crate) struct Seats<K>(Mutex<HashMap<K, usize>>);

/// A place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Seat<K: Copy + Eq + Hash> {
    seats: Arc<Seats<K>>,
    holder: K,
}

impl<K> Default for Seats<K> {
    fn default() -> Self {
        Seats(Mutex::default())
    }
}

impl<K: Copy + Eq + Hash> Seats<K> {
    /// Takes a place, unless its holder has `most_of_one` or all together have `most`.
    pub fn take(self: &Arc<Self>, holder: K, most_of_one: usize, most: usize) -> Option<Seat<K>> {
        let mut taken = self.taken();
        let own = taken.get(&holder).copied().unwrap_or_default();
        if own >= most_of_one || taken.values().sum::<usize>() >= most {
            return None;
        }
        taken.insert(holder, own + 1);
        Some(Seat {
            seats: self.clone(),
            holder,
        })
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<K, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Copy + Eq + Hash> Drop for Seat<K> {
    fn drop(&mut self) {
        let mut taken = self.seats.taken();
        if let Some(own) = taken.get_mut(&self.holder) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.holder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_limited_for_each_and_for_all_and_come_back() {
        let seats = Arc::new(Seats::default());
        let take = |holder| seats.take(holder, 2, 3);
        let first = take('a').unwrap();
        let _second = take('a').unwrap();
        assert!(take('a').is_none());
        let other = take('b').unwrap();
        assert!(take('b').is_none(), "three are taken");
        drop(first);
        assert!(take('c').is_some(), "given back at once");
        drop(other);
        assert_eq!(seats.taken().len(), 1, "nobody is remembered");
    }
}
