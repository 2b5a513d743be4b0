// Blocks, streams, limits and caches. The other methods are in inspect.cpp and graphs.cpp.
#include "allocator.h"

#include "errors.h"

#include <c10/core/DeviceGuard.h>

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace ascend_alloc_torch {
namespace {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;

int current_device() {
  int device = 0;
  const int code = c10_npu::GetDevice(&device);
  TORCH_CHECK(code == ACL_SUCCESS, "ascend_alloc: there is no current device, ACL answers ", code);
  return device;
}

// Without waiting for what is queued: a block for a stream needs no word with the stream.
aclrtStream current_stream(int device) {
  return c10_npu::getCurrentNPUStream(static_cast<c10::DeviceIndex>(device)).stream(false);
}

// Whether this is a thread that takes work out of torch_npu's queue, or clears up behind it. It cannot wait for the
// queue to be empty.
bool serves_the_queue() {
  thread_local const bool serves = [] {
    char name[32] = "";
    pthread_getname_np(pthread_self(), name, sizeof name);
    return std::strcmp(name, "acl_thread") == 0 || std::strcmp(name, "release_thread") == 0;
  }();
  return serves;
}

void drain(int device) {
  const c10::Device wanted(kDevice, static_cast<c10::DeviceIndex>(device));
  c10::OptionalDeviceGuard guard;
  if (current_device() != device) guard.reset_device(wanted);
  // Asking for the handle of a stream waits until its device's queue is empty.
  (void)c10_npu::getDefaultNPUStream(wanted.index()).stream();
}

// What torch_npu has queued is handed over.
int submit(int device, void *, int, void *) {
  if (serves_the_queue()) return 1;
  try {
    // The thread that takes work out of the queue may need Python's lock.
    if (Py_IsInitialized() && PyGILState_Check()) {
      pybind11::gil_scoped_release without_lock;
      drain(device);
    } else {
      drain(device);
    }
    return 0;
  } catch (...) {
    return 1;
  }
}

// Whether the stream that the caller works on is the block's own. A wait that torch_npu has put into that stream orders
// all that the block's memory is used for next; a wait in any other stream does not.
bool is_on_its_stream(void *block) {
  ascend_alloc_block_info_t info{};
  info.struct_size = sizeof info;
  must(ascend_alloc_block_info(block, &info), "the stream of a block");
  return info.stream == current_stream(info.device);
}

// Torch_npu's own functions that free memory, such as the one that clears up behind tensors of other processes.
int free_some(int, size_t, void *) {
  try {
    bool freed = false;
    auto *functions = base::FreeNPUMemoryCallbacksRegistry();
    for (const auto &name : functions->Keys()) freed |= functions->Create(name)->Execute();
    return freed ? 1 : 0;
  } catch (...) {
    return 0;
  }
}

void report(void *ptr, int64_t size, int device) {
  if (!c10::memoryProfilingEnabled()) return;
  ascend_alloc_stats_t stats{};
  stats.struct_size = sizeof stats;
  ascend_alloc_stats(device, &stats);
  c10::reportMemoryUsageToProfiler(ptr, size, stats.allocated_bytes.all.current, stats.reserved_bytes.all.current,
                                   c10::Device(kDevice, static_cast<c10::DeviceIndex>(device)));
}

// Hooks torch_npu's queue of work and its functions that free memory into the library.
void connect(const std::optional<std::string> &conf) {
  must(ascend_alloc_init(conf ? conf->c_str() : nullptr), "the allocator was not set up");
  must(ascend_alloc_set_submit_hook(submit, nullptr, nullptr), "the submit hook");
  uint64_t number = 0;
  must(ascend_alloc_add_memory_callback(free_some, nullptr, nullptr, &number), "torch_npu's functions that free memory");
}

} // namespace

Allocator &Allocator::instance() {
  static auto *const only = new Allocator();
  return *only;
}

void Allocator::configure(std::optional<std::string> conf) { conf_ = std::move(conf); }

c10::DataPtr Allocator::allocate(size_t size) {
  const int device = current_device();
  void *block = size == 0 ? nullptr : get(size, 0, device, current_stream(device));
  return {block, block, &deleter, c10::Device(kDevice, static_cast<c10::DeviceIndex>(device))};
}

c10::DeleterFnPtr Allocator::raw_deleter() const { return &deleter; }

void Allocator::copy_data(void *dest, const void *src, std::size_t count) const {
  const int code = aclrtMemcpy(dest, count, src, count, ACL_MEMCPY_DEVICE_TO_DEVICE);
  TORCH_CHECK(code == ACL_SUCCESS, "ascend_alloc: aclrtMemcpy of ", count, " bytes answered ", code);
}

c10::DataPtr Allocator::allocate_with_aligned(size_t size, size_t aligned_kb) const {
  const int device = current_device();
  const size_t alignment = aligned_kb * 1024;
  // The library aligns to powers of two. Anything else is found inside of a larger block, as torch_npu does it.
  const bool is_power = (alignment & (alignment - 1)) == 0;
  void *block = nullptr, *first = nullptr;
  if (size != 0) {
    block = get(is_power ? size : size + alignment, is_power ? alignment : 0, device, current_stream(device));
    first = block;
    if (!is_power) {
      const auto address = reinterpret_cast<uintptr_t>(block);
      first = reinterpret_cast<void *>((address + alignment - 1) / alignment * alignment);
    }
  }
  return {first, block, &deleter, c10::Device(kDevice, static_cast<c10::DeviceIndex>(device))};
}

void *Allocator::raw_alloc(size_t size) {
  const int device = current_device();
  return size == 0 ? nullptr : get(size, 0, device, current_stream(device));
}

void *Allocator::raw_alloc_with_stream(size_t size, aclrtStream stream) {
  return size == 0 ? nullptr : get(size, 0, current_device(), stream);
}

void Allocator::raw_delete(void *ptr) { must(give_back(ptr), "a block that is given back"); }

// A destructor is no place to throw; what the library refuses it has kept as it was.
void Allocator::deleter(void *block) {
  if (instance().give_back(block) != ASCEND_ALLOC_STATUS_OK) TORCH_WARN("ascend_alloc: ", last_error());
}

void *Allocator::get(size_t size, size_t alignment, int device, aclrtStream stream) const {
  void *block = nullptr;
  if (alignment == 0) {
    block = ascend_alloc_malloc(size, device, stream);
  } else {
    ascend_alloc_request_t request{};
    request.struct_size = sizeof request;
    request.size = size;
    request.alignment = alignment;
    request.stream = stream;
    request.device = device;
    ascend_alloc_allocate(&request, &block);
  }
  if (block == nullptr) refuse(size, device);
  report(block, static_cast<int64_t>(size), device);
  return block;
}

void Allocator::refuse(size_t size, int device) const {
  const int status = ascend_alloc_last_status();
  const std::string text = last_error();
  // The words that torch_npu has for what no device can have.
  TORCH_CHECK_WITH(OutOfMemoryError, size < size_t{1} << 60, "NPU out of memory. Tried to allocate more than 1EB memory. ", text);
  TORCH_CHECK(status == ASCEND_ALLOC_STATUS_OUT_OF_MEMORY, "ascend_alloc: ", size, " bytes on device ", device,
              " were refused: ", text);
  std::vector<base::OutOfMemoryObserver> observers;
  {
    std::lock_guard<std::mutex> lock(settings_mutex_);
    observers = observers_;
  }
  if (!observers.empty()) {
    size_t free = 0, total = 0, limit = SIZE_MAX;
    (void)aclrtGetMemInfo(ACL_HBM_MEM, &free, &total);
    ascend_alloc_memory_limit(device, &limit);
    const auto most = static_cast<int64_t>(std::min(limit, total));
    for (const auto &observer : observers) observer(device, static_cast<int64_t>(size), most, static_cast<int64_t>(free));
  }
  TORCH_CHECK_WITH(OutOfMemoryError, false, "NPU out of memory. ", text);
}

int Allocator::give_back(void *block) {
  if (block == nullptr) return ASCEND_ALLOC_STATUS_OK;
  if (noted_.load(std::memory_order_relaxed) && forget(block)) return ASCEND_ALLOC_STATUS_OK;
  if (c10::memoryProfilingEnabled()) {
    ascend_alloc_block_info_t info{};
    info.struct_size = sizeof info;
    if (ascend_alloc_block_info(block, &info) == ASCEND_ALLOC_STATUS_OK)
      report(block, -static_cast<int64_t>(info.requested), info.device);
  }
  return ascend_alloc_release(block);
}

bool Allocator::forget(void *block) {
  std::lock_guard<std::mutex> lock(notes_mutex_);
  works_.erase(block);
  unsafe_.erase(block);
  if (auto exported = exports_.find(block); exported != exports_.end()) {
    // Torch keeps a tensor that it has exported until all importers are done.
    ascend_alloc_export_release(exported->second);
    exports_.erase(exported);
  }
  return bad_.count(block) > 0;
}

void *Allocator::getBaseAllocation(void *ptr, size_t *size) {
  void *first = nullptr;
  must(ascend_alloc_base(ptr, &first, size), "the segment of a block");
  return first;
}

void *Allocator::getBlockPtr(const c10::DataPtr &ptr) {
  return ptr.get_deleter() == &deleter ? ptr.get_context() : nullptr;
}

void Allocator::recordStream(const c10::DataPtr &ptr, c10_npu::NPUStream stream) {
  void *block = getBlockPtr(ptr);
  // Others' memory, such as a tensor over a buffer of the user's, is nothing to us.
  if (block == nullptr) return;
  aclrtStream raw = stream.stream(false);
  if (noted_.load(std::memory_order_relaxed)) {
    std::lock_guard<std::mutex> lock(notes_mutex_);
    if (auto found = works_.find(block); found != works_.end()) {
      auto &erased = found->second.erased;
      erased.erase(std::remove(erased.begin(), erased.end(), raw), erased.end());
    }
  }
  must(ascend_alloc_record_stream(block, raw), "a stream that uses a block");
}

void Allocator::eraseStream(const c10::DataPtr &ptr, c10_npu::NPUStream stream) {
  void *block = getBlockPtr(ptr);
  if (block == nullptr || !is_on_its_stream(block)) return;
  must(ascend_alloc_erase_stream(block, stream.stream(false)), "a stream that is done with a block");
}

void Allocator::recordHcclWorkForBlock(void *block, void *work) {
  if (block == nullptr) return;
  std::lock_guard<std::mutex> lock(notes_mutex_);
  works_[block].pending.insert(work);
  noted_ = true;
}

// A block may be freed and handed out anew before its work tells that it is done: only what was recorded for the
// present block counts, and the lock keeps it the present one. Streams are erased when the last work is done, because
// work does not say which was its. Where one of them was waited for in another stream than the block's, all stay.
void Allocator::eraseStreamWithBlockPtr(void *block, c10_npu::NPUStream stream, void *work) {
  if (block == nullptr) return;
  std::lock_guard<std::mutex> lock(notes_mutex_);
  auto found = works_.find(block);
  if (found == works_.end()) return;
  auto &[pending, erased] = found->second;
  auto done = pending.find(work);
  if (done == pending.end()) return;
  if (!is_on_its_stream(block)) {
    works_.erase(found);
    return;
  }
  pending.erase(done);
  erased.push_back(stream.stream(false));
  if (!pending.empty()) return;
  const auto streams = std::move(erased);
  works_.erase(found);
  for (aclrtStream raw : streams) must(ascend_alloc_erase_stream(block, raw), "a stream that is done with a block");
}

// The library's events are its own affair; looking through them is all that is left to do.
void Allocator::cleanEvent() {
  for (int device = 0; device < device_count_; ++device) ascend_alloc_trim(device, SIZE_MAX, nullptr);
}

std::string Allocator::name() { return "ascend_alloc"; }

void Allocator::init(int device_count) {
  std::lock_guard<std::mutex> lock(settings_mutex_);
  if (device_count_ == 0) {
    connect(conf_);
    history_.connect();
  }
  device_count_ = std::max(device_count_.load(), device_count);
}

bool Allocator::initialized() { return device_count_ > 0; }

// Before init() the library is not set up: a call that would do that would do it without the configuration.
void Allocator::must_know(int device) const {
  TORCH_CHECK(device >= 0 && device < device_count_, "ascend_alloc: no device ", device, " among the ", device_count_.load(),
              " that torch_npu has initialised");
}

#ifdef AA_HAS_getMemoryFraction
double Allocator::getMemoryFraction(int device) {
  must_know(device);
  size_t limit = 0, free = 0, total = 0;
  must(ascend_alloc_memory_limit(device, &limit), "the memory limit");
  if (limit == SIZE_MAX) return 1.0;
  c10::OptionalDeviceGuard guard(c10::Device(kDevice, static_cast<c10::DeviceIndex>(device)));
  const int code = aclrtGetMemInfo(ACL_HBM_MEM, &free, &total);
  TORCH_CHECK(code == ACL_SUCCESS && total > 0, "ascend_alloc: aclrtGetMemInfo of device ", device, " answered ", code);
  return std::min(1.0, static_cast<double>(limit) / static_cast<double>(total));
}
#endif

void Allocator::setMemoryFraction(double fraction, int device) {
  must_know(device);
  // To torch 0 is a limit of no bytes.
  must(ascend_alloc_set_memory_fraction(fraction == 0 ? std::numeric_limits<double>::min() : fraction, device), "the memory fraction");
}

void Allocator::emptyCacheImpl(bool check_error, bool) { emptyCache(check_error); }

void Allocator::emptyCache(bool check_error) {
  const int status = ascend_alloc_empty_cache(-1);
  if (check_error) must(status, "empty_cache");
}

#ifdef AA_HAS_DeviceAllocator
void Allocator::emptyCache(PoolName pool) {
  if (pool == PoolName{0, 0}) return emptyCache(true);
  for (int device = 0; device < device_count_; ++device)
    if (const auto number = pools_.number(device, pool)) must(ascend_alloc_pool_empty_cache(*number, nullptr), "empty_cache of a pool");
}
#endif

// Address space without memory goes back with the memory.
void Allocator::emptyVirtAddrCache(bool check_error) { emptyCache(check_error); }

void Allocator::FreeDeviceCachedMemory(int device) { must(ascend_alloc_empty_cache(device), "empty_cache"); }

} // namespace ascend_alloc_torch
