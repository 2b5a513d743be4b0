// What our library answers, as exceptions.
#pragma once

#include "compat.h"

#include <string>

namespace ascend_alloc_torch {

// Why this thread's last call of the library failed.
inline std::string last_error() {
  const char *text = ascend_alloc_last_error();
  return text ? text : "no reason is known";
}

// Throws RuntimeError where a call of the library failed.
inline void must(int status, const char *what) {
  TORCH_CHECK(status == ASCEND_ALLOC_STATUS_OK, "ascend_alloc: ", what, ": ", last_error());
}

} // namespace ascend_alloc_torch
