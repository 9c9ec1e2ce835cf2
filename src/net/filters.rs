//! BPF filters of tc. They stay attached when the process ends that made them.

use futures_util::{StreamExt, TryStreamExt};
use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::tc::{TcAttribute, TcFilterBpfOption, TcHeader, TcMessage, TcOption};

use super::Netlink;
use super::netlink::Error;

/// A BPF filter on the ingress of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BpfFilter {
    /// Mostly its program's.
    pub name: String,
    /// Its number among those of the same priority.
    pub handle: u32,
    /// Lower ones go first.
    pub priority: u16,
    header: TcHeader,
}

impl Netlink {
    /// The BPF filters on the ingress of an interface; none on one that no filter can be attached to.
    pub async fn ingress_filters(&self, interface: u32) -> Result<Vec<BpfFilter>, Error> {
        let _alone = self.lists.lock().await;
        let mut filters = self.handle.traffic_filter(interface as i32);
        let list = filters.get().ingress().execute().try_collect::<Vec<TcMessage>>().await;
        let list = list.map_err(|source| Error { what: "filters", source })?;
        Ok(list.into_iter().filter_map(bpf_filter).collect())
    }

    /// Detaches a filter.
    pub async fn remove_filter(&self, filter: &BpfFilter) -> Result<(), Error> {
        let failed = |source| Error { what: "remove a filter", source };
        let message = TcMessage::from_parts(filter.header.clone(), Vec::new());
        let mut request = NetlinkMessage::from(RouteNetlinkMessage::DelTrafficFilter(message));
        request.header.flags = NLM_F_REQUEST | NLM_F_ACK;
        let mut answers = self.handle.clone().request(request).map_err(failed)?;
        while let Some(answer) = answers.next().await {
            if let NetlinkPayload::Error(error) = answer.payload
                && error.code.is_some()
            {
                return Err(failed(rtnetlink::Error::NetlinkError(error)));
            }
        }
        Ok(())
    }
}

/// `None` if it is of another kind, or stands for all of a priority.
fn bpf_filter(message: TcMessage) -> Option<BpfFilter> {
    let TcMessage { header, attributes, .. } = message;
    let options = attributes.into_iter().find_map(|attribute| match attribute {
        TcAttribute::Options(options) => Some(options),
        _ => None,
    })?;
    let name = options.into_iter().find_map(|option| match option {
        TcOption::Bpf(TcFilterBpfOption::ProgName(name)) => Some(name),
        _ => None,
    })?;
    // The upper half; the lower one is the protocol.
    let priority = (header.info >> 16) as u16;
    Some(BpfFilter { name, handle: header.handle.into(), priority, header })
}
