//! Steps before the first thread starts and clients are served: the reply to a process that is
//! being upgraded, the load of the configuration, and the drop of privileges.

use std::io;
use std::path::{Path, PathBuf};

use convey_config::watch::FirstLook;
use convey_config::{LoadError, Loaded};
use convey_control::ConfigFile;

use super::confine::{self, Confined};
use super::control_socket::{BoundSocket, NotBound};
use super::signals::ControlRuntime;
use super::sources::{ConfigSource, Fetched, FileSource};
use super::upgrade::{self, Predecessor};

/// Input for the start of a balancer, collected before the first thread starts.
pub(super) struct Bootstrap {
    pub(super) runtime: ControlRuntime,
    /// Process that started this one as its replacement.
    pub(super) predecessor: Option<Predecessor>,
    pub(super) file: ConfigFile,
    /// Source of the file. `remarks` are the warnings from fetching the file.
    pub(super) source: Box<dyn ConfigSource>,
    pub(super) remarks: Vec<String>,
    /// State of the file before it was read.
    pub(super) first_look: io::Result<FirstLook>,
    pub(super) loaded: Result<Loaded, LoadError>,
    pub(super) confined: Confined,
    /// Path of the control socket, if the command line names one.
    pub(super) socket: Option<PathBuf>,
    /// The control socket, or the reason why it is missing. `Ok(None)` if the socket is turned off,
    /// or in an upgrade, where convey takes over the other process's socket later.
    pub(super) control: Result<Option<BoundSocket>, NotBound>,
}

impl Bootstrap {
    /// Replies to the predecessor, loads the file and drops privileges. Must be called while the
    /// process has one thread. If the file cannot be read, a later step of the start reports the
    /// error.
    ///
    /// # Errors
    /// The predecessor speaks an incompatible protocol, or this process cannot become the
    /// configured user: operator-facing message.
    pub(super) fn begin(
        file: ConfigFile,
        source: Box<dyn ConfigSource>,
        socket: Option<&Path>,
    ) -> Result<Bootstrap, String> {
        let runtime = ControlRuntime::new().map_err(|error| format!("{error:#}"))?;
        let predecessor = upgrade::greet().map_err(|error| format!("{error:#}"))?;
        let socket = socket.map(Path::to_owned);
        let refuse =
            |why: &String| predecessor.iter().for_each(|predecessor| predecessor.refuse(why.clone()));
        let Fetched { remarks, made } = source.fetch(&file).inspect_err(refuse)?;
        let mut bootstrap = Bootstrap { source, remarks, socket, ..Bootstrap::unconfined(runtime, file) };
        if let Ok(loaded) = &bootstrap.loaded
            && let Some(owner) = confine::owner(&loaded.config)
        {
            bootstrap.source.change_owner(&made, owner).inspect_err(refuse)?;
        }
        bootstrap.predecessor = predecessor.clone();
        if let Ok(loaded) = &bootstrap.loaded {
            if bootstrap.predecessor.is_none() {
                let owner = confine::owner(&loaded.config);
                bootstrap.control = BoundSocket::new(bootstrap.socket.as_deref(), owner);
            }
            let confined = Confined::by(&bootstrap.file, &loaded.config);
            bootstrap.confined = confined.inspect_err(refuse)?;
            let privileges = &loaded.config.privileges;
            // A reload must be able to read the file with the remaining privileges. At a start,
            // every certificate must be usable.
            if (privileges.user.is_some() || privileges.landlock)
                && let Err(unreadable) = bootstrap.file.unloaded().load()
            {
                bootstrap.loaded = Err(unreadable);
            }
        }
        Ok(bootstrap)
    }

    /// Bootstrap of a demo that shows its servers: binds the control socket, and keeps all
    /// privileges.
    pub(super) fn shown(runtime: ControlRuntime, file: ConfigFile, socket: Option<&Path>) -> Bootstrap {
        let control = BoundSocket::new(socket, None);
        Bootstrap { control, socket: socket.map(Path::to_owned), ..Bootstrap::unconfined(runtime, file) }
    }

    /// Loads the file without dropping privileges or binding a control socket.
    pub(super) fn unconfined(runtime: ControlRuntime, file: ConfigFile) -> Bootstrap {
        // Watching begins before the load, so that a change between the two is not missed.
        let first_look = FirstLook::new(&file.path);
        let loaded = file.load();
        let (confined, control) = (Confined::default(), Ok(None));
        Bootstrap {
            runtime,
            predecessor: None,
            source: Box::new(FileSource::new(&file.path)),
            file,
            remarks: Vec::new(),
            first_look,
            loaded,
            confined,
            socket: None,
            control,
        }
    }
}
