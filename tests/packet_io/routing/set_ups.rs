//! Routing set-ups of hosts.

/// A host set up by these `ip` commands. Commands with the prefix `peer` run on the host at the
/// other end of its links; commands with the prefix `sysctl` are settings.
pub(super) struct SetUp {
    pub(super) name: &'static str,
    pub(super) commands: &'static [&'static str],
    /// Source, destination, and interface and router of the route between them; `none` without a
    /// route.
    pub(super) way: (&'static str, &'static str, &'static str),
}

const fn set_up(
    name: &'static str,
    commands: &'static [&'static str],
    way: (&'static str, &'static str, &'static str),
) -> SetUp {
    SetUp { name, commands, way }
}

pub(super) const VIP: &str = "10.9.9.9";
pub(super) const CLIENT: &str = "198.51.100.9";
pub(super) const V4: [&str; 5] = [VIP, "10.1.0.1", "10.2.0.1", "10.1.0.77", "0.0.0.0"];
pub(super) const TO_V4: [&str; 7] =
    [CLIENT, "198.51.100.200", "203.0.113.7", "10.1.0.2", "10.2.0.2", "10.1.0.77", "192.0.2.1"];

pub(super) const DEFAULTS: &str = "route add default via 10.1.0.254";

/// All begin with a default route by 10.1.0.254.
pub(super) const SET_UPS_V4: &[SetUp] = &[
    set_up("default route", &[], (VIP, CLIENT, "ea 10.1.0.254")),
    set_up(
        "rule from the VIP",
        &["route add default via 10.2.0.254 table 200", "rule add from 10.9.9.9 lookup 200"],
        (VIP, CLIENT, "eb 10.2.0.254"),
    ),
    set_up(
        "rule from the VIP, and another source",
        &["route add default via 10.2.0.254 table 200", "rule add from 10.9.9.9 lookup 200"],
        ("10.1.0.1", CLIENT, "ea 10.1.0.254"),
    ),
    set_up(
        "rule to a network",
        &["route add default via 10.2.0.254 table 200", "rule add to 198.51.100.0/25 lookup 200"],
        (VIP, CLIENT, "eb 10.2.0.254"),
    ),
    set_up(
        "rule from and to",
        &[
            "route add default via 10.2.0.254 table 200",
            "rule add from 10.9.9.0/24 to 198.51.100.0/25 lookup 200",
        ],
        (VIP, "198.51.100.200", "ea 10.1.0.254"),
    ),
    set_up(
        "rule with a table that has no such route",
        &["route add 203.0.113.0/24 via 10.2.0.254 table 200", "rule add from 10.9.9.9 lookup 200"],
        (VIP, CLIENT, "ea 10.1.0.254"),
    ),
    set_up(
        "rule with an empty table",
        &["rule add from 10.9.9.9 lookup 201"],
        (VIP, CLIENT, "ea 10.1.0.254"),
    ),
    set_up(
        "rules by priority",
        &[
            "route add default via 10.2.0.254 table 200",
            "route add default via 10.2.0.253 table 201",
            "rule add from all lookup 200 prio 2000",
            "rule add from 10.9.9.9 lookup 201 prio 1000",
        ],
        (VIP, CLIENT, "eb 10.2.0.253"),
    ),
    set_up(
        "rule after the table main",
        &["route add default via 10.2.0.254 table 200", "rule add from 10.9.9.9 lookup 200 prio 32800"],
        (VIP, CLIENT, "ea 10.1.0.254"),
    ),
    set_up(
        "table main without its default route",
        &[
            "route add default via 10.2.0.254 table 200",
            "rule add lookup main suppress_prefixlength 0 prio 100",
            "rule add from 10.9.9.9 lookup 200 prio 101",
        ],
        (VIP, CLIENT, "eb 10.2.0.254"),
    ),
    set_up(
        "table main without short prefixes",
        &[
            "route add 198.51.0.0/16 via 10.1.0.253",
            "route add default via 10.2.0.254 table 200",
            "rule add lookup main suppress_prefixlength 16 prio 100",
            "rule add from 10.9.9.9 lookup 200 prio 101",
        ],
        (VIP, CLIENT, "eb 10.2.0.254"),
    ),
    set_up(
        "rules of WireGuard",
        &[
            "route add default via 10.2.0.254 table 51820",
            "rule add not fwmark 51820 lookup 51820 prio 101",
            "rule add lookup main suppress_prefixlength 0 prio 100",
        ],
        (VIP, CLIENT, "eb 10.2.0.254"),
    ),
    set_up(
        "rule with a mark",
        &["route add default via 10.2.0.254 table 200", "rule add fwmark 7 lookup 200"],
        (VIP, CLIENT, "ea 10.1.0.254"),
    ),
    set_up(
        "rule with a mask of the mark alone",
        &["route add default via 10.2.0.254 table 200", "rule add fwmark 0/0xff lookup 200"],
        (VIP, CLIENT, "eb 10.2.0.254"),
    ),
    set_up(
        "rule with TOS",
        &["route add default via 10.2.0.254 table 200", "rule add tos 0x10 lookup 200"],
        (VIP, CLIENT, "ea 10.1.0.254"),
    ),
    set_up(
        "rule for what this host sends",
        &["route add default via 10.2.0.254 table 200", "rule add iif lo lookup 200"],
        (VIP, CLIENT, "eb 10.2.0.254"),
    ),
    set_up(
        "rule for what comes in",
        &["route add default via 10.2.0.254 table 200", "rule add iif ea lookup 200"],
        (VIP, CLIENT, "ea 10.1.0.254"),
    ),
    set_up(
        "rule for programs bound to an interface",
        &["route add default via 10.2.0.254 table 200", "rule add oif eb lookup 200"],
        (VIP, CLIENT, "ea 10.1.0.254"),
    ),
    set_up(
        "inverted rule",
        &["route add default via 10.2.0.254 table 200", "rule add not from 10.1.0.0/24 lookup 200"],
        (VIP, CLIENT, "eb 10.2.0.254"),
    ),
    set_up(
        "inverted rule of an interface",
        &["route add default via 10.2.0.254 table 200", "rule add not iif ea lookup 200"],
        (VIP, CLIENT, "eb 10.2.0.254"),
    ),
    set_up("prohibit", &["rule add from 10.9.9.9 to 198.51.100.0/24 prohibit"], (VIP, CLIENT, "none")),
    set_up("blackhole", &["rule add to 198.51.100.0/24 blackhole"], (VIP, CLIENT, "none")),
    set_up("unreachable", &["rule add from 10.9.9.9 unreachable"], (VIP, "10.1.0.2", "none")),
    set_up(
        "goto",
        &[
            "route add default via 10.2.0.254 table 200",
            "rule add from 10.9.9.9 lookup 200 prio 300",
            "rule add to 203.0.113.0/24 goto 32766 prio 100",
            "rule add from all nop prio 200",
        ],
        (VIP, "203.0.113.7", "ea 10.1.0.254"),
    ),
    set_up(
        "goto nowhere",
        &[
            "route add default via 10.2.0.254 table 200",
            "rule add from 10.9.9.9 lookup 200 prio 300",
            "rule add to 203.0.113.0/24 goto 250 prio 100",
        ],
        (VIP, "203.0.113.7", "eb 10.2.0.254"),
    ),
    set_up(
        "throw",
        &[
            "route add default via 10.2.0.254 table 200",
            "route add throw 203.0.113.0/24 table 200",
            "rule add from 10.9.9.9 lookup 200",
        ],
        (VIP, "203.0.113.7", "ea 10.1.0.254"),
    ),
    set_up(
        "blackhole route in a table of its own",
        &["route add blackhole default table 200", "rule add from 10.9.9.9 lookup 200"],
        (VIP, CLIENT, "none"),
    ),
    set_up(
        "suppressed table with a blackhole route",
        &[
            "route add blackhole default table 200",
            "rule add from 10.9.9.9 lookup 200 suppress_prefixlength 0",
        ],
        (VIP, CLIENT, "none"),
    ),
    set_up(
        "table local later than others",
        &[
            "route add default via 10.2.0.254 table 200",
            "rule add from all lookup local prio 500",
            "rule add from 10.9.9.9 lookup 200 prio 100",
            "rule del prio 0",
        ],
        (VIP, "10.1.0.77", "eb 10.2.0.254"),
    ),
    set_up(
        "no rules but for one table",
        &["route add default via 10.2.0.254 table 200", "rule add lookup 200 prio 5", "rule del prio 32766"],
        (VIP, CLIENT, "eb 10.2.0.254"),
    ),
    set_up(
        "metrics",
        &["route add default via 10.2.0.254 metric 5", "route add default via 10.2.0.253 metric 700"],
        (VIP, CLIENT, "ea 10.1.0.254"),
    ),
    set_up("route with TOS", &["route add default tos 0x10 via 10.2.0.254"], (VIP, CLIENT, "ea 10.1.0.254")),
    set_up(
        "carrier lost, and routes without it ignored",
        &[
            "sysctl net.ipv4.conf.eb.ignore_routes_with_linkdown=1",
            "route add 198.51.100.0/24 via 10.2.0.254",
            "peer link set eb down",
        ],
        (VIP, CLIENT, "ea 10.1.0.254"),
    ),
    set_up(
        "carrier lost",
        &["route add 198.51.100.0/24 via 10.2.0.254", "peer link set eb down"],
        (VIP, CLIENT, "eb 10.2.0.254"),
    ),
    set_up(
        "nexthop object",
        &["nexthop add id 7 via 10.2.0.254 dev eb", "route add 198.51.100.0/24 nhid 7"],
        (VIP, CLIENT, "eb 10.2.0.254"),
    ),
    set_up(
        "nexthop object that its route alone names",
        &[
            "sysctl net.ipv4.nexthop_compat_mode=0",
            "nexthop add id 7 via 10.2.0.254 dev eb",
            "route add 198.51.100.0/24 nhid 7",
        ],
        (VIP, CLIENT, "eb 10.2.0.254"),
    ),
    set_up(
        "blackhole among nexthop objects",
        &[
            "sysctl net.ipv4.nexthop_compat_mode=0",
            "nexthop add id 8 blackhole",
            "route add 198.51.100.0/24 nhid 8",
        ],
        (VIP, CLIENT, "none"),
    ),
    set_up(
        "router of the other family",
        &["route add 198.51.100.0/24 via inet6 fd02::fe dev eb"],
        (VIP, CLIENT, "eb fd02::fe"),
    ),
];

