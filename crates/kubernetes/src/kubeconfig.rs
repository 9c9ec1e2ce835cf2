//! Parses kubeconfigs: files with clusters, users and contexts.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};

use convey_config::files;
use serde::de::{self, DeserializeOwned};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::yaml;

/// A kubeconfig, or several merged into one.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Kubeconfig {
    kind: Option<Text>,
    #[serde(rename = "apiVersion")]
    api_version: Option<Text>,
    #[serde(rename = "current-context")]
    current_context: Option<Text>,
    clusters: Option<Vec<Entry>>,
    users: Option<Vec<Entry>>,
    contexts: Option<Vec<Entry>>,
}

/// Entry of `clusters`, `users` or `contexts`. Its value is checked only when a context selects it.
#[derive(Deserialize)]
struct Entry {
    name: Option<Text>,
    #[serde(flatten)]
    values: Map<String, Value>,
    /// Directory of the file, at which relative paths in the value start.
    #[serde(skip)]
    folder: PathBuf,
}

/// API server of a cluster.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct Cluster {
    pub(crate) server: Option<Text>,
    pub(crate) tls_server_name: Option<Text>,
    pub(crate) insecure_skip_tls_verify: Option<Flag>,
    pub(crate) certificate_authority: Option<Text>,
    pub(crate) certificate_authority_data: Option<Text>,
    pub(crate) proxy_url: Option<Text>,
    pub(crate) extensions: Option<Vec<Extension>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Extension {
    pub(crate) name: Option<Text>,
    pub(crate) extension: Value,
}

/// Cluster and user of a context.
pub(crate) struct SelectedContext {
    pub(crate) cluster: Cluster,
    pub(crate) user: KubeconfigUser,
}

/// Credentials of a user, and the identity to impersonate.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct KubeconfigUser {
    pub(crate) username: Option<Text>,
    pub(crate) password: Option<Text>,
    pub(crate) token: Option<Text>,
    #[serde(rename = "tokenFile")]
    pub(crate) token_file: Option<Text>,
    pub(crate) client_certificate: Option<Text>,
    pub(crate) client_certificate_data: Option<Text>,
    pub(crate) client_key: Option<Text>,
    pub(crate) client_key_data: Option<Text>,
    #[serde(rename = "as")]
    pub(crate) impersonate: Option<Text>,
    pub(crate) as_groups: Option<Vec<Text>>,
    pub(crate) as_uid: Option<Text>,
    pub(crate) as_user_extra: Option<Value>,
    pub(crate) auth_provider: Option<AuthProvider>,
    pub(crate) exec: Option<Exec>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct AuthProvider {
    pub(crate) name: Option<Text>,
    pub(crate) config: Option<BTreeMap<String, Option<Text>>>,
}

/// Credential plugin of a user.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Exec {
    pub(crate) api_version: Option<Text>,
    pub(crate) command: Option<Text>,
    pub(crate) args: Option<Vec<Text>>,
    pub(crate) env: Option<Vec<ExecVariable>>,
    pub(crate) interactive_mode: Option<Text>,
    pub(crate) provide_cluster_info: Option<Flag>,
}

#[derive(Deserialize)]
pub(crate) struct ExecVariable {
    pub(crate) name: Text,
    pub(crate) value: Text,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Context {
    cluster: Option<Text>,
    user: Option<Text>,
}

impl Cluster {
    fn resolve(&mut self, folder: &Path) {
        resolve(&mut self.certificate_authority, folder);
    }
}

impl KubeconfigUser {
    fn resolve(&mut self, folder: &Path) {
        resolve(&mut self.client_certificate, folder);
        resolve(&mut self.client_key, folder);
        resolve(&mut self.token_file, folder);
        // A name without a slash is looked up in PATH.
        if let Some(exec) = self.exec.as_mut()
            && exec.command.as_ref().is_some_and(|command| command.0.contains('/'))
        {
            resolve(&mut exec.command, folder);
        }
    }
}

fn resolve(path: &mut Option<Text>, folder: &Path) {
    if let Some(Text(path)) = path.as_mut().filter(|path| !path.0.is_empty()) {
        *path = folder.join(&*path).to_string_lossy().into_owned();
    }
}

impl Kubeconfig {
    /// Reads the files named in `KUBECONFIG`, or else `~/.kube/config`.
    ///
    /// # Errors
    /// Operator-facing message: no file is named, or a file cannot be read.
    pub(crate) fn of_environment() -> Result<Kubeconfig, String> {
        let named = env::var_os("KUBECONFIG").unwrap_or_default();
        let mut paths: Vec<PathBuf> =
            env::split_paths(&named).filter(|path| *path != Path::new("")).collect();
        if paths.is_empty() {
            let home = env::home_dir().ok_or("no kubeconfig: neither KUBECONFIG nor HOME is set")?;
            paths.push(home.join(".kube/config"));
        }
        Kubeconfig::read_all(paths)
    }

