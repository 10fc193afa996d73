//! Lists of devices, and their names.

use std::ffi::{CStr, c_char, c_int};

use crate::bindings::ibv_device;
use crate::boundary;
use crate::errno::{EINVAL, ENOENT};
use crate::objects::device::Device;

/// Returns a NULL-terminated array of devices, which `ibv_free_device_list` frees. Stores the number of devices in
/// `number`, if it is not NULL; 0 on an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(number: *mut c_int) -> *mut *mut ibv_device {
    boundary::pointer(|| {
        if !number.is_null() {
            // SAFETY: not NULL, and valid by the contract of C callers.
            unsafe { number.write(0) };
        }
        let devices: Vec<_> = Device::all()?.into_iter().map(Device::as_ptr).collect();
        let list = boundary::null_terminated(&devices)?;
        if !number.is_null() {
            // SAFETY: as above.
            unsafe { number.write(devices.len() as c_int) };
        }
        Ok(list)
    })
}

/// Frees the array of `ibv_get_device_list`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: NULL, or an array of `ibv_get_device_list`, which `malloc` has allocated.
    unsafe { libc::free(list.cast()) };
}

/// Returns the name of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    boundary::pointer(|| {
        Device::from_ptr(device)?;
        // SAFETY: the device exists, and devices are never freed.
        Ok(unsafe { &raw mut (*device).name }.cast::<c_char>())
    })
}

/// Returns the GUID of a device in network byte order, or 0 on an error.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    boundary::value(0, || Device::from_ptr(device).map_or(0, Device::guid))
}

/// Returns the index of a device, or -1 on an error.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    boundary::minus_one(|| Ok(Device::from_ptr(device)?.index() as c_int))
}

/// Returns the directory where sysfs is mounted.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads a file of sysfs into `buffer`, without a trailing newline. Returns its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    boundary::minus_one(|| {
        if directory.is_null() || file.is_null() || buffer.is_null() || size == 0 {
            return Err(EINVAL);
        }
        // SAFETY: not NULL, and texts by the contract of C callers.
        let (directory, file) = unsafe { (CStr::from_ptr(directory), CStr::from_ptr(file)) };
        let text = |text: &CStr| text.to_str().map(str::to_owned).map_err(|_| EINVAL);
        let (directory, file) = (text(directory)?, text(file)?);
        let content = read_sysfs_file(&directory, &file)?;
        let content = content.strip_suffix(b"\n").unwrap_or(&content);
        let length = content.len().min(size - 1);
        // SAFETY: the buffer has `size` bytes by the contract of C callers.
        unsafe {
            buffer.copy_from_nonoverlapping(content.as_ptr().cast(), length);
            buffer.add(length).write(0);
        }
        Ok(length as c_int)
    })
}

/// Returns the content of a file of sysfs. The content of files of this library's devices is computed.
fn read_sysfs_file(directory: &str, file: &str) -> Result<Vec<u8>, c_int> {
    let path = format!("{directory}/{file}");
    if let Some((name, file)) = split_device_path(&path) {
        let devices = Device::all()?;
        if let Some(device) = devices.into_iter().find(|device| device.name() == name) {
            return computed_file(device, file).map(String::into_bytes).ok_or(ENOENT);
        }
    }
    std::fs::read(path).map_err(|error| error.raw_os_error().unwrap_or(ENOENT))
}

/// Returns the device name of a path below `/sys/class/infiniband`, and the rest of the path.
fn split_device_path(path: &str) -> Option<(&str, &str)> {
    let path = path.strip_prefix("/sys/class/infiniband/")?.trim_start_matches('/');
    let (name, file) = path.split_once('/')?;
    Some((name, file.trim_start_matches('/')))
}

/// Returns the content of a file in the sysfs directory of a device, or `None` if the device does not have the file.
/// `file`: path relative to this directory. No device has a file in a subdirectory, such as `ports/1/state`.
fn computed_file(device: &Device, file: &str) -> Option<String> {
    Some(match file {
        "board_id" => "ddpd".to_owned(),
        "fw_ver" => env!("CARGO_PKG_VERSION").to_owned(),
        "node_type" => "4: RNIC".to_owned(),
        "node_guid" | "sys_image_guid" => {
            let bytes = device.guid().to_ne_bytes();
            let words = bytes.as_chunks::<2>().0.iter();
            let words: Vec<_> =
                words.map(|word| format!("{:04x}", u16::from_be_bytes(*word))).collect();
            words.join(":")
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_path_is_split_into_name_and_whole_rest() {
        let split = |rest: &str| {
            let path = format!("/sys/class/infiniband/{rest}");
            split_device_path(&path).map(|(name, file)| (name.to_owned(), file.to_owned()))
        };
        let expected = |name: &str, file: &str| Some((name.to_owned(), file.to_owned()));
        assert_eq!(split("lan/node_type"), expected("lan", "node_type"));
        // The directory of the caller may end with a slash.
        assert_eq!(split("lan//node_type"), expected("lan", "node_type"));
        assert_eq!(split("lan/ports/1/node_type"), expected("lan", "ports/1/node_type"));
        assert_eq!(split("lan"), None);
        assert_eq!(split_device_path("/sys/class/net/lan/mtu"), None);
    }
}
