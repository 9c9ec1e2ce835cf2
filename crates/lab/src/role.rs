//! Machines of a lab, and their addresses.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Machine of a lab, in its own namespace. Servers and clients are numbered from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Bridge that connects the other machines.
    Switch,
    /// Runs convey.
    Balancer,
    /// Second balancer for another convey, if the lab's plan has one.
    Standby,
    /// Router between the switch and the machine behind it, if the lab's plan has one.
    Router,
    /// Answers requests.
    Server(u8),
    /// Sends requests.
    Client(u8),
}

impl Role {
    /// IPv4 address of the machine. The switch does not use its address.
    pub const fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, self.host())
    }

    /// IPv6 address: `fd77::` and the last digits of the IPv4 address.
    pub const fn address_v6(self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, digits(self.host()))
    }

    /// Link-local IPv6 address: `fe80::` and the last digits of the IPv4 address.
    pub(super) const fn link_local(self) -> Ipv6Addr {
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, digits(self.host()))
    }

    /// MAC address: `02:00` (locally administered), followed by the bytes of the IPv4 address.
    pub const fn mac(self) -> [u8; 6] {
        [0x02, 0, 10, 77, 0, self.host()]
    }

    pub(super) fn mac_text(self) -> String {
        self.mac().map(|byte| format!("{byte:02x}")).join(":")
    }

    const fn host(self) -> u8 {
        match self {
            Role::Switch => 254,
            Role::Balancer => 1,
            Role::Standby => 2,
            Role::Router => 253,
            Role::Server(n) => 10 + n,
            Role::Client(n) => 200 + n,
        }
    }
}

/// Reads the decimal digits of a number as hexadecimal digits: 201 becomes 0x201.
const fn digits(number: u8) -> u16 {
    let number = number as u16;
    ((number / 100) << 8) | ((number / 10 % 10) << 4) | (number % 10)
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Switch => f.write_str("switch"),
            Role::Balancer => f.write_str("balancer"),
            Role::Standby => f.write_str("standby"),
            Role::Router => f.write_str("router"),
            Role::Server(n) => write!(f, "server{n}"),
            Role::Client(n) => write!(f, "client{n}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_told_apart_by_name_address_and_mac() {
        for (role, name, v4, v6, mac) in [
            (Role::Balancer, "balancer", "10.77.0.1", "fd77::1", "02:00:0a:4d:00:01"),
            (Role::Server(1), "server1", "10.77.0.11", "fd77::11", "02:00:0a:4d:00:0b"),
            (Role::Client(2), "client2", "10.77.0.202", "fd77::202", "02:00:0a:4d:00:ca"),
        ] {
            assert_eq!((role.to_string(), role.address().to_string()), (name.into(), v4.into()));
            assert_eq!((role.address_v6().to_string(), role.mac_text()), (v6.into(), mac.into()));
        }
    }
}
