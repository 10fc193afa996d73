//! Memory windows: allocation, and the operations that bind and unbind them.

use std::ops::Range;

use verbs_layout::work::{Operation, SendWork, WindowAccess, WindowBind};
use verbs_session::message::{Answer, Call, WindowKind};

use crate::domain::ProtectionDomain;
use crate::error::Error;
use crate::region::MemoryRegion;

/// A memory window: an STag by which peers get rights to a part of a memory region, from its binding until its
/// invalidation. A posted operation ([`bind`](Self::bind)) binds the window, without a call to the appliance.
///
/// The upper 24 bits of the STag identify the window. The lower 8 bits are a key that the program chooses for each
/// binding. After a binding with a new key, peers cannot use the previous STag.
///
/// | | [`WindowKind::One`] | [`WindowKind::Two`] |
/// |---|---|---|
/// | peers | of all queue pairs of the domain | of the queue pair that binds the window |
/// | a binding ends with | the next one; [`unbind`](Self::unbind) | [`post::local_invalidate`](crate::post::local_invalidate), a Send with Invalidate of the peer, the end of the connection |
/// | cost of a bind | slower: involves all workers, and later posts of the QP wait for the bind | takes effect at once |
///
/// The drop of the window ends its binding.
#[derive(Debug)]
pub struct MemoryWindow {
    domain: ProtectionDomain,
    kind: WindowKind,
    /// STag with the key 0.
    stag: u32,
}

impl ProtectionDomain {
    /// Allocates a memory window, which is not bound.
    ///
    /// # Errors
    /// The appliance refuses the window, or the session has ended.
    pub fn allocate_window(&self, kind: WindowKind) -> Result<MemoryWindow, Error> {
        let link = self.session().link();
        match link.call(Call::AllocateWindow { pd: self.number(), kind })? {
            (Answer::Window { stag }, descriptors)
                if descriptors.is_empty() && stag & 0xff == 0 =>
            {
                Ok(MemoryWindow { domain: self.clone(), kind, stag })
            }
            _ => Err(link.violation("the answer does not match the call")),
        }
    }
}

impl MemoryWindow {
    /// Returns the type of the window.
    pub fn kind(&self) -> WindowKind {
        self.kind
    }

    /// Returns the protection domain of the window.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Returns the STag that the window has while it is bound with `key`: an rkey for peers, not valid as lkey.
    pub fn stag(&self, key: u8) -> u32 {
        self.stag | u32::from(key)
    }

    /// Returns an operation that binds the window to the bytes `range` of a region. A region cannot be deregistered
    /// while windows are bound to it. The TO of the first byte is its address, or 0 with `zero_based`.
    ///
    /// # Errors
    /// The range is empty or not within the region, or the region belongs to another protection domain.
    pub fn bind(
        &self,
        key: u8,
        region: &MemoryRegion,
        range: Range<usize>,
        access: WindowAccess,
    ) -> Result<SendWork, Error> {
        if !self.domain.is_same(region.domain()) {
            return Err(Error::Argument("the region belongs to another protection domain"));
        }
        if range.start >= range.end || range.end > region.len() {
            return Err(Error::Argument("the range is empty or not within the region"));
        }
        Ok(self.work(WindowBind {
            window: self.stag(key),
            region: region.stag(),
            address: region.address() + range.start as u64,
            len: (range.end - range.start) as u64,
            access,
        }))
    }

    /// Returns an operation that ends the binding of a window of type 1.
    ///
    /// # Errors
    /// The window has type 2.
    pub fn unbind(&self) -> Result<SendWork, Error> {
        if self.kind != WindowKind::One {
            return Err(Error::Argument("a window of type 2 is invalidated"));
        }
        let access = WindowAccess::default();
        Ok(self.work(WindowBind { window: self.stag, region: 0, address: 0, len: 0, access }))
    }

    fn work(&self, bind: WindowBind) -> SendWork {
        let operation = Operation::BindWindow(bind);
        SendWork { wr_id: 0, signalled: true, fence: false, operation }
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        let link = self.domain.session().link();
        if !link.is_forked() {
            // Errors after the session's end are ignored: the appliance has then removed the window.
            let _ = link.call_done(Call::DeallocateWindow { stag: self.stag });
        }
    }
}
