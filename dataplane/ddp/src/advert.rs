//! The advertisement of regions in a connection's private data (docs/protocol.md).
