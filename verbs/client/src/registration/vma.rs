//! Lists the mappings (VMAs) of this process: by the ioctl PROCMAP_QUERY, or from the text of `/proc/self/maps` on
//! kernels before 6.11.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::ioctl::{Updater, opcode};
use rustix::mm::ProtFlags;

use crate::mapping::FileId;

/// A mapping of this process. All of its pages have the same properties.
#[derive(Clone, Debug)]
pub(super) struct Vma {
    /// Addresses of the mapping.
    pub(super) range: Range<usize>,
    /// Access rights.
    pub(super) rights: ProtFlags,
    /// True for `MAP_SHARED`.
    pub(super) is_shared: bool,
    /// The mapped file; `None` for anonymous memory.
    pub(super) file: Option<FileId>,
    /// Offset of `range.start` in the file, bytes.
    pub(super) offset: u64,
    /// Size of a page of the mapping, bytes.
    pub(super) page: usize,
}

/// Descriptor of `/proc/self/maps`.
#[derive(Debug)]
pub(super) struct Maps(OwnedFd);

impl Maps {
    pub(super) fn open() -> Result<Maps, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::open(c"/proc/self/maps", flags, Mode::empty()).map(Maps)
    }

    /// Returns the mappings that overlap `range`, in the order of their addresses.
    pub(super) fn list(&self, range: Range<usize>) -> Result<Vec<Vma>, Errno> {
        let mut found = Vec::new();
        let mut at = range.start;
        while at < range.end {
            match self.query(at, COVERING_OR_NEXT) {
                Ok(Some(vma)) if vma.range.start < range.end => {
                    at = vma.range.end;
                    found.push(vma);
                }
                Ok(_) => break,
                // Kernels before 6.11 do not have PROCMAP_QUERY.
                Err(Errno::NOTTY) => return list_by_text(&range),
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Allocates space for a list of all shared mappings of files, twice as much as it needs now.
    pub(super) fn prepare_list(&self) -> Result<List, Errno> {
        let mut list = List { vmas: Vec::new(), text: Vec::new() };
        match self.visit_shared_files(|_| Ok(())) {
            Ok(count) => list.vmas.reserve_exact(2 * count + 64),
            // Kernels before 6.11 do not have PROCMAP_QUERY.
            Err(Errno::NOTTY) => list.text.reserve_exact(2 * read_text()?.len() + (64 << 10)),
            Err(error) => return Err(error),
        }
        Ok(list)
    }

    /// Fills a list. Allocates nothing: fails with ENOMEM if the list is too short.
    pub(super) fn fill(&self, list: &mut List) -> Result<(), Errno> {
        let List { vmas, text } = list;
        if text.capacity() == 0 {
            let add = |vma| {
                if vmas.len() == vmas.capacity() {
                    return Err(Errno::NOMEM);
                }
                vmas.push(vma);
                Ok(())
            };
            return self.visit_shared_files(add).map(drop);
        }
        rustix::fs::seek(&self.0, SeekFrom::Start(0))?;
        while text.len() < text.capacity() {
            match rustix::io::read(&self.0, rustix::buffer::spare_capacity(text)) {
                Ok(0) => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno::NOMEM)
    }

    /// Calls `visit` with each shared mapping of a file, and returns their number.
    fn visit_shared_files(
        &self,
        mut visit: impl FnMut(Vma) -> Result<(), Errno>,
    ) -> Result<usize, Errno> {
        let (mut at, mut count) = (0, 0);
        while let Some(vma) = self.query(at, COVERING_OR_NEXT | SHARED | FILE_BACKED)? {
            at = vma.range.end;
            count += 1;
            visit(vma)?;
        }
        Ok(count)
    }

    /// Returns the mapping at `address`, or the next one, among those that `flags` select.
    fn query(&self, address: usize, flags: u64) -> Result<Option<Vma>, Errno> {
        const QUERY: u32 = opcode::read_write::<ProcmapQuery>(b'f', 17);
        let mut query = ProcmapQuery {
            size: size_of::<ProcmapQuery>() as u64,
            query_flags: flags,
            query_addr: address as u64,
            ..ProcmapQuery::default()
        };
        // SAFETY: the opcode is the one of `PROCMAP_QUERY`, which reads and writes a `struct procmap_query`. The
        // structure's addresses of buffers for the name and the build ID are 0, so the kernel stores nothing else.
        let result = unsafe {
            rustix::ioctl::ioctl(self.0.as_fd(), Updater::<QUERY, ProcmapQuery>::new(&mut query))
        };
        match result {
            Ok(()) => Ok(Some(query.vma())),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A list of all shared mappings of files, with space for more.
#[derive(Debug)]
pub(super) struct List {
    vmas: Vec<Vma>,
    /// The text of `/proc/self/maps`, for kernels without PROCMAP_QUERY; otherwise without capacity.
    text: Vec<u8>,
}

impl List {
    pub(super) fn into_vmas(self) -> Result<Vec<Vma>, Errno> {
        let List { mut vmas, text } = self;
        for line in String::from_utf8_lossy(&text).lines() {
            let vma = parse(line).ok_or(Errno::IO)?;
            if vma.is_shared && vma.file.is_some() {
                vmas.push(vma);
            }
        }
        Ok(vmas)
    }
}

/// Flag of a query: the mapping at the address, or the next one.
const COVERING_OR_NEXT: u64 = 0x10;
/// Flag of a query: shared mappings only.
const SHARED: u64 = 0x08;
/// Flag of a query: mappings of files only.
const FILE_BACKED: u64 = 0x20;

/// `struct procmap_query` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

impl ProcmapQuery {
    fn vma(&self) -> Vma {
        let right = |bit, right| if self.vma_flags & bit == 0 { ProtFlags::empty() } else { right };
        let id = FileId { device: (self.dev_major, self.dev_minor), inode: self.inode };
        Vma {
            range: self.vma_start as usize..self.vma_end as usize,
            rights: right(1, ProtFlags::READ)
                | right(2, ProtFlags::WRITE)
                | right(4, ProtFlags::EXEC),
            is_shared: self.vma_flags & 8 != 0,
            file: (id != FileId::default()).then_some(id),
            offset: self.vma_offset,
            page: self.vma_page_size as usize,
        }
    }
}

/// Reads the whole list as text. Returns the mappings that overlap `range`.
fn list_by_text(range: &Range<usize>) -> Result<Vec<Vma>, Errno> {
    let text = read_text()?;
    let vmas = text.lines().map(|line| parse(line).ok_or(Errno::IO));
    vmas.filter(|vma| {
        vma.as_ref().map_or(true, |vma| vma.range.start < range.end && range.start < vma.range.end)
    })
    .collect()
}

fn read_text() -> Result<String, Errno> {
    std::fs::read_to_string("/proc/self/maps")
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Parses a line of `/proc/PID/maps`: `start-end rwxp offset major:minor inode path`.
fn parse(line: &str) -> Option<Vma> {
    let mut words = line.split_ascii_whitespace();
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = words.next()?.split_once('-')?;
    let rights = words.next()?.as_bytes();
    let offset = hex(words.next()?)?;
    let (major, minor) = words.next()?.split_once(':')?;
    let inode = words.next()?.parse().ok()?;
    let id = FileId { device: (hex(major)? as u32, hex(minor)? as u32), inode };
    let right = |at: usize, right| match rights.get(at) {
        Some(b'-') | None => ProtFlags::empty(),
        Some(_) => right,
    };
    // The text has no page size, but names anonymous mappings of huge pages `/anon_hugepage`.
    let is_huge = words.next().is_some_and(|path| path.starts_with("/anon_hugepage"));
    Some(Vma {
        range: hex(start)? as usize..hex(end)? as usize,
        rights: right(0, ProtFlags::READ) | right(1, ProtFlags::WRITE) | right(2, ProtFlags::EXEC),
        is_shared: rights.get(3) == Some(&b's'),
        file: (id != FileId::default()).then_some(id),
        offset,
        page: if is_huge { huge_page_size() } else { crate::page::size() },
    })
}

/// Returns the default size of huge pages, bytes.
fn huge_page_size() -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Hugepagesize:"));
    let size = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<usize>().ok());
    size.map_or(2 << 20, |kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_and_text_describe_the_same_mappings() {
        let file = FileId::default();
        let local = &file as *const FileId as usize;
        let heap = Box::new(0u8);
        for address in [local, &raw const *heap as usize, parse as *const () as usize] {
            let range = address..address + 1;
            let text = list_by_text(&range).unwrap();
            let [by_text] = &text[..] else { panic!("{text:?}") };
            let maps = Maps::open().unwrap();
            let list = maps.list(range).unwrap();
            let [vma] = &list[..] else { panic!("{list:?}") };
            assert_eq!(format!("{vma:?}"), format!("{by_text:?}"));
        }
    }

    #[test]
    fn lists_of_shared_files_by_query_and_by_text_are_equal() {
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 8192).unwrap();
        let flags = rustix::mm::MapFlags::SHARED;
        // SAFETY: no address is requested, so no existing mapping is replaced. The mapping stays.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), 4096, ProtFlags::READ, flags, &file, 4096)
        };
        let start = start.unwrap().addr();
        let maps = Maps::open().unwrap();
        let found = |mut list: List| {
            maps.fill(&mut list).unwrap();
            let vmas = list.into_vmas().unwrap();
            let vma = vmas.into_iter().find(|vma| vma.range.start == start).unwrap();
            assert_eq!((vma.offset, vma.range.len(), vma.is_shared), (4096, 4096, true));
            format!("{vma:?}")
        };
        let by_text = List { vmas: Vec::new(), text: Vec::with_capacity(1 << 20) };
        assert_eq!(found(maps.prepare_list().unwrap()), found(by_text));
    }

    #[test]
    fn list_without_space_is_an_error() {
        let maps = Maps::open().unwrap();
        let mut list = List { vmas: Vec::new(), text: Vec::with_capacity(64) };
        assert_eq!(maps.fill(&mut list), Err(Errno::NOMEM));
    }
}
