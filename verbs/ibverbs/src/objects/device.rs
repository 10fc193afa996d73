//! Devices: the interfaces of the appliance.

use std::ffi::c_char;
use std::net::IpAddr;
use std::sync::Mutex;

use crate::bindings::*;
use crate::boundary::Shared;
use crate::errno::Result;
use crate::objects::instance::Instance;
use crate::report;
use verbs_client::lock::lock;

/// Environment variable with the name of the only device that programs see.
pub const DEVICE_VARIABLE: &str = "DDPD_DEVICE";

/// Maximum number of SGEs of a request.
pub const MAX_SGES: u32 = 6;
/// Maximum number of bytes of inline data.
pub const MAX_INLINE: u32 = 256;

/// Number of zero bytes after the C structure. Provider libraries of the system (libmlx5, libefa) look for their
/// private fields there: zeros show them that the device is not theirs.
const PRIVATE_BYTES: usize = 512;

/// A device. Devices are never freed: programs may use a pointer after `ibv_free_device_list`.
#[derive(Debug)]
#[repr(C)]
pub struct Device {
    c: Shared<Structure>,
    info: Mutex<verbs_client::Device>,
}

#[derive(Debug)]
#[repr(C)]
struct Structure {
    device: ibv_device,
    private: [u8; PRIVATE_BYTES],
}

static DEVICES: Mutex<Vec<&'static Device>> = Mutex::new(Vec::new());

impl Device {
    /// Returns the devices of the current session, or only the one that `DDPD_DEVICE` names.
    ///
    /// # Errors
    /// The errors of [`Instance::current`].
    pub fn all() -> Result<Vec<&'static Device>> {
        let instance = Instance::current()?;
        let wanted = std::env::var(DEVICE_VARIABLE).ok().filter(|name| !name.is_empty());
        let devices = instance.session().devices().iter();
        let found: Vec<_> = devices
            .filter(|info| wanted.as_ref().is_none_or(|wanted| *wanted == info.name))
            .map(Device::of)
            .collect();
        if let (Some(wanted), true) = (wanted, found.is_empty()) {
            let names: Vec<_> = instance.session().devices().iter().map(|d| &*d.name).collect();
            report::once(
                "no device",
                format_args!("no device {wanted}; the appliance has: {}", names.join(", ")),
            );
        }
        Ok(found)
    }

    /// Returns the device with a local address.
    ///
    /// # Errors
    /// The errors of [`Device::all`].
    pub fn with_address(address: IpAddr) -> Result<Option<&'static Device>> {
        let address = address.to_canonical();
        let all = Device::all()?;
        Ok(all.into_iter().find(|device| device.info().addresses.contains(&address)))
    }

    /// Returns the device of a pointer.
    ///
    /// # Errors
    /// `EINVAL`: there is no such device.
    pub fn from_ptr(pointer: *mut ibv_device) -> Result<&'static Device> {
        let devices = lock(&DEVICES);
        let found = devices.iter().find(|device| device.as_ptr() == pointer);
        found.copied().ok_or(crate::errno::EINVAL)
    }

    /// Returns the address of the C structure.
    pub fn as_ptr(&self) -> *mut ibv_device {
        self.c.get().cast()
    }

    /// Returns the name of the device, which is the name of the interface.
    pub fn name(&self) -> String {
        lock(&self.info).name.clone()
    }

    /// Returns the properties of the interface.
    pub fn info(&self) -> verbs_client::Device {
        lock(&self.info).clone()
    }

    /// Returns the index of the device in the list of all devices of the process, from 0.
    pub fn index(&self) -> usize {
        let devices = lock(&DEVICES);
        devices.iter().position(|device| std::ptr::eq(*device, self)).unwrap_or(0)
    }

    /// Returns the GUID in network byte order: the EUI-64 of the MAC address.
    pub fn guid(&self) -> u64 {
        let [a, b, c, d, e, f] = self.info().mac;
        u64::from_ne_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }

    /// Returns the GIDs of the addresses.
    pub fn gids(&self) -> Vec<ibv_gid> {
        self.info().addresses.into_iter().map(gid).collect()
    }

    /// Returns the largest InfiniBand MTU that is at most the interface's MTU.
    pub fn mtu(&self) -> ibv_mtu {
        match self.info().mtu {
            4096.. => IBV_MTU_4096,
            2048.. => IBV_MTU_2048,
            1024.. => IBV_MTU_1024,
            512.. => IBV_MTU_512,
            _ => IBV_MTU_256,
        }
    }

    /// Returns the device of an interface. Creates it at the first call.
    fn of(info: &verbs_client::Device) -> &'static Device {
        let mut devices = lock(&DEVICES);
        let known = devices.iter().find(|device| lock(&device.info).name == info.name);
        if let Some(device) = known {
            *lock(&device.info) = info.clone();
            return device;
        }
        let mut device = ibv_device {
            node_type: IBV_NODE_RNIC,
            transport_type: IBV_TRANSPORT_IWARP,
            ..ibv_device::default()
        };
        copy_text(&info.name, &mut device.name);
        copy_text(&format!("uverbs{}", devices.len()), &mut device.dev_name);
        copy_text(
            &format!("/sys/class/infiniband_verbs/uverbs{}", devices.len()),
            &mut device.dev_path,
        );
        copy_text(&format!("/sys/class/infiniband/{}", info.name), &mut device.ibdev_path);
        let device = Box::leak(Box::new(Device {
            c: Shared::new(Structure { device, private: [0; PRIVATE_BYTES] }),
            info: Mutex::new(info.clone()),
        }));
        devices.push(device);
        device
    }
}

/// Returns the GID of an address: IPv6, or IPv4 in its mapped form.
pub fn gid(ip: IpAddr) -> ibv_gid {
    let raw = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    ibv_gid { raw }
}

/// Copies a text to `to`, cut to `to.len() - 1` bytes. The rest is zero already.
fn copy_text(text: &str, to: &mut [c_char]) {
    let room = to.len().saturating_sub(1);
    to.iter_mut().zip(text.bytes().take(room)).for_each(|(to, byte)| *to = byte as c_char);
}
