//! How many instructions the parts of a pass take that don't wait for IO, counted by callgrind: the same on every
//! run, however busy the machine is. `make bench-micro` prints it.

#![expect(clippy::expect_used, reason = "a benchmark ends when something fails")]
#![expect(missing_docs, reason = "the macros make public modules")]

mod facts;

use std::sync::Arc;

use consul_client::Entry;
use consul_semaphore::{Lock, Mode, Observed, Plan, Workload, decide, lock::LockBody};
use consul_semaphore_workload::Job;
use gungraun::{
    Callgrind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main,
};

use self::facts::{Facts, Shape, changed, lock};

/// Leaks what a benchmark creates, so that dropping it is not counted.
fn kept<T>(made: T) -> &'static T {
    Box::leak(Box::new(made))
}

fn nothing_to_do(holders: u32) -> Observed<'static> {
    let facts = kept(Facts::new(holders, 10));
    facts.observed(kept(facts.slice()))
}

fn a_hand_over(holders: u32, waiting: usize) -> Observed<'static> {
    let facts = kept(Facts::new(holders, waiting).with_a_hand_over_due());
    facts.observed(kept(facts.slice()))
}

#[library_benchmark]
#[bench::nothing_to_do_3_hold(nothing_to_do(3))]
#[bench::nothing_to_do_100_hold(nothing_to_do(100))]
#[bench::nothing_to_do_5000_hold(nothing_to_do(5000))]
#[bench::a_hand_over_3_hold(a_hand_over(3, 10))]
#[bench::a_hand_over_100_hold(a_hand_over(100, 10))]
#[bench::a_hand_over_5000_hold(a_hand_over(5000, 10))]
#[bench::a_hand_over_10000_wait(a_hand_over(3, 10_000))]
fn deciding(observed: Observed<'static>) -> Plan {
    decide(&observed)
}

#[library_benchmark]
#[bench::a_map_of_3(kept(lock(3, Shape::Map)))]
#[bench::a_map_of_100(kept(lock(100, Shape::Map)))]
#[bench::a_map_of_5000(kept(lock(5000, Shape::Map)))]
#[bench::a_list_of_3(kept(lock(3, Shape::List)))]
#[bench::a_list_of_100(kept(lock(100, Shape::List)))]
#[bench::a_list_of_5000(kept(lock(5000, Shape::List)))]
fn reading_a_body(entry: &'static Entry) -> Lock {
    Lock::read(Mode::Semaphore, Some(entry))
}

fn body(holders: u32, shape: Shape) -> &'static LockBody {
    let lock = Lock::read(Mode::Semaphore, Some(&lock(holders, shape)));
    let Lock::Semaphore { body, .. } = kept(lock) else {
        unreachable!("it is a semaphore's")
    };
    body
}

#[library_benchmark]
#[bench::a_map_of_3(body(3, Shape::Map))]
#[bench::a_map_of_100(body(100, Shape::Map))]
#[bench::a_map_of_5000(body(5000, Shape::Map))]
#[bench::a_list_of_3(body(3, Shape::List))]
#[bench::a_list_of_100(body(100, Shape::List))]
#[bench::a_list_of_5000(body(5000, Shape::List))]
fn writing_a_body(body: &'static LockBody) -> Vec<u8> {
    body.encode()
}

/// A semaphore of three slots, and a change of one of the workloads that wait for it.
fn line(waiting: usize) -> (&'static Facts, &'static Job) {
    (kept(Facts::new(3, waiting)), kept(changed(waiting / 2)))
}

#[library_benchmark]
#[bench::of_10(line(10))]
#[bench::of_10000(line(10_000))]
fn putting_a_change_into_a_line((facts, workload): (&'static Facts, &'static Job)) {
    facts.queue().put(workload);
}

#[library_benchmark]
#[bench::of_10(line(10))]
#[bench::of_10000(line(10_000))]
fn taking_a_slice_of_a_line(
    (facts, _): (&'static Facts, &'static Job),
) -> (Vec<Arc<Workload>>, Vec<Arc<Workload>>) {
    facts.slice()
}

#[library_benchmark]
#[bench::one_change(line(10))]
fn pass_over_10_who_wait((facts, workload): (&'static Facts, &'static Job)) -> Plan {
    pass(facts, workload)
}

#[library_benchmark]
#[bench::one_change(line(10_000))]
fn pass_over_10000_who_wait((facts, workload): (&'static Facts, &'static Job)) -> Plan {
    pass(facts, workload)
}

/// All of a pass over one change, without IO.
fn pass(facts: &Facts, workload: &Job) -> Plan {
    facts.queue().put(workload);
    let slice = facts.slice();
    decide(&facts.observed(&slice))
}

library_benchmark_group!(name = deciding_group, benchmarks = [deciding]);

library_benchmark_group!(
    name = lock_body,
    benchmarks = [reading_a_body, writing_a_body]
);

library_benchmark_group!(
    name = queue,
    benchmarks = [putting_a_change_into_a_line, taking_a_slice_of_a_line]
);

// The second benchmark is compared with the first.
library_benchmark_group!(
    name = passes,
    compare_by_id = true,
    benchmarks = [pass_over_10_who_wait, pass_over_10000_who_wait]
);

main!(
    config = LibraryBenchmarkConfig::default().tool(Callgrind::with_args(["--cache-sim=no"])),
    library_benchmark_groups = [deciding_group, lock_body, queue, passes]
);
