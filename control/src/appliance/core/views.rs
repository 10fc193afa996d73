//! Accessors for tests.

use super::Core;
use crate::appliance::env::Env;
use crate::appliance::flights::Flights;
use crate::appliance::jobs::Jobs;
use crate::appliance::listeners::Listeners;
use crate::appliance::programs::Programs;
use crate::appliance::regions::Regions;
use crate::appliance::streams::Streams;

impl Core {
    pub(in crate::appliance) fn env(&self) -> &Env {
        &self.env
    }

    pub(in crate::appliance) fn regions(&self) -> &Regions {
        &self.regions
    }

    pub(in crate::appliance) fn listeners(&self) -> &Listeners {
        &self.listeners
    }

    pub(in crate::appliance) fn streams(&self) -> &Streams {
        &self.streams
    }

    pub(in crate::appliance) fn programs(&self) -> &Programs {
        &self.programs
    }

    pub(in crate::appliance) fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    pub(in crate::appliance) fn flights(&self) -> &Flights {
        &self.flights
    }
}
