//! The cache's flows. Many are written at once, by the batch calls of bpf(2) (Linux 5.6), which `aya` has none of.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use libc::c_long;

use super::FlowEntry;
use crate::model::FlowKey;

// Commands of bpf(2), from include/uapi/linux/bpf.h.
const LOOKUP_ELEM: c_long = 1;
const UPDATE_BATCH: c_long = 26;
const DELETE_BATCH: c_long = 27;

/// The map of flows. Clones are of the same map.
#[derive(Debug, Clone)]
pub struct FlowMap(Arc<OwnedFd>);

impl FlowMap {
    pub(super) fn new(map: OwnedFd) -> FlowMap {
        FlowMap(Arc::new(map))
    }

    /// Has packets of these keys be forwarded by the entries, from the first on; what was there is replaced. Those that there
    /// is no room or memory for are removed instead: they would be forwarded by what no longer holds. Returns how many there
    /// was room for.
    ///
    /// # Panics
    /// If there are not as many entries as keys.
    pub fn put(&self, mut keys: &[FlowKey], mut entries: &[FlowEntry]) -> io::Result<usize> {
        assert_eq!(keys.len(), entries.len(), "a key for each entry");
        let mut put = keys.len();
        while !keys.is_empty() {
            let mut batch = self.batch(keys);
            batch.values = entries.as_ptr() as u64;
            match bpf(UPDATE_BATCH, &mut batch) {
                Ok(()) => break,
                // The call ends at the first that cannot be put in.
                Err(error) if matches!(error.raw_os_error(), Some(libc::E2BIG | libc::ENOMEM)) => {
                    let done = batch.count as usize;
                    self.remove(&keys[done..=done])?;
                    put -= 1;
                    (keys, entries) = (&keys[done + 1..], &entries[done + 1..]);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(put)
    }

    /// Leaves packets of these keys to userspace again. Keys that are not there are passed over.
    pub fn remove(&self, mut keys: &[FlowKey]) -> io::Result<()> {
        while !keys.is_empty() {
            let mut batch = self.batch(keys);
            match bpf(DELETE_BATCH, &mut batch) {
                Ok(()) => return Ok(()),
                // The call ends at the first that is not there.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                    keys = keys.get(batch.count as usize + 1..).unwrap_or_default();
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The entry of this key, as the kernel has it now.
    pub fn get(&self, key: &FlowKey) -> io::Result<Option<FlowEntry>> {
        let mut entry = FlowEntry::default();
        let mut element = Element {
            map: self.0.as_raw_fd() as u32,
            reserved: 0,
            key: (&raw const *key) as u64,
            value: (&raw mut entry) as u64,
            flags: 0,
        };
        match bpf(LOOKUP_ELEM, &mut element) {
            Ok(()) => Ok(Some(entry)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn batch(&self, keys: &[FlowKey]) -> Batch {
        let (count, map) = (keys.len() as u32, self.0.as_raw_fd() as u32);
        Batch { keys: keys.as_ptr() as u64, count, map, ..Batch::default() }
    }
}

/// `union bpf_attr` of the calls for one element.
#[repr(C)]
struct Element {
    map: u32,
    reserved: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// `union bpf_attr` of the calls for many.
#[repr(C)]
#[derive(Default)]
struct Batch {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    /// Before the call how many there are, after it how many were done.
    count: u32,
    map: u32,
    elem_flags: u64,
    flags: u64,
}

/// What of `union bpf_attr` a command takes.
trait Attributes {}
impl Attributes for Element {}
impl Attributes for Batch {}

fn bpf<A: Attributes>(command: c_long, attributes: &mut A) -> io::Result<()> {
    #[expect(unsafe_code, reason = "no crate has these calls")]
    // SAFETY: the kernel reads and writes `attributes`, of its size. What addresses they hold are made by the methods
    // above, of slices and places that live until the call is over and have as many keys of 40 bytes and entries of 64 as
    // they say; any bytes are valid in an entry.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<A>() as c_long) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
