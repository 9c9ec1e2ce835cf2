//! Files that convey may not read: keys of root, and files outside of Landlock's rules.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use convey_testkit::{
    BalancerProcess, Loopback, Need, Setup, TcpServer, TestAuthority, TestCertificate, TestHttpServer,
    TlsClient, TlsSettings, binary, copy_program, fetch, run, tests, wait_for,
};
use rustix::process::Signal;

tests!("file_rights":
    service_reads_keys_of_root_at_start_reload_and_upgrade [Need::Other(not_root), SETPRIV],
    check_judges_with_the_rights_of_the_unit [Need::Other(not_root), Need::Tool("systemctl", "systemd"), Need::Tool("unshare", "util-linux")],
    start_refuses_a_folder_of_keys_that_its_user_cannot_read [Need::Other(not_root)],
    reload_and_upgrade_name_landlock_where_it_refuses_a_file [Need::Kernel(5, 13, "Landlock")],
);

const SETPRIV: Need = Need::Tool("setpriv", "util-linux");

/// The user `nobody`.
const NOBODY: u32 = 65_534;

const READ_SEARCH: u64 = 1 << 2;

fn not_root() -> Option<String> {
    (!rustix::process::geteuid().is_root()).then(|| "only root can become another user".to_owned())
}

/// Certificates in certbot's layout: only root may enter the folders.
struct Certbot {
    folder: PathBuf,
    authority: TestAuthority,
}

impl Certbot {
    fn new(lab: &Loopback) -> Certbot {
        let folder = lab.directory().join("letsencrypt");
        for name in ["archive", "live"] {
            fs::create_dir_all(folder.join(name)).unwrap();
            fs::set_permissions(folder.join(name), Permissions::from_mode(0o700)).unwrap();
        }
        chown(lab.directory(), Some(NOBODY), Some(NOBODY)).unwrap();
        fs::set_permissions(lab.directory(), Permissions::from_mode(0o755)).unwrap();
        Certbot { folder, authority: TestAuthority::new("The authority") }
    }

    fn live(&self) -> PathBuf {
        self.folder.join("live")
    }

    /// Issues a certificate, and points the links in `live` to it.
    fn renew(&self, number: u32) -> TestCertificate {
        let issued = self.authority.issue(&["site.example"]);
        issued.save(&self.folder.join("archive"), &format!("site{number}"));
        for ending in ["key", "pem"] {
            let new = self.live().join("new");
            symlink(format!("../archive/site{number}.{ending}"), &new).unwrap();
            fs::rename(new, self.live().join(format!("site.{ending}"))).unwrap();
        }
        issued
    }

    fn setup(&self, lab: &Loopback, lines: &str) -> Setup {
        let live = self.live();
        let live = live.display();
        let frontend = format!(
            "mode = \"http\"\n[frontends.web.tls]\ncertificate = \"{live}/site.pem\"\nkey = \"{live}/site.key\"\n"
        );
        Setup::new(lab).frontend(&frontend).server("a", lab.server(1), "").and(lines)
    }
}

