//! Overlays: changes that operators made at run time. A later change replaces an earlier one. An
//! overlay of a server takes precedence over an overlay of its backend. Pure.

use std::collections::BTreeMap;

use convey_model::{AdminState, Overlay, OverlayValue, Target};

/// Maximum number of overlays. Scripts may create many by mistake.
const MAX_OVERLAYS: usize = 10_000;

/// All overlays, by target and field. A target has one overlay for each field.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overlays(BTreeMap<(Target, OverlayField), Overlay>);

/// Field that an overlay sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum OverlayField {
    State,
    Weight,
    /// Presence of the server: an operator added or removed it.
    Presence,
}

impl OverlayField {
    fn of(value: &OverlayValue) -> OverlayField {
        match value {
            OverlayValue::State(_) => OverlayField::State,
            OverlayValue::Weight(_) => OverlayField::Weight,
            OverlayValue::Added(_) | OverlayValue::Removed => OverlayField::Presence,
        }
    }
}

impl Overlays {
    /// Adds an overlay, and removes earlier overlays of the same field that the target or its parts
    /// have. An overlay that equals the inherited value is not stored. Returns whether a stored
    /// overlay changed.
    ///
    /// # Errors
    /// There are [`MAX_OVERLAYS`] overlays; operator-facing message.
    pub(crate) fn set(&mut self, overlay: Overlay) -> Result<bool, String> {
        let field = OverlayField::of(&overlay.value);
        let holds = self.of_field(&overlay.target, field).map(|before| before.value.clone());
        let parts = self.keys_of(&overlay.target, field);
        let has_parts = parts.iter().any(|(part, _)| *part != overlay.target);
        if !has_parts && holds.as_ref() == Some(&overlay.value) {
            return Ok(false);
        }
        let inherited = outer(&overlay.target)
            .and_then(|outer| self.of_field(&outer, field))
            .map_or(OverlayValue::State(AdminState::Ready), |inherited| inherited.value.clone());
        let key = (overlay.target.clone(), field);
        let is_kept = inherited != overlay.value;
        if is_kept && parts.is_empty() && self.0.len() >= MAX_OVERLAYS {
            return Err(too_many());
        }
        parts.iter().for_each(|part| _ = self.0.remove(part));
        if is_kept {
            self.0.insert(key, overlay);
        }
        Ok(is_kept || !parts.is_empty())
    }

    /// Adds an overlay that adds or removes a server. The new overlay replaces an earlier one of
    /// the same target.
    ///
    /// # Errors
    /// There are [`MAX_OVERLAYS`] overlays; operator-facing message.
    pub(crate) fn set_presence(&mut self, overlay: Overlay) -> Result<(), String> {
        let key = (overlay.target.clone(), OverlayField::Presence);
        if !self.0.contains_key(&key) && self.0.len() >= MAX_OVERLAYS {
            return Err(too_many());
        }
        self.0.insert(key, overlay);
        Ok(())
    }

    /// Overlay that added or removed this server; `None`: there is none.
    pub(crate) fn presence_of(&self, target: &Target) -> Option<&Overlay> {
        self.0.get(&(target.clone(), OverlayField::Presence))
    }

    /// Overlays that added or removed servers, by target.
    pub(crate) fn presence(&self) -> impl Iterator<Item = &Overlay> {
        self.0.iter().filter(|((_, field), _)| *field == OverlayField::Presence).map(|(_, overlay)| overlay)
    }

    /// Marks the overlays of [`Overlays::presence`] as effective or superseded. `effects` has the
    /// same order.
    pub(crate) fn set_effects(&mut self, effects: &[bool]) {
        let presence = self.0.iter_mut().filter(|((_, field), _)| *field == OverlayField::Presence);
        presence.zip(effects).for_each(|((_, overlay), has_effect)| overlay.superseded = !has_effect);
    }

