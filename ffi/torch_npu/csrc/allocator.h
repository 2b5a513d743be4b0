// torch_npu's allocator interface over the library.
#pragma once

#include "compat.h"
#include "history.h"
#include "pools.h"

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace ascend_alloc_torch {

// One for the process, never destroyed: tensors give their memory back until the very end.
class Allocator final : public base::NPUAllocator {
 public:
  static Allocator &instance();
  // What the library is set up with, once torch_npu has initialised ACL: ACL is given up again by who was first.
  void configure(std::optional<std::string> conf);

  // c10::Allocator
  c10::DataPtr allocate(size_t size) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void *dest, const void *src, std::size_t count) const override;

  // Blocks
  c10::DataPtr allocate_with_aligned(size_t size, size_t aligned_kb) const override;
  void *raw_alloc(size_t size) override;
  void *raw_alloc_with_stream(size_t size, aclrtStream stream) override;
  void raw_delete(void *ptr) override;
  void *getBaseAllocation(void *ptr, size_t *size) override;
  void *getBlockPtr(const c10::DataPtr &ptr) override;

  // Streams
  void recordStream(const c10::DataPtr &ptr, c10_npu::NPUStream stream) override;
#ifdef AA_HAS_DeviceAllocator
  using base::NPUAllocator::recordStream;
#endif
  void eraseStream(const c10::DataPtr &ptr, c10_npu::NPUStream stream) override;
  void recordHcclWorkForBlock(void *block, void *work) override;
  void eraseStreamWithBlockPtr(void *block, c10_npu::NPUStream stream, void *work) override;
  void cleanEvent() override;

  // The process, limits, caches
  std::string name() override;
  void init(int device_count) override;
  bool initialized() override;
#ifdef AA_HAS_getMemoryFraction
  double getMemoryFraction(int device) override;
#endif
  void setMemoryFraction(double fraction, int device) override;
  void emptyCacheImpl(bool check_error, bool free_physical) override;
  void emptyCache(bool check_error) override;
#ifdef AA_HAS_DeviceAllocator
  void emptyCache(PoolName pool) override;
#endif
  void emptyVirtAddrCache(bool check_error) override;
  void FreeDeviceCachedMemory(int device) override;
  void cacheInfo(int device, size_t *cached, size_t *largest) override;

  // Statistics, snapshots, histories, observers
  base::DeviceStats getDeviceStats(StatsDevice device) override;
  void resetAccumulatedStats(StatsDevice device) override;
  void resetPeakStats(StatsDevice device) override;
#ifdef AA_HAS_snapshot_of_pool
  base::SnapshotInfo snapshot(PoolName pool) override;
#else
  base::SnapshotInfo snapshot() override;
#endif
  bool isHistoryEnabled() override;
  void recordHistory(bool enabled, base::CreateContextFn recorder, size_t most, base::RecordContext when) override;
  void attachOutOfMemoryObserver(base::OutOfMemoryObserver observer) override;
#ifdef AA_HAS_attachOomRejectionObserver
  void attachOomRejectionObserver(base::OomRejectionObserver observer) override;
#endif
#ifdef AA_HAS_attachAllocatorTraceTracker
  void attachAllocatorTraceTracker(base::AllocatorTraceTracker tracker) override;
#endif

  // Pools and graphs
  void beginAllocateToPool(c10::DeviceIndex device, PoolName pool, std::function<bool(aclrtStream)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, PoolName pool) override;
  void releasePool(c10::DeviceIndex device, PoolName pool) override;
#ifdef AA_HAS_hasCapturesUnderway
  bool hasCapturesUnderway(c10::DeviceIndex device) override;
#endif
  bool checkPoolLiveAllocations(c10::DeviceIndex device, PoolName pool,
                                const std::unordered_set<void *> &expected) override;
  std::shared_ptr<base::AllocatorState> getCheckpointState(c10::DeviceIndex device, PoolName pool) override;
  base::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex device,
                                               std::shared_ptr<base::AllocatorState> state) override;
#ifdef AA_HAS_getPoolUseCount
  int getPoolUseCount(c10::DeviceIndex device, PoolName pool) override;
#endif
#ifdef AA_HAS_setUseOnOOM
  void setUseOnOOM(c10::DeviceIndex device, PoolName pool, bool use) override;
#endif
#ifdef AA_HAS_setNoSplit
  void setNoSplit(c10::DeviceIndex device, PoolName pool) override;
#endif
#ifdef AA_HAS_markCaptureBegin
  void markCaptureBegin(c10::DeviceIndex device) override;
  void markCaptureEnd(c10::DeviceIndex device) override;
#endif
#ifdef AA_HAS_createOrIncrefPool
  void createOrIncrefPool(c10::DeviceIndex device, PoolName pool, std::shared_ptr<base::NPUAllocator> source) override;
#endif

  // Other processes and collectives
  base::ShareableHandle shareIpcHandle(void *ptr) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;
  void buildServerMemMapForHccl(int device, std::shared_ptr<c10d_npu::HCCLComm> communicator) override;

  // Memory that cannot be corrected
  bool checkUceInMemPool(int device) override;
  bool checkBlockIsSafe(const c10::DataPtr &ptr) override;
  void markAllBlockUnsafe(int device) override;
  void updateBlockToSafe(const c10::DataPtr &ptr) override;

 private:
  Allocator() : history_(pools_) {}

  static void deleter(void *block);
  void *get(size_t size, size_t alignment, int device, aclrtStream stream) const;
  [[noreturn]] void refuse(size_t size, int device) const;
  // The library's answer; a block that is never handed out again counts as given back.
  int give_back(void *block);
  void must_know(int device) const;
  // Notes the live blocks that lie on the pages; whether any memory of ours does.
  bool mark_on(int device, const std::vector<aclrtMemUceInfo> &pages);
  // Sees to it that free memory on the pages is handed out to nobody.
  void set_apart(int device, const std::vector<aclrtMemUceInfo> &pages);
  // Forgets what was noted of a block by its address.
  bool forget(void *block);

  mutable Pools pools_;
  History history_;
  std::atomic<int> device_count_{0};

  // What is noted of few blocks, or mostly none: guarded by notes_mutex_. `noted_` spares frees the lock.
  mutable std::mutex notes_mutex_;
  std::atomic<bool> noted_{false};
  struct Works {
    std::unordered_multiset<void *> pending;
    std::vector<aclrtStream> erased;
  };
  std::unordered_map<void *, Works> works_;
  std::unordered_map<void *, uint64_t> exports_;
  std::unordered_set<void *> unsafe_;
  // Blocks on pages that cannot be corrected: never handed out again.
  std::unordered_set<void *> bad_;

  mutable std::mutex settings_mutex_;
  std::optional<std::string> conf_;
  std::vector<base::OutOfMemoryObserver> observers_;
  std::unordered_map<std::string, std::weak_ptr<void>> imports_;
};

} // namespace ascend_alloc_torch