    /// Reads and merges files. Missing files are skipped unless all are missing, as with `kubectl`.
    fn read_all(mut paths: Vec<PathBuf>) -> Result<Kubeconfig, String> {
        let is_there = |path: &PathBuf| !matches!(path.try_exists(), Ok(false));
        if paths.iter().any(is_there) {
            paths.retain(is_there);
        }
        paths.iter().try_fold(Kubeconfig::default(), |merged, path| merged.merge(Kubeconfig::read(path)?))
    }

    /// Reads a file. Relative paths in it start at its directory.
    ///
    /// # Errors
    /// Operator-facing message: the file cannot be read, or is not a kubeconfig.
    pub(crate) fn read(path: &Path) -> Result<Kubeconfig, String> {
        let read = || {
            let text = String::from_utf8(read_file(path)?).map_err(|_| "it is not UTF-8")?;
            let mut found = Kubeconfig::parse(&text)?;
            found.set_folder(path.parent().unwrap_or(Path::new("")));
            Ok(found)
        };
        read().map_err(|why: String| format!("kubeconfig {}: {why}", path.display()))
    }

    /// Parses a text, and merges its documents.
    pub(crate) fn parse(text: &str) -> Result<Kubeconfig, String> {
        let found = yaml::documents(text)?.into_iter().filter(|document| !document.is_null());
        found
            .map(|document| fields(&document))
            .try_fold(Kubeconfig::default(), |merged, document: Result<Kubeconfig, String>| {
                merged.merge(document?)
            })
    }

    /// Merges another file into this one. If both have a setting or an entry of the same name, this
    /// file takes precedence, as with `kubectl`.
    fn merge(self, next: Kubeconfig) -> Result<Kubeconfig, String> {
        let one = |what, first: Option<Text>, second: Option<Text>| match (first, second) {
            (Some(first), Some(second)) if first != second => Err(format!(
                "kubeconfigs with different {what} ({} and {}) cannot be merged",
                first.0, second.0
            )),
            (first, second) => Ok(first.or(second)),
        };
        Ok(Kubeconfig {
            kind: one("kind", self.kind, next.kind)?,
            api_version: one("apiVersion", self.api_version, next.api_version)?,
            current_context: self.current_context.filter(|name| !name.0.is_empty()).or(next.current_context),
            clusters: merged(self.clusters, next.clusters),
            users: merged(self.users, next.users),
            contexts: merged(self.contexts, next.contexts),
        })
    }

    fn set_folder(&mut self, folder: &Path) {
        for entry in [&mut self.clusters, &mut self.users, &mut self.contexts].into_iter().flatten().flatten()
        {
            entry.folder = folder.to_owned();
        }
    }

    /// Finds the cluster and the user of a context. Without a name, the current context is used.
    ///
    /// # Errors
    /// Operator-facing message: the context or cluster does not exist, or a value is wrong.
    pub(crate) fn select(&self, context: Option<&str>) -> Result<SelectedContext, String> {
        let current = self.current_context.as_ref().map(|name| &*name.0).filter(|name| !name.is_empty());
        let name = context.or(current).ok_or("it has no current-context")?;
        let context: Option<(Context, _)> = find(self.contexts.as_ref(), "context", name)?;
        let Some((Context { cluster, user }, _)) = context else {
            return Err(format!("it has no context {name}"));
        };
        let Text(named) = cluster.ok_or_else(|| format!("context {name} has no cluster"))?;
        let cluster: Option<(Cluster, _)> = find(self.clusters.as_ref(), "cluster", &named)?;
        let (mut cluster, folder) = cluster.ok_or_else(|| format!("it has no cluster {named}"))?;
        cluster.resolve(folder);
        // A context without a user is anonymous, as with `kubectl`.
        let Text(named) = user.unwrap_or_default();
        let user: Option<(KubeconfigUser, _)> = find(self.users.as_ref(), "user", &named)?;
        let user = user.map(|(mut user, folder)| {
            user.resolve(folder);
            user
        });
        Ok(SelectedContext { cluster, user: user.unwrap_or_default() })
    }
}

fn merged(first: Option<Vec<Entry>>, next: Option<Vec<Entry>>) -> Option<Vec<Entry>> {
    let mut all = first.unwrap_or_default();
    let known = all.len();
    for entry in next.unwrap_or_default() {
        if !all[..known].iter().any(|found| found.name == entry.name) {
            all.push(entry);
        }
    }
    Some(all)
}

/// Finds the entry with this name. Returns the value of its `key`, and the directory at which paths
/// in the value start.
fn find<'a, T: DeserializeOwned>(
    all: Option<&'a Vec<Entry>>,
    key: &str,
    name: &str,
) -> Result<Option<(T, &'a Path)>, String> {
    let has_name = |entry: &&Entry| entry.name.as_ref().is_some_and(|found| found.0 == name);
    let Some(entry) = all.into_iter().flatten().find(has_name) else { return Ok(None) };
    let Some(value) = entry.values.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
    let value = fields(value).map_err(|why| format!("{key} {name}: {why}"))?;
    Ok(Some((value, &entry.folder)))
}

