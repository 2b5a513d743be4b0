// What happened to memory: for recorded histories, and for those who want to be told.
#pragma once

#include "compat.h"
#include "pools.h"

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace ascend_alloc_torch {

class History {
 public:
  using Tracker = std::function<void(const base::TraceEntry &)>;

  explicit History(Pools &pools) : pools_(pools) {}

  // The library is set up, so that it can be asked to tell. What was wanted before takes effect now.
  void connect();
  // Begins, changes or ends the recording. What was recorded before is gone.
  void record(bool enabled, base::CreateContextFn recorder, size_t most, base::RecordContext when);
  bool enabled();
  // From now on the function is told of every entry. Unlike torch's own allocator's, ours are called without a lock.
  void attach(Tracker tracker);
  // The entries of a device, oldest first, with a mark for this question at the end.
  std::vector<base::TraceEntry> of_device(int device);
  // Where a live block was allocated, if that was recorded.
  std::shared_ptr<c10::GatheredContext> context_of(const void *block);

 private:
  static void told(const ascend_alloc_event_t *event, void *self);
  void note(const ascend_alloc_event_t &event);
  void watch();

  Pools &pools_;
  std::mutex mutex_;
  bool enabled_ = false;
  bool connected_ = false;
  bool watching_ = false;
  size_t most_ = 0;
  base::CreateContextFn recorder_ = nullptr;
  base::RecordContext when_ = base::RecordContext::NEVER;
  std::map<int, std::deque<base::TraceEntry>> entries_;
  std::unordered_map<const void *, std::shared_ptr<c10::GatheredContext>> contexts_;
  std::vector<Tracker> trackers_;
};

} // namespace ascend_alloc_torch
