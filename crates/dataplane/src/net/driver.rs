//! Name of the driver of an interface.

use std::ffi::CString;
use std::io;
use std::mem::zeroed;
use std::os::fd::AsRawFd;

use libc::{c_char, ifreq};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// `SIOCETHTOOL` of include/uapi/linux/sockios.h.
const GET_FROM_DRIVER: u32 = 0x8946;

/// `ETHTOOL_GDRVINFO` of include/uapi/linux/ethtool.h.
const GET_DRIVER_INFO: u32 = 3;

/// `struct ethtool_drvinfo` of include/uapi/linux/ethtool.h.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    others: [u8; 160],
}

/// Name of an interface's driver, in the calling thread's network namespace; `veth` and `bridge`
/// are drivers, too.
///
/// # Errors
/// If the interface does not exist, or its driver does not report a name.
pub fn driver(interface: &str) -> io::Result<String> {
    let name = CString::new(interface)?;
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let mut info = DriverInfo { command: GET_DRIVER_INFO, driver: [0; 32], others: [0; 160] };
    #[expect(unsafe_code, reason = "no crate has this request")]
    // SAFETY: an `ifreq` of zero bytes is valid. The kernel reads its name, which ends with a zero
    // because at most 15 bytes are copied to it. The kernel writes to `info`, which outlives the
    // call and is as long as the request's result.
    let result = unsafe {
        let mut request: ifreq = zeroed();
        let room = request.ifr_name.len() - 1;
        for (to, byte) in request.ifr_name[..room].iter_mut().zip(name.as_bytes()) {
            *to = *byte as c_char;
        }
        request.ifr_ifru.ifru_data = (&raw mut info).cast();
        libc::ioctl(socket.as_raw_fd(), GET_FROM_DRIVER as _, &raw mut request)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let name = info.driver.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_is_not_there_has_no_driver() {
        assert_eq!(size_of::<DriverInfo>(), 196);
        assert_eq!(driver("nothing").unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }
}
