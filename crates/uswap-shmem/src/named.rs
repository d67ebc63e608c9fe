//! Shared memory that has a name: System V segments, and files in memory that are mapped.
//!
//! Others can come by it at any time, and it stays when nobody has it mapped. So it is an object only as long as all who have it mapped are
//! of the run and known here; else, and where it outlives its last mapping, it is brought back, and left alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uswap_engine::engine::Engine;
use uswap_sys::named_memory;
use uswap_sys::shared_file::{Inode, Origin};
use uswap_system::looks::Vma;

use crate::adoption::{self, Look, Place};
use crate::object::Object;
use crate::shared::Shared;
use crate::system::SharedMemory;

/// How often it is looked whether others have come by objects.
const WATCH_EVERY: Duration = Duration::from_millis(500);
/// How soon again, when somebody seems to have.
const WATCH_AGAIN: Duration = Duration::from_millis(100);
/// For so long, at the end, a page is waited for that does not come back.
const NOTHING_COMES: Duration = Duration::from_secs(60);
/// Pages that are asked back at a time: as many as a handler reads.
const AT_ONCE: usize = 16;
/// How long they are waited for before it is looked which of them have come.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// Opens what a process has mapped, if it is worth being swapped.
pub fn open(shared: &Shared, process: u32, vma: &Vma<'_>) -> io::Result<Option<Object>> {
    let file = named_memory::mapped(process, vma.start, vma.end)?;
    let origin = file.origin()?;
    if origin == Origin::Anonymous || (file.look()?.bytes as usize) < named_memory::BYTES_MIN {
        return Ok(None);
    }
    let object = Object::of(file, origin, &shared.filler)?;
    Ok(Some(object).filter(|object| !is_locked(object)))
}

/// Whether it is to stay in memory.
pub fn is_locked(object: &Object) -> bool {
    object.origin == Origin::Segment && named_memory::segment(object.inode.number).is_some_and(|state| state.is_locked)
}

/// Whether anybody can still come by an object that nobody has mapped.
pub fn outlives_its_mappings(object: &Object) -> bool {
    match object.origin {
        Origin::Anonymous => false,
        Origin::Segment => named_memory::segment(object.inode.number).is_some(),
        Origin::File => object.file.look().is_ok_and(|look| look.links > 0) || is_open(object.inode),
    }
}

/// Whether any other process has the file open.
fn is_open(inode: Inode) -> bool {
    let me = std::process::id().to_string();
    let numbers = |path: &str| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| name.parse::<u32>().is_ok())
    };
    let is_it =
        |path: String| fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (inode.device, inode.number));
    let mut others = numbers("/proc").filter(|pid| *pid != me);
    others.any(|pid| numbers(&format!("/proc/{pid}/fd")).any(|fd| is_it(format!("/proc/{pid}/fd/{fd}"))))
}

/// What of an object is away still: the first pages.
fn away(object: &Object) -> Vec<usize> {
    let Some(engine) = Engine::<SharedMemory>::of_process() else { return Vec::new() };
    engine.swapped_within(object.start(), object.end(), AT_ONCE)
}

/// What is behind `end` of an object's window is not in its file any more.
fn forget_behind(object: &Object, end: usize) {
    if let Some(engine) = Engine::<SharedMemory>::of_process().filter(|_| end < object.end()) {
        engine.manages_no_more(end, object.end());
    }
}

/// Brings back a part of an object from which nothing leaves any more. Whether all of it is there.
fn bring_some_back(shared: &Shared, object: &Object) -> bool {
    let pages = away(object);
    let is_back = pages.is_empty();
    if !is_back {
        shared.bring_back(pages);
        std::thread::sleep(LOOK_EVERY);
    }
    is_back
}

/// What is brought back, and what has been.
#[derive(Debug, Default)]
pub struct Returns {
    returning: Vec<Arc<Object>>,
    left_alone: BTreeSet<Inode>,
}

impl Returns {
    /// Whether anything is on its way.
    pub fn is_empty(&self) -> bool {
        self.returning.is_empty()
    }

    /// It is not swapped again.
    pub fn leave_alone(&mut self, inode: Inode) {
        self.left_alone.insert(inode);
    }

    /// Whether that is so.
    pub fn is_left_alone(&self, inode: Inode) -> bool {
        self.left_alone.contains(&inode)
    }

    /// Begins to bring an object back. Whether that is new.
    pub fn begin(&mut self, object: &Arc<Object>) -> bool {
        let is_new = !self.is_returning(object.inode);
        if is_new {
            object.stay();
            // Who had looked before has done by now.
            crate::server::while_nothing_is_read(|| ());
            self.returning.push(object.clone());
        }
        is_new
    }

    /// Whether an object is being brought back.
    pub fn is_returning(&self, inode: Inode) -> bool {
        self.returning.iter().any(|object| object.inode == inode)
    }

    /// Goes on for a while. Those that are there are no objects any more.
    pub fn go_on(&mut self, shared: &Shared, forget: impl Fn(&Object)) {
        self.returning.retain(|object| {
            if let Some(end) = object.new_end() {
                forget_behind(object, end);
            }
            let is_back = bring_some_back(shared, object);
            if is_back {
                adoption::unregister(shared, object);
                forget(object);
            }
            !is_back
        });
    }
}

/// Looks for strangers: processes of which nobody knows that have an object mapped.
#[derive(Debug, Default)]
pub struct Watch {
    looked: Option<Instant>,
    strangers: BTreeMap<Inode, Place>,
}

impl Watch {
    /// Whether it is time to look.
    pub fn is_due(&self) -> bool {
        let every = if self.strangers.is_empty() { WATCH_EVERY } else { WATCH_AGAIN };
        self.looked.is_none_or(|looked| looked.elapsed() >= every)
    }

    /// What a look at all processes has shown of these objects: which of them strangers have, and who. Not what is just being told of: it takes two
    /// looks, between which what had been told is heard.
    pub fn see(&mut self, objects: &[Arc<Object>], look: Option<&Look>) -> Vec<(Arc<Object>, u32)> {
        self.looked = Some(Instant::now());
        let before = std::mem::take(&mut self.strangers);
        let mut found = Vec::new();
        for object in objects {
            let Some(place) = look.and_then(|look| look.stranger(object)) else { continue };
            match before.get(&object.inode) == Some(&place) {
                true => found.push((object.clone(), place.process)),
                false => drop(self.strangers.insert(object.inode, place)),
            }
        }
        found
    }
}

/// The run is over: what outlives it is brought back.
pub fn bring_all_back(shared: &Shared) {
    for object in shared.all_objects().iter().filter(|object| object.is_managed() && outlives_its_mappings(object)) {
        object.stay();
        crate::server::while_nothing_is_read(|| ());
        let (mut last, mut since) = (Vec::new(), Instant::now());
        while !bring_some_back(shared, object) && since.elapsed() < NOTHING_COMES {
            let pages = away(object);
            if pages != last {
                (last, since) = (pages, Instant::now());
            }
        }
    }
}
