//! The log filter, set by the configuration file or the command line. A request can replace the filter until the next
//! reload.

use api::{ApiError, LogInfo};

use super::Core;
use crate::log_limit;
use crate::logging;

impl Core {
    pub(super) fn log_info(&self) -> LogInfo {
        let management = &self.env.context.config.management;
        LogInfo {
            filter: management.log.clone(),
            format: management.log_format.as_str().to_owned(),
            suppressed: log_limit::suppressed(),
        }
    }

    pub(super) fn set_log(&mut self, filter: String) -> Result<LogInfo, ApiError> {
        logging::set_filter(&filter).map_err(ApiError::bad_request)?;
        tracing::info!("log filter: {filter:?}");
        self.env.context.config.set_log(filter);
        Ok(self.log_info())
    }

    /// Applies the log filter of the configuration, which may have changed.
    pub(super) fn apply_log_filter(&mut self) {
        // The filter was checked when the file was loaded.
        if let Err(error) = logging::set_filter(&self.env.context.config.management.log) {
            tracing::warn!("{error}");
        }
    }
}
