//! Servers that operators add and remove at run time, in addition to the file.

use log::warn;

use super::requests::{Done, Outcome, RequestRefusal, as_noun};
use super::{ConfigRefusal, DataPath, Task};
use crate::EventKind;
use crate::EventLevel::Info;
use crate::{own_addresses, own_addresses_for};
use convey_config::{Config, HostNetwork, Loaded, Problem, ServerChange};
use convey_model::{AddedServer, Mode, Overlay, OverlayValue, Target};

/// Maximum number of attempts to apply a file without the conflicting servers. Then the file is
/// applied without any added or removed server.
const MAX_TRIES: usize = 8;

impl<D: DataPath> Task<D> {
    /// Applies a loaded file, with the servers that operators have added and without the servers
    /// that they have removed. Changes by operators that conflict with the file have no effect. On
    /// error, nothing changes.
    ///
    /// # Errors
    /// The configuration cannot be applied, for example because an address is in use.
    pub async fn run_loaded(&mut self, loaded: Loaded) -> Result<(), ConfigRefusal> {
        let config = self.with_servers(&loaded)?;
        self.configure(config).await?;
        self.loaded = loaded;
        Ok(())
    }

    pub(super) async fn add(&mut self, target: Target, server: AddedServer, by: String) -> Outcome {
        let name = self.name_to_add(&target)?;
        let (before, now) = (self.state.overlays().clone(), (self.now)());
        let value = OverlayValue::Added(server);
        let was = before.presence_of(&target).map(|overlay| overlay.value.clone());
        if was.as_ref() == Some(&value) {
            return Ok(Done::Added { is_new: false, warnings: Vec::new() });
        }
        let line = format!("{target}: {value} (by {by})");
        let overlay = Overlay { target: target.clone(), value, since: now, by, superseded: false };
        self.state.overlays_mut().set_presence(overlay).map_err(RequestRefusal::Refused)?;
        let warnings = match self.run_with_presence(&target, &name).await {
            Ok(warnings) => warnings,
            Err(refusal) => {
                *self.state.overlays_mut() = before;
                return Err(refusal);
            }
        };
        self.log_event(EventKind::Operator, Info, &line);
        warnings.iter().for_each(|warning| warn!("{target}: {warning}"));
        Ok(Done::Added { is_new: was.is_none(), warnings })
    }

    pub(super) async fn remove(&mut self, target: Target, by: String) -> Outcome {
        let name = target.server.clone().unwrap_or_default();
        self.state.find(&target).map_err(RequestRefusal::Unknown)?;
        let is_in_file = self.is_in_file(&target.backend, &name);
        let before = self.state.overlays().clone();
        let was_added =
            matches!(before.presence_of(&target), Some(Overlay { value: OverlayValue::Added(_), .. }));
        if !is_in_file && !was_added {
            let discovery =
                self.loaded.config.backend(&target.backend).and_then(|backend| backend.discovery.as_ref());
            let why = match discovery {
                Some(discovery) if !name.contains('/') => {
                    format!(
                        "{target} is an endpoint of {} and cannot be removed; use `convey server maint {}/{name}` instead",
                        discovery.source, target.backend
                    )
                }
                _ => format!(
                    "{target} is one address of a host name; only the host name can be removed, with all its addresses"
                ),
            };
            return Err(RequestRefusal::Refused(why));
        }
        if self.state.is_last_with_address(&target) && !self.state.is_last(&target) {
            return Err(only_address(&target));
        }
        let line = format!("{target}: removed (by {by})");
        self.state.overlays_mut().reset(Some(&target));
        if is_in_file {
            let (value, since) = (OverlayValue::Removed, (self.now)());
            let overlay = Overlay { target: target.clone(), value, since, by, superseded: false };
            self.state.overlays_mut().set_presence(overlay).map_err(RequestRefusal::Refused)?;
        }
        if let Err(refusal) = self.run_with_presence(&target, &name).await {
            *self.state.overlays_mut() = before;
            return Err(if self.state.is_last(&target) { is_last(&target) } else { refusal });
        }
        self.log_event(EventKind::Operator, Info, &line);
        Ok(Done::Set { has_changed: true })
    }

    /// Applies the configuration again, without the overlays `gone`, which were removed.
    pub(super) async fn run_without(&mut self, gone: &[Overlay]) {
        let is_presence =
            |overlay: &Overlay| matches!(overlay.value, OverlayValue::Added(_) | OverlayValue::Removed);
        if !gone.iter().any(is_presence) {
            return;
        }
        let loaded = self.loaded.clone();
        if let Err(why) = self.run_loaded(loaded).await {
            warn!("cannot undo the added and removed servers, so they stay: {why}");
        }
    }

    /// Checks a target that an operator adds, and returns the name of the server.
    ///
    /// # Errors
    /// The file has this server, the backend does not exist, or the name is invalid.
    fn name_to_add(&self, target: &Target) -> Result<String, RequestRefusal> {
        self.state.find(&Target::backend(&target.backend)).map_err(RequestRefusal::Unknown)?;
        let name = target.server.clone().unwrap_or_default();
        if name.is_empty() || name.len() > MAX_NAME || name.contains(char::is_control) {
            let why = format!("the name of a server has 1 to {MAX_NAME} bytes, and no control characters");
            return Err(RequestRefusal::Refused(why));
        }
        if self.is_in_file(&target.backend, &name) {
            let is_removed = self.state.overlays().presence_of(target).is_some();
            let hint = if is_removed {
                format!(
                    "it was removed at runtime, and `convey reset {}/{name}` brings it back",
                    target.backend
                )
            } else {
                "change it in the file".to_owned()
            };
            return Err(RequestRefusal::Refused(format!("the file already has {target}: {hint}")));
        }
        Ok(name)
    }

