//! MPA (RFC 5044 and draft-culley-iwarp-mpa-03).
