//! Lists of spans.
