// What Python sees of the extension.
#include "allocator.h"
#include "errors.h"

#include <optional>

namespace ascend_alloc_torch {
namespace {

// Never destroyed, as torch_npu's own allocators.
std::shared_ptr<base::NPUAllocator> connect(const std::optional<std::string> &conf) {
  Allocator::instance().configure(conf);
  return {&Allocator::instance(), [](base::NPUAllocator *) {}};
}

} // namespace
} // namespace ascend_alloc_torch

PYBIND11_MODULE(_C, module) {
  module.def("connect", &ascend_alloc_torch::connect, pybind11::arg("conf"),
             "Notes the configuration and returns torch_npu's handle of the allocator.");
  module.def("finish", [] { ascend_alloc_torch::must(ascend_alloc_finish(), "finish"); },
             pybind11::call_guard<pybind11::gil_scoped_release>(), "The process is ending.");
  module.def("version", [] { return std::string(ascend_alloc_version()); }, "The library's version.");
}