pub(super) const VIP6: &str = "fd09::9";
pub(super) const CLIENT6: &str = "2001:db8:77::9";
pub(super) const V6: [&str; 4] = [VIP6, "fd01::1", "fd02::1", "::"];
pub(super) const TO_V6: [&str; 4] = [CLIENT6, "2001:db8:78::7", "fd01::2", "fd02::2"];

/// All begin with a default route by fd01::fe.
pub(super) const SET_UPS_V6: &[SetUp] = &[
    set_up("default route", &[], (VIP6, CLIENT6, "ea fd01::fe")),
    set_up(
        "rule from the VIP",
        &["-6 route add default via fd02::fe table 200", "-6 rule add from fd09::9 lookup 200"],
        (VIP6, CLIENT6, "eb fd02::fe"),
    ),
    set_up(
        "table main without its default route",
        &[
            "-6 route add default via fd02::fe table 200",
            "-6 rule add lookup main suppress_prefixlength 0 prio 100",
            "-6 rule add from fd09::9 lookup 200 prio 101",
        ],
        (VIP6, CLIENT6, "eb fd02::fe"),
    ),
    set_up("prohibit", &["-6 rule add to 2001:db8:77::/48 prohibit"], (VIP6, CLIENT6, "none")),
    set_up(
        "default route of another source",
        &["-6 route add default from 2001:db8:5::/48 via fd02::fe metric 10"],
        (VIP6, CLIENT6, "ea fd01::fe"),
    ),
    set_up(
        "default route of the VIP's network",
        &["-6 route add default from fd09::/64 via fd02::fe metric 2000"],
        (VIP6, CLIENT6, "eb fd02::fe"),
    ),
    set_up(
        "longer of two sources",
        &[
            "-6 route add default from fd09::/64 via fd02::fe",
            "-6 route add default from fd09::9/128 via fd02::fd",
        ],
        (VIP6, CLIENT6, "eb fd02::fd"),
    ),
    set_up(
        "network with routes of other sources",
        &[
            "-6 route add 2001:db8:77::/48 via fd02::fe",
            "-6 route add 2001:db8:77::/48 from 2001:db8:5::/48 via fd02::fd",
        ],
        (VIP6, CLIENT6, "ea fd01::fe"),
    ),
    set_up(
        "network with routes of this source",
        &["-6 route add 2001:db8:77::/48 from fd09::/64 via fd02::fd"],
        (VIP6, CLIENT6, "eb fd02::fd"),
    ),
    set_up(
        "carrier lost, and routes without it ignored",
        &[
            "sysctl net.ipv6.conf.eb.ignore_routes_with_linkdown=1",
            "-6 route add 2001:db8:77::/48 via fd02::fe",
            "peer link set eb down",
        ],
        (VIP6, CLIENT6, "ea fd01::fe"),
    ),
    set_up(
        "throw",
        &[
            "-6 route add default via fd02::fe table 200",
            "-6 route add throw 2001:db8:77::/48 table 200",
            "-6 rule add from fd09::9 lookup 200",
        ],
        (VIP6, CLIENT6, "ea fd01::fe"),
    ),
    set_up(
        "nexthop object that its route alone names",
        &[
            "sysctl net.ipv4.nexthop_compat_mode=0",
            "nexthop add id 7 via fd02::fe dev eb",
            "-6 route add 2001:db8:77::/48 nhid 7",
        ],
        (VIP6, CLIENT6, "eb fd02::fe"),
    ),
];
