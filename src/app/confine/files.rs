//! Landlock rules: the files that convey may read and write.

use std::path::{Path, PathBuf};

use convey_config::{Config, LogOutput};
use convey_control::ConfigFile;
use convey_model::DiscoverySource;
use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, RestrictionStatus, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, path_beneath_rules,
};

use super::KeptPrivilege;

/// Paths that every program may read: programs to run (`nft`, `ip`), names, certificates, devices.
const READABLE: [&str; 13] = [
    "/etc",
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/proc",
    "/sys",
    "/run",
    "/dev",
    "/opt",
    "/nix/store",
    "/var/lib/ca-certificates",
];

/// Files that may be symbolic links into other folders.
const LINKS: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];

/// Environment variables with the paths of certificate authorities.
const AUTHORITIES: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

/// Paths that convey writes to: logs, records of reserved ports, the sysctl that reserves ports,
/// pinned maps.
const WRITABLE: [&str; 5] = ["/var/log", "/run/convey", "/proc/sys/net", "/dev/null", "/sys/fs/bpf"];

/// Another path at which a pod may have its service account token, beside `/run`.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io";

/// Restricts this thread, and the threads that it starts, to the files that convey needs.
pub(super) fn restrict(file: &ConfigFile, config: &Config) -> Result<(), KeptPrivilege> {
    let what = "privileges.landlock has no effect, so convey can access all files of its user";
    let readable: Vec<PathBuf> =
        readable(file).into_iter().chain(served(config)).chain(clusters(config)).collect();
    let status = restrict_to(&readable, &writable(file, config))
        .map_err(|error| KeptPrivilege::because(what, &error))?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err(KeptPrivilege {
            why: format!("{what}: this kernel has no Landlock, which needs Linux 5.13"),
            errno: None,
        }),
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
    }
}

fn restrict_to(
    readable: &[PathBuf],
    writable: &[PathBuf],
) -> Result<RestrictionStatus, landlock::RulesetError> {
    // ABI version 3 added truncation. Older kernels apply the rules that they support.
    let version = ABI::V3;
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(version))?
        .create()?
        .add_rules(path_beneath_rules(readable, AccessFs::from_read(version)))?
        .add_rules(path_beneath_rules(writable, AccessFs::from_all(version)))?
        .restrict_self()
}

/// Readable paths. They include the folders of the configuration, of the files that it names, and
/// of the program itself, whose next version an upgrade starts. Each of these files may be a
/// symbolic link, as in a mounted ConfigMap.
fn readable(file: &ConfigFile) -> Vec<PathBuf> {
    let folders = convey_config::folders(&file.path).into_iter();
    let folders = folders.map(|folder| if folder == Path::new("") { PathBuf::from(".") } else { folder });
    let named = file.lists.paths().into_iter().chain([file.path.clone()]).chain(std::env::current_exe());
    let links = LINKS.iter().map(PathBuf::from);
    let authorities = AUTHORITIES.into_iter().filter_map(std::env::var_os);
    let authorities: Vec<PathBuf> =
        authorities.flat_map(|paths| std::env::split_paths(&paths).collect::<Vec<_>>()).collect();
    let files = named.chain(links).chain(authorities.clone());
    let of_files = files.flat_map(|file| {
        let real = file.canonicalize().ok();
        let of_file = [Some(folder(&file)), real.as_deref().map(folder)].into_iter().flatten();
        of_file.chain(beside_links(&file)).collect::<Vec<_>>()
    });
    READABLE.iter().map(PathBuf::from).chain(folders).chain(of_files).chain(authorities).collect()
}

/// Folders that contain the targets of symbolic links on the path of a file. A deployment may point
/// a link such as `current` to a new folder beside the old one. The result omits folders directly
/// below the root directory, because they contain too much.
fn beside_links(file: &Path) -> Vec<PathBuf> {
    let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let links =
        absolute.ancestors().filter(|path| path.symlink_metadata().is_ok_and(|found| found.is_symlink()));
    let folders = links.filter_map(|link| Some(folder(&link.canonicalize().ok()?)));
    folders.filter(|folder| folder.components().count() > 2).collect()
}

/// Directories whose files convey serves. If a directory is a symbolic link, which a deployment may
/// replace, the folder that contains its target is included.
fn served(config: &Config) -> Vec<PathBuf> {
    let roots = config.backends.iter().filter_map(|backend| backend.files.as_ref());
    let paths = roots.flat_map(|files| {
        let is_link = files.root.symlink_metadata().is_ok_and(|found| found.is_symlink());
        let beside = files.root.canonicalize().ok().filter(|_| is_link).map(|real| folder(&real));
        [Some(files.root.clone()), beside]
    });
    paths.flatten().collect()
}

