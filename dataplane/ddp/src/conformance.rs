//! RFC 5041 §3's eleven requirements on a lower layer, as a suite that runs over any of them.
