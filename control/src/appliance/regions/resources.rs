//! Shared-memory objects and files of regions. Each belongs to at most one region.

use std::collections::HashMap;
use std::path::PathBuf;

use config::{Backing, RegionSection};

/// The resources in use, with the name of their region.
#[derive(Debug, Default)]
pub(super) struct Resources(HashMap<Resource, String>);

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Resource {
    Object(String),
    File(PathBuf),
}

impl Resources {
    /// Records the shared-memory object or file of a region, if it has one.
    pub(super) fn add(&mut self, section: &RegionSection) {
        if let Some(resource) = resource(section) {
            self.0.insert(resource, section.name.clone());
        }
    }

    /// Removes the record of a region that is freed.
    pub(super) fn remove(&mut self, section: &RegionSection) {
        if let Some(resource) = resource(section) {
            self.0.remove(&resource);
        }
    }

    /// Returns an error, one sentence, if a region has the shared-memory object or file of `section` already.
    pub(super) fn conflict(&self, section: &RegionSection) -> Option<String> {
        let resource = resource(section)?;
        let owner = self.0.get(&resource)?;
        let resource = match resource {
            Resource::Object(object) => format!("shared-memory object `{object}`"),
            Resource::File(path) => format!("file `{}`", path.display()),
        };
        Some(format!("{resource} belongs to region `{owner}`"))
    }
}

fn resource(section: &RegionSection) -> Option<Resource> {
    match &section.backing {
        Backing::SharedMemory { object } => Some(Resource::Object(object.clone())),
        Backing::File { path, .. } => Some(Resource::File(path.clone())),
        Backing::Anonymous | Backing::Hugepages => None,
    }
}
