// A snapshot of the library, told piece by piece.
#pragma once

#include "errors.h"

#include <exception>
#include <functional>
#include <utility>

namespace ascend_alloc_torch {

using Visit = std::function<void(const ascend_alloc_segment_entry_t *, const ascend_alloc_block_entry_t *)>;

// Calls the function for each segment, and for each block behind its segment. What it throws comes out here: nothing
// may be thrown through the library.
inline void visit(int device, Visit function) {
  struct Visiting {
    Visit function;
    std::exception_ptr thrown;
  } visiting{std::move(function), nullptr};
  const auto told = [](const ascend_alloc_segment_entry_t *segment, const ascend_alloc_block_entry_t *block, void *user) {
    auto &all = *static_cast<Visiting *>(user);
    if (all.thrown) return;
    try {
      all.function(segment, block);
    } catch (...) {
      all.thrown = std::current_exception();
    }
  };
  must(ascend_alloc_snapshot_visit(device, told, &visiting), "a snapshot");
  if (visiting.thrown) std::rethrow_exception(visiting.thrown);
}

} // namespace ascend_alloc_torch
