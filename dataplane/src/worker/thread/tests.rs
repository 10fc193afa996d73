//! Real threads on vectors: starting, sleeping, waking, dying.
