//! Addition of regions and listeners by the API, the configuration file or a reload, and the API's list of regions.

use api::{ApiError, NamePage, RegionInfo, Reply, Responder};
use config::RegionSection;

use super::Core;
use super::reload::Addition;
use crate::appliance::env::Origin;
use crate::appliance::loader::LoadedMemory;

impl Core {
    pub(super) fn on_region_loaded(&mut self, id: u64, result: Result<LoadedMemory, String>) {
        let Some((section, answer)) = self.regions.take_loading(id) else { return };
        let added = match result {
            Ok(loaded) => self.register_region(section, loaded, Origin::Api, Some(answer)),
            Err(_) if !self.env.is_running() => {
                return answer.send(Err(ApiError::unavailable("the appliance is draining")));
            }
            Err(sentence) => return answer.send(Err(ApiError::bad_request(sentence))),
        };
        if let Err(error) = added {
            tracing::warn!("region not added: {}", error.message);
        }
    }

    /// Registers a region, whose memory is already mapped, with the workers. `answer`, if given, is always sent, also
    /// after an error.
    pub(in crate::appliance) fn register_region(
        &mut self,
        section: RegionSection,
        loaded: LoadedMemory,
        origin: Origin,
        answer: Option<Responder>,
    ) -> Result<(), ApiError> {
        let pd = self.listeners.pd_for_region(&section.name);
        self.regions.register(&mut self.env, section, loaded, origin, pd, answer)
    }

    pub(super) fn on_listener_added(
        &mut self,
        name: &str,
        result: Result<(), String>,
        answer: Option<Responder>,
    ) {
        let reply = self.listeners.on_added(&mut self.env, name, result);
        let outcome = reply.as_ref().map(|_| ()).map_err(|error| error.message.clone());
        self.on_addition_done(&Addition::Listener(name.to_owned()), outcome);
        if let Some(answer) = answer {
            answer.send(reply.map(Reply::Listener));
        }
    }

    pub(super) fn on_region_added(
        &mut self,
        name: &str,
        result: Result<(), String>,
        answer: Option<Responder>,
    ) {
        let outcome = self.regions.on_added(&mut self.env, name, result);
        self.on_addition_done(&Addition::Region(name.to_owned()), outcome.clone());
        if let Some(answer) = answer {
            answer.send(match outcome {
                Ok(()) => self.region_info(name).map(Reply::Region),
                Err(reason) => Err(ApiError::internal(reason)),
            });
        }
    }

    pub(super) fn region_info(&self, name: &str) -> Result<RegionInfo, ApiError> {
        self.regions.info(name, self.env.now, |region| self.listeners.listeners_of_region(region))
    }

    pub(super) fn region_infos(&self, page: &NamePage) -> Vec<RegionInfo> {
        let listeners = |region: &str| self.listeners.listeners_of_region(region);
        let mut infos = self.regions.page(page, self.env.now, listeners);
        let is_later = |name: &str| page.after.as_deref().is_none_or(|after| name > after);
        infos.extend(self.regions.preparing(&self.env, is_later));
        infos.extend(self.preparing_infos().into_iter().filter(|info| is_later(&info.name)));
        infos.sort_by(|a, b| a.name.cmp(&b.name));
        infos.truncate(page.limit);
        infos
    }
}
