//! Credential plugins: programs named in a kubeconfig that print credentials
//! (client.authentication.k8s.io).

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, waitpid};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::cluster::bounded;
use crate::kubeconfig::Exec;
use crate::yaml;

/// Time limit for a run of a plugin.
const PLUGIN_TIMEOUT: Duration = Duration::from_secs(15);
/// Size limit of the printed credentials, in bytes.
const MAX_OUTPUT: usize = 1 << 20;
/// Number of bytes that convey keeps of a plugin's error output.
const MAX_ERRORS: usize = 4 << 10;
/// Interval at which the exit status of a plugin is polled.
const EXIT_POLL: Duration = Duration::from_millis(10);
/// Interval at which the exit status of a killed plugin is polled.
const REAP_POLL: Duration = Duration::from_secs(1);
/// Maximum number of plugins that run at the same time, for all Services.
const MAX_PLUGINS: usize = 4;

static TURNS: Semaphore = Semaphore::const_new(MAX_PLUGINS);

/// Credential plugin: a program that prints credentials.
pub(crate) struct CredentialPlugin {
    command: String,
    arguments: Vec<String>,
    variables: BTreeMap<String, String>,
}

/// Credentials from a plugin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PluginCredentials {
    pub(crate) token: Option<String>,
    /// Certificate chain and key, both in PEM.
    pub(crate) certificate: Option<(String, String)>,
    pub(crate) expires: Option<SystemTime>,
}

#[derive(Deserialize)]
struct ExecCredential {
    status: Option<ExecStatus>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ExecStatus {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

impl CredentialPlugin {
    /// Prepares the plugin of a user. `cluster` describes the API server; the plugin gets this
    /// description if its configuration requests it.
    ///
    /// # Errors
    /// Operator-facing message: the plugin needs something that convey cannot offer as a background
    /// service, such as a terminal.
    pub(crate) fn new(exec: Exec, cluster: Option<Value>) -> Result<CredentialPlugin, String> {
        let command = exec.command.ok_or("exec has no command")?.0;
        if exec.interactive_mode.is_some_and(|mode| mode.0 == "Always") {
            return Err(format!(
                "exec {command}: interactiveMode Always is not supported: convey has no terminal"
            ));
        }
        let mut spec = json!({ "interactive": false });
        if let Some(cluster) = cluster {
            spec["cluster"] = cluster;
        }
        let api_version = exec.api_version.map(|version| version.0);
        let info = json!({ "apiVersion": api_version, "kind": "ExecCredential", "spec": spec });
        let variables = exec.env.unwrap_or_default().into_iter();
        let mut variables: BTreeMap<_, _> = variables.map(|set| (set.name.0, set.value.0)).collect();
        variables.insert("KUBERNETES_EXEC_INFO".to_owned(), info.to_string());
        let arguments = exec.args.unwrap_or_default().into_iter().map(|argument| argument.0).collect();
        Ok(CredentialPlugin { command, arguments, variables })
    }

    /// Runs the plugin. At most [`MAX_PLUGINS`] plugins run at the same time.
    ///
    /// # Errors
    /// Operator-facing message: the plugin fails, times out or prints no credentials.
    pub(crate) async fn fetch(&self) -> Result<PluginCredentials, String> {
        let _turn = TURNS.acquire().await;
        let fetched = match timeout(PLUGIN_TIMEOUT, self.run()).await {
            Ok(output) => output.and_then(|output| credentials(&output)),
            Err(_) => Err(format!("no credentials within {} s", PLUGIN_TIMEOUT.as_secs())),
        };
        fetched.map_err(|why| self.fault(&why))
    }

    /// Adds the name of the plugin to an error message.
    pub(crate) fn fault(&self, why: &str) -> String {
        bounded(&format!("exec {}: {why}", self.command))
    }

    async fn run(&self) -> Result<Vec<u8>, String> {
        let mut command = Command::new(&self.command);
        command.args(&self.arguments).envs(&self.variables).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| error.to_string())?;
        let mut plugin = RunningPlugin { child, is_reaped: false };
        let (stdout, stderr) = (plugin.child.stdout.take(), plugin.child.stderr.take());
        let (output, errors) = tokio::try_join!(
            read(stdout.map(OwnedFd::from), MAX_OUTPUT, false),
            read(stderr.map(OwnedFd::from), MAX_ERRORS, true)
        )?;
        let status = loop {
            match plugin.child.try_wait().map_err(|error| error.to_string())? {
                Some(status) => break status,
                None => sleep(EXIT_POLL).await,
            }
        };
        plugin.is_reaped = true;
        if !status.success() {
            return Err(format!("{status}: {}", String::from_utf8_lossy(&errors).trim()));
        }
        Ok(output)
    }
}

/// Running plugin. Dropping it before the plugin is reaped kills its process group.
struct RunningPlugin {
    child: Child,
    is_reaped: bool,
}

impl Drop for RunningPlugin {
    fn drop(&mut self) {
        if self.is_reaped {
            return;
        }
        // The id of the process group is not reused before the plugin is reaped.
        let plugin = Pid::from_child(&self.child);
        let _ = kill_process_group(plugin, Signal::KILL);
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(reap(plugin));
        }
    }
}

