// Error codes, and the text of the last error of each code in a thread.
#include <cctype>
#include <cstdarg>
#include <cstdio>

#include "sim.hpp"

namespace mcsim {
namespace {

// clang-format off: tables
#define E(name) {CUDA_##name, "CUDA_" #name}
const std::pair<CUresult, const char*> kCodes[] = {
    E(SUCCESS), E(ERROR_INVALID_VALUE), E(ERROR_OUT_OF_MEMORY), E(ERROR_NOT_INITIALIZED), E(ERROR_DEINITIALIZED),
    E(ERROR_PROFILER_DISABLED), E(ERROR_STUB_LIBRARY), E(ERROR_DEVICE_UNAVAILABLE), E(ERROR_NO_DEVICE), E(ERROR_INVALID_DEVICE),
    E(ERROR_DEVICE_NOT_LICENSED), E(ERROR_INVALID_IMAGE), E(ERROR_INVALID_CONTEXT), E(ERROR_MAP_FAILED), E(ERROR_UNMAP_FAILED),
    E(ERROR_ALREADY_MAPPED), E(ERROR_NO_BINARY_FOR_GPU), E(ERROR_NOT_MAPPED), E(ERROR_ECC_UNCORRECTABLE),
    E(ERROR_UNSUPPORTED_LIMIT), E(ERROR_CONTEXT_ALREADY_IN_USE), E(ERROR_PEER_ACCESS_UNSUPPORTED), E(ERROR_INVALID_PTX),
    E(ERROR_NVLINK_UNCORRECTABLE), E(ERROR_JIT_COMPILER_NOT_FOUND), E(ERROR_UNSUPPORTED_PTX_VERSION), E(ERROR_INVALID_SOURCE),
    E(ERROR_FILE_NOT_FOUND), E(ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND), E(ERROR_SHARED_OBJECT_INIT_FAILED),
    E(ERROR_OPERATING_SYSTEM), E(ERROR_INVALID_HANDLE), E(ERROR_ILLEGAL_STATE), E(ERROR_NOT_FOUND), E(ERROR_NOT_READY),
    E(ERROR_ILLEGAL_ADDRESS), E(ERROR_LAUNCH_OUT_OF_RESOURCES), E(ERROR_LAUNCH_TIMEOUT), E(ERROR_PEER_ACCESS_ALREADY_ENABLED),
    E(ERROR_PEER_ACCESS_NOT_ENABLED), E(ERROR_PRIMARY_CONTEXT_ACTIVE), E(ERROR_CONTEXT_IS_DESTROYED), E(ERROR_ASSERT),
    E(ERROR_TOO_MANY_PEERS), E(ERROR_HOST_MEMORY_ALREADY_REGISTERED), E(ERROR_HOST_MEMORY_NOT_REGISTERED),
    E(ERROR_HARDWARE_STACK_ERROR), E(ERROR_ILLEGAL_INSTRUCTION), E(ERROR_MISALIGNED_ADDRESS), E(ERROR_INVALID_ADDRESS_SPACE),
    E(ERROR_INVALID_PC), E(ERROR_LAUNCH_FAILED), E(ERROR_COOPERATIVE_LAUNCH_TOO_LARGE), E(ERROR_NOT_PERMITTED),
    E(ERROR_NOT_SUPPORTED), E(ERROR_SYSTEM_NOT_READY), E(ERROR_SYSTEM_DRIVER_MISMATCH), E(ERROR_STREAM_CAPTURE_UNSUPPORTED),
    E(ERROR_STREAM_CAPTURE_INVALIDATED), E(ERROR_STREAM_CAPTURE_MERGE), E(ERROR_STREAM_CAPTURE_UNMATCHED),
    E(ERROR_STREAM_CAPTURE_UNJOINED), E(ERROR_STREAM_CAPTURE_ISOLATION), E(ERROR_STREAM_CAPTURE_IMPLICIT),
    E(ERROR_CAPTURED_EVENT), E(ERROR_STREAM_CAPTURE_WRONG_THREAD), E(ERROR_TIMEOUT), E(ERROR_GRAPH_EXEC_UPDATE_FAILURE),
    E(ERROR_EXTERNAL_DEVICE), E(ERROR_UNKNOWN)};
#undef E
// clang-format on

/// The name of a code, null for a number that is not one.
const char* error_name(CUresult code) {
  for (auto [known, name] : kCodes)
    if (known == code) return name;
  return nullptr;
}

/// The word for a kind of handle, for errors.
const char* noun(Kind kind) {
  const char* nouns[] = {"nothing", "context", "stream", "event", "module", "function", "graph", "executable graph"};
  return uint64_t(kind) <= uint64_t(Kind::Exec) ? nouns[uint64_t(kind)] : "nothing";
}

std::string print_list(const char* format, va_list list) {
  va_list again;
  va_copy(again, list);
  std::string text(size_t(vsnprintf(nullptr, 0, format, again)), '\0');
  va_end(again);
  vsnprintf(&text[0], text.size() + 1, format, list);
  return text;
}

}  // namespace

std::string formatted(const char* format, ...) {
  va_list list;
  va_start(list, format);
  std::string text = print_list(format, list);
  va_end(list);
  return text;
}

void fail(CUresult code, const char* format, ...) {  // throws; an entry point then returns `code`
  va_list list;
  va_start(list, format);
  std::string text = print_list(format, list);
  va_end(list);
  throw Failure{code, text};
}

CUresult remember(const Failure& failure) {
  this_thread().details[failure.code] = failure.text;
  return failure.code;
}

bool error_code(const std::string& name, CUresult* code) {  // false: no code has that name
  for (auto [known, its_name] : kCodes)
    if (name == its_name) return *code = known, true;
  return false;
}

/// Fail for a handle that is not a live one of the kind `wanted`, of which the numbers up to `given_out` were used.
void bad_handle(Kind wanted, uint64_t handle, uint64_t given_out) {
  uint64_t kind = (handle >> 48) - 0x5000, number = handle & 0xffffffffffff;
  if (kind == uint64_t(wanted) && number && number <= given_out)
    fail(CUDA_ERROR_INVALID_HANDLE, "%s #%llu was destroyed before", noun(wanted), (unsigned long long)number);
  if (kind >= 1 && kind <= uint64_t(Kind::Exec))
    fail(CUDA_ERROR_INVALID_HANDLE, "a %s is needed, this is a %s (0x%llx)", noun(wanted), noun(Kind(kind)),
         (unsigned long long)handle);
  fail(CUDA_ERROR_INVALID_HANDLE, "0x%llx never was a %s", (unsigned long long)handle, noun(wanted));
}

}  // namespace mcsim

using namespace mcsim;

extern "C" {

CUresult CUDAAPI cuGetErrorName(CUresult error, const char** name) {
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  *name = error_name(error);
  return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/// The text of this thread's last error with that code (`remember`), otherwise the code's name in words.
CUresult CUDAAPI cuGetErrorString(CUresult error, const char** text) {
  if (!text) return CUDA_ERROR_INVALID_VALUE;
  const char* name = error_name(error);
  *text = nullptr;
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  std::string& detail = this_thread().details[error];
  if (detail.empty()) {
    for (const char* c = name + (error == CUDA_SUCCESS ? 5 : 11); *c; ++c) detail += *c == '_' ? ' ' : char(std::tolower(*c));
    if (state().forked) detail += " (this process was forked from one that used the simulated device)";
  }
  *text = detail.c_str();
  return CUDA_SUCCESS;
}

}  // extern "C"
