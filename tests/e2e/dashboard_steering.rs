//! An operator steers from the dashboard, by mouse and keyboard.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use convey_testkit::{BalancerProcess, Browser, Loopback, Need, Setup, TcpServer, tests};

tests!("dashboard_steering":
    without_a_token_in_the_file_it_says_how_to_allow_changes [Need::CHROMIUM],
    wrong_token_changes_nothing_and_the_right_one_can_be_forgotten [Need::CHROMIUM],
    last_server_is_taken_out_only_after_a_second_confirmation [Need::CHROMIUM],
    a_backend_is_taken_out_and_everything_taken_back [Need::CHROMIUM],
    the_file_is_read_again_and_its_mistakes_are_shown [Need::CHROMIUM],
);

const TOKEN: &str = "a-token-of-this-test";

/// Two servers, and a token.
fn two(lab: &Loopback) -> ([TcpServer; 2], Setup) {
    let path = lab.directory().join("token");
    fs::write(&path, format!("{TOKEN}\n")).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let servers = [("a", 1), ("b", 2)].map(|(name, n)| TcpServer::named(name, lab.server(n)));
    let setup = Setup::new(lab).server("a", lab.server(1), "").server("b", lab.server(2), "");
    (servers, setup.and(&format!("token_file = \"{}\"\n", path.display())))
}

fn look_at(lab: &Loopback) -> Browser {
    let mut browser = Browser::start();
    browser.resize(1280, 800);
    browser.open(&format!("http://{}/", lab.stats()));
    browser.wait_for_text("#link", "live");
    browser
}

/// Enters a token, and waits for the outcome.
fn enter_token(browser: &mut Browser, token: &str) {
    if browser.evaluate("document.getElementById('access').open") == false {
        browser.click("#access-title");
    }
    browser.click("#token");
    browser.write(token);
    browser.press("Enter");
}

fn allowed(lab: &Loopback) -> Browser {
    let mut browser = look_at(lab);
    enter_token(&mut browser, TOKEN);
    browser.wait_for_text("#access-title", "Changes allowed");
    browser
}

/// Opens the dialog of a server, or of a backend.
fn steer(browser: &mut Browser, what: &str) {
    browser.click(&format!("[aria-label='Steer {what}']"));
    browser.wait_until("document.getElementById('steer').open");
}

/// Closes the dialog with the keyboard. Checks that the focus returns.
fn close(browser: &mut Browser, what: &str) {
    browser.press("Escape");
    browser.wait_until("!document.getElementById('steer').open");
    let focus = browser.evaluate("document.activeElement.getAttribute('aria-label')");
    assert_eq!(focus, format!("Steer {what}"));
}

fn without_a_token_in_the_file_it_says_how_to_allow_changes() {
    let lab = Loopback::new();
    let _balancer = BalancerProcess::start(&lab, &Setup::new(&lab).server("a", lab.server(1), ""));
    let mut browser = look_at(&lab);
    browser.wait_for_text("#access-title", "Read-only");
    browser.click("#access-title");
    browser.wait_for_text("#access-text", "set token_file in [stats]");
    assert_eq!(browser.evaluate("document.getElementById('token-form').hidden"), true);
    assert_eq!(
        browser.evaluate("[...document.querySelectorAll('.change')].every((one) => one.hidden)"),
        true
    );
    assert_eq!(browser.complaints(), [""; 0]);
}

fn wrong_token_changes_nothing_and_the_right_one_can_be_forgotten() {
    let lab = Loopback::new();
    let (_servers, setup) = two(&lab);
    let _balancer = BalancerProcess::start(&lab, &setup);
    let mut browser = look_at(&lab);
    enter_token(&mut browser, "not-the-token-of-this-test");
    browser.wait_for_text("#access-error", "the token does not match stats.token_file");
    assert_eq!(browser.text("#access-title"), "Read-only");
    assert!(browser.complaints().iter().all(|complaint| complaint.contains("401")));
    enter_token(&mut browser, TOKEN);
    browser.wait_for_text("#access-title", "Changes allowed");
    // The token is kept as long as the tab is open.
    browser.open(&format!("http://{}/", lab.stats()));
    browser.wait_for_text("#access-title", "Changes allowed");
    browser.click("#access-title");
    browser.click("#forget");
    browser.wait_for_text("#access-title", "Read-only");
    assert_eq!(browser.evaluate("sessionStorage.length + localStorage.length"), 0);
    browser.wait_until("document.querySelector('.servers .change').hidden");
    assert_eq!(browser.complaints(), [""; 0]);
}