/// Parses a map in which all keys are optional. An error names the wrong key, but does not quote
/// the value, which may be secret.
fn fields<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    T::deserialize(value).map_err(|error| {
        let wrong = value.as_object().into_iter().flatten().find_map(|(key, value)| {
            let alone = Value::Object(Map::from_iter([(key.clone(), value.clone())]));
            T::deserialize(&alone).err().map(|error| format!("{key}: {}", expected(&error)))
        });
        wrong.unwrap_or_else(|| expected(&error))
    })
}

/// Text of an error without the part that quotes a value.
fn expected(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(", expected ") {
        Some((_, expected)) if expected.starts_with("struct ") => "expected a map".to_owned(),
        Some((_, expected)) => format!("expected {}", expected.replace("sequence", "list")),
        None => text,
    }
}

/// Reads files in a separate thread. If a network file system never answers, only the source that
/// needs the files waits.
pub(crate) async fn aside<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    files::aside(read).await.unwrap_or_else(|| Err("cannot start a thread to read files".to_owned()))
}

/// Reads a regular file to its end.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    files::read(path).map_err(|error| error.to_string())
}

/// Text value of a kubeconfig. YAML values that look like numbers or booleans are accepted, too.
#[derive(Default, PartialEq, Eq)]
pub(crate) struct Text(pub(crate) String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => Ok(Text(text)),
            Value::Number(number) => Ok(Text(number.to_string())),
            Value::Bool(flag) => Ok(Text(flag.to_string())),
            _ => Err(de::Error::custom("expected a string")),
        }
    }
}

