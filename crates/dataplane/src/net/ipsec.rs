//! Parser of IPsec policies in the kernel's format (`XFRM_MSG_GETPOLICY`).

use std::net::IpAddr;

use convey_model::{IpsecEffect, IpsecPolicy, Prefix};

use super::raw_netlink::{attributes, number};

// Offsets in `struct xfrm_userpolicy_info` of include/uapi/linux/xfrm.h, which begins with `struct
// xfrm_selector`.
const DESTINATION: usize = 0;
const SOURCE: usize = 16;
const FAMILY: usize = 40;
const DESTINATION_LEN: usize = 42;
const SOURCE_LEN: usize = 43;
const PROTOCOL: usize = 44;
const INTERFACE: usize = 48;
const PRIORITY: usize = 152;
const DIRECTION: usize = 160;
const ACTION: usize = 161;
const ATTRIBUTES: usize = 168;

const XFRM_POLICY_OUT: u8 = 1;
const XFRM_POLICY_ALLOW: u8 = 0;
const XFRMA_TMPL: u16 = 5;
const XFRMA_MARK: u16 = 21;
const XFRMA_IF_ID: u16 = 31;

/// Parses a policy. Returns `None` for policies that convey ignores: for incoming or forwarded
/// packets, for packets with a mark, and on an xfrm interface.
pub(super) fn policy(message: &[u8]) -> Option<IpsecPolicy> {
    let byte = |at: usize| message.get(at).copied();
    if byte(DIRECTION)? != XFRM_POLICY_OUT {
        return None;
    }
    let family = i32::from(u16::from_ne_bytes(*message.get(FAMILY..)?.first_chunk()?));
    let network = |at: usize, len: u8| -> Option<Prefix> {
        let bytes: [u8; 16] = *message.get(at..)?.first_chunk()?;
        match family {
            libc::AF_INET => Some(Prefix::of(IpAddr::from(*bytes.first_chunk::<4>()?), len)),
            libc::AF_INET6 => Some(Prefix::of(IpAddr::from(bytes), len)),
            _ => None,
        }
    };
    let mut has_template = false;
    for (kind, value) in attributes(message.get(ATTRIBUTES..)?) {
        match kind {
            XFRMA_TMPL => has_template = !value.is_empty(),
            XFRMA_MARK if number(value, 0)? != 0 => return None,
            XFRMA_IF_ID if number(value, 0)? != 0 => return None,
            _ => {}
        }
    }
    Some(IpsecPolicy {
        priority: number(message, PRIORITY)?,
        source: network(SOURCE, byte(SOURCE_LEN)?)?,
        destination: network(DESTINATION, byte(DESTINATION_LEN)?)?,
        protocol: byte(PROTOCOL)?,
        interface: number(message, INTERFACE)?,
        effect: match (byte(ACTION)?, has_template) {
            (XFRM_POLICY_ALLOW, false) => IpsecEffect::Pass,
            (XFRM_POLICY_ALLOW, true) => IpsecEffect::Protect,
            _ => IpsecEffect::Block,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(direction: u8, attributes: &[u8]) -> Vec<u8> {
        let mut message = vec![0; ATTRIBUTES];
        message[DESTINATION..DESTINATION + 4].copy_from_slice(&[10, 0, 0, 0]);
        message[SOURCE..SOURCE + 4].copy_from_slice(&[10, 9, 0, 1]);
        message[FAMILY] = libc::AF_INET as u8;
        (message[DESTINATION_LEN], message[SOURCE_LEN]) = (8, 32);
        message[PRIORITY] = 7;
        message[DIRECTION] = direction;
        message.extend(attributes);
        message
    }

    #[test]
    fn policies_with_a_template_protect_what_leaves() {
        let template = [&[68, 0, 5, 0][..], &[0; 64]].concat();
        let expected = IpsecPolicy {
            priority: 7,
            source: "10.9.0.1/32".parse().unwrap(),
            destination: "10.0.0.0/8".parse().unwrap(),
            protocol: 0,
            interface: 0,
            effect: IpsecEffect::Protect,
        };
        assert_eq!(policy(&listed(XFRM_POLICY_OUT, &template)), Some(expected.clone()));
        let pass = IpsecPolicy { effect: IpsecEffect::Pass, ..expected };
        assert_eq!(policy(&listed(XFRM_POLICY_OUT, &[])), Some(pass));
        assert_eq!(policy(&listed(0, &template)), None);
        let of_interface = [&template[..], &[8, 0, 31, 0, 3, 0, 0, 0]].concat();
        assert_eq!(policy(&listed(XFRM_POLICY_OUT, &of_interface)), None);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
            policy(&bytes);
        }
    }
}
