//! PROXY headers to and from real HAProxy and nginx.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use convey_testkit::{
    Balancer, Loopback, Need, Process, Setup, connect, connect_from, stories, tool, wait_for,
};

const HAPROXY: Need = Need::Tool("haproxy", "haproxy");

stories!("proxy_peers":
    nginx_and_haproxy_see_the_clients_address_and_port_by_either_version [Need::NGINX, HAPROXY, Need::Ipv6],
    haproxy_in_front_is_believed_and_its_fields_reach_haproxy_behind [Need::NGINX, HAPROXY, Need::Ipv6],
);

/// Answers with what the header says: the client's address and port, and the address and port that it asked.
fn nginx(lab: &Loopback, at: &[SocketAddr]) -> Process {
    let dir = lab.directory().join("nginx");
    fs::create_dir_all(&dir).unwrap();
    let prefix = dir.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|what| format!("{what}_temp_path {prefix}/{what};\n"))
        .concat();
    let listen: String = at.iter().map(|addr| format!("listen {addr} proxy_protocol;\n")).collect();
    let says =
        "$proxy_protocol_addr $proxy_protocol_port $proxy_protocol_server_addr $proxy_protocol_server_port";
    let config = format!(
        "daemon off; master_process off; pid {prefix}/pid;\nevents {{}}\n\
         http {{ access_log off;\n{temporary}server {{\n{listen}location / {{ return 200 \"{says}\"; }}\n}}\n}}\n"
    );
    fs::write(dir.join("nginx.conf"), config).unwrap();
    let mut command = Command::new(tool("nginx").unwrap());
    command.arg("-p").arg(&dir).args(["-c", "nginx.conf", "-e"]).arg(dir.join("error.log"));
    listening(Process::spawn(command.stderr(Stdio::null())), at)
}

/// HAProxy with this configuration beside timeouts.
fn haproxy(lab: &Loopback, name: &str, config: &str, at: &[SocketAddr]) -> Process {
    let file = lab.directory().join(format!("{name}.cfg"));
    let timeouts = "defaults\ntimeout connect 20s\ntimeout client 20s\ntimeout server 20s\n";
    fs::write(&file, format!("{timeouts}{config}")).unwrap();
    let mut command = Command::new(tool("haproxy").unwrap());
    command.args(["-db", "-q", "-f"]).arg(&file).stderr(Stdio::null());
    listening(Process::spawn(&mut command), at)
}

/// Answers like [`nginx`], and with the unique id that the header has.
fn haproxy_behind(lab: &Loopback, at: &[SocketAddr]) -> Process {
    let bind: String = at.iter().map(|addr| format!("bind {addr} accept-proxy\n")).collect();
    let config = format!(
        "frontend behind\nmode http\n{bind}http-request return status 200 content-type text/plain \
         lf-string \"%[src] %[src_port] %[dst] %[dst_port]%[fc_pp_unique_id]\"\n"
    );
    haproxy(lab, "behind", &config, at)
}

fn listening(process: Process, at: &[SocketAddr]) -> Process {
    at.iter().for_each(|addr| {
        wait_for(&format!("somebody to listen on {addr}"), || TcpStream::connect(addr).ok());
    });
    process
}

/// What the server behind this connection says.
fn ask(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}")).1.to_owned()
}

/// A client of each family, and what a server has to say of it that was told by a header.
fn clients(lab: &Loopback, at: [SocketAddr; 2]) -> [(TcpStream, String); 2] {
    [connect_from(lab.ip(99), at[0]).unwrap(), connect(at[1])].map(|stream| {
        let (client, asked) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        let says = format!("{} {} {} {}", client.ip(), client.port(), asked.ip(), asked.port());
        (stream, says)
    })
}

/// A frontend of both families. Checks over HTTP fail where they have no header.
fn setup(lab: &Loopback, frontend: &str, version: &str, server: SocketAddr) -> Setup {
    Setup::new(lab)
        .listen(&[lab.vip(), lab.v6(0)])
        .frontend(frontend)
        .backend(&format!("send_proxy = \"{version}\""))
        .health("kind = \"http\"\ninterval = 0.1")
        .server("a", server, "")
}

const REASON: &str = "/backends/pool/servers/a/health/reason";

fn nginx_and_haproxy_see_the_clients_address_and_port_by_either_version() {
    let lab = Loopback::new();
    let (of_nginx, of_haproxy) = ([lab.server(1), lab.v6(1)], [lab.server(2), lab.v6(2)]);
    let (_nginx, _haproxy) = (nginx(&lab, &of_nginx), haproxy_behind(&lab, &of_haproxy));
    for server in [of_nginx, of_haproxy].concat() {
        for version in ["v1", "v2"] {
            let balancer = Balancer::start(&lab, &setup(&lab, "", version, server));
            balancer.wait_for_stat(REASON, "HTTP status 200");
            for (stream, says) in clients(&lab, [lab.vip(), lab.v6(0)]) {
                assert_eq!(ask(stream), says, "{version} to {server}");
            }
        }
    }
}

fn haproxy_in_front_is_believed_and_its_fields_reach_haproxy_behind() {
    let lab = Loopback::new();
    let (of_nginx, of_haproxy) = (lab.server(1), lab.server(2));
    let (_nginx, _behind) = (nginx(&lab, &[of_nginx]), haproxy_behind(&lab, &[of_haproxy]));
    let fronts = [SocketAddr::new(lab.ip(60), 8080), lab.v6(1), SocketAddr::new(lab.ip(60), 8081), lab.v6(2)];
    let front = |name: &str, at: [SocketAddr; 2], sends: &str| {
        format!(
            "frontend {name}\nmode tcp\nunique-id-format %[str(the-id)]\nbind {}\nbind {}\ndefault_backend {name}\n\
             backend {name}\nmode tcp\nserver convey {} source {} {sends}\n",
            at[0],
            at[1],
            lab.vip(),
            lab.ip(60)
        )
    };
    let config = [
        front("first", [fronts[0], fronts[1]], "send-proxy"),
        front("second", [fronts[2], fronts[3]], "send-proxy-v2 proxy-v2-options unique-id"),
    ];
    let _front = haproxy(&lab, "front", &config.concat(), &fronts);

    let frontend = format!("accept_proxy = true\ntrusted_proxies = \"{}\"", lab.ip(60));
    let each = [[fronts[0], fronts[1]], [fronts[2], fronts[3]]];
    for (server, version) in [(of_nginx, "v2"), (of_nginx, "v1"), (of_haproxy, "v1"), (of_haproxy, "v2")] {
        let balancer = Balancer::start(&lab, &setup(&lab, &frontend, version, server));
        balancer.wait_for_stat(REASON, "HTTP status 200");
        for (n, front) in each.into_iter().enumerate() {
            // Version 2 carries the id to the far end, if nothing between has to do without.
            let id = if n == 1 && version == "v2" && server == of_haproxy { "the-id" } else { "" };
            for (stream, says) in clients(&lab, front) {
                assert_eq!(ask(stream), format!("{says}{id}"), "{front:?} by {version} to {server}");
            }
        }
    }
}