/// Boolean value of a kubeconfig. The words of YAML 1.1, such as `yes` and `off`, are accepted,
/// too.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flag(pub(crate) bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Flag, D::Error> {
        let Text(text) = Text::deserialize(deserializer)?;
        match &*text.to_ascii_lowercase() {
            "true" | "yes" | "y" | "on" => Ok(Flag(true)),
            "false" | "no" | "n" | "off" => Ok(Flag(false)),
            _ => Err(de::Error::custom("expected true or false")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "apiVersion: v1\nkind: Config\npreferences: {}\ncurrent-context: ''\n\
        clusters:\n- name: a\n  cluster:\n    server: https://a:6443\n    certificate-authority: pki/ca.crt\n\
        users:\n- name: 1\n  user: {token: 12345, tokenFile: /run/token}\n\
        contexts:\n- context:\n    cluster: a\n    user: 1\n  name: first\n- name: nobody\n  context: {cluster: a}\n";
    const SECOND: &str = "current-context: second\nkind: Config\n\
        clusters:\n- name: a\n  cluster: {server: https://other}\n\
        - name: b\n  cluster: {server: 'https://b', insecure-skip-tls-verify: yes}\n\
        contexts:\n- name: second\n  context: {cluster: b, user: gone}\n- name: lost\n  context: {cluster: c}\n\
        users:\n---\nusers:\n- name: p\n  user:\n    exec: {command: ./bin/login}\n- name: q\n  user: {exec: {command: login}}\n";

    fn both() -> Kubeconfig {
        let mut first = Kubeconfig::parse(FIRST).unwrap();
        first.set_folder(Path::new("/conf"));
        first.merge(Kubeconfig::parse(SECOND).unwrap()).unwrap()
    }

    fn text(text: &Option<Text>) -> Option<&str> {
        text.as_ref().map(|text| &*text.0)
    }

    #[test]
    fn first_file_with_a_name_has_it() {
        let both = both();
        let SelectedContext { cluster, user } = both.select(Some("first")).unwrap();
        assert_eq!(text(&cluster.server), Some("https://a:6443"));
        assert_eq!((text(&user.token), text(&user.token_file)), (Some("12345"), Some("/run/token")));
        let SelectedContext { cluster, user } = both.select(None).unwrap();
        assert_eq!(text(&cluster.server), Some("https://b"), "the current context");
        assert!(cluster.insecure_skip_tls_verify.is_some_and(|flag| flag.0));
        assert!(user.token.is_none(), "a user that is missing is nobody");
        assert!(both.select(Some("nobody")).unwrap().user.token.is_none());
    }

    #[test]
    fn missing_names_are_errors() {
        let error = |context| both().select(context).err().unwrap();
        assert_eq!(error(Some("x")), "it has no context x");
        assert_eq!(error(Some("lost")), "it has no cluster c");
        let none = Kubeconfig::parse(FIRST).unwrap().select(None).err().unwrap();
        assert_eq!(none, "it has no current-context");
        let other = Kubeconfig::parse("kind: Other").unwrap();
        assert_eq!(
            Kubeconfig::parse(FIRST).unwrap().merge(other).err().unwrap(),
            "kubeconfigs with different kind (Config and Other) cannot be merged"
        );
    }

    #[test]
    fn relative_paths_begin_at_the_folder_of_the_file() {
        let both = both();
        let SelectedContext { cluster, user } = both.select(Some("first")).unwrap();
        assert_eq!(text(&cluster.certificate_authority), Some("/conf/pki/ca.crt"));
        assert_eq!(text(&user.token_file), Some("/run/token"));
        let command = |user| {
            let mut second = Kubeconfig::parse(SECOND).unwrap();
            second.set_folder(Path::new("/conf"));
            let found: Option<(KubeconfigUser, _)> = find(second.users.as_ref(), "user", user).unwrap();
            let (mut user, folder) = found.unwrap();
            user.resolve(folder);
            user.exec.unwrap().command
        };
        assert_eq!(text(&command("p")), Some("/conf/./bin/login"));
        assert_eq!(text(&command("q")), Some("login"));
    }

    #[test]
    fn entries_that_no_context_selects_may_be_wrong() {
        let text = "current-context: c\ncontexts: [{name: c, context: {cluster: a, user: b}}, {context: {}},\n\
            {name: d, context: {cluster: null}}, {name: e, context: {cluster: a, user: f}}]\n\
            clusters: [{name: a, cluster: {server: 'https://a'}}, {name: g, cluster: [1]}]\n\
            users: [{name: b, user: {token: x, auth-provider: null, exec: {env: null}}}, {},\n\
            {name: f, user: {auth-provider: {config: null}, token: {a: eyJ}, exec: eyJ}}]\n";
        let kubeconfig = Kubeconfig::parse(text).unwrap();
        assert!(kubeconfig.select(None).is_ok());
        let error = |context| kubeconfig.select(Some(context)).err().unwrap();
        assert_eq!(error("d"), "context d has no cluster");
        let why = error("e");
        assert!(
            ["user f: exec: expected a map", "user f: token: expected a string"].contains(&&*why),
            "{why}"
        );
    }

    #[test]
    fn files_that_are_missing_are_left_out_unless_all_are() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("first"), folder.path().join("second"));
        let read = || Kubeconfig::read_all(vec![first.clone(), second.clone()]);
        assert!(read().err().unwrap().ends_with("first: No such file or directory (os error 2)"));
        std::fs::write(&second, FIRST).unwrap();
        assert!(read().unwrap().select(Some("first")).is_ok());
        std::fs::write(&first, "clusters: 7").unwrap();
        assert!(read().err().unwrap().ends_with("first: clusters: expected a list"));
    }

    #[test]
    fn file_without_an_end_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
        assert_eq!(read_file(&path), Err("it is a FIFO, not a regular file".to_owned()));
    }

    #[test]
    fn file_that_is_no_kubeconfig_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        let error = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let error = Kubeconfig::read(&path).err().unwrap();
            error.strip_prefix(&format!("kubeconfig {}: ", path.display())).unwrap().to_owned()
        };
        assert_eq!(error(b"\xff\xfea\0"), "it is not UTF-8");
        assert_eq!(error(b"clusters: 7"), "clusters: expected a list");
        assert_eq!(error(b"eyJhbGciOi, expected x"), "expected a map");
        assert!(error(b"users: [").contains("line"));
        std::fs::remove_file(&path).unwrap();
        assert!(Kubeconfig::read(&path).err().unwrap().ends_with("No such file or directory (os error 2)"));
    }
}
