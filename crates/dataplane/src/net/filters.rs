//! BPF filters of tc. They stay attached when the process that attached them ends.

use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::tc::{TcAttribute, TcFilterBpfOption, TcHandle, TcHeader, TcMessage, TcOption};

use super::{Error, Netlink};

/// BPF filter on the ingress of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BpfFilter {
    /// Name of the filter, usually its program's name; empty for a filter without a name, such as
    /// classic BPF.
    pub name: String,
    /// Handle of the filter, unique among filters of the same priority.
    pub handle: u32,
    /// Priority of the filter. Filters with lower values run first.
    pub priority: u16,
    /// Id of the filter's program, which the kernel never reuses.
    program: Option<u32>,
    header: TcHeader,
}

impl Netlink {
    /// Lists the BPF filters on the ingress of an interface. The list is empty if the interface
    /// cannot have filters.
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

/// Parses a filter. `None` if the filter is not BPF, or the message describes a whole priority.
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
    // The upper half contains the priority, the lower half the protocol.
    let priority = (header.info >> 16) as u16;
    is_bpf.then(|| BpfFilter { name, handle: header.handle.into(), priority, program, header })
}
