// What differs between releases of torch_npu, in one place. AA_HAS_x is set by setup.py where the header of the
// release that is built against has x.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <torch_npu/csrc/core/npu/NPUCachingAllocator.h>
#include <torch_npu/csrc/core/npu/NPUFunctions.h>
#include <torch_npu/csrc/core/npu/NPUStream.h>

#include "ascend_alloc.h"

#include <memory>
#include <utility>

namespace ascend_alloc_torch {

namespace base = c10_npu::NPUCachingAllocator;

// A pool as torch names it.
using PoolName = std::pair<unsigned long long, unsigned long long>;

// A device as the methods for statistics take it.
#ifdef AA_HAS_DeviceAllocator
using StatsDevice = c10::DeviceIndex;
#else
using StatsDevice = int;
#endif

// Who gives a pool its memory, where that is not us.
#ifdef AA_HAS_createOrIncrefPool
using SourceOwner = std::shared_ptr<base::NPUAllocator>;
#else
using SourceOwner = base::NPUAllocator *;
#endif

} // namespace ascend_alloc_torch
