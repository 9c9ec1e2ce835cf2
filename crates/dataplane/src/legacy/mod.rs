//! Support for kernels before 6.6, which lack tcx (Debian 12 has 6.1): `nftables` is the guard
//! there, and `filter` attaches the flow cache. When support for these kernels ends, remove this
//! folder together with `GuardKind`, `CacheError::Attach` and the filters that `app::stale_filters`
//! removes.

mod filter;
mod nftables;

pub(super) use filter::{attach, lacks_tcx};
pub(super) use nftables::Nftables;
pub(super) use nftables::NftablesError;
