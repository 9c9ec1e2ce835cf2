//! BPF filters of tc. They stay attached when the process ends that made them.

use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::tc::{TcAttribute, TcFilterBpfOption, TcHandle, TcHeader, TcMessage, TcOption};

use super::{Error, Netlink};

/// A BPF filter on the ingress of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BpfFilter {
    /// Mostly its program's; empty if it has none, as programs of classic BPF.
    pub name: String,
    /// Its number among those of the same priority.
    pub handle: u32,
    /// Lower ones go first.
    pub priority: u16,
    /// Its program, whose number no other ever gets.
    program: Option<u32>,
    header: TcHeader,
}

impl Netlink {
    /// The BPF filters on the ingress of an interface; none on one that no filter can be attached to.
    pub async fn ingress_filters(&self, interface: u32) -> Result<Vec<BpfFilter>, Error> {
        let mut question = TcMessage::with_index(interface as i32);
        question.header.parent = TcHandle { major: 0xffff, minor: TcHandle::MIN_INGRESS };
        let question = RouteNetlinkMessage::GetTrafficFilter(question);
        let list = self.lists.list("filters", question, |answer| match answer {
            RouteNetlinkMessage::NewTrafficFilter(filter) => bpf_filter(filter),
            _ => None,
        });
        list.await
    }

    /// Detaches a filter.
    pub async fn remove_filter(&self, filter: &BpfFilter) -> Result<(), Error> {
        let message = TcMessage::from_parts(filter.header.clone(), Vec::new());
        self.lists.order("remove a filter", RouteNetlinkMessage::DelTrafficFilter(message), 0).await
    }
}

/// `None` if it is of another kind, or stands for all of a priority.
fn bpf_filter(message: TcMessage) -> Option<BpfFilter> {
    let TcMessage { header, attributes, .. } = message;
    let options = attributes.into_iter().find_map(|attribute| match attribute {
        TcAttribute::Options(options) => Some(options),
        _ => None,
    })?;
    let (mut name, mut program, mut is_bpf) = (String::new(), None, false);
    for option in options {
        is_bpf |= matches!(option, TcOption::Bpf(_));
        match option {
            TcOption::Bpf(TcFilterBpfOption::ProgName(found)) => name = found,
            TcOption::Bpf(TcFilterBpfOption::ProgId(found)) => program = Some(found),
            _ => {}
        }
    }
    // The upper half; the lower one is the protocol.
    let priority = (header.info >> 16) as u16;
    is_bpf.then(|| BpfFilter { name, handle: header.handle.into(), priority, program, header })
}
