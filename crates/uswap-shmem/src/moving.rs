//! How pages of an object leave, and how they come back.
//!
//! A page leaves in this order. Nobody may write to it any more: it is write-protected in each process that has it mapped. Its
//! content is copied to where it is to rest. It is punched out of the object, which takes it from all processes at once. Who wants to write
//! meanwhile waits, and misses the page afterwards. While a process changes its mappings, or forks, its kernel refuses to protect
//! anything (EAGAIN), and nothing leaves; where its report is read between the protection and the punch, nothing is punched
//! ([`reports`](crate::reports)): so nobody has a mapping that was not protected. Where anything does not go as it should, all is let go on
//! as it was.
//!
//! A page comes back once: in the process that waits for it, or in the window where nobody does. Others who have it mapped find it in the
//! object, without a message.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use uswap_core::defects::{Sabotage, is_on};
use uswap_sys::report::Reason;
use uswap_system::faults::{Faults, Progress, Stop, Wake};
use uswap_system::{Advice, PAGE_SIZE};

use crate::client::{Client, Part};
use crate::kernel::{ClientUffd, Kernel, SharedObject};
use crate::reports::Seen;
use crate::robust_mutexes::first_page_with_one;
use crate::shared::{Leaving, Shared};
use crate::trust::all_are_known;

/// Bytes that leave at a time: one block of the engine's.
const AT_ONCE: usize = 16 * PAGE_SIZE;

/// A range that is on its way out until this is dropped.
struct OnItsWay<'a, K: Kernel>(&'a Shared<K>, (usize, usize));

impl<K: Kernel> OnItsWay<'_, K> {
    fn begin(shared: &Shared<K>, start: usize, end: usize) -> OnItsWay<'_, K> {
        // Who is just reading that somebody wants to write there lets him before anything is protected.
        let _passed = shared.reports.pass();
        shared.leaving().push(Leaving { start, end, writers: Vec::new() });
        OnItsWay(shared, (start, end))
    }
}

impl<K: Kernel> Drop for OnItsWay<'_, K> {
    fn drop(&mut self) {
        let left = {
            let mut leaving = self.0.leaving();
            let at = leaving.iter().position(|range| (range.start, range.end) == self.1);
            at.map(|at| leaving.swap_remove(at))
        };
        if is_on(Sabotage::SharedWriterNotWoken) {
            return;
        }
        // In a process that a fork has brought meanwhile nobody else ends the protection.
        for (client, at) in left.into_iter().flat_map(|left| left.writers) {
            go_on(&client, at);
        }
    }
}

/// Nothing was done, for this reason.
fn stopped(stop: Stop) -> Progress {
    Progress { bytes: 0, stop: Some(stop) }
}

fn done(bytes: usize) -> Progress {
    Progress { bytes, stop: None }
}

/// Moves the pages of `source..source + len`, of a window, to frames, which are memory of this process and of `own`. Holes are passed over.
pub fn move_out<K: Kernel>(shared: &Shared<K>, own: &K::Faults, frames: usize, source: usize, len: usize) -> Progress {
    let Some(object) = shared.object_at(source) else { return stopped(Stop::Missing) };
    if !object.may_leave() || !shared.may_swap() {
        return stopped(Stop::Busy);
    }
    if source + len > object.end() {
        return stopped(Stop::Invalid);
    }
    let mut bytes = 0;
    while bytes < len {
        let step = (len - bytes).min(AT_ONCE);
        match move_some_out(shared, own, frames + bytes, &object, source + bytes, step) {
            Ok(passed) if passed == step => bytes += step,
            Ok(passed) => return Progress { bytes: bytes + passed, stop: Some(Stop::Busy) },
            Err(stop) => return Progress { bytes, stop: Some(stop) },
        }
    }
    done(bytes)
}

/// Up to how many bytes from `start` on everything has left: not to the end, if the next page has to stay.
fn move_some_out<K: Kernel>(
    shared: &Shared<K>,
    own: &K::Faults,
    frames: usize,
    object: &K::Object,
    start: usize,
    len: usize,
) -> Result<usize, Stop> {
    let end = start + len;
    if object.populated(start, end).map_err(|_| Stop::Busy)?.is_none() {
        return Ok(len);
    }
    let len = before_what_stays(shared, object, start, len)?;
    let end = start + len;
    if len == 0 {
        return Ok(0);
    }
    let leaving = OnItsWay::begin(shared, start, end);
    let seen = shared.reports.seen();
    let mut protected = Vec::new();
    let moved = protect(shared, start, end, &mut protected).and_then(|()| {
        if is_on(Sabotage::AllMayWriteEarly) {
            let_all_write(&protected);
        }
        take(shared, own, frames, object, (start, end), seen)
    });
    if !is_on(Sabotage::SharedWriterNotWoken) {
        let_all_write(&protected);
    }
    drop(leaving);
    moved.map(|()| len)
}

