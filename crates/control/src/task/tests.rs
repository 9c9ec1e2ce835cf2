//! Control task, also with a data path that never finishes.

use tokio::sync::Notify;

use super::*;

/// Data path that applies the first configuration, and hangs in the second one.
#[derive(Default)]
struct Hangs {
    configured: bool,
}

impl DataPath for Hangs {
    type Ready = ();

    fn refuse(&self, _: &Config, _: &Config) -> Option<String> {
        None
    }

    fn prepare(&mut self, _: &Config) -> Result<(), ConfigRefusal> {
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

/// Supervisor that requests a heartbeat every 10 ms.
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

/// Data path that accepts any configuration and reports its listeners.
struct Listens(mpsc::UnboundedSender<Vec<String>>);

impl DataPath for Listens {
    type Ready = ();

    fn refuse(&self, _: &Config, _: &Config) -> Option<String> {
        None
    }

    fn prepare(&mut self, config: &Config) -> Result<(), ConfigRefusal> {
        let listens = config.frontends.iter().flat_map(|frontend| &frontend.listen);
        self.0.send(listens.map(ToString::to_string).collect()).map_err(|error| error.to_string().into())
    }

    async fn switch<T>(&mut self, (): (), _: &Arc<Snapshot>, publish: impl FnOnce() -> T) -> T {
        publish()
    }

    fn see(&mut self, _: &Arc<Snapshot>) {}

    fn on_snapshot(&mut self, _: &Snapshot) {}
}

/// Control task that runs `config(1)`, with the other ends of its channels.
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
            snapshot: Arc::new(NewestSnapshot::new(Snapshot::empty(1))),
            schedule: Schedule::new(outcome, 1),
            discovery: Arc::default(),
            names: Arc::default(),
            data_path,
            file: file.clone(),
            loaded: file.load().unwrap(),
            digest: Digest::default(),
            reload_history: Arc::default(),
            events: Arc::default(),
            now: || Timestamp(0),
            supervisor: Box::new(Beats(beats.clone())),
            handing_over: false,
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
        // The timeout is thirty times the heartbeat interval of a live task.
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
async fn file_that_is_saved_during_an_upgrade_is_reloaded_after_it() {
    let (prepared, mut listens) = mpsc::unbounded_channel();
    let Scene { task, events, file, reload, calls, .. } = &mut Scene::of(Listens(prepared)).await;
    assert_eq!(listens.recv().await.unwrap(), ["127.0.0.1:1"]);
    let scenario = async {
        let begin: Call<_> = Box::new(|task| task.set_handing_over(true));
        assert!(calls.send(begin).await.is_ok());
        // The channel has one slot. So the first call has run once the second call is in the
        // channel.
        let (reached, done) = tokio::sync::oneshot::channel();
        let second: Call<_> = Box::new(move |_| reached.send(()).unwrap());
        assert!(calls.send(second).await.is_ok());
        done.await.unwrap();
        let more = "[frontends.new]\nlisten_addr = '127.0.0.1:3'\nbackend = 'web'\n";
        std::fs::write(&file.path, config(2) + more).unwrap();
        reload.send(()).await.unwrap();
        let early = tokio::time::timeout(Duration::from_millis(200), listens.recv()).await;
        assert!(early.is_err(), "another process may listen there: {early:?}");
        assert!(calls.send(Box::new(|task| task.set_handing_over(false))).await.is_ok());
        assert_eq!(listens.recv().await.unwrap(), ["127.0.0.1:3", "127.0.0.1:1"]);
    };
    tokio::select! {
        () = task.run(events) => unreachable!(),
        () = tokio::time::sleep(Duration::from_secs(20)) => panic!("a reload does not come"),
        () = scenario => {}
    }
}

#[tokio::test]
async fn reloads_that_wait_when_a_handover_begins_are_refused_for_now() {
    let (prepared, _listens) = mpsc::unbounded_channel();
    let Scene { task, events, .. } = &mut Scene::of(Listens(prepared)).await;
    let reading = &mut events.reading;
    // The first request waits for the current reading, the second one for the next reading.
    let mut answers = Vec::new();
    for by in ["root", "user 7"] {
        let (answer, answered) = tokio::sync::oneshot::channel();
        let request = OperatorRequest { what: Requested::Reload, by: by.to_owned(), answer };
        task.on_request(request, reading).await;
        answers.push(answered);
    }
    task.on_call(Box::new(|task| task.set_handing_over(true)), reading);
    for answered in answers {
        let refusal = answered.await.unwrap().err();
        let why = "an upgrade is under way: try again once it has ended".to_owned();
        assert_eq!(refusal, Some(RequestRefusal::Later(why)));
    }
    // The file is read again after the upgrade has failed.
    task.on_call(Box::new(|task| task.set_handing_over(false)), reading);
    let read = tokio::time::timeout(Duration::from_secs(20), reading.end()).await;
    assert!(read.unwrap().is_ok());
}

#[tokio::test]
async fn process_that_leaves_reloads_what_was_saved_during_the_upgrade() {
    let (prepared, mut listens) = mpsc::unbounded_channel();
    let Scene { task, events, file, reload, .. } = &mut Scene::of(Listens(prepared)).await;
    assert_eq!(listens.recv().await.unwrap(), ["127.0.0.1:1"]);
    task.set_handing_over(true);
    std::fs::write(&file.path, config(2)).unwrap();
    reload.send(()).await.unwrap();
    task.stop();
    tokio::select! {
        () = task.run(events) => unreachable!(),
        () = tokio::time::sleep(Duration::from_secs(20)) => panic!("a reload does not come"),
        listens = listens.recv() => assert_eq!(listens.unwrap(), ["127.0.0.1:1"]),
    }
}

#[test]
fn problems_of_a_transferred_file_show_its_original_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("current/config.toml");
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    std::fs::write(&path, "[frontends.web]\nlisten_adr = \"1\"\n").unwrap();
    let file = ConfigFile { local_copy: Some(folder.path().to_owned()), ..ConfigFile::new(path.clone()) };
    let problem = |file: ConfigFile| file.load().unwrap_err().to_string();
    assert!(problem(file.clone()).starts_with("config.toml:"), "{}", problem(file));
    assert!(problem(ConfigFile::new(path)).starts_with('/'));
}
