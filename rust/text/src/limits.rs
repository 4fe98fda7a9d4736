//! Limits of one rendering. A template is data that came with a model: it must not be able to end
//! the process or to keep it for ever. minijinja counts instructions (fuel) and the depth of
//! macros; this counts the rest, at checkpoints that guard.rs puts into every template: memory,
//! the work of operations that take more than constant time, the depth and the size of values.
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// Levels of lists and objects in one another; JSON of conversations has at most 128.
pub const MAX_DEPTH: usize = 200;
const POLL_EVERY: u64 = 4096;

/// Counts the bytes that each thread holds.
struct Counting;

#[cfg(test)]
thread_local! {
    pub static PEAK: Cell<isize> = const { Cell::new(0) };
}

thread_local! {
    pub static HELD: Cell<isize> = const { Cell::new(0) };
    static RUN: Cell<*const Run> = const { Cell::new(null()) };
}

fn count(bytes: isize) {
    // At a thread's end there is nothing to count in any more.
    let _ = HELD.try_with(|held| held.set(held.get().wrapping_add(bytes)));
    #[cfg(test)]
    let _ = HELD.try_with(|held| PEAK.with(|peak| peak.set(peak.get().max(held.get()))));
}

// SAFETY: every call goes to System as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        System.alloc(layout)
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        System.alloc_zeroed(layout)
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        System.dealloc(at, layout)
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        System.realloc(at, layout, size)
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Asks whether the caller still waits for the rendering.
#[derive(Clone, Copy)]
pub struct Stop {
    pub asked: extern "C" fn(*mut std::ffi::c_void) -> bool,
    pub argument: *mut std::ffi::c_void,
}

/// The limits of the rendering that runs on this thread, and what it has used of them. All grow
/// with the conversation, so that a long one is no reason to fail.
pub struct Run {
    base: isize,
    max_held: isize, // bytes in use at once
    max_text: usize, // bytes of one text, or of all texts in one value
    max_items: usize,
    max_work: u64,
    work: Cell<u64>,
    next_poll: Cell<u64>,
    now: Option<i64>,
    stop: Option<Stop>,
}

impl Run {
    pub fn new(conversation: usize, now: Option<i64>, stop: Option<Stop>) -> Run {
        Run {
            base: HELD.get(),
            max_held: (16 << 20) + 8 * conversation as isize,
            max_text: (4 << 20) + 2 * conversation,
            max_items: 200_000 + conversation / 2,
            max_work: 2_000_000 + 100 * conversation as u64,
            work: Cell::new(0),
            next_poll: Cell::new(POLL_EVERY),
            now,
            stop,
        }
    }

    /// Instructions that the rendering may execute.
    pub fn fuel(&self) -> u64 {
        4 * self.max_work
    }

    /// Runs `body` under these limits.
    pub fn enter<R>(&self, body: impl FnOnce() -> R) -> R {
        struct Leave(*const Run);
        impl Drop for Leave {
            fn drop(&mut self) {
                RUN.set(self.0);
            }
        }
        let _leave = Leave(RUN.replace(self));
        body()
    }
}

pub fn refuse<T>(text: impl Into<std::borrow::Cow<'static, str>>) -> Result<T, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, text))
}

fn with<R>(body: impl FnOnce(&Run) -> Result<R, Error>) -> Result<R, Error> {
    let run = RUN.get();
    if run.is_null() {
        return refuse("the template is not being rendered");
    }
    // SAFETY: enter() keeps the run alive until it puts back what was there before.
    body(unsafe { &*run })
}

/// Seconds since 1970 that the rendering takes as the present time; none: the clock's.
pub fn now() -> Option<i64> {
    with(|run| Ok(run.now)).ok().flatten()
}

/// A checkpoint, with so much work done since the last one.
pub fn charge(work: usize) -> Result<(), Error> {
    with(|run| {
        let done = run.work.get() + 1 + work as u64;
        run.work.set(done);
        if HELD.get() - run.base > run.max_held {
            let limit = run.max_held >> 20;
            return refuse(format!("it needs more than {limit} MiB of memory"));
        }
        if done > run.max_work {
            return refuse(out_of_work());
        }
        if done >= run.next_poll.get() {
            run.next_poll.set(done + POLL_EVERY);
            if run.stop.is_some_and(|stop| (stop.asked)(stop.argument)) {
                return refuse("interrupted");
            }
        }
        Ok(())
    })
}

pub fn out_of_work() -> &'static str {
    "it takes too many steps: does it loop forever?"
}

/// A text of `bytes` can be made.
pub fn admit_text(bytes: usize) -> Result<(), Error> {
    fits(bytes)?;
    charge(bytes / 64)
}

pub fn fits(bytes: usize) -> Result<(), Error> {
    with(|run| {
        if bytes <= run.max_text {
            return Ok(());
        }
        refuse(format!(
            "it makes a text of {bytes} bytes, the limit is {}",
            run.max_text
        ))
    })
}

/// A list of so many items can be made.
pub fn admit_items(items: usize) -> Result<(), Error> {
    with(|run| {
        if items <= run.max_items {
            return Ok(());
        }
        let limit = run.max_items;
        refuse(format!(
            "it makes a list of {items} items, the limit is {limit}"
        ))
    })?;
    charge(items / 8)
}

struct Walk {
    items: usize,
    bytes: usize,
    namespaces: bool,
}

/// The value is no deeper and, with what it shares written out, no larger than values may be: it
/// can be printed, compared, and dropped. `namespaces`: it may hold namespaces. One that holds
/// itself could not be printed.
pub fn admit(value: &Value, namespaces: bool) -> Result<(), Error> {
    match value.kind() {
        ValueKind::String | ValueKind::Bytes => admit_text(value.as_bytes().map_or(0, <[u8]>::len)),
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
            let mut walk = Walk {
                items: 0,
                bytes: 0,
                namespaces,
            };
            visit(value, 0, &mut walk)?;
            admit_text(walk.bytes)?;
            admit_items(walk.items)
        }
        _ => charge(0),
    }
}

fn visit(value: &Value, depth: usize, walk: &mut Walk) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return refuse(too_deep());
    }
    walk.items += 1;
    if walk.items % 1024 == 0 {
        admit_text(walk.bytes)?;
        admit_items(walk.items)?;
    }
    match value.kind() {
        ValueKind::String => walk.bytes += value.as_str().map_or(0, str::len),
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()? {
                visit(&item, depth + 1, walk)?;
            }
        }
        ValueKind::Map => {
            let Some(object) = value.as_object() else {
                return Ok(());
            };
            if !walk.namespaces && object.type_name().ends_with("Namespace") {
                return refuse("a namespace holds a namespace");
            }
            for (key, item) in object.try_iter_pairs().into_iter().flatten() {
                visit(&key, depth + 1, walk)?;
                visit(&item, depth + 1, walk)?;
            }
        }
        _ => {}
    }
    Ok(())
}

pub fn too_deep() -> String {
    format!("it makes a value of more than {MAX_DEPTH} levels")
}

/// The value, or a list of what it iterates over: iterators over iterators could be nested without
/// a limit.
pub fn settled(value: Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Iterable {
        return Ok(value);
    }
    let mut items = Vec::new();
    for item in value.try_iter()?.checked() {
        items.push(item?);
        if items.len() % 1024 == 0 {
            admit_items(items.len())?;
        }
    }
    charge(items.len() / 8)?;
    Ok(Value::from(items))
}
