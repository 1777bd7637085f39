//! A table of flows by their hashes: a fixed number of places, of which each flow has one.
//!
//! Flows whose hashes differ by a multiple of that number share a place. Who of them has it is for the caller to say
//! ([`FlowTable::rival`]); the others are not known.

/// Flows with their values.
#[derive(Debug)]
pub(crate) struct FlowTable<F> {
    /// Empty before the first flow: most ends need none.
    places: Vec<Option<(u32, F)>>,
    size: usize,
}

impl<F> FlowTable<F> {
    /// Returns an empty table with so many places, one at least.
    pub(crate) fn new(size: usize) -> FlowTable<F> {
        FlowTable {
            places: Vec::new(),
            size,
        }
    }

    /// Returns true if no flow has ever had a place.
    pub(crate) fn is_unused(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns a flow's value, if it has its place.
    pub(crate) fn get(&self, flow: u32) -> Option<&F> {
        let place = self.places.get(self.index(flow))?.as_ref();
        place.filter(|(key, _)| *key == flow).map(|(_, of)| of)
    }

    /// Returns the same to be changed.
    pub(crate) fn get_mut(&mut self, flow: u32) -> Option<&mut F> {
        let index = self.index(flow);
        let place = self.places.get_mut(index)?.as_mut();
        place.filter(|(key, _)| *key == flow).map(|(_, of)| of)
    }

    /// Returns the value of another flow that has this one's place.
    pub(crate) fn rival(&self, flow: u32) -> Option<&F> {
        let place = self.places.get(self.index(flow))?.as_ref();
        place.filter(|(key, _)| *key != flow).map(|(_, of)| of)
    }

    /// Gives a flow its place, and this value. Returns the one that was there, its own or a rival's.
    pub(crate) fn insert(&mut self, flow: u32, value: F) -> Option<F> {
        let before = self.place(flow).replace((flow, value));
        before.map(|(_, of)| of)
    }

    /// Returns a flow's value. If it does not have its place, it gets it, with a new value.
    pub(crate) fn get_or_insert_with(&mut self, flow: u32, make: impl FnOnce() -> F) -> &mut F {
        let place = self.place(flow);
        place.take_if(|(key, _)| *key != flow);
        &mut place.get_or_insert_with(|| (flow, make())).1
    }

    /// Takes a flow's place from it, and returns its value.
    pub(crate) fn remove(&mut self, flow: u32) -> Option<F> {
        let index = self.index(flow);
        let place = self.places.get_mut(index)?;
        place.take_if(|(key, _)| *key == flow).map(|(_, of)| of)
    }

    /// Returns the values of all flows.
    pub(crate) fn values(&self) -> impl Iterator<Item = &F> {
        self.places.iter().flatten().map(|(_, of)| of)
    }

    /// Returns the same to be changed.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut F> {
        self.places.iter_mut().flatten().map(|(_, of)| of)
    }

    fn index(&self, flow: u32) -> usize {
        flow as usize % self.size
    }

    fn place(&mut self, flow: u32) -> &mut Option<(u32, F)> {
        if self.places.is_empty() {
            self.places.resize_with(self.size, || None);
        }
        let index = self.index(flow);
        &mut self.places[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_that_share_a_place_have_it_one_after_the_other() {
        let mut table = FlowTable::new(8);
        assert!(table.is_unused());
        assert_eq!((table.get(3), table.rival(3)), (None, None));
        assert_eq!(table.remove(3), None);
        assert_eq!(table.insert(3, 'a'), None);
        assert!(!table.is_unused());
        assert_eq!(table.insert(4, 'b'), None);
        assert_eq!((table.get(3), table.rival(3)), (Some(&'a'), None));
        // Of the same place.
        assert_eq!((table.get(11), table.rival(11)), (None, Some(&'a')));
        assert_eq!(table.get_mut(11), None);
        assert_eq!(table.remove(11), None);
        assert_eq!(table.insert(11, 'c'), Some('a'));
        assert_eq!((table.get(3), table.rival(3)), (None, Some(&'c')));
        assert_eq!(*table.get_or_insert_with(11, || 'd'), 'c');
        assert_eq!(*table.get_or_insert_with(3, || 'd'), 'd');
        for value in table.values_mut() {
            value.make_ascii_uppercase();
        }
        assert!(table.values().eq(&['D', 'B']));
        assert_eq!(table.remove(3), Some('D'));
        assert_eq!((table.get(3), table.rival(11)), (None, None));
    }
}
