//! The use checker against a naive model: random small programs, happens-before as reachability in
//! an explicit graph, and for every byte the full list of all accesses.
//!
//! The checker must report only pairs that the model calls conflicting, and must report at least
//! one partner for every access and byte for which the model knows any. It may leave out a partner
//! whose conflicts another reported partner implies (see the history's rules).

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;

use super::*;

const CELLS: u64 = 24;
const NODES: usize = 256;
const DEVICES: u32 = 2;

/// A set of nodes.
#[derive(Clone, Copy, Default)]
struct Set([u64; NODES / 64]);

impl Set {
    fn add(&mut self, node: usize) {
        self.0[node / 64] |= 1 << (node % 64);
    }

    fn unite(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine |= theirs;
        }
    }

    fn has(&self, node: usize) -> bool {
        self.0[node / 64] >> (node % 64) & 1 == 1
    }
}

/// Operations and host waits as nodes; a node's ancestors happened before it.
#[derive(Default)]
struct Graph {
    ancestors: Vec<Set>,
}

impl Graph {
    fn node(&mut self, parents: impl IntoIterator<Item = usize>) -> usize {
        let mut all = Set::default();
        for parent in parents {
            all.add(parent);
            all.unite(&self.ancestors[parent]);
        }
        self.ancestors.push(all);
        self.ancestors.len() - 1
    }

    fn before(&self, a: usize, b: usize) -> bool {
        a == b || self.ancestors[b].has(a)
    }
}

#[derive(Clone, Copy)]
struct Touch {
    node: usize,
    tag: u64,
    write: bool,
    /// Stream handle and number: how findings name the task.
    name: (u64, u64),
}

struct ModelStream {
    handle: u64,
    device: u32,
    alive: bool,
    last: Option<usize>,
}

/// What is reported or expected of one access: the earlier task, its tag, whether it writes, a byte.
type Pairs = BTreeSet<((u64, u64), u64, bool, u64)>;

struct Model {
    exec: Executor,
    random: fastrand::Rng,
    graph: Graph,
    host: usize,
    streams: Vec<ModelStream>,
    events: BTreeMap<u64, Option<usize>>,
    cells: Vec<Vec<Touch>>,
    conflicts: usize,
    /// Tasks in the order they ran, by node.
    ran: Arc<Mutex<Vec<usize>>>,
    /// Nodes of tasks that must have run by the end; a forced destruction drops some.
    tasks: BTreeMap<usize, usize>,
}

