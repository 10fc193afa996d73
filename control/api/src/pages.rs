//! Pages of long lists. A list is sorted by the keys of its objects. A page begins after a given key.

use super::{ListenerInfo, RegionInfo, StreamInfo};

/// Maximum number of objects in one answer, and the default.
pub const MAX_PAGE: usize = 1000;

/// A page of a list ordered by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamePage {
    /// Lower bound, exclusive: the page has only objects with greater names. `None`: the first page.
    pub after: Option<String>,
    /// Maximum number of objects on the page.
    pub limit: usize,
}

/// An object of a list that is served in pages.
pub trait Paged {
    /// Returns the key, for the parameter `after` of the next page.
    fn key(&self) -> String;
}

impl Paged for RegionInfo {
    fn key(&self) -> String {
        self.name.clone()
    }
}

impl Paged for ListenerInfo {
    fn key(&self) -> String {
        self.name.clone()
    }
}

impl Paged for StreamInfo {
    fn key(&self) -> String {
        self.id.to_string()
    }
}