    /// Removes and returns all overlays of a target and of its parts (servers, or addresses of a
    /// host name); with `None`, the overlays of all targets.
    pub(crate) fn reset(&mut self, target: Option<&Target>) -> Vec<Overlay> {
        let is_meant = |of: &Target| target.is_none_or(|target| contains(target, of));
        let (gone, kept) = std::mem::take(&mut self.0).into_iter().partition(|((of, _), _)| is_meant(of));
        self.0 = kept;
        BTreeMap::into_values(gone).collect()
    }

    /// Administrative state that an overlay sets for this server, with the overlay; `None`: no
    /// overlay sets a state.
    pub(crate) fn state_of(&self, backend: &str, server: &str) -> Option<(AdminState, &Overlay)> {
        let said = self.of_field(&Target::server(backend, server), OverlayField::State)?;
        match said.value {
            OverlayValue::State(state) => Some((state, said)),
            _ => None,
        }
    }

    /// Weight that an overlay sets for this server; `None`: no overlay sets a weight.
    pub(crate) fn weight_of(&self, backend: &str, server: &str) -> Option<u16> {
        match self.of_field(&Target::server(backend, server), OverlayField::Weight)?.value {
            OverlayValue::Weight(weight) => Some(weight),
            _ => None,
        }
    }

    /// All overlays, ordered by target.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Overlay> {
        self.0.values()
    }

    /// Takes over the overlays of another process.
    pub(crate) fn expect(&mut self, overlays: Vec<Overlay>) {
        let entries =
            overlays.into_iter().map(|one| ((one.target.clone(), OverlayField::of(&one.value)), one));
        self.0.extend(entries.take(MAX_OVERLAYS));
    }

    /// Keys of the overlays that set this field of a target or of its parts. The search in the map
    /// skips only other overlays of the same backend.
    fn keys_of(&self, target: &Target, field: OverlayField) -> Vec<(Target, OverlayField)> {
        let from = self.0.range((target.clone(), OverlayField::State)..).map(|(key, _)| key);
        let name = target.server.as_deref().unwrap_or_default();
        let may_be = |(part, _): &&(Target, OverlayField)| {
            part.backend == target.backend && part.server.as_deref().unwrap_or_default().starts_with(name)
        };
        let meant = from.take_while(may_be).filter(|(part, of)| *of == field && contains(target, part));
        meant.cloned().collect()
    }

    /// Most specific overlay that sets this field for the target.
    fn of_field(&self, target: &Target, field: OverlayField) -> Option<&Overlay> {
        if self.0.is_empty() {
            return None;
        }
        let mut next = Some(target.clone());
        while let Some(target) = next {
            next = outer(&target);
            if let Some(found) = self.0.get(&(target, field)) {
                return Some(found);
            }
        }
        None
    }
}

fn too_many() -> String {
    format!("the limit of {MAX_OVERLAYS} runtime overrides is reached; remove some with `convey reset`")
}

/// Target that contains `target`: `name` contains `name/address`, and the backend contains `name`.
fn outer(target: &Target) -> Option<Target> {
    let server = target.server.as_ref()?;
    let server = server.rsplit_once('/').map(|(name, _)| name.to_owned());
    Some(Target { backend: target.backend.clone(), server })
}

