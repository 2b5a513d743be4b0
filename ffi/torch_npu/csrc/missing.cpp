// The header's own bodies of methods that we answer ourselves name this function, which some releases of torch_npu
// do not export. It is never called; this one stays inside of the extension.
#ifdef AA_LACKS_formatErrorCode
#include <torch_npu/csrc/core/npu/NPUException.h>

std::string formatErrorCode(SubModule, ErrCode) { return {}; }
#endif
