//! Scripts name the programs that they lack before they build, and build the profile that they
//! should.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::read;

/// Programs of every Debian that the scripts use.
const BASE: [&str; 14] =
    ["awk", "bash", "cat", "cut", "dirname", "env", "head", "mktemp", "rm", "sed", "sh", "sort", "tee", "tr"];

/// Stand-in for cargo: new enough, has cargo-deb, and ends each build.
const CARGO: &str = "case $1 in --version) echo cargo 1.99.0 ;; deb) ;; *) echo \"cargo $*\"; exit 7 ;; esac";

/// A `PATH` with stand-ins for the programs that a build takes, on a machine where none of them
/// need be installed.
struct Machine(TempDir);

impl Machine {
    fn new() -> Machine {
        let machine = Machine(tempfile::tempdir().unwrap());
        let path = std::env::var_os("PATH").unwrap();
        for name in BASE {
            let mut places = std::env::split_paths(&path).map(|folder| folder.join(name));
            symlink(places.find(|place| place.is_file()).unwrap(), machine.place(name)).unwrap();
        }
        for name in ["cc", "dpkg-shlibdeps", "strip", "gzip", "buildah"] {
            machine.put(name, "exit 0");
        }
        machine.put("cargo", CARGO);
        machine.put("id", "echo 1000");
        machine.put("uname", "echo x86_64");
        machine
    }

    fn place(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Another process writes the script: while this one had it open, a child of another test could
    /// keep it from being run.
    fn put(&self, name: &str, script: &str) {
        let write = r#"printf '#!/bin/sh\n%s\n' "$2" >"$1" && chmod 755 "$1""#;
        let status = Command::new("sh").args(["-c", write, "sh"]).arg(self.place(name)).arg(script).status();
        assert!(status.unwrap().success(), "{name}");
    }

    /// The exit code of a script, and its output.
    fn run(&self, script: &str) -> (Option<i32>, String) {
        let project = Path::new(env!("CARGO_MANIFEST_DIR"));
        // Any file will do: nothing is built.
        let ran = Command::new(project.join(script))
            .env_clear()
            .env("PATH", self.0.path())
            .env("CA_BUNDLE", project.join("LICENSE"))
            .output()
            .unwrap();
        (ran.status.code(), String::from_utf8([ran.stdout, ran.stderr].concat()).unwrap())
    }
}

#[test]
fn scripts_name_the_missing_package_before_they_build() {
    let old = "echo cargo 1.63.0";
    let no_deb = "[ $1 = --version ] && echo cargo 1.99.0";
    let no_static = "case $* in *-static*) exit 1 ;; esac";
    for (script, program, stand_in, named) in [
        ("packaging/build-deb", "cargo", None, "cargo is missing: install Rust 1.89 or newer"),
        ("packaging/build-deb", "cargo", Some(old), "cargo is 1.63.0: install Rust 1.89 or newer"),
        ("packaging/build-deb", "cargo", Some(no_deb), "cargo install --locked cargo-deb"),
        ("packaging/build-deb", "dpkg-shlibdeps", None, "sudo apt install dpkg-dev\n"),
        ("packaging/build-deb", "strip", None, "sudo apt install binutils\n"),
        ("packaging/build-deb", "gzip", None, "sudo apt install gzip\n"),
        ("packaging/build-deb", "cc", None, "sudo apt install gcc libc6-dev\n"),
        ("packaging/build-image", "cargo", None, "cargo is missing"),
        ("packaging/build-image", "buildah", None, "sudo apt install buildah\n"),
        ("packaging/build-image", "strip", None, "sudo apt install binutils\n"),
        ("packaging/build-image", "cc", None, "sudo apt install gcc libc6-dev\n"),
        ("packaging/build-image", "cc", Some(no_static), "sudo apt install libc6-dev\n"),
        ("tests/run", "cargo", None, "cargo is missing"),
        ("tests/run", "cargo", Some(old), "cargo is 1.63.0"),
        ("tests/run", "cc", None, "sudo apt install gcc libc6-dev\n"),
    ] {
        let machine = Machine::new();
        match stand_in {
            Some(text) => machine.put(program, text),
            None => fs::remove_file(machine.place(program)).unwrap(),
        }
        let (code, output) = machine.run(script);
        assert_eq!(code, Some(1), "{script} without {program}: {output}");
        assert!(output.contains(named), "{script} without {program}: {output}");
        assert!(!output.contains("--locked --"), "{script} without {program} builds: {output}");
    }
}

#[test]
fn packages_and_images_have_the_dist_build() {
    for (script, expected) in [
        ("packaging/build-deb", "cargo build --locked --profile dist --bin convey\n"),
        (
            "packaging/build-image",
            "cargo build --locked --profile dist --target x86_64-unknown-linux-gnu --bin convey\n",
        ),
    ] {
        assert_eq!(Machine::new().run(script), (Some(7), expected.to_owned()), "{script}");
    }
    for page in ["README.md", "docs/start.md"] {
        assert!(read(page).contains("cargo install --locked --profile dist --path ."), "{page}");
    }
}

/// `dist` inherits the lower levels of `release`, so it has to raise each of them again.
#[test]
fn dist_optimises_every_crate_that_release_does_not() {
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let packages = |profile: &str| manifest["profile"][profile]["package"].as_table().unwrap();
    let (release, dist) = (packages("release"), packages("dist"));
    assert_eq!(release.keys().collect::<Vec<_>>(), dist.keys().collect::<Vec<_>>());
    for (name, overrides) in dist {
        assert_eq!(overrides["opt-level"].as_integer(), Some(3), "{name}");
    }
}
