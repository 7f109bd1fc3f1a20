//! How long the parts of a pass take that don't wait for IO: `make bench-micro`.

#![expect(clippy::expect_used, reason = "a benchmark ends when something fails")]

mod facts;

use std::hint::black_box;

use consul_semaphore::{Lock, Mode, decide};
use consul_semaphore_workload::Job;
use divan::Bencher;

use self::facts::{Facts, Shape, changed, lock, waits};

/// How many hold a slot.
const HOLDERS: [u32; 3] = [3, 100, 5000];

/// How many wait.
const WAITING: [usize; 2] = [10, 10_000];

fn main() {
    divan::main();
}

/// Decides, with all facts available.
#[divan::bench_group]
mod deciding {
    use super::{Bencher, Facts, HOLDERS, WAITING, black_box, decide};

    #[divan::bench(args = HOLDERS)]
    fn nothing_to_do(bencher: Bencher<'_, '_>, holders: u32) {
        over(bencher, &Facts::new(holders, 10));
    }

    #[divan::bench(args = HOLDERS)]
    fn a_hand_over(bencher: Bencher<'_, '_>, holders: u32) {
        over(bencher, &Facts::new(holders, 10).with_a_hand_over_due());
    }

    #[divan::bench(args = WAITING)]
    fn a_hand_over_to_one_who_waits(bencher: Bencher<'_, '_>, waiting: usize) {
        over(bencher, &Facts::new(3, waiting).with_a_hand_over_due());
    }

    fn over(bencher: Bencher<'_, '_>, facts: &Facts) {
        let slice = facts.slice();
        let observed = facts.observed(&slice);
        bencher.bench_local(|| decide(black_box(&observed)));
    }
}

/// The body of `.lock`.
#[divan::bench_group]
mod lock_body {
    use super::{Bencher, HOLDERS, Lock, Mode, Shape, black_box, lock};

    #[divan::bench(args = HOLDERS)]
    fn read_a_map(bencher: Bencher<'_, '_>, holders: u32) {
        read(bencher, holders, Shape::Map);
    }

    #[divan::bench(args = HOLDERS)]
    fn read_a_list(bencher: Bencher<'_, '_>, holders: u32) {
        read(bencher, holders, Shape::List);
    }

    #[divan::bench(args = HOLDERS)]
    fn write_a_map(bencher: Bencher<'_, '_>, holders: u32) {
        write(bencher, holders, Shape::Map);
    }

    #[divan::bench(args = HOLDERS)]
    fn write_a_list(bencher: Bencher<'_, '_>, holders: u32) {
        write(bencher, holders, Shape::List);
    }

    fn read(bencher: Bencher<'_, '_>, holders: u32, shape: Shape) {
        let entry = lock(holders, shape);
        bencher.bench_local(|| Lock::read(Mode::Semaphore, black_box(Some(&entry))));
    }

    fn write(bencher: Bencher<'_, '_>, holders: u32, shape: Shape) {
        let Lock::Semaphore { body, .. } = Lock::read(Mode::Semaphore, Some(&lock(holders, shape)))
        else {
            unreachable!("it is a semaphore's")
        };
        bencher.bench_local(|| black_box(&body).encode());
    }
}

/// The queue of a semaphore of three slots.
#[divan::bench_group]
mod queue {
    use super::{Bencher, Facts, Job, WAITING, black_box, changed, decide, waits};

    /// A workload that is changed and changed back, for ever: an update without a change costs less.
    fn changes(number: usize) -> impl Iterator<Item = &'static Job> {
        let workloads: &'static [_; 2] = Box::leak(Box::new([changed(number), waits(number)]));
        workloads.iter().cycle()
    }

    #[divan::bench(args = WAITING)]
    fn put_a_change(bencher: Bencher<'_, '_>, waiting: usize) {
        let facts = Facts::new(3, waiting);
        let mut workloads = changes(waiting / 2);
        bencher.bench_local(|| {
            let workload = workloads.next().expect("it has no end");
            facts.queue().put(black_box(workload));
        });
    }

    #[divan::bench(args = WAITING)]
    fn take_a_slice(bencher: Bencher<'_, '_>, waiting: usize) {
        let facts = Facts::new(3, waiting);
        bencher.bench_local(|| black_box(&facts).slice());
    }

    /// All of a pass, without IO.
    #[divan::bench(args = WAITING)]
    fn pass_over_a_change(bencher: Bencher<'_, '_>, waiting: usize) {
        let facts = Facts::new(3, waiting);
        let mut workloads = changes(waiting / 2);
        bencher.bench_local(|| {
            let workload = workloads.next().expect("it has no end");
            facts.queue().put(black_box(workload));
            let slice = facts.slice();
            decide(&facts.observed(&slice))
        });
    }
}
