//! What `scripts/load` needs: the frames of each profile, written to capture files.
#![forbid(unsafe_code)]