/// Waits for the exit of a killed plugin, and reaps it. The exit may be late: the kernel may hold
/// the plugin in a system call, or may not allow convey to kill a plugin of another user.
async fn reap(plugin: Pid) {
    while let Ok(None) = waitpid(Some(plugin), WaitOptions::NOHANG) {
        sleep(REAP_POLL).await;
    }
}

/// Reads until the writer closes the pipe. If there are more than `max` bytes, the excess is
/// dropped if `is_cut` is true, and is an error if it is false.
async fn read(pipe: Option<OwnedFd>, max: usize, is_cut: bool) -> Result<Vec<u8>, String> {
    let (mut kept, mut buffer) = (Vec::new(), [0; 4 << 10]);
    let Some(pipe) = pipe else { return Ok(kept) };
    let mut pipe = Receiver::from_owned_fd(pipe).map_err(|error| error.to_string())?;
    loop {
        let count = pipe.read(&mut buffer).await.map_err(|error| error.to_string())?;
        if count == 0 {
            return Ok(kept);
        }
        let fitting = count.min(max - kept.len());
        if fitting < count && !is_cut {
            return Err(format!("its output is longer than {} MiB", max >> 20));
        }
        kept.extend_from_slice(&buffer[..fitting]);
    }
}

/// Parses an `ExecCredential`, in JSON or YAML.
fn credentials(output: &[u8]) -> Result<PluginCredentials, String> {
    // The error does not quote the output, which may be secret.
    let read = || {
        let value = match serde_json::from_slice(output) {
            Ok(value) => value,
            Err(_) => yaml::documents(std::str::from_utf8(output).ok()?).ok()?.pop()?,
        };
        serde_json::from_value::<ExecCredential>(value).ok()?.status
    };
    let status = read().ok_or("its output is not an ExecCredential with a status")?;
    let expires = status.expiration_timestamp.map(|text| {
        expiry(&text).ok_or_else(|| format!("its expirationTimestamp {text:?} is not an RFC 3339 time"))
    });
    let given = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
    Ok(PluginCredentials {
        token: given(status.token),
        certificate: given(status.client_certificate_data).zip(given(status.client_key_data)),
        expires: expires.transpose()?,
    })
}

