// Pools, captured graphs and checkpoints.
#include "allocator.h"

#include "errors.h"
#include "visit.h"

namespace ascend_alloc_torch {
namespace {

// The blocks of a pool that are live.
std::vector<void *> live_blocks(int device, uint64_t number) {
  std::vector<void *> blocks;
  bool in_pool = false;
  visit(device, [&](const ascend_alloc_segment_entry_t *segment, const ascend_alloc_block_entry_t *block) {
    if (segment) in_pool = segment->pool == number;
    if (block && in_pool && block->state == ASCEND_ALLOC_BLOCK_STATE_ALLOCATED) blocks.push_back(block->ptr);
  });
  return blocks;
}

struct Checkpoint final : base::AllocatorState {
  Checkpoint(uint64_t number, uint64_t pool, size_t blocks) : number(number), pool(pool), blocks(blocks) {}
  ~Checkpoint() override { ascend_alloc_checkpoint_release(number); }

  uint64_t number;
  uint64_t pool;
  size_t blocks;
};

} // namespace

void Allocator::beginAllocateToPool(c10::DeviceIndex device, PoolName pool, std::function<bool(aclrtStream)> filter) {
#if defined(AA_HAS_markCaptureBegin)
  // Torch tells separately when a graph is captured.
  pools_.begin(device, pool, std::move(filter), false, nullptr);
#elif defined(AA_HAS_MemPoolContext)
  // use_mem_pool makes its pool the active one before this call, and captures do not.
  auto *active = c10_npu::MemPoolContext::getActiveMemPool();
  const bool by_user = active != nullptr && active->id() == pool;
  auto *source = by_user ? active->allocator() : nullptr;
  pools_.begin(device, pool, std::move(filter), !by_user, source == this ? nullptr : source);
#else
  pools_.begin(device, pool, std::move(filter), true, nullptr);
#endif
}

void Allocator::endAllocateToPool(c10::DeviceIndex device, PoolName pool) { pools_.end(device, pool); }

void Allocator::releasePool(c10::DeviceIndex device, PoolName pool) { pools_.release(device, pool); }

#ifdef AA_HAS_hasCapturesUnderway
bool Allocator::hasCapturesUnderway(c10::DeviceIndex device) { return pools_.capturing(device); }
#endif

bool Allocator::checkPoolLiveAllocations(c10::DeviceIndex device, PoolName pool,
                                         const std::unordered_set<void *> &expected) {
  const auto number = pools_.number(device, pool);
  TORCH_CHECK(number, "ascend_alloc: device ", static_cast<int>(device), " has no pool (", pool.first, ", ", pool.second, ")");
  const auto live = live_blocks(device, *number);
  if (live.size() != expected.size()) return false;
  for (void *block : live)
    if (expected.count(block) == 0) return false;
  return true;
}

std::shared_ptr<base::AllocatorState> Allocator::getCheckpointState(c10::DeviceIndex device, PoolName pool) {
  const auto number = pools_.number(device, pool);
  TORCH_CHECK(number, "ascend_alloc: device ", static_cast<int>(device), " has no pool (", pool.first, ", ", pool.second, ")");
  uint64_t checkpoint = 0;
  must(ascend_alloc_checkpoint(*number, &checkpoint), "a checkpoint");
  return std::make_shared<Checkpoint>(checkpoint, *number, live_blocks(device, *number).size());
}

base::CheckpointDelta Allocator::setCheckpointPoolState(c10::DeviceIndex device,
                                                        std::shared_ptr<base::AllocatorState> state) {
  const auto checkpoint = std::dynamic_pointer_cast<Checkpoint>(state);
  TORCH_CHECK(checkpoint, "ascend_alloc: the state is no checkpoint of this allocator");
  base::CheckpointDelta delta;
  delta.ptrs_freed.resize(live_blocks(device, checkpoint->pool).size());
  std::vector<void *> allocated(checkpoint->blocks);
  size_t freed_count = 0, allocated_count = 0;
  must(ascend_alloc_checkpoint_restore(checkpoint->number, delta.ptrs_freed.data(), delta.ptrs_freed.size(),
                                       &freed_count, allocated.data(), allocated.size(), &allocated_count),
       "return to a checkpoint");
  TORCH_CHECK(freed_count <= delta.ptrs_freed.size() && allocated_count <= allocated.size(),
              "ascend_alloc: blocks of the pool were allocated while it was taken back to a checkpoint");
  delta.ptrs_freed.resize(freed_count);
  allocated.resize(allocated_count);
  for (void *block : delta.ptrs_freed)
    if (noted_) forget(block);
  for (void *block : allocated)
    delta.dataptrs_allocd.emplace_back(block, block, &deleter, c10::Device(c10::DeviceType::PrivateUse1, device));
  return delta;
}

#ifdef AA_HAS_getPoolUseCount
int Allocator::getPoolUseCount(c10::DeviceIndex device, PoolName pool) { return pools_.uses(device, pool); }
#endif

#ifdef AA_HAS_setUseOnOOM
void Allocator::setUseOnOOM(c10::DeviceIndex device, PoolName pool, bool use) { pools_.set_use_on_oom(device, pool, use); }
#endif

#ifdef AA_HAS_setNoSplit
void Allocator::setNoSplit(c10::DeviceIndex device, PoolName pool) { pools_.set_no_split(device, pool); }
#endif

#ifdef AA_HAS_markCaptureBegin
void Allocator::markCaptureBegin(c10::DeviceIndex device) { pools_.capture_begins(device); }

void Allocator::markCaptureEnd(c10::DeviceIndex device) { pools_.capture_ends(device); }
#endif

#ifdef AA_HAS_createOrIncrefPool
void Allocator::createOrIncrefPool(c10::DeviceIndex device, PoolName pool, std::shared_ptr<base::NPUAllocator> source) {
  pools_.hold(device, pool, source.get() == this ? nullptr : std::move(source));
}
#endif

} // namespace ascend_alloc_torch
