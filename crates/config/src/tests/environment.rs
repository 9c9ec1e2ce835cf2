//! Environment variables in values, and times with a unit.

use std::time::Duration;

use super::super::{LogOutput, parse};
use super::{GOOD, errors};

#[test]
fn values_may_be_from_the_environment() {
    let text = GOOD
        .replace("10.0.0.1:80", "${CONVEY_NO_SUCH_IP:-10.0.0.9}:${CONVEY_NO_SUCH_PORT:-81}")
        .replace(
            "addr = \"10.0.0.2:80\"",
            "addr = '${CONVEY_NO_SUCH:-10.0.0.2:80}'\nweight = '${CONVEY_NO_SUCH:-7}'",
        )
        + "backup = '${CONVEY_NO_SUCH:-true}'\n[timeouts]\nconnect = '${CONVEY_NO_SUCH:-500ms}'\nidle = '${CONVEY_NO_SUCH:-2.5}'\n";
    let config = parse("config.toml", &text).expect("right").config;
    assert_eq!(config.frontends[0].listen, ["10.0.0.9:81".parse().unwrap()]);
    let server = &config.backends[0].servers[0];
    assert_eq!((server.settings.weight, server.settings.backup), (7, true));
    assert_eq!(config.timeouts.connect, Duration::from_millis(500));
    assert_eq!(config.timeouts.idle, Duration::from_millis(2_500));
    let home = std::env::var("HOME").expect("everybody has one");
    let logs = format!("{GOOD}[log]\noutput = '${{HOME}}/convey.log'\n");
    let output = LogOutput::File(format!("{home}/convey.log").into());
    assert_eq!(parse("config.toml", &logs).expect("right").config.log.output, output);
}

#[test]
fn a_variable_that_is_missing_is_told_once() {
    assert_eq!(
        errors(&GOOD.replace("10.0.0.1:80", "${CONVEY_NO_SUCH}:80")),
        [
            "config.toml:3:15: frontends.web.listen_addr: the environment variable CONVEY_NO_SUCH is not set; set it, \
          or write ${CONVEY_NO_SUCH:-default}"
        ]
    );
}

#[test]
fn variable_values_are_checked_like_literal_ones() {
    let text = format!("{GOOD}weight = '${{CONVEY_NO_SUCH:-many}}'\nbackup = '7'\n");
    assert_eq!(
        errors(&text),
        [
            "config.toml:7:10: backends.web.servers.a.weight: found \"many\"; allowed: an integer from 0 to 65535",
            "config.toml:8:10: backends.web.servers.a.backup: found \"7\"; allowed: true, false",
        ]
    );
}

#[test]
fn a_time_may_have_a_unit() {
    for (time, milliseconds) in [
        ("2", 2_000),
        ("0.25", 250),
        ("\"2s\"", 2_000),
        ("\"500ms\"", 500),
        ("\"1h 30m\"", 5_400_000),
        ("\"2min\"", 120_000),
    ] {
        let config =
            parse("config.toml", &format!("{GOOD}[timeouts]\nidle = {time}\n")).expect("right").config;
        assert_eq!(config.timeouts.idle, Duration::from_millis(milliseconds), "{time}");
    }
}