/// Parses a time such as `2026-01-02T03:04:05Z` or `2026-01-02T04:04:05+01:00`.
fn expiry(text: &str) -> Option<SystemTime> {
    if let Ok(time) = humantime::parse_rfc3339(text) {
        return Some(time);
    }
    let (local, offset) = text.split_at_checked(text.len().checked_sub(6)?)?;
    let (sign, offset) = offset.split_at_checked(1)?;
    let (hours, minutes) = offset.split_once(':')?;
    let offset = Duration::from_secs(60 * (60 * hours.parse::<u64>().ok()? + minutes.parse::<u64>().ok()?));
    let time = humantime::parse_rfc3339(&format!("{local}Z")).ok()?;
    match sign {
        "+" => time.checked_sub(offset),
        "-" => time.checked_add(offset),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugin(script: &str) -> CredentialPlugin {
        let exec: Exec = serde_json::from_value(json!({
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "sh",
            "args": ["-c", script],
            "env": [{ "name": "PROFILE", "value": "production" }],
        }))
        .unwrap();
        CredentialPlugin::new(exec, Some(json!({ "server": "https://10.0.0.1" }))).unwrap()
    }

    async fn fetched(script: &str) -> Result<PluginCredentials, String> {
        plugin(script).fetch().await
    }

    #[tokio::test]
    async fn plugin_has_its_arguments_and_variables() {
        let script = r#"test "$PROFILE" = production && printf '{"status": {"token": "%s"}}' "$(printf %s "$KUBERNETES_EXEC_INFO" | base64 -w0)""#;
        let token = fetched(script).await.unwrap().token.unwrap();
        let info = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, token).unwrap();
        let expected = json!({
            "apiVersion": "client.authentication.k8s.io/v1",
            "kind": "ExecCredential",
            "spec": { "interactive": false, "cluster": { "server": "https://10.0.0.1" } },
        });
        assert_eq!(serde_json::from_slice::<Value>(&info).unwrap(), expected);
    }

    #[tokio::test]
    async fn plugin_that_fails_is_named_with_its_errors() {
        let fault = async |script| fetched(script).await.unwrap_err();
        assert_eq!(fault("echo log in first >&2; exit 3").await, "exec sh: exit status: 3: log in first");
        assert_eq!(fault("echo secret").await, "exec sh: its output is not an ExecCredential with a status");
        assert_eq!(fault("yes").await, "exec sh: its output is longer than 1 MiB");
        let loud = fetched("yes | head -c 100000 >&2; echo '{\"status\": {}}'").await;
        assert_eq!(loud.unwrap().token, None, "errors that nobody needs are no fault");
        let missing: Exec = serde_json::from_value(json!({ "command": "/no/such/plugin" })).unwrap();
        let missing = CredentialPlugin::new(missing, None).unwrap().fetch().await.unwrap_err();
        assert_eq!(missing, "exec /no/such/plugin: No such file or directory (os error 2)");
        let asks: Exec =
            serde_json::from_value(json!({ "command": "login", "interactiveMode": "Always" })).unwrap();
        assert!(CredentialPlugin::new(asks, None).err().unwrap().contains("interactiveMode Always"));
    }

    fn stat(pid: &str) -> String {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default()
    }

    /// Runs a script that writes process ids to the file `pids`. Drops the plugin when `is_late`
    /// returns `true` for these ids. Returns after all these processes have ended.
    async fn give_up(script: &str, is_late: impl Fn(&[&str]) -> bool) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pids");
        let plugin = plugin(&format!("cd {}; {script}", folder.path().display()));
        let late = async {
            loop {
                let pids = std::fs::read_to_string(&path).unwrap_or_default();
                if !pids.is_empty() && is_late(&pids.split_whitespace().collect::<Vec<_>>()) {
                    return pids;
                }
                sleep(EXIT_POLL).await;
            }
        };
        let pids = tokio::select! {
            pids = late => pids,
            ended = plugin.run() => panic!("{ended:?}"),
        };
        let is_running = |pid: &str| !(stat(pid).is_empty() || stat(pid).contains(") Z "));
        let ended = timeout(Duration::from_secs(30), async {
            while pids.split_whitespace().any(is_running) {
                sleep(EXIT_POLL).await;
            }
        });
        assert!(ended.await.is_ok(), "{pids} still run");
    }

    #[tokio::test]
    async fn plugin_that_is_given_up_is_killed_with_its_programs() {
        let begin = "sleep 100 & echo $! $$ > new; mv new pids;";
        give_up(&format!("{begin} wait"), |_| true).await;
        let has_exited = |pids: &[&str]| stat(pids[1]).contains(") Z ");
        give_up(&format!("{begin} echo '{{\"status\": {{\"token\": \"a\"}}}}'"), has_exited).await;
    }

    #[tokio::test]
    async fn plugin_that_outlives_its_kill_is_reaped_later() {
        // The child has no process group of its own, so it is not killed.
        let child = Command::new("sleep").arg("20").spawn().unwrap();
        let pid = Pid::from_child(&child);
        drop(RunningPlugin { child, is_reaped: false });
        assert!(waitpid(Some(pid), WaitOptions::NOHANG).unwrap().is_none(), "dropping does not wait");
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
        while !stat(&pid.as_raw_nonzero().to_string()).is_empty() {
            sleep(EXIT_POLL).await;
        }
    }

    #[tokio::test]
    async fn plugins_run_at_most_four_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let script = format!(
            "cd {}; mkdir $$; n=$(ls | wc -l); sleep 0.1; rmdir $$; echo \"{{status: {{token: '$n'}}}}\"",
            folder.path().display()
        );
        let tokens = futures_util::future::join_all((0..12).map(|_| fetched(&script))).await;
        for token in tokens {
            let count = token.unwrap().token.unwrap().parse::<usize>().unwrap();
            assert!(count <= MAX_PLUGINS, "{count} run at once");
        }
    }

    #[test]
    fn credentials_are_read_from_json_and_yaml() {
        let json = br#"{"status": {"token": "a", "expirationTimestamp": "1970-01-02T00:00:00Z"}}"#;
        let expires = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(24 * 3_600));
        let expected = PluginCredentials { token: Some("a".to_owned()), certificate: None, expires };
        assert_eq!(credentials(json), Ok(expected));
        let yaml = b"kind: ExecCredential\nstatus:\n  clientCertificateData: chain\n  clientKeyData: key\n";
        let certificate = Some(("chain".to_owned(), "key".to_owned()));
        let expected = PluginCredentials { token: None, certificate, expires: None };
        assert_eq!(credentials(yaml), Ok(expected));
        let late = credentials(br#"{"status": {"token": "a", "expirationTimestamp": "tomorrow"}}"#);
        assert_eq!(late.unwrap_err(), "its expirationTimestamp \"tomorrow\" is not an RFC 3339 time");
    }

    #[test]
    fn expiry_may_have_an_offset() {
        let utc = expiry("2026-01-02T03:04:05Z").unwrap();
        for text in [
            "2026-01-02T03:04:05+00:00",
            "2026-01-02T04:04:05+01:00",
            "2026-01-01T21:34:05-05:30",
            "2026-01-02T03:04:05.000Z",
        ] {
            assert_eq!(expiry(text), Some(utc), "{text}");
        }
        for text in
            ["", "2026-01-02", "2026-01-02T03:04:05", "2026-01-02T03:04:05*01:00", "2026-01-02T03:04:05+1:0é"]
        {
            assert_eq!(expiry(text), None, "{text}");
        }
    }
}
