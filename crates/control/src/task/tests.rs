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

#[tokio::test]
async fn a_task_that_hangs_in_a_reload_gives_no_sign_of_life() {
    let beats = Arc::new(Notify::new());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    let file = ConfigFile::new(path);
    std::fs::write(&file.path, config(1)).unwrap();
    let (outcome, outcomes) = mpsc::channel(1);
    let (reload, reloads) = mpsc::channel(1);
    let (failures, networks) = (mpsc::channel(1).1, mpsc::channel(1).1);
    let (requests, calls) = (mpsc::channel(1).1, mpsc::channel(1).1);
    let reading = Reading::default();
    let mut events = ControlEvents { outcomes, failures, reloads, networks, requests, calls, reading };
    let mut task = Task {
        state: ControlState::new(1),
        snapshot: Arc::new(ArcSwap::from_pointee(Snapshot::empty(1))),
        schedule: Schedule::new(outcome, 1),
        discovery: Arc::default(),
        names: Arc::default(),
        data_path: Hangs::default(),
        file: file.clone(),
        loaded: file.load().unwrap(),
        digest: Digest::default(),
        loads: Arc::default(),
        events: Arc::default(),
        now: || Timestamp(0),
        supervisor: Box::new(Beats(beats.clone())),
        handing_over: false,
    };
    task.run_loaded(file.load().unwrap()).await.unwrap();
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
        () = task.run(&mut events) => unreachable!(),
        () = tokio::time::sleep(Duration::from_secs(20)) => panic!("it hangs, and says that it lives"),
        lived = until_silence => assert!(lived, "it gave no sign of life before the reload either"),
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
