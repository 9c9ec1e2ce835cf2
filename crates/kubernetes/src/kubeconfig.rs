//! Kubeconfigs: the files that name clusters, users and contexts.

use std::collections::BTreeMap;
use std::env;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

use crate::yaml;

/// Bytes of a kubeconfig, and of a file that it names.
const MAX_FILE: u64 = 16 << 20;

/// One kubeconfig, or several merged.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Kubeconfig {
    kind: Option<Text>,
    #[serde(rename = "apiVersion")]
    api_version: Option<Text>,
    #[serde(rename = "current-context")]
    current_context: Option<Text>,
    clusters: Option<Vec<Named<Cluster>>>,
    users: Option<Vec<Named<KubeconfigUser>>>,
    contexts: Option<Vec<Named<Context>>>,
}

/// An entry of `clusters`, `users` or `contexts`.
#[derive(Deserialize)]
struct Named<T> {
    name: Text,
    #[serde(rename = "cluster", alias = "user", alias = "context")]
    value: Option<T>,
}

/// An API server.
#[derive(Clone, Default, Deserialize)]
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

#[derive(Clone, Deserialize)]
pub(crate) struct Extension {
    pub(crate) name: Text,
    pub(crate) extension: Value,
}

/// An identity, with the credentials that prove it.
#[derive(Clone, Default, Deserialize)]
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

#[derive(Clone, Deserialize)]
pub(crate) struct AuthProvider {
    pub(crate) name: Text,
    #[serde(default)]
    pub(crate) config: BTreeMap<String, Text>,
}

/// A program that writes credentials.
#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Exec {
    pub(crate) api_version: Option<Text>,
    pub(crate) command: Option<Text>,
    pub(crate) args: Option<Vec<Text>>,
    pub(crate) env: Option<Vec<ExecVariable>>,
    pub(crate) interactive_mode: Option<Text>,
    pub(crate) provide_cluster_info: Option<Flag>,
}

#[derive(Clone, Deserialize)]
pub(crate) struct ExecVariable {
    pub(crate) name: Text,
    pub(crate) value: Text,
}

#[derive(Clone, Deserialize)]
struct Context {
    cluster: Text,
    user: Option<Text>,
}

impl Kubeconfig {
    /// Reads the files that `KUBECONFIG` names, or else `~/.kube/config`.
    ///
    /// # Errors
    /// No file is named, or one cannot be read: operator-facing message.
    pub(crate) fn of_environment() -> Result<Kubeconfig, String> {
        let named = env::var_os("KUBECONFIG").unwrap_or_default();
        let mut paths: Vec<PathBuf> =
            env::split_paths(&named).filter(|path| *path != Path::new("")).collect();
        if paths.is_empty() {
            let home = env::home_dir().ok_or("no kubeconfig: neither KUBECONFIG nor HOME is set")?;
            paths.push(home.join(".kube/config"));
        }
        paths.iter().try_fold(Kubeconfig::default(), |merged, path| merged.merge(Kubeconfig::read(path)?))
    }

    /// Reads a file. Relative paths in it begin at its folder.
    ///
    /// # Errors
    /// It cannot be read, or is no kubeconfig: operator-facing message.
    pub(crate) fn read(path: &Path) -> Result<Kubeconfig, String> {
        let read = || {
            let text = String::from_utf8(read_file(path)?).map_err(|_| "it is no UTF-8")?;
            let mut found = Kubeconfig::parse(&text)?;
            found.resolve(path.parent().unwrap_or(Path::new("")));
            Ok(found)
        };
        read().map_err(|why: String| format!("kubeconfig {}: {why}", path.display()))
    }

    /// Merges the documents of a text.
    pub(crate) fn parse(text: &str) -> Result<Kubeconfig, String> {
        let found = yaml::documents(text)?.into_iter().filter(|document| !document.is_null());
        found
            .map(|document| serde_json::from_value(document).map_err(|error| error.to_string()))
            .try_fold(Kubeconfig::default(), |merged, document: Result<Kubeconfig, String>| {
                merged.merge(document?)
            })
    }

