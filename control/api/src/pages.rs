//! Pages of long lists. A list is in the order of its objects' keys; a page begins after a key.

use super::{ListenerInfo, RegionInfo, StreamInfo};

/// Maximum number of objects in one answer, and the default.
pub const MAX_PAGE: usize = 1000;

/// A page of a list in the order of names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamePage {
    /// Only objects whose names are greater.
    pub after: Option<String>,
    /// Maximum number of objects.
    pub limit: usize,
}

/// An object of a list with pages.
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
