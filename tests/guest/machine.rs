//! A virtual machine that runs one script: `qemu` in software, without disk or network, with
//! programs of the host.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use convey_testkit::{Process, clock, tool};
use tempfile::TempDir;

use crate::kernel::Kernel;

/// First process of the machine. Output of the script goes to one serial line, its report
/// (descriptor 3) to another.
const INIT: &str = r#"#!/busybox sh
/busybox mkdir -p /applets /bin /sbin /proc /sys /dev /run /tmp /root
/busybox --install -s /applets
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/applets HOME=/root
# The kernel asks for modules by this name.
/busybox ln -s /applets/modprobe /sbin/modprobe
/busybox mount -t proc proc /proc
/busybox mount -t sysfs sys /sys
/busybox mount -t devtmpfs dev /dev
/bin/sh /script 3>/dev/ttyS1
echo end >/dev/ttyS1
/busybox reboot -f
"#;

/// First process with systemd, on a file system that services can have private views of (no process
/// can leave the kernel's initial one). The script is a service.
const INIT_SYSTEMD: &str = r#"#!/busybox sh
/busybox mkdir -p /applets /proc /new
/busybox --install -s /applets
export PATH=/usr/sbin:/usr/bin:/sbin:/bin:/applets
mount -t tmpfs -o size=80%,mode=755 root /new
for file in /*; do
    case $file in /new | /proc | /sys | /dev | /run) ;; *) cp -a $file /new/ ;; esac
done
cd /new
mkdir -p bin sbin proc sys dev run tmp root var/lib/dpkg/info var/lib/dpkg/updates var/lib/dpkg/triggers var/log etc/systemd/system
chmod 1777 tmp
touch var/lib/dpkg/available
ln -sf /applets/modprobe sbin/modprobe
echo root:x:0:0:root:/root:/bin/sh >etc/passwd
echo root:x:0: >etc/group
echo 0123456789abcdef0123456789abcdef >etc/machine-id
exec switch_root /new /lib/systemd/systemd
"#;

/// Service that runs the script.
const ACCEPTANCE: &str = r#"[Service]
Environment=PATH=/usr/sbin:/usr/bin:/sbin:/bin:/applets HOME=/root
ExecStart=/bin/sh -c '/bin/sh /script 3>/dev/ttyS1 >/dev/ttyS0 2>&1; echo end >/dev/ttyS1; exec /busybox reboot -f'
"#;

/// Machine in preparation.
pub(crate) struct Machine {
    root: TempDir,
}

impl Machine {
    /// A machine with the host's `sh`, busybox for missing programs, and modules that the kernel
    /// loads on demand. (The shell of busybox would prefer its own `ip` to any other.)
    ///
    /// # Errors
    /// The missing prerequisite.
    pub(crate) fn new() -> Result<Machine, String> {
        if tool("qemu-system-x86_64").is_none() {
            return Err("qemu-system-x86_64 is not installed (Debian package qemu-system-x86)".to_owned());
        }
        let mut machine = Machine { root: TempDir::new().map_err(|error| error.to_string())? };
        let busybox = tool("busybox").ok_or("busybox is not installed (Debian package busybox-static)")?;
        if !libraries(&busybox)?.is_empty() {
            return Err("busybox needs libraries (Debian package busybox-static has one without)".to_owned());
        }
        machine.copy(&busybox, "/busybox")?;
        machine.binary(Path::new("/bin/sh"), "/bin/sh")?;
        machine.write("/init", INIT)?;
        Ok(machine)
    }

    /// Adds a program of the host, found in `PATH`, with its libraries.
    pub(crate) fn program(&mut self, name: &str) -> Result<(), String> {
        let path = tool(name).ok_or_else(|| format!("{name} is not installed"))?;
        self.binary(&path, &path.to_string_lossy())
    }

    /// Adds a program by its path on the host, with its libraries.
    pub(crate) fn binary(&mut self, from: &Path, to: &str) -> Result<(), String> {
        self.libraries_of(from)?;
        self.copy(from, to)
    }

    /// Adds a program without symbols. A debug build with symbols would fill the machine's memory.
    pub(crate) fn stripped(&mut self, from: &Path, to: &str) -> Result<(), String> {
        self.libraries_of(from)?;
        let to = self.inside(to);
        fs::create_dir_all(to.parent().unwrap_or(&to)).map_err(|error| error.to_string())?;
        output(Command::new("strip").arg("-o").arg(&to).arg(from)).map(drop)
    }

    /// Adds the shared libraries of a program of the host.
    pub(crate) fn libraries_of(&mut self, program: &Path) -> Result<(), String> {
        for library in libraries(program)? {
            self.copy(Path::new(&library), &library)?;
        }
        Ok(())
    }

    /// Adds a file or folder of the host. Links are replaced by their targets.
    pub(crate) fn copy(&mut self, from: &Path, to: &str) -> Result<(), String> {
        copy_all(from, &self.inside(to)).map_err(|error| format!("{}: {error}", from.display()))
    }

    /// Makes systemd the first process. It must have been added before.
    pub(crate) fn start_with_systemd(&mut self) -> Result<(), String> {
        self.write("/init", INIT_SYSTEMD)?;
        self.write("/etc/systemd/system/acceptance.service", ACCEPTANCE)?;
        self.write(
            "/etc/systemd/system/multi-user.target.d/acceptance.conf",
            "[Unit]\nWants=acceptance.service\n",
        )
    }

    /// Boots a kernel, runs a script, and returns its output on descriptor 3.
    ///
    /// # Errors
    /// The script did not end within the limit; with its last output.
    pub(crate) fn run(mut self, kernel: &Kernel, script: &str, limit: Duration) -> Result<String, String> {
        self.write("/script", script)?;
        let folder = TempDir::new().map_err(|error| error.to_string())?;
        let at = |name: &str| folder.path().join(name);
        archive(self.root.path(), &at("files"))?;
        // The kernel unpacks concatenated archives in order.
        concatenate(&[&kernel.modules, &at("files")], &at("initrd")).map_err(|error| error.to_string())?;

        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args([
            "-accel",
            "tcg",
            "-smp",
            "2",
            "-m",
            "1536",
            "-nodefaults",
            "-display",
            "none",
            "-no-reboot",
        ]);
        qemu.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(at("initrd"));
        // Mitigations are useless here, and in emulation they make each system call slow.
        qemu.args(["-append", "console=ttyS0 panic=-1 quiet mitigations=off"]);
        for line in ["console", "report"] {
            qemu.arg("-serial").arg(format!("file:{}", at(line).display()));
        }
        qemu.stdin(Stdio::null());
        let (start, mut process) = (clock(), Process::spawn(&mut qemu));
        while process.ended().is_none() && start.elapsed() < limit {
            thread::sleep(Duration::from_millis(20));
        }
        process.kill();
        let read = |name| fs::read(at(name)).map(|bytes| String::from_utf8_lossy(&bytes).replace('\r', ""));
        let report = read("report").unwrap_or_default();
        match report.strip_suffix("end\n") {
            Some(report) => Ok(report.to_owned()),
            None => {
                let console = read("console").unwrap_or_default();
                let lines: Vec<&str> = console.lines().collect();
                let last = &lines[lines.len().saturating_sub(40)..];
                Err(format!("the guest did not end by itself:\n{report}--- console\n{}", last.join("\n")))
            }
        }
    }

    /// Adds an executable file with this text.
    pub(crate) fn write(&mut self, path: &str, text: &str) -> Result<(), String> {
        let path = self.inside(path);
        let written = fs::create_dir_all(path.parent().unwrap_or(&path))
            .and_then(|()| fs::write(&path, text))
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)));
        written.map_err(|error| format!("{}: {error}", path.display()))
    }

    fn inside(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }
}

/// Makes an initramfs archive of a folder. All files belong to root.
pub(crate) fn archive(folder: &Path, to: &Path) -> Result<(), String> {
    let file = File::create(to).map_err(|error| format!("{}: {error}", to.display()))?;
    let mut command = Command::new("sh");
    command.args(["-c", "busybox find . | busybox cpio -o -H newc -R 0:0"]).current_dir(folder).stdout(file);
    output(&mut command).map(drop)
}

/// Runs a program of the host to its end. Returns its output, or its error messages.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{name}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Shared libraries of a program; empty if it is static.
fn libraries(program: &Path) -> Result<Vec<String>, String> {
    let Ok(listed) = output(Command::new("ldd").arg(program)) else { return Ok(Vec::new()) };
    let words = listed.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    Ok(words.map(str::to_owned).collect())
}

fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    if from.is_dir() {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            copy_all(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    fs::copy(from, to).map(drop)
}

fn concatenate(files: &[&Path], to: &Path) -> io::Result<()> {
    let mut to = File::create(to)?;
    for file in files {
        io::copy(&mut File::open(file)?, &mut to)?;
    }
    Ok(())
}
