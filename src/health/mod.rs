//! Which servers are up.
