//! Graph capture on streams of the current device.

use super::handles::Handle;
use crate::call::Call;
use crate::codes;
use crate::exec::{CaptureMode, CaptureStatus, Work, is_timeout};
use crate::refusal::refuse;
use crate::sim::{Inner, Sim};

impl Sim {
    /// `aclmdlRICaptureBegin`.
    ///
    /// # Errors
    /// The ACL code: 100000 for a null stream, 107027 while it is captured.
    pub fn capture_begin(&self, stream: u64, mode: CaptureMode) -> Result<(), i32> {
        self.queue(
            Call::CaptureBegin,
            format_args!("{stream:#x}, {mode:?}"),
            &[Handle::NamedStream(stream)],
            |exec, device| exec.capture_begin(device, stream, mode),
        )
    }

    /// `aclmdlRICaptureBegin` with the mode as a number.
    ///
    /// # Errors
    /// As [`capture_begin`](Self::capture_begin); 207000 for the default stream's handle, 107000 for
    /// an unknown mode, 107003 for a stream of another device.
    pub fn capture_begin_raw(&self, stream: u64, mode: i32) -> Result<(), i32> {
        self.queue(
            Call::CaptureBegin,
            format_args!("{stream:#x}, mode={mode}"),
            &[Handle::NamedStream(stream)],
            |exec, device| {
                exec.check_capture_stream(device, stream)?;
                exec.capture_begin(device, stream, CaptureMode::from_value(mode)?)
            },
        )
    }

    /// `aclmdlRICaptureThreadExchangeMode` with the modes as numbers.
    ///
    /// # Errors
    /// The ACL code: 107000 for an unknown mode.
    pub fn capture_exchange_mode_raw(&self, mode: i32) -> Result<i32, i32> {
        self.call(Call::CaptureThreadExchangeMode, format_args!("mode={mode}"), || {
            let mode = Inner::executed(CaptureMode::from_value(mode))?;
            Ok(self.inner.executor.capture_exchange_mode(mode) as i32)
        })
    }

    /// `aclmdlRICaptureEnd` where the place for the graph may be missing.
    ///
    /// # Errors
    /// As [`capture_end`](Self::capture_end); 107000 without a place for the graph, which is checked
    /// behind a null stream and before all else.
    pub fn capture_end_into(&self, stream: u64, has_out: bool) -> Result<u64, i32> {
        if stream == 0 || has_out {
            return self.capture_end(stream);
        }
        self.call(Call::CaptureEnd, format_args!("{stream:#x}, null"), || {
            refuse(codes::RT_PARAM_INVALID, "no place for the graph")
        })
    }

    /// `aclmdlRICaptureTaskGrpBegin`: tasks captured from now on belong to a group that can be updated.
    ///
    /// # Errors
    /// The ACL code: 107029 for a stream that is not captured, 107033 inside a group.
    pub fn task_group_begin(&self, stream: u64) -> Result<(), i32> {
        self.queue(
            Call::TaskGroupBegin,
            format_args!("{stream:#x}"),
            &[Handle::Stream(stream)],
            |exec, device| exec.task_group_begin(device, stream),
        )
    }

    /// `aclmdlRICaptureTaskGrpEnd`: the group.
    ///
    /// # Errors
    /// The ACL code: 107029 for a stream that is not captured, 107033 outside a group.
    pub fn task_group_end(&self, stream: u64) -> Result<u64, i32> {
        self.queue(
            Call::TaskGroupEnd,
            format_args!("{stream:#x}"),
            &[Handle::Stream(stream)],
            |exec, device| exec.task_group_end(device, stream),
        )
    }

    /// `aclmdlRICaptureTaskUpdateBegin`: what is queued to the stream until the end of the update
    /// describes tasks of the group anew. It does not run; the model's graphs keep what they were.
    ///
    /// # Errors
    /// The ACL code: 100000 for null, 107000 for an unknown group, 107027 for a captured stream,
    /// 107033 inside an update.
    pub fn task_update_begin(&self, stream: u64, group: u64) -> Result<(), i32> {
        let handles = [Handle::Stream(stream), Handle::Other(group)];
        self.queue(
            Call::TaskUpdateBegin,
            format_args!("{stream:#x}, {group:#x}"),
            &handles,
            |exec, device| exec.task_update_begin(device, stream, group),
        )
    }

