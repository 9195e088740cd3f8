//! Optional parallelism: if no thread can be created, the caller's thread does all the work.
//!
//! Rayon's global pool is never started here, because it panics when the system refuses a thread.

use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, Scope};

use fourfold_ir::memory::check_memory;
use rayon::ThreadPool;
use rayon::prelude::*;

/// The thread pool of this process, if it could be created.
static POOL: OnceLock<ThreadPool> = OnceLock::new();

/// Held while the pool is created, so that concurrent callers create one.
static MAKING: Mutex<()> = Mutex::new(());

/// Threads for rayon's parallel iterators.
#[derive(Clone, Copy)]
pub(crate) enum Threads {
    /// The pool that the caller runs in: a host's, or ours for nested work.
    Current,
    /// Our own pool.
    Pool(&'static ThreadPool),
}

impl Threads {
    /// The threads to use; `None` if only the caller's is available. The next call retries a failed pool, since a
    /// shortage of threads may be temporary.
    pub(crate) fn here() -> Option<Threads> {
        #[cfg(test)]
        if tests::is_alone() {
            return None;
        }
        if rayon::current_thread_index().is_some() {
            return Some(Threads::Current);
        }
        if let Some(pool) = POOL.get() {
            return Some(Threads::Pool(pool));
        }
        let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        if POOL.get().is_none() {
            let make = |threads| {
                let start =
                    |worker: rayon::ThreadBuilder| thread_of("worker")?.spawn(|| worker.run()).map(drop);
                rayon::ThreadPoolBuilder::new().num_threads(threads).spawn_handler(start).build().ok()
            };
            // Cannot fail while we hold the lock.
            let _ = POOL.set(largest_pool(&make)?);
        }
        POOL.get().map(Threads::Pool)
    }

    /// The number of threads.
    pub(crate) fn count(self) -> usize {
        match self {
            // The size of this thread's pool; does not create one.
            Threads::Current => rayon::current_num_threads(),
            Threads::Pool(pool) => pool.current_num_threads(),
        }
    }

    /// Runs work that uses rayon's parallel iterators.
    pub(crate) fn run<R: Send>(self, work: impl FnOnce() -> R + Send) -> R {
        match self {
            Threads::Current => work(),
            Threads::Pool(pool) => pool.install(work),
        }
    }
}

/// Creates a pool of rayon's default size, or of half as many threads after each failure, down to one.
fn largest_pool<P>(make: &dyn Fn(usize) -> Option<P>) -> Option<P> {
    /// Lets rayon choose the number.
    const DEFAULT: usize = 0;
    let most = thread::available_parallelism().map_or(1, usize::from);
    let halves = std::iter::successors(Some((most / 2).max(1)), |threads| Some(threads / 2));
    std::iter::once(DEFAULT).chain(halves.take_while(|threads| *threads > 0)).find_map(make)
}

/// Calls `work(index, chunk)` for every `size` elements of a slice.
pub(crate) fn for_each_chunk<T: Send>(
    slice: &mut [T],
    size: usize,
    work: impl Fn(usize, &mut [T]) + Sync + Send,
) {
    match Threads::here() {
        Some(threads) => threads.run(|| {
            slice.par_chunks_mut(size).enumerate().for_each(|(index, chunk)| work(index, chunk));
        }),
        None => slice.chunks_mut(size).enumerate().for_each(|(index, chunk)| work(index, chunk)),
    }
}

/// Like [`for_each_chunk`], over two slices in step, each given with its chunk size.
pub(crate) fn for_each_chunk_of_two<T: Send, U: Send>(
    (first, first_size): (&mut [T], usize),
    (second, second_size): (&mut [U], usize),
    work: impl Fn(usize, &mut [T], &mut [U]) + Sync + Send,
) {
    match Threads::here() {
        Some(threads) => threads.run(|| {
            let chunks = first.par_chunks_mut(first_size).zip(second.par_chunks_mut(second_size));
            chunks.enumerate().for_each(|(index, (first, second))| work(index, first, second));
        }),
        None => {
            let chunks = first.chunks_mut(first_size).zip(second.chunks_mut(second_size));
            chunks.enumerate().for_each(|(index, (first, second))| work(index, first, second));
        }
    }
}

/// Like [`for_each_chunk`], with per-thread `scratch`, such as buffers. Stops early when a chunk fails.
pub(crate) fn try_for_each_chunk<T: Send, S, E: Send>(
    slice: &mut [T],
    size: usize,
    scratch: impl Fn() -> S + Sync + Send,
    work: impl Fn(&mut S, usize, &mut [T]) -> Result<(), E> + Sync + Send,
) -> Result<(), E> {
    match Threads::here() {
        Some(threads) => threads.run(|| {
            let chunks = slice.par_chunks_mut(size).enumerate();
            chunks.try_for_each_init(scratch, |scratch, (index, chunk)| work(scratch, index, chunk))
        }),
        None => {
            let mut scratch = scratch();
            let mut chunks = slice.chunks_mut(size).enumerate();
            chunks.try_for_each(|(index, chunk)| work(&mut scratch, index, chunk))
        }
    }
}

/// Applies a function to every element; results are in order.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], function: impl Fn(&T) -> R + Sync + Send) -> Vec<R> {
    match Threads::here() {
        Some(threads) => threads.run(|| items.par_iter().map(&function).collect()),
        None => items.iter().map(&function).collect(),
    }
}

