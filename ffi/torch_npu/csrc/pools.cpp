#include "pools.h"

#include "errors.h"

#include <algorithm>

namespace ascend_alloc_torch {
namespace {

int accepts(void *stream, void *filter) {
  try {
    return (*static_cast<Pools::Filter *>(filter))(stream) ? 1 : 0;
  } catch (...) {
    return 0;
  }
}

void drop_filter(void *filter) { delete static_cast<Pools::Filter *>(filter); }

base::NPUAllocator *plain(void *source) { return static_cast<base::NPUAllocator *>(source); }

void *source_malloc(size_t size, int, void *stream, void *source) {
  try {
    return plain(source)->raw_alloc_with_stream(size, stream);
  } catch (...) {
    return nullptr;
  }
}

void source_free(void *ptr, size_t, int, void *source) {
  try {
    plain(source)->raw_delete(ptr);
  } catch (...) {
    // It has nobody to go to.
  }
}

base::NPUAllocator *pointer(const SourceOwner &source) {
#ifdef AA_HAS_createOrIncrefPool
  return source.get();
#else
  return source;
#endif
}

} // namespace

void Pools::hold(int device, PoolName name, SourceOwner source) {
  std::lock_guard<std::mutex> lock(mutex_);
  Pool &pool = pools_[{device, name}];
  ++pool.uses;
  ++pool.holders;
  if (pool.number == 0 && source) pool.source = std::move(source);
}

void Pools::set_use_on_oom(int device, PoolName name, bool use) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = pools_.find({device, name});
  if (found != pools_.end() && found->second.number == 0) found->second.use_on_oom = use;
}

void Pools::set_no_split(int device, PoolName name) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = pools_.find({device, name});
  if (found != pools_.end() && found->second.number == 0) found->second.no_split = true;
}

int Pools::uses(int device, PoolName name) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = pools_.find({device, name});
  return found == pools_.end() ? 0 : found->second.uses;
}

void Pools::begin(int device, PoolName name, Filter filter, bool capture, SourceOwner source) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Key key{device, name};
  Pool &pool = pools_[key];
  if (pool.number == 0 && source) pool.source = std::move(source);
  route(number_of(key, pool), filter, capture);
  ++pool.uses;
  if (capture) ++pool.graphs;
  pool.scopes.push_back({std::move(filter), capture});
  begun_[device].push_back(key);
}

void Pools::end(int device, PoolName name) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Key key{device, name};
  auto found = pools_.find(key);
  TORCH_CHECK(found != pools_.end() && !found->second.scopes.empty(),
              "ascend_alloc: end of allocations to pool (", name.first, ", ", name.second,
              ") of device ", device, ", which have not begun");
  Pool &pool = found->second;
  must(ascend_alloc_pool_end(pool.number), "end of allocations to a pool");
  if (!pool.scopes.back().capture) ++pool.ended;
  pool.scopes.pop_back();
  auto &begun = begun_[device];
  const auto newest = std::find(begun.rbegin(), begun.rend(), key);
  if (newest != begun.rend()) begun.erase(std::next(newest).base());
}

void Pools::release(int device, PoolName name) {
  uint64_t number = 0;
  int graphs = 0;
  bool last = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = pools_.find({device, name});
    if (found == pools_.end() || found->second.uses == 0) return;
    Pool &pool = found->second;
    number = pool.number;
    // Torch does not say which user leaves. A route's user leaves when its route has ended; of the others those that
    // hold no graph's addresses are taken first, which errs on the safe side.
    if (pool.ended > 0) {
      --pool.ended;
    } else if (pool.holders > 0) {
      --pool.holders;
    } else if (pool.graphs > 0) {
      --pool.graphs;
      ++graphs;
    }
    last = --pool.uses == 0;
    if (last) {
      graphs += pool.graphs;
      pools_.erase(found);
    }
  }
  // Without the lock: memory of the pool's source goes back now, by a function of the user's that may call anybody and
  // need Python's lock.
  for (; graphs > 0; --graphs) must(ascend_alloc_graph_release(number), "release of a graph's pool");
  if (last && number != 0) must(ascend_alloc_pool_release(number), "release of a pool");
}

void Pools::capture_begins(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto &begun = begun_[device];
  if (begun.empty()) return;
  const Key key = begun.back();
  Pool &pool = pools_[key];
  route(pool.number, pool.scopes.back().filter, true);
  // The user of this route is the graph, and leaves with it.
  pool.scopes.back().capture = true;
  ++pool.graphs;
  captures_[device].push_back(key);
}

void Pools::capture_ends(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto &captures = captures_[device];
  if (captures.empty()) return;
  const Key key = captures.back();
  captures.pop_back();
  auto found = pools_.find(key);
  if (found != pools_.end()) must(ascend_alloc_pool_end(found->second.number), "end of a capture");
}

bool Pools::capturing(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!captures_[device].empty()) return true;
  return std::any_of(pools_.begin(), pools_.end(), [device](const auto &entry) {
    const auto &scopes = entry.second.scopes;
    return entry.first.first == device &&
           std::any_of(scopes.begin(), scopes.end(), [](const Scope &scope) { return scope.capture; });
  });
}

std::optional<uint64_t> Pools::number(int device, PoolName name) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = pools_.find({device, name});
  if (found == pools_.end() || found->second.number == 0) return std::nullopt;
  return found->second.number;
}

PoolName Pools::name(uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = names_.find(number);
  return found == names_.end() ? PoolName{0, 0} : found->second;
}

std::vector<std::pair<PoolName, uint64_t>> Pools::of_device(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::pair<PoolName, uint64_t>> all;
  for (const auto &[key, pool] : pools_)
    if (key.first == device && pool.number != 0) all.emplace_back(key.second, pool.number);
  return all;
}

// The library's pool is made when it is first needed, because its properties are told one by one before that.
uint64_t Pools::number_of(Key key, Pool &pool) {
  if (pool.number != 0) return pool.number;
  ascend_alloc_pool_options_t options{};
  options.struct_size = sizeof options;
  options.no_split = pool.no_split;
  options.use_on_oom = pool.use_on_oom;
  if (auto *source = pointer(pool.source)) {
    options.source_malloc = source_malloc;
    options.source_free = source_free;
    options.source_user = source;
#ifdef AA_HAS_createOrIncrefPool
    // The pool may have memory from it for as long as the process lives.
    new SourceOwner(pool.source);
#endif
  }
  must(ascend_alloc_pool_create(key.first, &options, &pool.number), "a new pool");
  names_[pool.number] = key.second;
  return pool.number;
}

void Pools::route(uint64_t number, const Filter &filter, bool capture) {
  auto *kept = new Filter(filter);
  const int status = capture ? ascend_alloc_capture_begin_with(number, accepts, kept, drop_filter)
                             : ascend_alloc_pool_begin_with(number, accepts, kept, drop_filter);
  must(status, capture ? "a capture into a pool" : "allocations to a pool");
}

} // namespace ascend_alloc_torch
