#include "history.h"

#include "errors.h"

#include <algorithm>
#include <optional>

namespace ascend_alloc_torch {
namespace {

using Entry = base::TraceEntry;

std::optional<Entry::Action> action_of(int action) {
  switch (action) {
    case ASCEND_ALLOC_ACTION_ALLOCATE: return Entry::ALLOC;
    case ASCEND_ALLOC_ACTION_FREE_REQUESTED: return Entry::FREE_REQUESTED;
    case ASCEND_ALLOC_ACTION_FREE_COMPLETED: return Entry::FREE_COMPLETED;
    // Where a chunk was moved from is told as unmapped, so where it went has to be there as well.
    case ASCEND_ALLOC_ACTION_MAP:
    case ASCEND_ALLOC_ACTION_MOVE: return Entry::SEGMENT_MAP;
    case ASCEND_ALLOC_ACTION_UNMAP: return Entry::SEGMENT_UNMAP;
    case ASCEND_ALLOC_ACTION_OUT_OF_MEMORY: return Entry::OOM;
    // Waits have no name in torch's histories.
    default: return std::nullopt;
  }
}

Entry entry(Entry::Action action, int device, int64_t address, size_t size, void *stream, PoolName pool,
            std::shared_ptr<c10::GatheredContext> context) {
#ifdef AA_HAS_mempool_
  return Entry(action, device, address, size, stream, pool, std::move(context));
#else
  (void)pool;
  return Entry(action, device, address, size, stream, std::move(context));
#endif
}

// The pool of a live block, where the entry has a place for it.
PoolName pool_of(Pools &pools, const ascend_alloc_event_t &event) {
#ifdef AA_HAS_mempool_
  if (event.action == ASCEND_ALLOC_ACTION_ALLOCATE) {
    ascend_alloc_block_info_t info{};
    info.struct_size = sizeof info;
    if (ascend_alloc_block_info(event.ptr, &info) == ASCEND_ALLOC_STATUS_OK && info.pool != 0) return pools.name(info.pool);
  }
#else
  (void)pools, (void)event;
#endif
  return {0, 0};
}

// The memory that the device has left.
int64_t free_memory(int device) {
  size_t free = 0, total = 0;
  c10::OptionalDeviceGuard guard(c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device)));
  return aclrtGetMemInfo(ACL_HBM_MEM, &free, &total) == ACL_SUCCESS ? static_cast<int64_t>(free) : 0;
}

} // namespace

void History::connect() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    connected_ = true;
  }
  watch();
}

void History::record(bool enabled, base::CreateContextFn recorder, size_t most, base::RecordContext when) {
  TORCH_CHECK(when == base::RecordContext::NEVER || recorder, "ascend_alloc: stacks are wanted, and nothing takes them");
  {
    std::lock_guard<std::mutex> lock(mutex_);
    enabled_ = enabled;
    recorder_ = recorder;
    most_ = std::max<size_t>(most, 1);
    when_ = enabled ? when : base::RecordContext::NEVER;
    entries_.clear();
    if (!enabled) contexts_.clear();
  }
  watch();
}

bool History::enabled() {
  std::lock_guard<std::mutex> lock(mutex_);
  return enabled_;
}

void History::attach(Tracker tracker) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    trackers_.push_back(std::move(tracker));
  }
  watch();
}

std::vector<Entry> History::of_device(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!enabled_) return {};
  auto &all = entries_[device];
  all.push_back(entry(Entry::SNAPSHOT, device, 0, 0, nullptr, {0, 0}, nullptr));
  if (all.size() > most_) all.pop_front();
  return {all.begin(), all.end()};
}

std::shared_ptr<c10::GatheredContext> History::context_of(const void *block) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = contexts_.find(block);
  return found == contexts_.end() ? nullptr : found->second;
}

// While nobody wants to know, the library is not asked to tell: that makes every call slower.
void History::watch() {
  std::lock_guard<std::mutex> lock(mutex_);
  const bool wanted = enabled_ || !trackers_.empty();
  if (!connected_ || wanted == watching_) return;
  must(ascend_alloc_set_event_hook(wanted ? told : nullptr, this, nullptr), "the event hook");
  watching_ = wanted;
}

void History::told(const ascend_alloc_event_t *event, void *self) {
  try {
    static_cast<History *>(self)->note(*event);
  } catch (...) {
    // An entry is missing; the allocation it tells of stands.
  }
}

void History::note(const ascend_alloc_event_t &event) {
  const auto action = action_of(event.action);
  if (!action) return;
  const bool allocates = *action == Entry::ALLOC;
  const bool frees = *action == Entry::FREE_REQUESTED || *action == Entry::FREE_COMPLETED;
  base::CreateContextFn recorder = nullptr;
  base::RecordContext when;
  std::vector<Tracker> trackers;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    when = when_;
    const auto least = allocates ? base::RecordContext::STATE : frees ? base::RecordContext::ALL : base::RecordContext::ALLOC;
    if (when >= least) recorder = recorder_;
    trackers = trackers_;
  }
  // Both without our lock: the recorder may wait for Python's.
  auto context = recorder ? recorder() : nullptr;
  const auto pool = pool_of(pools_, event);
  const int64_t address = *action == Entry::OOM ? free_memory(event.device) : reinterpret_cast<int64_t>(event.ptr);
  auto shown = when >= base::RecordContext::ALLOC ? context : nullptr;
  // Where frees have no stacks of their own they are told with that of the allocation.
  if (frees && !shown && when >= base::RecordContext::ALLOC) shown = context_of(event.ptr);
  const Entry made = entry(*action, event.device, address, event.size, event.stream, pool, std::move(shown));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (enabled_) {
      auto &all = entries_[event.device];
      all.push_back(made);
      if (all.size() > most_) all.pop_front();
      if (allocates && context) contexts_[event.ptr] = std::move(context);
      if (*action == Entry::FREE_COMPLETED) contexts_.erase(event.ptr);
    }
  }
  for (const auto &tracker : trackers) tracker(made);
}

} // namespace ascend_alloc_torch
