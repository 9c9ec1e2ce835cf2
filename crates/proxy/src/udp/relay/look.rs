//! This thread's sessions for an operator, a slice at a time.

use super::SESSIONS;
use crate::udp::session::UdpSession;
use crate::udp::table::SessionSight;
use convey_model::{
    FlowActivity, FlowFacts, FlowKind, FlowListing, FlowServer, ListedFlow, ListedFlowId, Mode, Protocol,
    Timestamp,
};
use convey_snapshot::stats::Counter;

/// Offers sessions to a list, of so many places from the first one on. `worker` is this thread's number. Returns where to go on,
/// `None` at the end.
pub(crate) fn look(
    (from, places): (usize, usize),
    worker: u16,
    now: Timestamp,
    listing: &mut FlowListing,
) -> Option<usize> {
    SESSIONS.with_borrow(|sessions| {
        let end = sessions.places();
        let next = from.saturating_add(places).min(end);
        for sight in (from..next).filter_map(|number| sessions.at(number)) {
            offer(&sight, worker, now, listing);
        }
        (next < end).then_some(next)
    })
}

/// Ends the session of this name. `None` if there is none of this name any more.
pub(crate) fn kill(id: ListedFlowId, now: Timestamp) -> Option<ListedFlow> {
    let (killed, session) = SESSIONS.with_borrow_mut(|sessions| {
        let number = usize::try_from(id.place).ok()?;
        let sight = sessions.at(number).filter(|sight| sight.serial == id.serial)?;
        let names = Names::of(&sight);
        let killed = ListedFlow::new(&names.facts(&sight, id.worker), activity(&sight, now));
        Some((killed, sessions.remove(number)))
    })?;
    if let Some(session) = session {
        session.end(Some(Counter::Killed));
    }
    Some(killed)
}

fn offer(sight: &SessionSight<'_, UdpSession>, worker: u16, now: Timestamp, listing: &mut FlowListing) {
    listing.offer(&Names::of(sight).facts(sight, worker), || activity(sight, now));
}

/// The names in what is told of a session.
struct Names<'a> {
    frontend: &'a std::sync::Arc<str>,
    server: FlowServer<'a>,
}

impl<'a> Names<'a> {
    fn of(sight: &SessionSight<'a, UdpSession>) -> Names<'a> {
        Names { frontend: &sight.session.frontend().live.name, server: sight.session.flow_server() }
    }

    fn facts(&self, sight: &SessionSight<'_, UdpSession>, worker: u16) -> FlowFacts<'a> {
        let session = sight.session;
        let state = match sight.progress {
            [_, true] => "udp_stream",
            [true, false] => "udp_answered",
            [false, false] => "udp_new",
        };
        let (place, serial) = (sight.number as u32, sight.serial);
        FlowFacts {
            id: ListedFlowId { kind: FlowKind::Session, worker, place, serial },
            mode: Mode::Proxy,
            protocol: Protocol::Udp,
            frontend: (session.frontend().live.id, self.frontend),
            server: Some(self.server),
            client: sight.key.client,
            listen: session.vip(),
            snat: session.socket().local_addr().ok(),
            state,
            is_over: false,
            is_offloaded: false,
        }
    }
}

fn activity(sight: &SessionSight<'_, UdpSession>, now: Timestamp) -> FlowActivity {
    let [rx, tx] = sight.session.bytes();
    FlowActivity {
        age: Some(now.since(sight.began)),
        idle: Some(now.since(sight.active)),
        bytes_rx: Some(rx),
        bytes_tx: Some(tx),
    }
}