/// Whether `part` is `target` itself, or a server or address that belongs to `target`.
fn contains(target: &Target, part: &Target) -> bool {
    match &part.server {
        Some(server) => target.includes(&part.backend, server),
        None => target == part,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::AdminState::{Drain, Maint, Ready};
    use super::*;
    use convey_model::Timestamp;

    fn said(target: &Target, value: OverlayValue) -> Overlay {
        Overlay { target: target.clone(), value, since: Timestamp(1), by: "root".into(), superseded: false }
    }

    fn set(overlays: &mut Overlays, target: &Target, state: AdminState) -> bool {
        overlays.set(said(target, OverlayValue::State(state))).unwrap()
    }

    fn state(overlays: &Overlays, server: &str) -> AdminState {
        overlays.state_of("web", server).map_or(Ready, |(state, _)| state)
    }

    #[test]
    fn a_server_goes_before_its_backend_and_an_address_before_its_name() {
        let mut overlays = Overlays::default();
        let (web, app) = (Target::backend("web"), Target::server("web", "app"));
        assert!(set(&mut overlays, &web, Maint));
        assert!(set(&mut overlays, &app, Ready));
        assert!(set(&mut overlays, &Target::server("web", "app/10.0.0.3"), Drain));
        let states = ["b", "app", "app/10.0.0.3", "app/10.0.0.4"].map(|server| state(&overlays, server));
        assert_eq!(states, [Maint, Ready, Drain, Ready]);
        assert_eq!(overlays.state_of("mail", "app"), None);
    }

    #[test]
    fn the_last_word_of_a_backend_is_that_of_all_its_servers() {
        let mut overlays = Overlays::default();
        set(&mut overlays, &Target::server("web", "a"), Drain);
        overlays.set(said(&Target::server("web", "a"), OverlayValue::Weight(7))).unwrap();
        assert!(set(&mut overlays, &Target::backend("web"), Ready), "a is back");
        assert_eq!((state(&overlays, "a"), overlays.all().count()), (Ready, 1));
        assert_eq!(overlays.weight_of("web", "a"), Some(7), "a weight is another field");
    }

    #[test]
    fn overlay_that_changes_nothing_is_no_change() {
        let mut overlays = Overlays::default();
        let a = Target::server("web", "a");
        assert!(!set(&mut overlays, &a, Ready));
        assert!(set(&mut overlays, &a, Drain) && !set(&mut overlays, &a, Drain));
        assert!(set(&mut overlays, &a, Ready));
        assert_eq!(overlays.all().count(), 0);
        assert!(set(&mut overlays, &Target::backend("web"), Drain));
        assert!(!set(&mut overlays, &a, Drain), "the backend says so");
    }

    #[test]
    fn reset_removes_overlays_of_a_target_and_its_parts() {
        let mut overlays = Overlays::default();
        for (backend, server) in [("web", "a"), ("web", "b"), ("mail", "a")] {
            set(&mut overlays, &Target::server(backend, server), Drain);
        }
        assert_eq!(overlays.reset(Some(&Target::server("web", "b"))).len(), 1);
        assert_eq!(overlays.reset(Some(&Target::backend("web"))).len(), 1);
        assert_eq!(overlays.reset(None).len(), 1);
        assert_eq!(overlays.reset(None), []);
    }

    #[test]
    fn there_are_only_so_many() {
        let mut overlays = Overlays::default();
        let target = |number: usize| Target::server("web", &number.to_string());
        for number in 0..MAX_OVERLAYS {
            set(&mut overlays, &target(number), Drain);
        }
        let more = said(&target(MAX_OVERLAYS), OverlayValue::State(Drain));
        assert!(overlays.set(more).unwrap_err().contains("limit of 10000 runtime overrides"));
        assert!(set(&mut overlays, &target(1), Maint), "what is there may change");
        assert!(set(&mut overlays, &target(1), Ready), "and go");
    }

    proptest! {
        /// The last overlay applies to every server that it covers, no matter which overlays came
        /// before.
        #[test]
        fn the_last_word_holds(words in prop::collection::vec((0..6_usize, 0..3_usize), 1..30)) {
            let targets = [
                Target::backend("web"),
                Target::server("web", "a"),
                Target::server("web", "app"),
                Target::server("web", "app/10.0.0.3"),
                Target::server("web", "app/10.0.0.4"),
                Target::backend("mail"),
            ];
            let servers = ["a", "app/10.0.0.3", "app/10.0.0.4", "b"];
            let (mut overlays, mut expected) = (Overlays::default(), [Ready; 4]);
            for (target, state) in words {
                let (target, state) = (&targets[target], AdminState::ALL[state]);
                set(&mut overlays, target, state);
                for (server, expected) in servers.iter().zip(&mut expected) {
                    if target.includes("web", server) {
                        *expected = state;
                    }
                }
                let found = servers.map(|server| overlays.state_of("web", server).map_or(Ready, |(state, _)| state));
                prop_assert_eq!(found, expected);
            }
        }
    }
}
