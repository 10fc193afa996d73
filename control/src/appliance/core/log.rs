//! The log's filter: that of the file or the command line, or another one that a request has set until the next reload.

use super::Core;
use crate::log_limit;
use crate::logging;
use api::{ApiError, LogInfo};

impl Core {
    pub(super) fn log_info(&self) -> LogInfo {
        let management = &self.env.facts.config.management;
        LogInfo {
            filter: management.log.clone(),
            format: management.log_format.word().to_owned(),
            suppressed: log_limit::suppressed(),
        }
    }

    pub(super) fn set_log(&mut self, filter: String) -> Result<LogInfo, ApiError> {
        logging::set_filter(&filter).map_err(ApiError::bad_request)?;
        tracing::info!("log filter: {filter:?}");
        self.env.facts.config.set_log(filter);
        Ok(self.log_info())
    }

    /// The configuration has perhaps another filter now.
    pub(super) fn follow_log(&mut self) {
        // It was checked as part of the file.
        if let Err(error) = logging::set_filter(&self.env.facts.config.management.log) {
            tracing::warn!("{error}");
        }
    }
}