    /// `aclmdlRICaptureTaskUpdateEnd`.
    ///
    /// # Errors
    /// The ACL code: 107033 outside an update.
    pub fn task_update_end(&self, stream: u64) -> Result<(), i32> {
        self.queue(
            Call::TaskUpdateEnd,
            format_args!("{stream:#x}"),
            &[Handle::Stream(stream)],
            |exec, device| exec.task_update_end(device, stream),
        )
    }

    /// `aclmdlRIExecute`: runs a graph and waits for it, in milliseconds.
    ///
    /// # Errors
    /// As [`graph_execute`](Self::graph_execute) and
    /// [`synchronize_stream_with_timeout`](Self::synchronize_stream_with_timeout).
    pub fn graph_run(&self, graph: u64, timeout: i32) -> Result<(), i32> {
        self.queue(
            Call::GraphRun,
            format_args!("{graph:#x}, timeout={timeout}"),
            &[Handle::Other(graph)],
            |exec, device| {
                if !is_timeout(timeout) {
                    return Err(codes::RT_PARAM_INVALID);
                }
                self.check_graph_kernels(graph, 0);
                exec.capture_execute(device, graph, 0)?;
                exec.synchronize_stream(device, 0, timeout)
            },
        )
    }

    /// `aclmdlRIAbort`: runs of the model's graphs end by themselves.
    ///
    /// # Errors
    /// The ACL code: 100000 for null, 107000 for an unknown graph, 107026 while it is captured.
    pub fn graph_abort(&self, graph: u64) -> Result<(), i32> {
        self.call(Call::GraphAbort, format_args!("{graph:#x}"), || {
            Inner::executed(self.inner.executor.check_graph(graph))
        })
    }

    /// `aclmdlRIDestroyRegisterCallback`: the function is called when the graph is destroyed, also by
    /// a reset. Several are called in the order in which they came.
    ///
    /// # Errors
    /// The ACL code: 100000 for null, 107000 for an unknown graph, 107026 while it is captured.
    pub fn graph_on_destroy(&self, graph: u64, call: Work) -> Result<(), i32> {
        self.call(Call::GraphOnDestroy, format_args!("{graph:#x}"), || {
            Inner::executed(self.inner.executor.on_graph_destroyed(graph, call))
        })
    }

    /// `aclmdlRICaptureGetInfo`: the state and the graph (0 if there is none).
    ///
    /// # Errors
    /// The ACL code: 100000 for a null stream.
    pub fn capture_get_info(&self, stream: u64) -> Result<(CaptureStatus, u64), i32> {
        self.queue(
            Call::CaptureGetInfo,
            format_args!("{stream:#x}"),
            &[Handle::Stream(stream)],
            |exec, device| exec.capture_get_info(device, stream),
        )
    }

    /// Whether a stream is being captured: the same call, with an answer for the default stream.
    ///
    /// # Errors
    /// The ACL code: 107017 for a stale handle.
    pub fn is_capturing(&self, stream: u64) -> Result<bool, i32> {
        self.queue(
            Call::CaptureGetInfo,
            format_args!("{stream:#x}"),
            &[Handle::Stream(stream)],
            |exec, device| exec.is_capturing(device, stream),
        )
    }

    /// `aclmdlRICaptureEnd`: the graph.
    ///
    /// # Errors
    /// The ACL code: 107029 if the stream is not captured, 107025 while a forked stream is not
    /// joined, and the other refusals of the call.
    pub fn capture_end(&self, stream: u64) -> Result<u64, i32> {
        self.queue(
            Call::CaptureEnd,
            format_args!("{stream:#x}"),
            &[Handle::NamedStream(stream)],
            |exec, device| exec.capture_end(device, stream),
        )
    }

    /// `aclmdlRICaptureThreadExchangeMode`: the mode this thread had.
    ///
    /// # Errors
    /// Only a planned one.
    pub fn capture_exchange_mode(&self, mode: CaptureMode) -> Result<CaptureMode, i32> {
        self.call(Call::CaptureThreadExchangeMode, format_args!("{mode:?}"), || {
            Ok(self.inner.executor.capture_exchange_mode(mode))
        })
    }

    /// `aclmdlRIExecuteAsync`: queues one run of a graph.
    ///
    /// # Errors
    /// The ACL code: 100000 for null, 107000 for an unknown graph.
    pub fn graph_execute(&self, graph: u64, stream: u64) -> Result<(), i32> {
        let handles = [Handle::Other(graph), Handle::Stream(stream)];
        let arguments = format_args!("{graph:#x}, stream={stream:#x}");
        self.queue(Call::GraphExecute, arguments, &handles, |exec, device| {
            self.check_graph_kernels(graph, stream);
            exec.capture_execute(device, graph, stream)
        })
    }

