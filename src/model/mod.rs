//! The words every room shares: what a frontend, a backend and a server *are* once the configuration
//! has been validated. Nothing here does anything.

mod fault;
mod flow;

pub use flow::{Addr, FlowKey, NextHop, Rewrite, TCP};
mod fault;
