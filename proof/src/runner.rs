//! Runs programs of a flavor as proptest makes them, as many as are wanted.
//!
//! Programs come in batches. Everything about a batch follows from its seed, which is printed when something is found,
//! with the smallest program that proptest found to do the same; that one is kept in `proptest-regressions` too
//! and is tried first from then on.
//!
//! | variable | meaning |
//! |---|---|
//! | `ASCEND_ALLOC_OPERATIONS` | how many operations each test runs, instead of a few thousand |
//! | `ASCEND_ALLOC_SEED` | the seed of the first batch; with no number of operations, of the only one |
//! | `ASCEND_ALLOC_TRACE` | set: each step is written to standard error before it is done, to see which one never ends |
//! | `ASCEND_ALLOC_TEST_DRIVER` | `acl`: on the library that `ASCEND_ALLOC_ACL_LIBRARY` names, or the toolkit's |

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use proptest::test_runner::{Config, FileFailurePersistence, RngAlgorithm, TestError, TestRng, TestRunner};
use proptest_state_machine::ReferenceStateMachine;

use crate::operation::{Program, Step};
use crate::reference::Plan;
use crate::world::{Ground, run_counting};

/// Programs of a batch.
const BATCH: u32 = 64;
/// The most steps of a program.
const STEPS: usize = 80;

/// A number from the environment.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name} is {text:?}, expected a number: {error}")))
}

/// Runs programs with at least so many operations in all, or as many as the environment says.
///
/// `first_seed` tells tests apart; `regressions` is the file where failures are kept.
///
/// # Panics
///
/// A program finds something. The text has the seed and the smallest program.
pub fn programs<M>(ground: &Ground, name: &str, first_seed: u64, operations: u64, regressions: &Path)
where
    M: ReferenceStateMachine<State = Plan, Transition = Step>,
{
    let (wanted, chosen) = (number("ASCEND_ALLOC_OPERATIONS"), number("ASCEND_ALLOC_SEED"));
    let first = chosen.unwrap_or(first_seed);
    let target = wanted.unwrap_or(if chosen.is_some() { 1 } else { operations });
    let (done, mut seed) = (AtomicU64::new(0), first);
    while done.load(Relaxed) < target {
        batch::<M>(ground, name, seed, &done, regressions);
        seed += 1;
    }
    println!("{name}: {} operations, seeds {first} to {}", done.load(Relaxed), seed - 1);
}

fn batch<M>(ground: &Ground, name: &str, seed: u64, done: &AtomicU64, regressions: &Path)
where
    M: ReferenceStateMachine<State = Plan, Transition = Step>,
{
    let file: &'static str = Box::leak(regressions.display().to_string().into_boxed_str());
    let config = Config {
        cases: BATCH,
        max_shrink_iters: 1500,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(file))),
        source_file: Some(file!()),
        ..Config::default()
    };
    let bytes: Vec<u8> = seed.to_le_bytes().into_iter().cycle().take(32).collect();
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let outcome = runner.run(&M::sequential_strategy(1..STEPS), |(plan, steps, seen)| {
        done.fetch_add(steps.len() as u64, Relaxed);
        // Steps behind the one that fails are the first that shrinking leaves out.
        run_counting(ground, &Program { setup: plan.setup, steps }, seen.as_deref());
        Ok(())
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(reason, (plan, steps, _seen))) => {
            let steps: String = steps.iter().map(|step| format!("\n  {step:?}")).collect();
            panic!("{name}, ASCEND_ALLOC_SEED={seed} repeats it: {reason}\n{:?}{steps}", plan.setup);
        }
        Err(TestError::Abort(reason)) => panic!("{name}, seed {seed}: {reason}"),
    }
}