    /// `aclmdlRIDestroy`.
    ///
    /// # Errors
    /// The ACL code: 100000 for null, 107000 for an unknown graph.
    pub fn graph_destroy(&self, graph: u64) -> Result<(), i32> {
        self.call(Call::GraphDestroy, format_args!("{graph:#x}"), || {
            let last = Inner::executed(self.inner.executor.capture_destroy_telling(graph))?;
            last.into_iter().for_each(|call| call());
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use crate::{Sim, SimConfig, codes};

    #[test]
    fn captures_check_streams_before_modes() {
        let sim = Sim::new(SimConfig::default());
        sim.set_device(0).unwrap();
        let (stream, default) = (sim.create_stream().unwrap(), sim.current_default_stream().unwrap());
        assert_eq!(sim.capture_begin_raw(0, 9), Err(codes::INVALID_PARAM));
        assert_eq!(sim.capture_begin_raw(default, 9), Err(codes::RT_FEATURE_NOT_SUPPORT));
        assert_eq!(sim.capture_begin_raw(stream, 9), Err(codes::RT_PARAM_INVALID));
        assert_eq!(sim.capture_exchange_mode_raw(3), Err(codes::RT_PARAM_INVALID));
        assert_eq!((sim.capture_exchange_mode_raw(2), sim.capture_exchange_mode_raw(0)), (Ok(0), Ok(2)));
        sim.capture_begin_raw(stream, 0).unwrap();
        assert_eq!(sim.capture_begin_raw(stream, 0), Err(107_027));
        assert_eq!(sim.capture_end_into(0, false), Err(codes::INVALID_PARAM));
        assert_eq!(sim.capture_end_into(stream, false), Err(codes::RT_PARAM_INVALID));
        let graph = sim.capture_end_into(stream, true).unwrap();
        assert_eq!(sim.capture_end_into(stream, true), Err(107_029));
        assert_eq!(sim.graph_run(graph, 0), Err(codes::RT_PARAM_INVALID));
        sim.graph_run(graph, -1).unwrap();
        let told = Arc::new(AtomicU32::new(0));
        let inside = Arc::clone(&told);
        let tell = Box::new(move || {
            inside.fetch_add(1, Relaxed);
        });
        sim.graph_on_destroy(graph, tell).unwrap();
        assert_eq!(told.load(Relaxed), 0);
        sim.graph_destroy(graph).unwrap();
        assert_eq!((told.load(Relaxed), sim.graph_destroy(graph)), (1, Err(codes::RT_PARAM_INVALID)));
        assert_eq!(sim.graph_on_destroy(graph, Box::new(|| ())), Err(codes::RT_PARAM_INVALID));
    }

    #[test]
    fn groups_of_tasks_are_opened_and_closed_in_pairs() {
        let sim = Sim::new(SimConfig::default());
        sim.set_device(0).unwrap();
        let stream = sim.create_stream().unwrap();
        let device = sim.malloc(64, 0).unwrap();
        assert_eq!(sim.task_group_begin(stream), Err(107_029));
        sim.capture_begin_raw(stream, 2).unwrap();
        assert_eq!(sim.task_group_end(stream), Err(107_033));
        sim.task_group_begin(stream).unwrap();
        assert_eq!(sim.task_group_begin(stream), Err(107_033));
        let group = sim.task_group_end(stream).unwrap();
        assert_eq!(sim.task_update_begin(stream, group), Err(107_027));
        sim.capture_end(stream).unwrap();
        assert_eq!(sim.task_update_begin(stream, group + 1), Err(codes::RT_PARAM_INVALID));
        assert_eq!(sim.task_update_end(stream), Err(107_033));
        sim.task_update_begin(stream, group).unwrap();
        // SAFETY: only device memory is named.
        unsafe { sim.memset_async(device, 64, 7, 64, stream).unwrap() };
        sim.task_update_end(stream).unwrap();
        sim.synchronize_stream(stream).unwrap();
        let mut seen = [1];
        sim.read_bytes(device, &mut seen).unwrap();
        assert_eq!(seen, [0], "an update describes tasks, it runs none");
    }
}
