//! XDP programs on interfaces, regardless of the process that attached them.

use aya::programs::loaded_programs;
use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage, LinkXdp};

use super::{Error, Netlink};

/// XDP program that is attached to an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdpProgram {
    /// Name of the interface.
    pub interface: String,
    /// Id of the program, which the kernel never reuses.
    pub id: u32,
    /// Name of the program; `None` if this process may not read it.
    pub name: Option<String>,
    /// Attachment mode, as shown by `ip link`: `xdpdrv`, `xdpgeneric` or `xdpoffload`.
    pub place: &'static str,
}

impl Netlink {
    /// Lists the XDP programs on all interfaces.
    pub async fn xdp_programs(&self) -> Result<Vec<XdpProgram>, Error> {
        let links = self.links().await?;
        let mut programs: Vec<XdpProgram> = links.iter().flat_map(of_link).collect();
        if !programs.is_empty() {
            // If this process may not list programs, their names stay unknown.
            let loaded: Vec<_> = loaded_programs().filter_map(Result::ok).collect();
            for program in &mut programs {
                let found = loaded.iter().find(|loaded| loaded.id() == program.id);
                program.name = found.and_then(|found| found.name_as_str().map(str::to_owned));
            }
        }
        Ok(programs)
    }
}

fn of_link(link: &LinkMessage) -> Vec<XdpProgram> {
    let (mut interface, mut found) = (String::new(), Vec::new());
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.clone_from(name),
            LinkAttribute::Xdp(xdp) => found.extend(xdp.iter().filter_map(|part| match part {
                LinkXdp::DrvProgId(id) => Some((*id, "xdpdrv")),
                LinkXdp::SkbProgId(id) => Some((*id, "xdpgeneric")),
                LinkXdp::HwProgId(id) => Some((*id, "xdpoffload")),
                _ => None,
            })),
            _ => {}
        }
    }
    let program = |(id, place)| XdpProgram { interface: interface.clone(), id, name: None, place };
    found.into_iter().filter(|(id, _)| *id != 0).map(program).collect()
}