/// How many bytes from `start` on lie before a page that has to stay, where there have been such pages. It is not even protected: the kernel could not tell
/// then, either, that the owner of a mutex there has died.
fn before_what_stays<K: Kernel>(
    shared: &Shared<K>,
    object: &K::Object,
    start: usize,
    len: usize,
) -> Result<usize, Stop> {
    if !shared.has_held_mutexes.load(Relaxed) {
        return Ok(len);
    }
    let mut contents = [0u8; AT_ONCE];
    let end = start + len;
    let mut at = start;
    while let Some(there) = object.populated(at, end).map_err(|_| Stop::Busy)? {
        let (from, to) = (there.start.max(at), there.end.min(end));
        let content = &mut contents[..to - from];
        object.read(from, content).map_err(|_| Stop::Busy)?;
        if let Some(before) = first_page_with_one(content) {
            return Ok(from + before - start);
        }
        at = to;
    }
    Ok(len)
}

/// Who waits to write goes on: he finds the page, or misses it.
fn let_all_write<K: Kernel>(protected: &[(Arc<Client<K>>, Part)]) {
    for (client, part) in protected {
        let _ = client.uffd.protect(part.at, part.len, false);
    }
}

/// Nobody may write to `start..end` from here on. What has been protected is in `protected`, also where that fails.
fn protect<K: Kernel>(
    shared: &Shared<K>,
    start: usize,
    end: usize,
    protected: &mut Vec<(Arc<Client<K>>, Part)>,
) -> Result<(), Stop> {
    let clients = shared.all_clients();
    if !all_are_known(shared, &clients) {
        return Err(Stop::TryLater);
    }
    for client in clients.into_iter().skip(usize::from(is_on(Sabotage::OneMayWrite))) {
        let parts: Vec<Part> = client.mappings().parts(start, end).collect();
        for part in parts {
            let progress = client.uffd.protect(part.at, part.len, true);
            protected.push((client.clone(), part));
            match progress.stop {
                None | Some(Stop::ProcessGone) => {}
                // It may have been cut off, and have grown again since.
                Some(Stop::Missing | Stop::Invalid) if !part.is_mapped => protect_pages(&client, part)?,
                Some(Stop::Missing | Stop::Invalid) => {
                    client.doubt();
                    return Err(Stop::TryLater);
                }
                Some(Stop::TryLater) => return Err(Stop::TryLater),
                Some(_) => return Err(Stop::Busy),
            }
        }
    }
    Ok(())
}

/// Of what may be mapped, each page that is.
fn protect_pages<K: Kernel>(client: &Client<K>, part: Part) -> Result<(), Stop> {
    for at in (part.at..part.at + part.len).step_by(PAGE_SIZE) {
        match client.uffd.protect(at, PAGE_SIZE, true).stop {
            None | Some(Stop::ProcessGone | Stop::Missing | Stop::Invalid) => {}
            Some(stop) => return Err(stop),
        }
    }
    Ok(())
}

/// Copies what is there to the frames, and takes it away when all of it has been copied, if nothing has been read since it was looked who has
/// it, and none of it has to stay.
fn take<K: Kernel>(
    shared: &Shared<K>,
    own: &K::Faults,
    frames: usize,
    object: &K::Object,
    (start, end): (usize, usize),
    seen: Seen,
) -> Result<(), Stop> {
    let mut copied = Vec::new();
    let mut at = start;
    let mut contents = [0u8; AT_ONCE];
    let mut copy_all = || {
        while let Some(there) = object.populated(at, end).map_err(|_| Stop::Busy)? {
            let (from, to) = (there.start.max(at), there.end.min(end));
            let content = &mut contents[from - start..to - start];
            if is_on(Sabotage::PunchedUncopied) {
                let _ = object.punch(from, content.len());
            }
            object.read(from, content).map_err(|_| Stop::Busy)?;
            if first_page_with_one(content).is_some() {
                // Before the next try it is looked for.
                shared.has_held_mutexes.store(true, Relaxed);
                return Err(Stop::Busy);
            }
            let frame = frames + (from - start);
            copied.push((frame, to - from, from));
            if let Some(stop) = own.copy(frame, content.as_ptr(), content.len(), Wake::DontWake).stop {
                return Err(stop);
            }
            at = to;
        }
        Ok(())
    };
    let mut result = copy_all();
    let passed = shared.reports.pass_if(seen);
    if passed.is_none() && result.is_ok() {
        result = Err(Stop::TryLater);
    }
    let mut taken = 0;
    if result.is_ok() || is_on(Sabotage::RefusedIsPunched) {
        for &(_, len, from) in &copied {
            if object.punch(from, len).is_err() {
                // Who waits to write waits still.
                if let Err(error) = object.put_back(from, &contents[from - start..][..len]) {
                    K::end(format_args!("shared memory cannot be put back: {}", Reason(&error)));
                }
                result = if taken == 0 { Err(Stop::Busy) } else { Ok(()) };
                break;
            }
            taken += 1;
        }
    }
    drop(passed);
    // What was not taken away has its content in the object still.
    for &(frame, len, _) in &copied[taken..] {
        drop_frames::<K>(frame, len);
    }
    result
}