impl Model {
    fn new(seed: u64, threads: bool) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let lag = [0, 1, 3, 20, LAG_NEVER][random.usize(..5)];
        let mode = if threads { ExecMode::Threads } else { ExecMode::Deterministic { seed } };
        let exec = Executor::new(ExecConfig { devices: DEVICES, lag, mode, ..ExecConfig::default() });
        exec.set_destroy_waits(random.bool());
        let mut graph = Graph::default();
        let host = graph.node([]);
        let streams = (0..DEVICES)
            .map(|device| ModelStream {
                handle: exec.default_stream(device).expect("exists"),
                device,
                alive: true,
                last: None,
            })
            .collect();
        let events = (0..4)
            .map(|n| {
                let device = n % DEVICES;
                (exec.create_event(device, EVENT_DEFAULT, n < 3).expect("room"), None)
            })
            .collect();
        let cells = vec![Vec::new(); usize::try_from(CELLS).expect("small")];
        let (ran, tasks) = (Arc::default(), BTreeMap::new());
        let mut model = Self { exec, random, graph, host, streams, events, cells, conflicts: 0, ran, tasks };
        model.create_stream();
        model.create_stream();
        model
    }

    fn create_stream(&mut self) {
        let device = self.random.u32(..DEVICES);
        let handle = self.exec.create_stream(device).expect("room");
        self.streams.push(ModelStream { handle, device, alive: true, last: None });
    }

    fn any_stream(&mut self) -> usize {
        loop {
            let at = self.random.usize(..self.streams.len());
            if self.streams[at].alive {
                return at;
            }
        }
    }

    fn any_event(&mut self) -> u64 {
        let at = self.random.usize(..self.events.len());
        *self.events.keys().nth(at).expect("in range")
    }

    /// A node for an operation on a stream.
    fn operation(&mut self, stream: usize, also: Option<usize>) -> usize {
        let parents = [Some(self.host), self.streams[stream].last, also];
        let node = self.graph.node(parents.into_iter().flatten());
        self.streams[stream].last = Some(node);
        node
    }

    /// The host learns that nodes are done: then everything before them has run.
    fn learn(&mut self, nodes: impl IntoIterator<Item = usize>) {
        let nodes: Vec<_> = nodes.into_iter().collect();
        let ran = self.ran.lock();
        for task in self.tasks.keys() {
            let before = nodes.iter().any(|node| self.graph.before(*task, *node));
            assert!(!before || ran.contains(task), "known, but has not run");
        }
        drop(ran);
        self.host = self.graph.node(nodes.into_iter().chain([self.host]));
    }

    fn range(&mut self) -> (u64, u64) {
        let start = self.random.u64(..CELLS);
        (start, self.random.u64(1..=(CELLS - start).min(9)))
    }

    fn submit(&mut self) {
        let stream = self.any_stream();
        let (handle, device) = (self.streams[stream].handle, self.streams[stream].device);
        let number = self.exec.submitted(device, handle).expect("live") + 1;
        let node = self.operation(stream, None);
        let mut task = Task::new("task");
        let mut expected: Vec<(Access, Pairs)> = Vec::new();
        for _ in 0..self.random.usize(1..=2) {
            let (start, len) = self.range();
            let write = self.random.u8(..3) > 0;
            // Few tags, and runs of programs with mostly distinct ones.
            let tag = if self.random.bool() { self.random.u64(..4) } else { 100 + self.random.u64(..12) };
            let access = Access { start, len, write, tag };
            task.accesses.push(access);
            expected.push((access, self.conflicts_of(access, |graph, earlier| graph.before(earlier, node))));
            let touch = Touch { node, tag, write, name: (handle, number) };
            for cell in start..start + len {
                self.cells[usize::try_from(cell).expect("small")].push(touch);
            }
        }
        let ran = Arc::clone(&self.ran);
        let task = task.works(move || ran.lock().push(node));
        self.exec.submit(device, handle, task).expect("submitted");
        self.tasks.insert(node, stream);
        let findings = self.exec.take_findings();
        let mut attributed = 0;
        for (access, pairs) in expected {
            let of_this = findings.iter().filter(|finding| match &finding.second {
                Party::Task(second) => {
                    assert_eq!((second.stream, second.number), (handle, number));
                    (second.tag, second.write) == (access.tag, access.write)
                        && finding.start >= access.start
                        && finding.start + finding.len <= access.start + access.len
                }
                Party::Host { .. } => panic!("a task was queued: {finding}"),
            });
            attributed += self.compare(of_this, &pairs);
        }
        // Two alike accesses of one task may both be given one finding.
        assert!(attributed >= findings.len(), "a finding fits no access: {findings:?}");
    }

    /// All pairs with earlier accesses that conflict with one that is not ordered behind them.
    fn conflicts_of(&self, access: Access, ordered: impl Fn(&Graph, usize) -> bool) -> Pairs {
        let mut pairs = Pairs::new();
        for cell in access.start..access.start + access.len {
            for touch in &self.cells[usize::try_from(cell).expect("small")] {
                let unordered = !ordered(&self.graph, touch.node);
                let clash = touch.write || access.write;
                if unordered && clash && (touch.tag != access.tag || touch.tag == 0) {
                    pairs.insert((touch.name, touch.tag, touch.write, cell));
                }
            }
        }
        pairs
    }

    /// Compares what is reported of one access with what is expected; returns the findings' number.
    fn compare<'a>(&mut self, findings: impl Iterator<Item = &'a Finding>, expected: &Pairs) -> usize {
        let (mut reported, mut count) = (Pairs::new(), 0);
        for finding in findings {
            count += 1;
            for cell in finding.start..finding.start + finding.len {
                let first = &finding.first;
                let pair = ((first.stream, first.number), first.tag, first.write, cell);
                assert!(expected.contains(&pair), "false finding: {finding}");
                reported.insert(pair);
            }
        }
        let cells = |pairs: &Pairs| pairs.iter().map(|pair| pair.3).collect::<BTreeSet<_>>();
        let (wanted, found) = (cells(expected), cells(&reported));
        assert!(wanted.is_subset(&found), "missed on bytes {:?}", wanted.difference(&found));
        self.conflicts += wanted.len();
        count
    }

    fn host_touch(&mut self) {
        let (start, len) = self.range();
        let operation = [HostOp::Unmap, HostOp::Free, HostOp::Release, HostOp::Read, HostOp::Write]
            [self.random.usize(..5)];
        // The host's own access has no tag.
        let access = Access { start, len, write: operation != HostOp::Read, tag: 0 };
        let host = self.host;
        let pairs = self.conflicts_of(access, |graph, earlier| graph.before(earlier, host));
        self.exec.host_touch(operation, start, len);
        let findings = self.exec.take_findings();
        let compared = self.compare(findings.iter(), &pairs);
        assert_eq!(compared, findings.len());
        if matches!(operation, HostOp::Unmap | HostOp::Free | HostOp::Release) {
            for cell in start..start + len {
                self.cells[usize::try_from(cell).expect("small")].clear();
            }
        }
    }

    fn record(&mut self) {
        let (stream, event) = (self.any_stream(), self.any_event());
        let (handle, device) = (self.streams[stream].handle, self.streams[stream].device);
        if self.exec.record_event(device, event, handle).is_ok() {
            let node = self.operation(stream, None);
            self.events.insert(event, Some(node));
        }
    }

    fn wait(&mut self) {
        let (stream, event) = (self.any_stream(), self.any_event());
        let (handle, device) = (self.streams[stream].handle, self.streams[stream].device);
        let record = self.events[&event];
        let result = self.exec.stream_wait_event(device, handle, event);
        assert_eq!(result.is_ok(), record.is_some());
        if record.is_some() {
            self.operation(stream, record);
        }
    }

    fn destroy_stream(&mut self) {
        let stream = self.any_stream();
        let ModelStream { handle, device, .. } = self.streams[stream];
        if stream >= usize::try_from(DEVICES).expect("small") {
            let force = self.random.bool();
            self.exec.destroy_stream(device, handle, force).expect("live");
            self.streams[stream].alive = false;
            if force {
                self.tasks.retain(|_, of| *of != stream);
            }
        }
    }

    fn ask(&mut self) {
        let (stream, event) = (self.any_stream(), self.any_event());
        let ModelStream { handle, device, last, .. } = self.streams[stream];
        let record = self.events[&event];
        let learnt = match self.random.u32(..10) {
            0..4 => record.filter(|_| self.exec.query_event_status(event) == Ok(true)),
            4..6 => last.filter(|_| self.exec.stream_query(device, handle) == Ok(true)),
            6..8 => {
                self.exec.synchronize_event(event, WAIT_FOREVER).expect("waited");
                record
            }
            8 => {
                self.exec.synchronize_stream(device, handle, WAIT_FOREVER).expect("waited");
                last
            }
            _ => {
                self.exec.synchronize_device(device, WAIT_FOREVER).expect("waited");
                let all = self.streams.iter().filter(|stream| stream.device == device);
                let all: Vec<_> = all.filter_map(|stream| stream.last).collect();
                self.learn(all);
                return;
            }
        };
        self.learn(learnt);
    }

    fn step(&mut self) {
        match self.random.u32(..100) {
            0..50 => self.submit(),
            50..60 => self.record(),
            60..70 => self.wait(),
            70..78 => self.ask(),
            78..84 => self.host_touch(),
            84..89 => self.exec.tick(self.random.u64(..4)),
            89..94 => {
                self.exec.run_some(self.random.u64(..4));
            }
            94..97 => self.create_stream(),
            _ => self.destroy_stream(),
        }
    }
}