    fn is_in_file(&self, backend: &str, server: &str) -> bool {
        self.loaded.config.backend(backend).is_some_and(|backend| {
            backend.servers.iter().any(|other| other.name == server)
                || backend.named.iter().any(|other| other.name == server)
        })
    }

    /// Applies the file with all overlays. Returns warnings about the server of the target.
    async fn run_with_presence(
        &mut self,
        target: &Target,
        name: &str,
    ) -> Result<Vec<String>, RequestRefusal> {
        let key = self.loaded.key_of_server(&target.backend, name);
        let (steered, effects) = self.loaded.with_servers(&changes(self.state.overlays().presence()));
        let checked = self.on_host(&steered.config, |network| steered.check_servers(network));
        let odd = checked.map_err(refused)?.map_err(|problems| {
            let lines: Vec<_> = problems.into_iter().map(|problem| problem.message).collect();
            RequestRefusal::Refused(format!("{target}: {}", lines.join("; ")))
        })?;
        self.state.overlays_mut().set_effects(&effects);
        self.configure(steered.config).await.map_err(refused)?;
        Ok(odd.into_iter().filter(|problem| problem.key == key).map(|problem| problem.message).collect())
    }

    /// Configuration of a file with all overlays that do not conflict with it.
    fn with_servers(&mut self, loaded: &Loaded) -> Result<Config, ConfigRefusal> {
        let all: Vec<Overlay> = self.state.overlays().presence().cloned().collect();
        let mut in_force: Vec<bool> = vec![true; all.len()];
        for attempt in 0..=MAX_TRIES {
            let tried = all.iter().zip(&in_force).filter(|(_, is_tried)| **is_tried).map(|(one, _)| one);
            let (steered, effects) = loaded.with_servers(&changes(tried));
            let problems = if effects.is_empty() {
                Vec::new()
            } else {
                self.on_host(&steered.config, |network| steered.check_servers(network))?
                    .err()
                    .unwrap_or_default()
            };
            if problems.is_empty() {
                let mut effects = effects.into_iter();
                let effects: Vec<bool> =
                    in_force.into_iter().map(|tried| tried && effects.next().unwrap_or_default()).collect();
                self.state.overlays_mut().set_effects(&effects);
                return Ok(steered.config);
            }
            let to_blame = |overlay: &Overlay| blame(loaded, overlay, &problems);
            let blamed: Vec<Option<String>> = all.iter().map(to_blame).collect();
            let is_last = attempt + 1 >= MAX_TRIES || blamed.iter().all(Option::is_none);
            for ((overlay, is_tried), why) in all.iter().zip(&mut in_force).zip(blamed) {
                if *is_tried && (is_last || why.is_some()) {
                    *is_tried = false;
                    let why = why.unwrap_or_else(|| problems[0].message.clone());
                    let what = as_noun(&overlay.value);
                    warn!("{}: the {what} conflicts with the file: {why}", overlay.target);
                }
            }
        }
        Ok(loaded.config.clone())
    }

    /// Runs a check that depends on the current network of this host.
    pub(super) fn on_host<T>(
        &self,
        config: &Config,
        check: impl FnOnce(&HostNetwork<'_>) -> T,
    ) -> Result<T, ConfigRefusal> {
        let next_hops = self.state.network();
        let hop_to = |ip| next_hops.hop_to(ip);
        // Without packet modes, convey has already logged at the start that its addresses are
        // unknown.
        let packet_modes = config.frontends_where(Mode::forwards_packets).next().is_some();
        let (own, _) =
            own_addresses_for(packet_modes, own_addresses()).map_err(ConfigRefusal::OwnAddresses)?;
        let refusal = |ip| next_hops.refusal_of(ip, config.snat_addresses());
        let interfaces = next_hops.interfaces();
        Ok(check(&HostNetwork { interfaces, own: &own, hop_to: &hop_to, refusal: &refusal }))
    }
}

fn refused(why: ConfigRefusal) -> RequestRefusal {
    RequestRefusal::Refused(why.to_string())
}

fn is_last(target: &Target) -> RequestRefusal {
    let Target { backend, server } = target;
    let name = server.as_deref().unwrap_or_default();
    RequestRefusal::Refused(format!(
        "{target} is the last server of backend {backend}, and a backend needs at least one: add another server first, or put \
         this server into maintenance with `convey server maint {backend}/{name}`"
    ))
}

fn only_address(target: &Target) -> RequestRefusal {
    let Target { backend, server } = target;
    let name = server.as_deref().unwrap_or_default();
    RequestRefusal::Refused(format!(
        "{target} cannot be removed, because no other server of backend {backend} has an address now: wait until a lookup \
         succeeds (`convey status` names the failed lookups), or put this server into maintenance with \
         `convey server maint {backend}/{name}`"
    ))
}

/// Maximum length of an added server's name, in bytes.
const MAX_NAME: usize = 255;

fn changes<'a>(presence: impl Iterator<Item = &'a Overlay>) -> Vec<ServerChange<'a>> {
    let change = |overlay: &'a Overlay| {
        let added = match &overlay.value {
            OverlayValue::Added(server) => Some(server),
            _ => None,
        };
        let server = overlay.target.server.as_deref().unwrap_or_default();
        ServerChange { backend: &overlay.target.backend, server, added }
    };
    presence.map(change).collect()
}

/// Message of the problem that an added server causes; `None`: it causes no problem.
fn blame(loaded: &Loaded, overlay: &Overlay, problems: &[Problem]) -> Option<String> {
    let key = loaded.key_of_server(&overlay.target.backend, overlay.target.server.as_deref()?);
    Some(problems.iter().find(|problem| problem.key == key)?.message.clone())
}
