//! List of this thread's UDP sessions for operators, read in slices.

use super::SESSIONS;
use crate::udp::session::UdpSession;
use crate::udp::table::SessionEntryView;
use convey_model::{
    FlowActivity, FlowFacts, FlowKind, FlowListing, FlowServer, ListedFlow, ListedFlowId, Mode, Protocol,
    Timestamp,
};
use convey_snapshot::stats::Counter;

/// Adds one slice of the session table to a listing: `places` entries, beginning with number
/// `from`. `worker` is the number of this thread. Returns the number of the next slice's first
/// entry; `None` at the end.
pub(crate) fn list(
    (from, places): (usize, usize),
    worker: u16,
    now: Timestamp,
    listing: &mut FlowListing,
) -> Option<usize> {
    SESSIONS.with_borrow(|sessions| {
        let end = sessions.places();
        let next = from.saturating_add(places).min(end);
        for view in (from..next).filter_map(|number| sessions.at(number)) {
            offer(&view, worker, now, listing);
        }
        (next < end).then_some(next)
    })
}

/// Ends the session with this id, and returns it. Returns `None` if the session does not exist any
/// more.
pub(crate) fn kill(id: ListedFlowId, now: Timestamp) -> Option<ListedFlow> {
    let (killed, session) = SESSIONS.with_borrow_mut(|sessions| {
        let number = usize::try_from(id.place).ok()?;
        let view = sessions.at(number).filter(|view| view.serial == id.serial)?;
        let names = Names::of(&view);
        let killed = ListedFlow::new(&names.facts(&view, id.worker), activity(&view, now));
        Some((killed, sessions.remove(number)))
    })?;
    if let Some(session) = session {
        session.end(Some(Counter::Killed));
    }
    Some(killed)
}

fn offer(view: &SessionEntryView<'_, UdpSession>, worker: u16, now: Timestamp, listing: &mut FlowListing) {
    listing.offer(&Names::of(view).facts(view, worker), || activity(view, now));
}

/// Names of a session's frontend and server.
struct Names<'a> {
    frontend: &'a std::sync::Arc<str>,
    server: FlowServer<'a>,
}

impl<'a> Names<'a> {
    fn of(view: &SessionEntryView<'a, UdpSession>) -> Names<'a> {
        Names { frontend: &view.session.frontend().live.name, server: view.session.flow_server() }
    }

    fn facts(&self, view: &SessionEntryView<'_, UdpSession>, worker: u16) -> FlowFacts<'a> {
        let session = view.session;
        let state = match view.progress {
            [_, true] => "udp_stream",
            [true, false] => "udp_answered",
            [false, false] => "udp_new",
        };
        let (place, serial) = (view.number as u32, view.serial);
        FlowFacts {
            id: ListedFlowId { kind: FlowKind::Session, worker, place, serial },
            mode: Mode::Proxy,
            protocol: Protocol::Udp,
            frontend: (session.frontend().live.id, self.frontend),
            server: Some(self.server),
            client: view.key.client,
            listen: session.vip(),
            snat: session.socket().local_addr().ok(),
            state,
            is_over: false,
            is_offloaded: false,
        }
    }
}

fn activity(view: &SessionEntryView<'_, UdpSession>, now: Timestamp) -> FlowActivity {
    let [rx, tx] = view.session.bytes();
    FlowActivity {
        age: Some(now.since(view.began)),
        idle: Some(now.since(view.active)),
        bytes_rx: Some(rx),
        bytes_tx: Some(tx),
    }
}
