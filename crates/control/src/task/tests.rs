//! A task that a data path holds up.

use tokio::sync::Notify;

use super::*;

/// Takes any configuration; the second one forever.
#[derive(Default)]
struct Hangs {
    configured: bool,
}

impl DataPath for Hangs {
    type Ready = ();

    fn refuse(&self, _: &Config, _: &Config) -> Option<String> {
        None
    }

    fn prepare(&mut self, _: &Config) -> Result<(), String> {
        Ok(())
    }

    async fn switch<T>(&mut self, (): (), _: &Arc<Snapshot>, publish: impl FnOnce() -> T) -> T {
        if std::mem::replace(&mut self.configured, true) {
            std::future::pending::<()>().await;
        }
        publish()
    }

    fn see(&mut self, _: &Arc<Snapshot>) {}

    fn on_snapshot(&mut self, _: &Snapshot) {}
}

/// Wants a sign of life every 10 ms.
struct Beats(Arc<Notify>);

impl Supervisor for Beats {
    fn heartbeat(&self) -> Option<Duration> {
        Some(Duration::from_millis(10))
    }

    fn is_alive(&self) {
        self.0.notify_one();
    }

    fn reload_begins(&self) {}

    fn reload_ends(&self) {}

    fn publishes(&self, _: &Snapshot) {}
}

fn config(weight: u32) -> String {
    format!(
        "[frontends.web]\nlisten_addr = '127.0.0.1:1'\nbackend = 'web'\n[backends.web]\n\
         health_check.kind = 'none'\nservers.a = {{ addr = '127.0.0.1:2', weight = {weight} }}\n"
    )
}

/// Takes any configuration, and says where each listens.
struct Listens(mpsc::UnboundedSender<Vec<String>>);

impl DataPath for Listens {
    type Ready = ();

    fn refuse(&self, _: &Config, _: &Config) -> Option<String> {
        None
    }

    fn prepare(&mut self, config: &Config) -> Result<(), String> {
        let listens = config.frontends.iter().map(|frontend| frontend.listen.to_string());
        self.0.send(listens.collect()).map_err(|error| error.to_string())
    }

    async fn switch<T>(&mut self, (): (), _: &Arc<Snapshot>, publish: impl FnOnce() -> T) -> T {
        publish()
    }

    fn see(&mut self, _: &Arc<Snapshot>) {}

    fn on_snapshot(&mut self, _: &Snapshot) {}
}

/// A task that runs `config(1)`, and the other ends of its channels.
struct Scene<D> {
    task: Task<D>,
    events: ControlEvents<D>,
    file: ConfigFile,
    reload: mpsc::Sender<()>,
    calls: mpsc::Sender<Call<D>>,
    beats: Arc<Notify>,
    _folder: tempfile::TempDir,
}

impl<D: DataPath> Scene<D> {
    async fn of(data_path: D) -> Scene<D> {
        let beats = Arc::new(Notify::new());
        let folder = tempfile::tempdir().unwrap();
        let file = ConfigFile::new(folder.path().join("config.toml"));
        std::fs::write(&file.path, config(1)).unwrap();
        let (outcome, outcomes) = mpsc::channel(1);
        let (reload, reloads) = mpsc::channel(1);
        let (call, calls) = mpsc::channel(1);
        let (failures, networks) = (mpsc::channel(1).1, mpsc::channel(1).1);
        let (requests, reading) = (mpsc::channel(1).1, Reading::default());
        let events = ControlEvents { outcomes, failures, reloads, networks, requests, calls, reading };
        let mut task = Task {
            state: ControlState::new(1),
            snapshot: Arc::new(ArcSwap::from_pointee(Snapshot::empty(1))),
            schedule: Schedule::new(outcome, 1),
            discovery: Arc::default(),
            names: Arc::default(),
            data_path,
            file: file.clone(),
            loaded: file.load().unwrap(),
            digest: Digest::default(),
            loads: Arc::default(),
            events: Arc::default(),
            now: || Timestamp(0),
            supervisor: Box::new(Beats(beats.clone())),
            handover: Handover::None,
        };
        task.run_loaded(file.load().unwrap()).await.unwrap();
        Scene { task, events, file, reload, calls: call, beats, _folder: folder }
    }
}

#[tokio::test]
async fn a_task_that_hangs_in_a_reload_gives_no_sign_of_life() {
    let Scene { task, events, file, reload, beats, .. } = &mut Scene::of(Hangs::default()).await;
    let until_silence = async {
        let mut changed = false;
        // Thirty times as long as it takes while it lives.
        while tokio::time::timeout(Duration::from_millis(300), beats.notified()).await.is_ok() {
            if !std::mem::replace(&mut changed, true) {
                std::fs::write(&file.path, config(2)).unwrap();
                reload.try_send(()).unwrap();
            }
        }
        changed
    };
    tokio::select! {
        () = task.run(events) => unreachable!(),
        () = tokio::time::sleep(Duration::from_secs(20)) => panic!("it hangs, and says that it lives"),
        lived = until_silence => assert!(lived, "it gave no sign of life before the reload either"),
    }
}

#[tokio::test]
async fn new_addresses_of_a_file_wait_for_the_end_of_an_upgrade_that_fails() {
    let (prepared, mut listens) = mpsc::unbounded_channel();
    let Scene { task, events, file, reload, calls, .. } = &mut Scene::of(Listens(prepared)).await;
    assert_eq!(listens.recv().await.unwrap(), ["127.0.0.1:1"]);
    let with_another = |weight: u32, end: u32| {
        format!("{}[frontends.new]\nlisten_addr = '127.0.0.1:{end}'\nbackend = 'web'\n", config(weight))
    };
    let story = async {
        assert!(calls.send(Box::new(Task::begin_handover)).await.is_ok());
        std::fs::write(&file.path, with_another(2, 3)).unwrap();
        reload.send(()).await.unwrap();
        assert_eq!(listens.recv().await.unwrap(), ["127.0.0.1:1"], "while another process may listen");
        assert!(calls.send(Box::new(Task::end_handover)).await.is_ok());
        assert_eq!(listens.recv().await.unwrap(), ["127.0.0.1:1", "127.0.0.1:3"], "after it has ended");
        // An upgrade without a reload leaves nothing to be read.
        assert!(calls.send(Box::new(Task::begin_handover)).await.is_ok());
        assert!(calls.send(Box::new(Task::end_handover)).await.is_ok());
        std::fs::write(&file.path, with_another(2, 4)).unwrap();
        reload.send(()).await.unwrap();
        assert_eq!(listens.recv().await.unwrap(), ["127.0.0.1:1", "127.0.0.1:4"]);
    };
    tokio::select! {
        () = task.run(events) => unreachable!(),
        () = tokio::time::sleep(Duration::from_secs(20)) => panic!("a reload does not come"),
        () = story => {}
    }
}

#[test]
fn problems_of_a_file_that_is_brought_name_it_as_it_is_called_at_home() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("current/config.toml");
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    std::fs::write(&path, "[frontends.web]\nlisten_adr = \"1\"\n").unwrap();
    let file = ConfigFile { brought_into: Some(folder.path().to_owned()), ..ConfigFile::new(path.clone()) };
    let problem = |file: ConfigFile| file.load().unwrap_err().to_string();
    assert!(problem(file.clone()).starts_with("config.toml:"), "{}", problem(file));
    assert!(problem(ConfigFile::new(path)).starts_with('/'));
}