impl Model {
    /// Runs a random program and checks that every task ran, behind all that it depends on.
    fn run(&mut self) {
        while self.graph.ancestors.len() < 100 {
            self.step();
        }
        self.exec.run_all();
        for device in 0..DEVICES {
            self.exec.synchronize_device(device, WAIT_FOREVER).expect("waited");
        }
        let ran = self.ran.lock();
        let mut position = BTreeMap::new();
        for (at, node) in ran.iter().enumerate() {
            assert_eq!(position.insert(*node, at), None, "a task ran twice");
        }
        assert!(self.tasks.keys().all(|task| position.contains_key(task)), "a task never ran");
        for (a, at_a) in &position {
            for (b, at_b) in &position {
                assert!(at_a <= at_b || !self.graph.before(*a, *b), "{b} ran before {a}");
            }
        }
    }
}

#[test]
fn the_checker_agrees_with_reachability() {
    let (mut conflicts, mut clean) = (0, 0);
    for seed in 0..600 {
        let mut model = Model::new(seed, false);
        model.run();
        conflicts += model.conflicts;
        clean += usize::from(model.conflicts == 0);
    }
    assert!(conflicts > 4000, "the programs must contain conflicts: {conflicts}");
    assert!(clean < 600);
}

#[test]
fn threads_run_in_an_order_that_the_graph_allows() {
    for seed in 0..100 {
        Model::new(seed, true).run();
    }
}
