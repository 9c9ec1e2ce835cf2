//! What comes before the first thread, and before anything is served: the answer to a process that is to be upgraded, the
//! configuration, and what is given up by it.

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

/// What a balancer begins with.
pub(super) struct Early {
    pub(super) runtime: ControlRuntime,
    /// The process that has started this one to take its place.
    pub(super) predecessor: Option<Predecessor>,
    pub(super) file: ConfigFile,
    /// Where the file comes from, and what was odd about that.
    pub(super) source: Box<dyn ConfigSource>,
    pub(super) remarks: Vec<String>,
    /// The file before it was loaded.
    pub(super) first_look: io::Result<FirstLook>,
    pub(super) loaded: Result<Loaded, LoadError>,
    pub(super) confined: Confined,
    /// Path of the control socket, if the command line names one.
    pub(super) socket: Option<PathBuf>,
    /// The control socket, or why there is none. An upgrade has that of the other process.
    pub(super) control: Result<Option<BoundSocket>, NotBound>,
}

impl Early {
    /// Answers, loads and gives up what the file says. To be called while the process has one thread. A file that cannot be read
    /// is left to the start, which says why.
    ///
    /// # Errors
    /// The two processes do not understand each other, or the user that the file names cannot be had: words for an operator.
    pub(super) fn begin(
        file: ConfigFile,
        source: Box<dyn ConfigSource>,
        socket: Option<&Path>,
    ) -> Result<Early, String> {
        let runtime = ControlRuntime::new().map_err(|error| format!("{error:#}"))?;
        let predecessor = upgrade::greet().map_err(|error| format!("{error:#}"))?;
        let socket = socket.map(Path::to_owned);
        let refuse =
            |why: &String| predecessor.iter().for_each(|predecessor| predecessor.refuse(why.clone()));
        let Fetched { remarks, made } = source.fetch(&file).inspect_err(refuse)?;
        let mut early = Early { source, remarks, socket, ..Early::unconfined(runtime, file) };
        if let Ok(loaded) = &early.loaded
            && let Some(owner) = confine::owner(&loaded.config)
        {
            early.source.give_to(&made, owner).inspect_err(refuse)?;
        }
        early.predecessor = predecessor.clone();
        if let Ok(loaded) = &early.loaded {
            if early.predecessor.is_none() {
                let owner = confine::owner(&loaded.config);
                early.control = BoundSocket::new(early.socket.as_deref(), owner);
            }
            let confined = Confined::by(&early.file, &loaded.config);
            early.confined = confined.inspect_err(refuse)?;
            let privileges = &loaded.config.privileges;
            // A reload must be able to read it, too. For a start every certificate has to be usable.
            if (privileges.user.is_some() || privileges.landlock)
                && let Err(unreadable) = early.file.unloaded().load()
            {
                early.loaded = Err(unreadable);
            }
        }
        Ok(early)
    }

    /// For servers that are shown.
    pub(super) fn shown(runtime: ControlRuntime, file: ConfigFile, socket: Option<&Path>) -> Early {
        let control = BoundSocket::new(socket, None);
        Early { control, socket: socket.map(Path::to_owned), ..Early::unconfined(runtime, file) }
    }

    /// Only loads.
    pub(super) fn unconfined(runtime: ControlRuntime, file: ConfigFile) -> Early {
        // Looking begins before loading: a save between the two is not missed.
        let first_look = FirstLook::new(&file.path);
        let loaded = file.load();
        let (confined, control) = (Confined::default(), Ok(None));
        Early {
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
