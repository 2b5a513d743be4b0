// Statistics, snapshots, other processes, and memory that cannot be corrected.
#include "allocator.h"

#include "errors.h"
#include "visit.h"

#include <algorithm>

namespace ascend_alloc_torch {
namespace {

base::Stat of(const ascend_alloc_stat_t &stat) {
  base::Stat made;
  made.current = stat.current;
  made.peak = stat.peak;
  made.allocated = stat.allocated;
  made.freed = stat.freed;
  return made;
}

base::StatArray of(const ascend_alloc_stat_array_t &stats) {
  return {of(stats.all), of(stats.small_pool), of(stats.large_pool)};
}

// From now on torch_npu asks for each tensor of an operator whether it is safe. Its own allocator says so with a
// function that only Python has of it.
void refuse_unsafe_tensors() {
  pybind11::gil_scoped_acquire python;
  pybind11::module_::import("torch_npu").attr("_C").attr("_set_npu_data_unsafe_flag")(true);
}

} // namespace

base::DeviceStats Allocator::getDeviceStats(StatsDevice device) {
  ascend_alloc_stats_t stats{};
  stats.struct_size = sizeof stats;
  must(ascend_alloc_stats(device, &stats), "statistics");
  base::DeviceStats made;
  made.allocation = of(stats.allocation);
  made.segment = of(stats.segment);
  made.active = of(stats.active);
  made.inactive_split = of(stats.inactive_split);
  made.allocated_bytes = of(stats.allocated_bytes);
  made.reserved_bytes = of(stats.reserved_bytes);
  made.active_bytes = of(stats.active_bytes);
  made.inactive_split_bytes = of(stats.inactive_split_bytes);
  made.requested_bytes = of(stats.requested_bytes);
  made.num_alloc_retries = stats.num_alloc_retries;
  made.num_ooms = stats.num_ooms;
  made.oversize_allocations = of(stats.oversize_allocations);
  made.oversize_segments = of(stats.oversize_segments);
  made.max_split_size = stats.max_split_size;
#ifdef AA_HAS_DeviceAllocator
  made.num_sync_all_streams = stats.num_sync_all_streams;
  made.num_device_alloc = stats.num_device_alloc;
  made.num_device_free = stats.num_device_free;
#endif
#ifdef AA_HAS_reserved_bytes_by_private_pools
  for (const auto &[name, number] : pools_.of_device(device)) {
    ascend_alloc_pool_stats_t pool{};
    pool.struct_size = sizeof pool;
    if (ascend_alloc_pool_stats(number, &pool) == ASCEND_ALLOC_STATUS_OK)
      made.reserved_bytes_by_private_pools[name] = of(pool.reserved_bytes);
  }
#endif
  return made;
}

void Allocator::resetAccumulatedStats(StatsDevice device) {
  must(ascend_alloc_reset_accumulated_stats(device), "a reset of statistics");
}

void Allocator::resetPeakStats(StatsDevice device) { must(ascend_alloc_reset_peak_stats(device), "a reset of peaks"); }

void Allocator::cacheInfo(int device, size_t *cached, size_t *largest) {
  size_t sum = 0, most = 0;
  visit(device, [&](const ascend_alloc_segment_entry_t *, const ascend_alloc_block_entry_t *block) {
    if (block == nullptr || block->state != ASCEND_ALLOC_BLOCK_STATE_INACTIVE) return;
    sum += block->size;
    most = std::max(most, block->size);
  });
  if (cached) *cached = sum;
  if (largest) *largest = most;
}

#ifdef AA_HAS_snapshot_of_pool
base::SnapshotInfo Allocator::snapshot(PoolName wanted) {
#else
base::SnapshotInfo Allocator::snapshot() {
  const PoolName wanted{0, 0};
#endif
  base::SnapshotInfo made;
  bool keeps = true;
  for (int device = 0; device < device_count_; ++device) {
    visit(device, [&](const ascend_alloc_segment_entry_t *segment, const ascend_alloc_block_entry_t *block) {
      if (segment != nullptr) {
        const PoolName pool = segment->pool == 0 ? PoolName{0, 0} : pools_.name(segment->pool);
        keeps = wanted == PoolName{0, 0} || pool == wanted;
        if (!keeps) return;
        base::SegmentInfo info;
        info.device = device;
        info.address = reinterpret_cast<int64_t>(segment->ptr);
        info.stream = segment->stream;
        info.total_size = static_cast<int64_t>(segment->size);
        info.requested_size = static_cast<int64_t>(segment->requested);
        info.allocated_size = static_cast<int64_t>(segment->allocated);
        info.active_size = static_cast<int64_t>(segment->active);
        info.is_large = !segment->is_small;
        info.is_expandable = segment->is_expandable;
        info.owner_private_pool_id = pool;
        made.segments.push_back(std::move(info));
      } else if (keeps) {
        base::BlockInfo info;
        info.size = static_cast<int64_t>(block->size);
        info.requested_size = static_cast<int64_t>(block->requested);
        info.allocated = block->state == ASCEND_ALLOC_BLOCK_STATE_ALLOCATED;
        info.active = info.allocated || block->state == ASCEND_ALLOC_BLOCK_STATE_PENDING_FREE;
        if (info.active) info.context_when_allocated = history_.context_of(block->ptr);
        made.segments.back().blocks.push_back(std::move(info));
      }
    });
    made.device_traces.push_back(history_.of_device(device));
  }
  return made;
}

bool Allocator::isHistoryEnabled() { return history_.enabled(); }

void Allocator::recordHistory(bool enabled, base::CreateContextFn recorder, size_t most, base::RecordContext when) {
  history_.record(enabled, recorder, most, when);
}

void Allocator::attachOutOfMemoryObserver(base::OutOfMemoryObserver observer) {
  std::lock_guard<std::mutex> lock(settings_mutex_);
  observers_.push_back(std::move(observer));
}

#ifdef AA_HAS_attachOomRejectionObserver
// Nothing is rejected before the device was asked, so there is nothing to tell.
void Allocator::attachOomRejectionObserver(base::OomRejectionObserver) {}
#endif

#ifdef AA_HAS_attachAllocatorTraceTracker
void Allocator::attachAllocatorTraceTracker(base::AllocatorTraceTracker tracker) { history_.attach(std::move(tracker)); }
#endif

base::ShareableHandle Allocator::shareIpcHandle(void *ptr) {
  uint64_t number = 0;
  std::lock_guard<std::mutex> lock(notes_mutex_);
  auto known = exports_.find(ptr);
  if (known != exports_.end()) {
    number = known->second;
  } else {
    must(ascend_alloc_export(ptr, nullptr, &number), "an export");
    exports_[ptr] = number;
    noted_ = true;
  }
  size_t length = 0;
  must(ascend_alloc_export_message(number, nullptr, 0, &length), "an export's message");
  std::string message(length, '\0');
  must(ascend_alloc_export_message(number, message.data(), length, &length), "an export's message");
  return {0, std::move(message)};
}

std::shared_ptr<void> Allocator::getIpcDevPtr(std::string handle) {
  int device = 0;
  TORCH_CHECK(c10_npu::GetDevice(&device) == ACL_SUCCESS, "ascend_alloc: there is no current device");
  const std::string key = std::to_string(device) + ':' + handle;
  std::lock_guard<std::mutex> lock(settings_mutex_);
  if (auto known = imports_.find(key); known != imports_.end())
    if (auto live = known->second.lock()) return live;
  void *ptr = nullptr;
  uint64_t number = 0;
  aclrtStream stream = c10_npu::getCurrentNPUStream(static_cast<c10::DeviceIndex>(device)).stream(false);
  must(ascend_alloc_import(handle.data(), handle.size(), device, stream, &ptr, nullptr, &number), "an import");
  std::shared_ptr<void> made(ptr, [number](void *) { ascend_alloc_import_release(number); });
  imports_[key] = made;
  return made;
}

// A communicator would have to be told of every chunk that comes and goes, and chunks move between segments here.
void Allocator::buildServerMemMapForHccl(int, std::shared_ptr<c10d_npu::HCCLComm>) {
  TORCH_WARN_ONCE("ascend_alloc does not register its memory with HCCL (TORCH_HCCL_ZERO_COPY): collectives copy");
}

bool Allocator::checkUceInMemPool(int device) {
  std::vector<aclrtMemUceInfo> pages(MAX_MEM_UCE_INFO_ARRAY_SIZE);
  size_t count = 0;
  const int code = aclrtGetMemUceInfo(device, pages.data(), pages.size(), &count);
  TORCH_CHECK(code == ACL_SUCCESS, "ascend_alloc: aclrtGetMemUceInfo of device ", device, " answered ", code);
  pages.resize(std::min(count, pages.size()));
  const bool ours = mark_on(device, pages);
  if (ours) {
    set_apart(device, pages);
    refuse_unsafe_tensors();
  }
  return ours;
}

void Allocator::set_apart(int device, const std::vector<aclrtMemUceInfo> &pages) {
  // Frees that wait for streams are free then, and chunks without a live block go back to the device. One in trouble may
  // refuse that; what stays is claimed.
  ascend_alloc_empty_cache(device);
  for (const aclrtMemUceInfo &page : pages) {
    void *piece = nullptr;
    do {
      must(ascend_alloc_claim(device, page.addr, page.len, &piece, nullptr), "setting a bad page apart");
    } while (piece != nullptr);
  }
}

bool Allocator::mark_on(int device, const std::vector<aclrtMemUceInfo> &pages) {
  bool ours = false;
  std::lock_guard<std::mutex> lock(notes_mutex_);
  visit(device, [&](const ascend_alloc_segment_entry_t *, const ascend_alloc_block_entry_t *block) {
    if (block == nullptr) return;
    const auto first = reinterpret_cast<uintptr_t>(block->ptr);
    const bool hit = std::any_of(pages.begin(), pages.end(), [&](const aclrtMemUceInfo &page) {
      const auto start = reinterpret_cast<uintptr_t>(page.addr);
      return start < first + block->size && first < start + page.len;
    });
    if (!hit) return;
    ours = true;
    if (block->state != ASCEND_ALLOC_BLOCK_STATE_ALLOCATED) return;
    unsafe_.insert(block->ptr);
    bad_.insert(block->ptr);
    noted_ = true;
  });
  return ours;
}

bool Allocator::checkBlockIsSafe(const c10::DataPtr &ptr) {
  std::lock_guard<std::mutex> lock(notes_mutex_);
  return unsafe_.count(getBlockPtr(ptr)) == 0;
}

void Allocator::markAllBlockUnsafe(int device) {
  std::lock_guard<std::mutex> lock(notes_mutex_);
  visit(device, [&](const ascend_alloc_segment_entry_t *, const ascend_alloc_block_entry_t *block) {
    if (block == nullptr || block->state != ASCEND_ALLOC_BLOCK_STATE_ALLOCATED) return;
    unsafe_.insert(block->ptr);
    noted_ = true;
  });
}

// The framework has repaired the pages and written the content anew.
void Allocator::updateBlockToSafe(const c10::DataPtr &ptr) {
  std::lock_guard<std::mutex> lock(notes_mutex_);
  unsafe_.erase(getBlockPtr(ptr));
  bad_.erase(getBlockPtr(ptr));
}

} // namespace ascend_alloc_torch