/// Prepares a named thread. Refuses when memory is so short that the thread could end the process before it starts: it
/// panics if the standard library gets no signal stack, and glibc aborts if it cannot register a destructor.
///
/// # Errors
/// When memory is insufficient for a few more threads.
pub(crate) fn thread_of(name: &str) -> io::Result<thread::Builder> {
    // The stacks of four threads, since others may start at the same time.
    const ROOM: usize = 8 << 20;
    check_memory(ROOM).map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))?;
    Ok(thread::Builder::new().name(name.to_owned()))
}

/// Starts up to `count` threads with the same work in a scope. Returns their number, which is smaller if the system
/// refuses more.
pub fn spawn_workers<'scope, 'env, F>(
    scope: &'scope Scope<'scope, 'env>,
    name: &str,
    count: usize,
    work: F,
) -> usize
where
    F: Fn() + Clone + Send + 'scope,
{
    let spawn = |_: &usize| -> io::Result<()> {
        let work = work.clone();
        thread_of(name)?.spawn_scoped(scope, work).map(drop)
    };
    (0..count).take_while(|index| spawn(index).is_ok()).count()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    thread_local! {
        static ALONE: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn is_alone() -> bool {
        ALONE.get()
    }

    /// Runs something as if no thread could be created.
    pub(crate) fn alone<R>(work: impl FnOnce() -> R) -> R {
        ALONE.set(true);
        let result = work();
        ALONE.set(false);
        result
    }

    #[test]
    fn a_pool_has_fewer_threads_where_there_are_not_enough_for_more() {
        let asked = RefCell::new(Vec::new());
        let fails = |threads: usize| {
            asked.borrow_mut().push(threads);
            None::<usize>
        };
        assert_eq!(largest_pool(&fails), None);
        let asked = asked.into_inner();
        assert_eq!((asked[0], asked.last()), (0, Some(&1)), "rayon's own number, and at last one");
        assert!(asked[1..].is_sorted_by(|more, fewer| more > fewer));
        assert_eq!(largest_pool(&|threads| (threads == 1).then_some(threads)), Some(1));
    }

    /// A caller without threads gets the same results, chunk by chunk.
    #[test]
    fn without_threads_the_caller_does_everything() {
        let work = || {
            let mut slice = [0usize; 10];
            for_each_chunk(&mut slice, 3, |index, chunk| chunk.fill(index + 1));
            let (mut codes, mut scales) = ([0usize; 6], [0usize; 3]);
            for_each_chunk_of_two((&mut codes, 2), (&mut scales, 1), |index, codes, scales| {
                codes.fill(index);
                scales.fill(codes.len());
            });
            let tried = try_for_each_chunk(&mut slice, 4, Vec::<u8>::new, |_, index, chunk| {
                if index == 2 { Err(chunk.len()) } else { Ok(()) }
            });
            (slice, codes, scales, tried, map(&[1, 2, 3], |number| number * 2))
        };
        let (slice, codes, scales, tried, doubled) = alone(work);
        assert_eq!(slice, [1, 1, 1, 2, 2, 2, 3, 3, 3, 4]);
        assert_eq!((codes, scales, tried), ([0, 0, 1, 1, 2, 2], [2, 2, 2], Err(2)));
        assert_eq!((slice, codes, scales, tried, doubled), work());
    }

    #[test]
    fn workers_share_what_there_is_to_do() {
        let done = Mutex::new(0);
        let workers = thread::scope(|scope| spawn_workers(scope, "worker", 3, || *done.lock().unwrap() += 1));
        assert_eq!(workers, done.into_inner().unwrap());
    }
}
