//! Files that streams of one client keep open, and the descriptors left for others.

use std::fs::File;
use std::io::Write;
use std::net::TcpStream;

use convey_testkit::{BalancerProcess, connect_from, wait_for};

use super::Site;
use crate::http2::block_on;
use crate::http2::client::Client;
use crate::http2::frames::frame;
use crate::shares::limited;

const CONNECTIONS: u32 = 11;

/// Maximum number of streams that convey accepts on a connection.
const STREAMS: u32 = 100;

pub(super) fn files_of_one_client_leave_descriptors_for_others() {
    let site = Site::new();
    for n in 0..CONNECTIONS * STREAMS {
        File::create(site.at(&format!("www/{n:04}"))).unwrap().set_len(300_000).unwrap();
    }
    let balancer = BalancerProcess::start_with(&site.lab, &site.setup(""), limited("1024:1024"));
    let closed_windows = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &frame(4, 0, 0, &[0, 4, 0, 0, 0, 0])[..]];
    let fetch = |connection: u32| {
        let requests = (0..STREAMS).flat_map(|n| {
            let path = format!("/{:04}", connection * STREAMS + n);
            frame(1, 5, 2 * n + 1, &[&[0x82, 0x86, 0x04, 5], path.as_bytes(), &[0x41, 1], b"a"].concat())
        });
        let mut client = connect_from(site.lab.ip(99), site.lab.vip()).unwrap();
        client.write_all(&closed_windows.concat().into_iter().chain(requests).collect::<Vec<u8>>()).unwrap();
        client
    };
    let greedy: Vec<TcpStream> = (0..CONNECTIONS).map(fetch).collect();
    wait_for("refused streams", || {
        (balancer.stat("/frontends/web/drops/client_limit").as_u64()? > 10).then_some(())
    });
    let first = format!("http://{}/0000", site.lab.vip());
    block_on(async {
        for _ in 0..20 {
            let other = Client::connect(site.lab.vip()).await;
            assert_eq!(other.get(&first).await.status, 200);
        }
    });
    drop(greedy);
}