fn last_server_is_taken_out_only_after_a_second_confirmation() {
    let lab = Loopback::new();
    let (_servers, setup) = two(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut browser = allowed(&lab);
    let [a, b] = ["server pool/a", "server pool/b"];
    steer(&mut browser, a);
    browser.click("#steer [data-state=drain]");
    browser.wait_for_text("#steer-result", "Done.");
    balancer.wait_for_stat("/backends/pool/servers/a/state", "drain");
    browser.wait_for_text("#steer-now", "drain, healthy");
    browser.evaluate("document.getElementById('weight').select()");
    browser.write("5");
    browser.click("#set-weight");
    balancer.wait_for_stat("/backends/pool/servers/a/weight", 5);
    browser.evaluate("document.getElementById('weight').select()");
    browser.write("70000");
    browser.click("#set-weight");
    browser.wait_for_text("#steer-result", "from 0 to 65535");
    close(&mut browser, a);
    browser.wait_for_text(".servers tbody tr:first-child .state", "drain");
    browser.wait_for_text(".servers tbody tr:first-child .state", "by token from ");

    // Without b, no server is left.
    steer(&mut browser, b);
    browser.click("#steer [data-state=maint]");
    browser.wait_for_text("#confirm-text", "b is the last server of pool that can be chosen");
    browser.click("#keep");
    assert_eq!(balancer.stat("/backends/pool/servers/b/state"), "ready");
    browser.click("#steer [data-state=maint]");
    browser.click("#confirm");
    balancer.wait_for_stat("/backends/pool/servers/b/state", "maint");
    browser.wait_for_text("#states", "Not ready: frontend web: ");
    browser.click("#steer [data-state=ready]");
    balancer.wait_for_stat("/backends/pool/servers/b/state", "ready");
    browser.click("#steer button[type=submit]");
    steer(&mut browser, a);
    browser.click("#reset");
    browser.wait_for_text("#steer-result", "Changes undone: ");
    balancer.wait_for_stat("/backends/pool/servers/a/weight", 1);
    assert_eq!(browser.complaints(), [""; 0]);
}

fn a_backend_is_taken_out_and_everything_taken_back() {
    let lab = Loopback::new();
    let (_servers, setup) = two(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut browser = allowed(&lab);
    steer(&mut browser, "backend pool");
    // `ready` restores the file's state: no earlier override is left.
    for (state, left) in [("maint", 0), ("drain", 0), ("ready", 2), ("drain", 0)] {
        let has_some = browser.text("#steer-now").starts_with('2');
        browser.click(&format!("#steer [data-state={state}]"));
        // With no server left, the page asks for no confirmation.
        if has_some {
            browser.wait_for_text("#confirm-text", "This takes all servers of pool out of rotation");
            browser.click("#confirm");
        }
        balancer.wait_for_stat("/backends/pool/servers/b/state", state);
        browser.wait_for_text("#steer-result", "Done.");
        // The page shows the new state before the next click.
        browser.wait_for_text("#steer-now", &format!("{left} of 2 servers can be chosen"));
    }
    close(&mut browser, "backend pool");
    browser.wait_for_text("#overlay-list", "pool");
    browser.click("#overlay-list button");
    browser.wait_for_text("#no-overlays", "None: the file applies.");
    steer(&mut browser, "server pool/a");
    browser.click("#steer [data-state=drain]");
    balancer.wait_for_stat("/backends/pool/servers/a/state", "drain");
    close(&mut browser, "server pool/a");
    browser.click("#reset-all");
    balancer.wait_for_stat("/backends/pool/servers/a/state", "ready");
    browser.wait_for_text("#no-overlays", "None: the file applies.");
    assert_eq!(balancer.stats().get("overlays"), None);
    assert_eq!(browser.complaints(), [""; 0]);
}

fn the_file_is_read_again_and_its_mistakes_are_shown() {
    let lab = Loopback::new();
    let (_servers, setup) = two(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut browser = allowed(&lab);
    browser.click("#reload");
    browser.wait_for_text("#notices", "Reloaded: no effective changes.");
    assert_eq!(browser.complaints(), [""; 0]);
    balancer.save(&setup.to_string().replace("backend = \"pool\"", "backend = \"pol\""));
    browser.click("#reload");
    browser.wait_for_text("#notices", "did you mean `pool`?");
    browser.wait_for_text("#config-errors", "did you mean `pool`?");
    browser.wait_for_text("#config-state", "The last reload was refused ");
}