    /// Adds what another file has. The first file with a name or a setting has it, as with `kubectl`.
    fn merge(self, next: Kubeconfig) -> Result<Kubeconfig, String> {
        let one = |what, first: Option<Text>, second: Option<Text>| match (first, second) {
            (Some(first), Some(second)) if first != second => {
                Err(format!("kubeconfigs of {what} {} and {} cannot be merged", first.0, second.0))
            }
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

    fn resolve(&mut self, folder: &Path) {
        let resolve = |path: &mut Option<Text>| {
            if let Some(Text(path)) = path.as_mut().filter(|path| !path.0.is_empty()) {
                *path = folder.join(&*path).to_string_lossy().into_owned();
            }
        };
        for cluster in self.clusters.iter_mut().flatten().filter_map(|named| named.value.as_mut()) {
            resolve(&mut cluster.certificate_authority);
        }
        for user in self.users.iter_mut().flatten().filter_map(|named| named.value.as_mut()) {
            resolve(&mut user.client_certificate);
            resolve(&mut user.client_key);
            resolve(&mut user.token_file);
            // A name without a slash is looked for in PATH.
            if let Some(exec) = user.exec.as_mut()
                && exec.command.as_ref().is_some_and(|command| command.0.contains('/'))
            {
                resolve(&mut exec.command);
            }
        }
    }

    /// Finds the cluster and the user of a context. Without a name it is the current one.
    ///
    /// # Errors
    /// There is no such context or cluster: operator-facing message.
    pub(crate) fn select(&self, context: Option<&str>) -> Result<(Cluster, KubeconfigUser), String> {
        let current = self.current_context.as_ref().map(|name| &*name.0).filter(|name| !name.is_empty());
        let name = context.or(current).ok_or("it has no current-context")?;
        let context =
            find(self.contexts.as_ref(), name).ok_or_else(|| format!("it has no context {name}"))?;
        let cluster = find(self.clusters.as_ref(), &context.cluster.0);
        let cluster = cluster.ok_or_else(|| format!("it has no cluster {}", context.cluster.0))?;
        // A context without a user is anonymous, as with `kubectl`.
        let user = context.user.as_ref().and_then(|user| find(self.users.as_ref(), &user.0));
        Ok((cluster.clone(), user.cloned().unwrap_or_default()))
    }
}

fn merged<T>(first: Option<Vec<Named<T>>>, next: Option<Vec<Named<T>>>) -> Option<Vec<Named<T>>> {
    let mut all = first.unwrap_or_default();
    let known = all.len();
    for named in next.unwrap_or_default() {
        if !all[..known].iter().any(|found| found.name == named.name) {
            all.push(named);
        }
    }
    Some(all)
}

fn find<'a, T>(all: Option<&'a Vec<Named<T>>>, name: &str) -> Option<&'a T> {
    all?.iter().find(|named| named.name.0 == name)?.value.as_ref()
}

/// Reads a whole file.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let (mut bytes, file) = (Vec::new(), File::open(path).map_err(|error| error.to_string())?);
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    match bytes.len() as u64 {
        ..=MAX_FILE => Ok(bytes),
        _ => Err(format!("it is longer than {} MiB", MAX_FILE >> 20)),
    }
}

/// A text, also one that looks like a number.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Text(pub(crate) String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => Ok(Text(text)),
            Value::Number(number) => Ok(Text(number.to_string())),
            Value::Bool(flag) => Ok(Text(flag.to_string())),
            _ => Err(de::Error::custom("a text is missing")),
        }
    }
}

/// A boolean, also in the words of YAML 1.1.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flag(pub(crate) bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Flag, D::Error> {
        let Text(text) = Text::deserialize(deserializer)?;
        match &*text.to_ascii_lowercase() {
            "true" | "yes" | "y" | "on" => Ok(Flag(true)),
            "false" | "no" | "n" | "off" => Ok(Flag(false)),
            _ => Err(de::Error::custom(format_args!("found {text:?}; allowed: true, false"))),
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
        first.resolve(Path::new("/conf"));
        first.merge(Kubeconfig::parse(SECOND).unwrap()).unwrap()
    }

    fn text(text: &Option<Text>) -> Option<&str> {
        text.as_ref().map(|text| &*text.0)
    }

    #[test]
    fn first_file_with_a_name_has_it() {
        let both = both();
        let (cluster, user) = both.select(Some("first")).unwrap();
        assert_eq!(text(&cluster.server), Some("https://a:6443"));
        assert_eq!((text(&user.token), text(&user.token_file)), (Some("12345"), Some("/run/token")));
        let (cluster, user) = both.select(None).unwrap();
        assert_eq!(text(&cluster.server), Some("https://b"), "the current context");
        assert!(cluster.insecure_skip_tls_verify.is_some_and(|flag| flag.0));
        assert!(user.token.is_none(), "a user that is missing is nobody");
        assert!(both.select(Some("nobody")).unwrap().1.token.is_none());
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
            "kubeconfigs of kind Config and Other cannot be merged"
        );
    }

    #[test]
    fn relative_paths_begin_at_the_folder_of_the_file() {
        let both = both();
        let (cluster, user) = both.select(Some("first")).unwrap();
        assert_eq!(text(&cluster.certificate_authority), Some("/conf/pki/ca.crt"));
        assert_eq!(text(&user.token_file), Some("/run/token"));
        let mut second = Kubeconfig::parse(SECOND).unwrap();
        second.resolve(Path::new("/conf"));
        let command = |user| find(second.users.as_ref(), user).unwrap().exec.clone().unwrap().command;
        assert_eq!(text(&command("p")), Some("/conf/./bin/login"));
        assert_eq!(text(&command("q")), Some("login"));
    }

    #[test]
    fn file_that_is_no_kubeconfig_is_named() {
        let folder = std::env::temp_dir().join(format!("convey-kubeconfig-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("config");
        let error = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let error = Kubeconfig::read(&path).err().unwrap();
            error.strip_prefix(&format!("kubeconfig {}: ", path.display())).unwrap().to_owned()
        };
        assert_eq!(error(b"\xff\xfea\0"), "it is no UTF-8");
        assert!(error(b"clusters: 7").contains("invalid type"));
        assert!(error(b"users: [").contains("line"));
        assert!(
            error(b"clusters: [{name: a, cluster: {insecure-skip-tls-verify: maybe}}]").contains("maybe")
        );
        std::fs::remove_file(&path).unwrap();
        assert!(Kubeconfig::read(&path).err().unwrap().ends_with("No such file or directory (os error 2)"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