/// Frames of this process's whose content is elsewhere.
fn drop_frames<K: Kernel>(frame: usize, len: usize) {
    let _ = K::advise(frame, len, Advice::DontNeed);
}

/// How pages are filled.
#[derive(Clone, Copy, Debug)]
pub enum Filling {
    /// With what is there.
    From(*const u8),
    /// With zeros.
    Zeros,
}

/// Fills missing pages from `target` on, of the window of `object`, for all who have them mapped, and wakes whoever waits for them if
/// asked.
pub fn fill<K: Kernel>(
    shared: &Shared<K>,
    object: &K::Object,
    target: usize,
    filling: Filling,
    len: usize,
    wake: Wake,
) -> Progress {
    if target + len > object.end() {
        return stopped(Stop::Missing);
    }
    let mut progress = if is_on(Sabotage::FilledTwice) {
        if object.punch(target, len).is_err() {
            return stopped(Stop::Busy);
        }
        done(0)
    } else {
        let waited_for = fill_where_it_is_waited_for(shared, target, filling, len);
        waited_for.map_or(done(0), |progress| object.looked_at(target, progress))
    };
    if progress.bytes < len && progress.stop != Some(Stop::AlreadyThere) {
        let (from, left) = (progress.bytes, len - progress.bytes);
        let rest = match filling {
            Filling::From(source) => object.fill(&shared.filler, target + from, source.wrapping_add(from), left),
            Filling::Zeros => object.fill_with_zeros(&shared.filler, target + from, left),
        };
        let rest = object.looked_at(target + from, rest);
        progress = Progress { bytes: from + rest.bytes, stop: rest.stop };
    }
    if wake == Wake::Wake && progress.bytes > 0 {
        shared.wake(target, target + progress.bytes);
    }
    progress
}

/// Where a thread waits for one of the pages, they go to the page table of its process at once.
fn fill_where_it_is_waited_for<K: Kernel>(
    shared: &Shared<K>,
    target: usize,
    filling: Filling,
    len: usize,
) -> Option<Progress> {
    let _passed = shared.reports.pass();
    let waiting = shared.who_waits(target, target + len).filter(|waiting| waiting.client.is_known())?;
    let parts: Vec<Part> = waiting.client.mappings().parts(target, target + len).collect();
    // Not what is mapped twice, or in part.
    let part = parts
        .into_iter()
        .find(|part| part.is_mapped && part.len == len && (part.at..part.at + part.len).contains(&waiting.at))?;
    let uffd = &waiting.client.uffd;
    Some(match filling {
        Filling::From(source) => uffd.copy(part.at, source, len, Wake::DontWake),
        Filling::Zeros => uffd.zeropage(part.at, len, Wake::DontWake),
    })
}

/// Moves frames to where pages are missing from `target` on, of a window.
pub fn move_in<K: Kernel>(shared: &Shared<K>, target: usize, frames: usize, len: usize, wake: Wake) -> Progress {
    let Some(object) = shared.object_at(target) else { return stopped(Stop::Missing) };
    let source = std::ptr::with_exposed_provenance(frames);
    let progress = fill(shared, &object, target, Filling::From(source), len, wake);
    if progress.bytes > 0 {
        drop_frames::<K>(frames, progress.bytes);
    }
    progress
}

/// Whoever touches the pages gets SIGBUS.
pub fn poison<K: Kernel>(shared: &Shared<K>, start: usize, len: usize) -> Progress {
    let _passed = shared.reports.pass();
    for client in shared.all_clients() {
        let parts: Vec<Part> = client.mappings().parts(start, start + len).collect();
        for part in parts {
            // A process that was forked while its parent's page was on its way out keeps that page's protection, and the kernel poisons no
            // place that has anything in it.
            let _ = client.uffd.protect(part.at, part.len, false);
            let _ = client.uffd.poison(part.at, part.len);
        }
    }
    done(len)
}

/// A thread of `client` wants to write to the page at `at`, which is protected; `page` is its place in the window. Where it leaves just
/// now, the thread goes on when it has. Nothing begins to leave meanwhile: the caller reads.
pub fn let_write<K: Kernel>(shared: &Shared<K>, client: &Arc<Client<K>>, at: usize, page: Option<usize>) {
    if let Some(page) = page {
        let mut leaving = shared.leaving();
        if let Some(range) = leaving.iter_mut().find(|range| (range.start..range.end).contains(&page)) {
            return range.writers.push((client.clone(), at));
        }
    }
    go_on(client, at);
}

/// Who waits to write at `at` tries again.
fn go_on<K: Kernel>(client: &Client<K>, at: usize) {
    if !client.uffd.protect(at, PAGE_SIZE, false).is_complete() {
        let _ = client.uffd.wake(at, PAGE_SIZE);
    }
}
