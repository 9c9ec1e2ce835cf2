//! What every story needs: addresses of its own, the balancer, servers, clients, and patience.

mod balancer;
mod client;
mod ftp;
mod lab;
mod name_server;
mod namespace;
mod need;
mod nginx;
mod pattern;
mod process;
mod server;
mod setup;
mod udp;
mod wait;
mod wrk;

pub(crate) use balancer::{Balancer, Fds, binary};
pub(crate) use client::{
    ask, ask_from, connect, connect_from, is_refused_with_reset, ping, reset, was_reset,
};
pub(crate) use ftp::ftp_server;
pub(crate) use lab::Lab;
pub(crate) use name_server::{NAME, NameServer};
pub(crate) use namespace::in_namespace;
pub(crate) use need::{Need, raise_file_limit, tool};
pub(crate) use nginx::Nginx;
pub(crate) use pattern::{check_to_end, send};
pub(crate) use process::{Process, Ran, run};
pub(crate) use server::Server;
pub(crate) use setup::Setup;
pub(crate) use udp::{Flood, UdpClient, UdpServer};
pub(crate) use wait::{clock, wait_for};
pub(crate) use wrk::Wrk;

use libtest_mimic::{Completion, Trial};

/// A trial that is ignored, with the reason, if one of its needs is missing.
pub(crate) fn story(name: &str, needs: &'static [Need], tell: fn()) -> Trial {
    Trial::ignorable_test(name, move || {
        if let Some(missing) = needs.iter().find_map(|need| need.missing()) {
            return Ok(Completion::ignored_with(missing));
        }
        tell();
        Ok(Completion::Completed)
    })
}

/// The stories of one module: its functions by name, each with what it needs in brackets.
macro_rules! stories {
    ($group:literal: $($story:ident $([$($need:expr),+])?),+ $(,)?) => {
        pub(crate) fn stories() -> Vec<libtest_mimic::Trial> {
            vec![$(
                $crate::support::story(
                    concat!($group, "::", stringify!($story)),
                    &[$($($need),+)?],
                    $story,
                )
            ),+]
        }
    };
}
pub(crate) use stories;
