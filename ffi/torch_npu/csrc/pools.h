// Pools: torch names them by a pair of numbers and counts who uses them; the library by one number.
//
//   createOrIncref ─┐                                       ┌─ releasePool
//   begin ──────────┴─► uses (a pool lives while uses > 0) ◄┘
//   begin .. end: a route to the pool; while a graph is captured, the pool's addresses stay until its release
#pragma once

#include "compat.h"

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

namespace ascend_alloc_torch {

class Pools {
 public:
  using Filter = std::function<bool(aclrtStream)>;

  // One more user, without a route.
  void hold(int device, PoolName name, SourceOwner source);
  // What the pool is made with; no effect once it has been used.
  void set_use_on_oom(int device, PoolName name, bool use);
  void set_no_split(int device, PoolName name);
  int uses(int device, PoolName name);

  // One more user, and a route: requests for streams that the filter takes come from the pool. `capture`: a graph
  // is being captured.
  void begin(int device, PoolName name, Filter filter, bool capture, SourceOwner source);
  // The newest route to the pool ends.
  void end(int device, PoolName name);
  // One user less. The pool is given up with the last.
  void release(int device, PoolName name);

  // A graph is captured by what began last on the device, and its end.
  void capture_begins(int device);
  void capture_ends(int device);
  bool capturing(int device);

  // The library's number of a pool; nothing for one that was never used.
  std::optional<uint64_t> number(int device, PoolName name);
  // Torch's name of a pool that the library has a number for, also after it was given up.
  PoolName name(uint64_t number);
  // The pools of a device that are in use.
  std::vector<std::pair<PoolName, uint64_t>> of_device(int device);

 private:
  struct Scope {
    Filter filter;
    bool capture;
  };
  struct Pool {
    uint64_t number = 0;
    int uses = 0;
    // Users that came without a route.
    int holders = 0;
    // Routes that have ended and whose user has not left yet, but for those of captures.
    int ended = 0;
    // Captures whose user has not left yet.
    int graphs = 0;
    bool use_on_oom = false;
    bool no_split = false;
    SourceOwner source{};
    std::vector<Scope> scopes;
  };
  using Key = std::pair<int, PoolName>;

  uint64_t number_of(Key key, Pool &pool);
  static void route(uint64_t number, const Filter &filter, bool capture);

  std::mutex mutex_;
  std::map<Key, Pool> pools_;
  std::unordered_map<uint64_t, PoolName> names_;
  // Which pool a route was begun to, newest last, by device.
  std::map<int, std::vector<Key>> begun_;
  // Captures that were told of, newest last, by device.
  std::map<int, std::vector<Key>> captures_;
};

} // namespace ascend_alloc_torch