/// Files with the addresses and credentials of Kubernetes clusters. A kubeconfig often names files
/// in its own folder.
fn clusters(config: &Config) -> Vec<PathBuf> {
    let clusters = config.sources().into_iter().map(|DiscoverySource::Kubernetes(service)| &service.cluster);
    let clusters: Vec<_> = clusters.collect();
    if clusters.is_empty() {
        return Vec::new();
    }
    let named = clusters.iter().filter_map(|cluster| cluster.kubeconfig.clone());
    let of_env =
        std::env::var_os("KUBECONFIG").map(|paths| std::env::split_paths(&paths).collect::<Vec<_>>());
    let of_home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".kube/config"));
    let files = named.chain(of_env.into_iter().flatten()).chain(of_home);
    files.map(|file| folder(&file)).chain([PathBuf::from(SERVICE_ACCOUNT)]).collect()
}

fn writable(file: &ConfigFile, config: &Config) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = WRITABLE.iter().map(PathBuf::from).collect();
    paths.extend(file.local_copy.clone());
    paths.extend(config.acme.iter().map(|acme| acme.folder.clone()));
    for output in config.access_log.output.iter().chain([&config.log.output]) {
        if let LogOutput::File(path) = output {
            paths.push(folder(path));
        }
    }
    paths
}

fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if folder == Path::new("") => PathBuf::from("."),
        Some(folder) => folder.to_owned(),
        None => PathBuf::from("/"),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn link_that_deployments_set_anew_makes_the_folder_of_its_target_readable() {
        let lab = tempfile::tempdir().unwrap();
        let root = lab.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("releases/2")).unwrap();
        std::fs::write(root.join("releases/2/convey.toml"), "").unwrap();
        std::os::unix::fs::symlink("releases/2", root.join("current")).unwrap();
        let file = root.join("current/convey.toml");
        assert_eq!(super::beside_links(&file), [root.join("releases")]);
        assert!(super::readable(&convey_control::ConfigFile::new(file)).contains(&root.join("releases")));
        assert!(super::beside_links(&root.join("releases/2/convey.toml")).is_empty());
    }

    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use convey_control::ConfigFile;

    #[test]
    fn files_that_are_served_may_be_read_also_after_the_next_deployment() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for folder in ["conf", "www", "site/releases/1", "site/releases/2", "secret"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        for file in ["www/a", "site/releases/1/a", "site/releases/2/a", "secret/a"] {
            fs::write(at(file), "").unwrap();
        }
        symlink(at("site/releases/1"), at("site/current")).unwrap();
        let text = format!(
            "[frontends.web]\nmode = 'http'\nlisten_addr = '127.0.0.1:80'\nbackend = 'a'\n[backends]\na.files = '{}'\nb.files = '{}'\n",
            at("www").display(),
            at("site/current").display()
        );
        fs::write(at("conf/config.toml"), text).unwrap();
        let file = ConfigFile::new(at("conf/config.toml"));
        let config = file.load().unwrap().config;
        let read = std::thread::scope(|scope| {
            let restricted = scope.spawn(|| {
                restrict(&file, &config).map_err(|kept| kept.why)?;
                let reads = ["www/a", "site/current/a", "site/releases/2/a", "secret/a"];
                Ok::<_, String>(reads.map(|name| fs::read(at(name)).is_ok()))
            });
            restricted.join().unwrap()
        });
        match read {
            Ok(read) => assert_eq!(read, [true, true, true, false]),
            Err(why) => assert!(why.contains("no Landlock"), "{why}"),
        }
    }

    #[test]
    fn confinement_allows_only_files_named_by_the_configuration() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for folder in ["conf/conf.d", "real", "lists", "secret"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        let list = at("lists/offices");
        let text = format!(
            "include = 'conf.d/*.toml'\n[frontends.web]\nlisten_addr = '10.0.0.1:80'\nbackend = 'a'\naccess.allow = '@{}'\n",
            list.display()
        );
        fs::write(at("conf/config.toml"), text).unwrap();
        fs::write(at("real/a.toml"), "[backends.a]\nservers.a.addr = '10.0.0.2:80'\n").unwrap();
        symlink(at("real/a.toml"), at("conf/conf.d/a.toml")).unwrap();
        fs::write(&list, "192.0.2.0/24\n").unwrap();
        fs::write(at("secret/key"), "").unwrap();
        let file = ConfigFile::new(at("conf/config.toml"));
        let config = file.load().unwrap().config;
        // A separate thread, because a thread cannot drop the restriction again.
        let read = std::thread::scope(|scope| {
            let restricted = scope.spawn(|| {
                restrict(&file, &config).map_err(|kept| kept.why)?;
                Ok::<_, String>((file.load().is_ok(), fs::read(at("secret/key")).is_ok()))
            });
            restricted.join().unwrap()
        });
        match read {
            Ok(read) => assert_eq!(read, (true, false)),
            Err(why) => assert!(why.contains("no Landlock"), "{why}"),
        }
    }
}
