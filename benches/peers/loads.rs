//! Table of loads.

use crate::http::{LARGE, SMALL};
use crate::load::{FEW, Kind, Load, Put};
use crate::metric::Metric;
use crate::mixed::MIX;
use crate::streams::Asks;
use Metric::{
    Balancer, IdleConnection, Machine, Mean, Megabytes, Memory, P50, P99, P999, P9999, Requests, System, User,
};

/// The small files of [`Kind::Mixed`] alone.
const ALONE: Kind = Kind::Busy { connections: MIX[0].0, file: MIX[0].1, keep_alive: true };

/// All loads. The first one sets the rate of the load at a constant rate.
pub(crate) const LOADS: [Load; 26] = [
    Load {
        name: "1 KB, keep-alive, 64 connections",
        kind: Kind::Busy { connections: 64, file: "1k", keep_alive: true },
        metrics: &[Requests, P50, P99, P999, Balancer, User, System, Machine, Memory],
        headline: Requests,
        put: Put::Modes,
    },
    Load {
        name: "1 KB, keep-alive, 50 connections",
        kind: Kind::Busy { connections: FEW, file: "1k", keep_alive: true },
        metrics: &[Requests, P50, P99, P999, Balancer, User, System, Machine, Memory],
        headline: Requests,
        put: Put::Modes,
    },
    Load {
        name: "1 KB, keep-alive, 512 connections",
        kind: Kind::Busy { connections: 512, file: "1k", keep_alive: true },
        metrics: &[Requests, P50, P99, P999, Balancer, User, System, Machine, Memory],
        headline: Requests,
        put: Put::Modes,
    },
    Load {
        name: "1 KB, a connection for every request, 64 at once",
        kind: Kind::Busy { connections: 64, file: "1k", keep_alive: false },
        metrics: &[Requests, P99, Balancer, User, System, Machine, Memory],
        headline: Requests,
        put: Put::Modes,
    },
    Load {
        name: "16 KB, keep-alive, 64 connections",
        kind: Kind::Busy { connections: 64, file: "16k", keep_alive: true },
        metrics: &[Requests, Megabytes, P99, Balancer, User, System, Machine, Memory],
        headline: Requests,
        put: Put::Modes,
    },
    Load {
        name: "1 MB, keep-alive, 8 connections",
        kind: Kind::Busy { connections: 8, file: "1m", keep_alive: true },
        metrics: &[Requests, Megabytes, P99, Balancer, User, System, Machine, Memory],
        headline: Megabytes,
        put: Put::Modes,
    },
    Load {
        name: "1 KB, keep-alive, 64 connections among idle ones",
        kind: Kind::BusyAmongIdle,
        metrics: &[Requests, P99, Balancer, User, System, Machine, Memory],
        headline: Memory,
        put: Put::Modes,
    },
    Load {
        name: "1 KB, keep-alive, half of HAProxy's peak rate",
        kind: Kind::Steady,
        metrics: &[Requests, P50, P99, P999, P9999, Balancer, User, System, Machine, Memory],
        headline: P9999,
        put: Put::Modes,
    },
    Load {
        name: "1 KB, keep-alive, 1,000 clients that pause for a second",
        kind: Kind::Pausing,
        metrics: &[Requests, Mean, P50, P99, P999, Balancer, User, System, Machine, Memory],
        headline: Mean,
        put: Put::Modes,
    },
    Load {
        name: "1 KB, HTTP/2, 16 connections of 10 streams",
        kind: Kind::Http2,
        metrics: &[Requests, P50, P99, P999, P9999, Balancer, User, System, Machine, Memory],
        headline: Requests,
        put: Put::Modes,
    },
    Load {
        name: "1 KB within TLS, a new session for every request, 64 at once",
        kind: Kind::Busy { connections: 64, file: "1k", keep_alive: false },
        metrics: &[Requests, P99, Balancer, User, System, Machine, Memory],
        headline: Requests,
        put: Put::Tls,
    },
    Load {
        name: "1 KB within TLS, a resumed session for every request, 16 at once",
        kind: Kind::Resumed,
        metrics: &[Requests, P99, Balancer, User, System, Machine, Memory],
        headline: Requests,
        put: Put::Tls,
    },
    Load {
        name: "1 KB within TLS, keep-alive, 64 connections",
        kind: Kind::Busy { connections: 64, file: "1k", keep_alive: true },
        metrics: &[Requests, P99, Balancer, User, System, Machine, Memory],
        headline: Requests,
        put: Put::Tls,
    },
    Load {
        name: "1 KB within TLS, HTTP/2, 16 connections of 10 streams",
        kind: Kind::Http2,
        metrics: &[Requests, P50, P99, P999, P9999, Balancer, User, System, Machine, Memory],
        headline: Requests,
        put: Put::Tls,
    },
    Load {
        name: "1 MB within TLS, keep-alive, 8 connections",
        kind: Kind::Busy { connections: 8, file: "1m", keep_alive: true },
        metrics: &[Requests, Megabytes, P99, Balancer, User, System, Machine, Memory],
        headline: Megabytes,
        put: Put::Tls,
    },
    Load {
        name: "1 KB over HTTP/3, a new connection for every request, 16 at once",
        kind: Kind::Streams { connections: 16, asks: Asks::OnceEach, file: SMALL },
        metrics: &[Requests, P50, P99, Balancer, User, System, Machine, Memory],
        headline: Requests,
        put: Put::Http3,
    },
    Load {
        name: "1 KB over HTTP/3, 16 connections of 10 streams",
        kind: Kind::Streams { connections: 16, asks: Asks::AtOnce(10), file: SMALL },
        metrics: &[Requests, P50, P99, P999, Balancer, User, System, Machine, Memory],
        headline: Requests,
        put: Put::Http3,
    },
    Load {
        name: "1 MB over HTTP/3, 8 connections",
        kind: Kind::Streams { connections: 8, asks: Asks::AtOnce(1), file: LARGE },
        metrics: &[Requests, Megabytes, P50, P99, Balancer, User, System, Machine, Memory],
        headline: Megabytes,
        put: Put::Http3,
    },
    Load {
        name: "500 idle connections of HTTP/3",
        kind: Kind::Idle { connections: 500 },
        metrics: &[Balancer, User, System, Memory, IdleConnection],
        headline: IdleConnection,
        put: Put::Http3,
    },
    Load {
        name: "10 KB file, keep-alive, 10 connections",
        kind: Kind::Busy { connections: 10, file: "10k", keep_alive: true },
        metrics: &[Requests, Megabytes, P99, Balancer, User, System, Machine, Memory],
        headline: Requests,
        put: Put::Files,
    },
    Load {
        name: "10 KB file, a connection for every request, 10 at once",
        kind: Kind::Busy { connections: 10, file: "10k", keep_alive: false },
        metrics: &[Requests, Megabytes, P99, Balancer, User, System, Machine, Memory],
        headline: Requests,
        put: Put::Files,
    },
    Load {
        name: "40 KB file, keep-alive, 10 connections",
        kind: Kind::Busy { connections: 10, file: "40k", keep_alive: true },
        metrics: &[Requests, Megabytes, P99, Balancer, User, System, Machine, Memory],
        headline: Requests,
        put: Put::Files,
    },
    Load {
        name: "80 KB file, keep-alive, 10 connections",
        kind: Kind::Busy { connections: 10, file: "80k", keep_alive: true },
        metrics: &[Requests, Megabytes, P99, Balancer, User, System, Machine, Memory],
        headline: Requests,
        put: Put::Files,
    },
    Load {
        name: "10 MB file, keep-alive, 10 connections",
        kind: Kind::Busy { connections: 10, file: "10m", keep_alive: true },
        metrics: &[Requests, Megabytes, P99, Balancer, User, System, Machine, Memory],
        headline: Requests,
        put: Put::Files,
    },
    Load {
        name: "10 KB file, keep-alive, 3 connections",
        kind: ALONE,
        metrics: &[Requests, Megabytes, P50, P99, P999, Balancer, User, System, Machine, Memory],
        headline: P99,
        put: Put::Files,
    },
    Load {
        name: "10 KB file, 3 connections, beside 3 of 80 KB and 4 of 10 MB",
        kind: Kind::Mixed,
        metrics: &[Requests, Megabytes, P50, P99, P999, Memory],
        headline: P99,
        put: Put::Files,
    },
];