fn service_reads_keys_of_root_at_start_reload_and_upgrade() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let certbot = Certbot::new(&lab);
    let first = certbot.renew(1);
    // Another user may not enter the folder of the tests' program.
    let program = lab.directory().join("convey");
    copy_program(binary().get_program(), &program);
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.args(["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]).arg(&program);
    let mut balancer = BalancerProcess::start_with(&lab, &certbot.setup(&lab, ""), command);
    let config = TlsSettings::trusting(&certbot.authority).client();
    let shown = || TlsClient::connect(lab.vip(), "site.example", &config).unwrap().certificate();
    let serves = |issued: &TestCertificate| {
        wait_for("the renewed certificate", || (shown() == issued.der()).then_some(()));
    };
    serves(&first);
    let capabilities = |name: &str| {
        let status = fs::read_to_string(balancer.proc("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap().to_owned();
        u64::from_str_radix(line.trim_start_matches(':').trim(), 16).unwrap() & READ_SEARCH
    };
    assert_eq!((capabilities("CapPrm"), capabilities("CapEff")), (READ_SEARCH, 0));

    serves(&certbot.renew(2));
    let ran = run(balancer.command().arg("reload"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    // The capability is only for certificates: clients could read this page.
    let page = lab.directory().join("page");
    fs::write(&page, "secret").unwrap();
    fs::set_permissions(&page, Permissions::from_mode(0o600)).unwrap();
    let with_page = format!("[frontends.web.error_pages]\n503 = \"{}\"\n", page.display());
    balancer.save(&certbot.setup(&lab, &with_page));
    balancer.wait_for_log("user 65534 may not read it");
    balancer.save(&certbot.setup(&lab, ""));

    let ran = run(balancer.command().arg("upgrade"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    serves(&certbot.renew(3));
    balancer.signal(Signal::TERM);
    assert_eq!(balancer.wait(), 0);
}

fn check_judges_with_the_rights_of_the_unit() {
    let lab = Loopback::new();
    let certbot = Certbot::new(&lab);
    certbot.renew(1);
    let path = lab.directory().join("config.toml");
    fs::write(&path, certbot.setup(&lab, "").to_string()).unwrap();
    let check = |capabilities: &str| {
        let systemctl = lab.directory().join("systemctl");
        let lines = format!(
            "User=nobody\nAmbientCapabilities={capabilities}\nCapabilityBoundingSet={capabilities}\n\
             ExecStart={{ path=/usr/bin/convey ; argv[]=/usr/bin/convey --config {} ; ignore_errors=no }}",
            path.display()
        );
        fs::write(&systemctl, format!("#!/bin/sh\ncat <<'END'\n{lines}\nEND\n")).unwrap();
        fs::set_permissions(&systemctl, Permissions::from_mode(0o755)).unwrap();
        let script = "mount --bind \"$1\" \"$(command -v systemctl)\" && shift && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(systemctl).arg(binary().get_program());
        run(command.arg("check").arg("--config").arg(&path))
    };
    let refused = check("");
    let live = certbot.live();
    let expected = [
        "error: convey cannot read its configuration as user nobody (User= of convey.service): ".to_owned(),
        format!("user 65534 may not enter {}; with the Debian package, ", live.display()),
        "/usr/share/convey/systemd/certificates.conf".to_owned(),
    ];
    assert!(
        refused.code == Some(1) && expected.iter().all(|words| refused.stderr.contains(words)),
        "{refused:?}"
    );
    let valid = check("cap_dac_read_search");
    assert_eq!(valid.code, Some(0), "{valid:?}");
}

fn start_refuses_a_folder_of_keys_that_its_user_cannot_read() {
    let lab = Loopback::new();
    let certbot = Certbot::new(&lab);
    certbot.renew(1);
    let path = lab.directory().join("config.toml");
    let tls =
        format!("mode = \"http\"\n[frontends.web.tls]\ncertificate_dir = \"{}\"\n", certbot.live().display());
    let setup = Setup::new(&lab).frontend(&tls).server("a", lab.server(1), "");
    fs::write(&path, setup.and("[privileges]\nuser = \"nobody\"\n").to_string()).unwrap();
    fs::set_permissions(certbot.live(), Permissions::from_mode(0o755)).unwrap();
    for command in [&["check"][..], &[]] {
        let ran = run(binary().args(command).arg("--config").arg(&path));
        assert!(ran.code == Some(1) && ran.stderr.contains("may not enter"), "{ran:?}");
    }
}

fn reload_and_upgrade_name_landlock_where_it_refuses_a_file() {
    let (lab, elsewhere) = (Loopback::new(), Loopback::new());
    let _server = TcpServer::named("a", lab.server(1));
    let setup = Setup::new(&lab).server("a", lab.server(1), "").and("[privileges]\nlandlock = true\n");
    let balancer = BalancerProcess::start(&lab, &setup);
    let file = |name: &str, content: &str| {
        let path = elsewhere.directory().join(name);
        fs::write(&path, content).unwrap();
        path
    };
    let refusals = |lines: &str, path: &Path| {
        balancer.save(&setup.clone().and(lines));
        let why = format!(
            "{}: Permission denied (os error 13): the file mode permits access, but Landlock",
            path.display()
        );
        balancer.wait_for_log(&why);
        let ran = run(balancer.command().arg("upgrade"));
        assert!(ran.code == Some(1) && ran.stderr.contains(&why), "{ran:?}");
    };
    let list = file("list", "192.0.2.0/24\n");
    refusals(&format!("[frontends.web.access]\ndeny = \"@{}\"\n", list.display()), &list);
    let included = file("more.toml", "[backends.more]\nservers.a.addr = \"192.0.2.1:80\"\n");
    let main = format!("include = \"{}\"\n{setup}", included.display());
    balancer.save(&main);
    balancer.wait_for_log(&format!("{}: Permission denied (os error 13): the file mode", included.display()));
    assert_eq!(fetch(lab.vip(), "/").unwrap().1, "a");
}
