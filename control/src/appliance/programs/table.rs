//! A bounded table of a program's objects. Their numbers are small, and reused after removal.

/// Objects by number. Workers index tables by these numbers, so free numbers are reused before new ones are added.
#[derive(Debug)]
pub(super) struct Table<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
    /// Maximum number of objects.
    limit: usize,
}

impl<T> Table<T> {
    /// Creates a table of at most `limit` objects.
    pub(super) fn new(limit: u32) -> Table<T> {
        Table { entries: Vec::new(), free: Vec::new(), limit: limit as usize }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if no object can be added.
    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty() && self.entries.len() >= self.limit
    }

    /// Adds an object. Returns its number; `None` if the table is full.
    pub(super) fn insert(&mut self, value: T) -> Option<u32> {
        self.insert_with(|_| value)
    }

    /// Adds the object that `make` returns for its number. Returns the number; `None` if the table is full.
    pub(super) fn insert_with(&mut self, make: impl FnOnce(u32) -> T) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        if let Some(number) = self.free.pop() {
            self.entries[number as usize] = Some(make(number));
            return Some(number);
        }
        let number = u32::try_from(self.entries.len()).ok()?;
        self.entries.push(Some(make(number)));
        Some(number)
    }

    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.entries.get(number as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.entries.get_mut(number as usize)?.as_mut()
    }

    /// Removes and returns an object; `None` if no object has the number.
    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        let value = self.entries.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(value)
    }

    /// Removes and returns all objects.
    pub(super) fn take_all(&mut self) -> Vec<T> {
        self.free.clear();
        std::mem::take(&mut self.entries).into_iter().flatten().collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0u32..).zip(&self.entries).filter_map(|(number, entry)| Some((number, entry.as_ref()?)))
    }
}

impl<T> Table<T> {
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again_within_the_bound() {
        let mut table = Table::new(2);
        assert_eq!(
            (table.insert('a'), table.insert('b'), table.insert('c')),
            (Some(0), Some(1), None)
        );
        assert_eq!(table.remove(0), Some('a'));
        assert_eq!((table.remove(0), table.get(0), table.get(7)), (None, None, None));
        assert_eq!((table.insert('d'), table.len(), table.is_full()), (Some(0), 2, true));
        assert_eq!(
            table.iter().map(|(number, value)| (number, *value)).collect::<Vec<_>>(),
            [(0, 'd'), (1, 'b')]
        );
        assert_eq!((table.take_all(), table.is_empty()), (vec!['d', 'b'], true));
    }
}
