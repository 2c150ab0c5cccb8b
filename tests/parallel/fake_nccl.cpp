// A libnccl.so.2 for the simulated device: the calls that minicaffe makes through nccl4py, between processes of one machine.
//
// It keeps to NVIDIA's documentation and refuses what NCCL refuses: two ranks on one GPU, a rank given twice, memory that is not on
// the device, an unknown type. Work is put on the stream, as NCCL's is: a copy to the host, a host function that meets the other
// ranks in shared memory, a copy back; so the simulated driver sees what it comes after, and may record it in a graph. Where NCCL
// would wait for ever (a rank that does not come) or compute nonsense (ranks that ask for different things), it says so and ends
// the process. FAKE_NCCL_SECONDS: how long to wait. FAKE_NCCL_LOG: a file that gets a line for each call that the group's end puts
// on the stream. Prototypes are written down again here, from nccl.h and cuda.h.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace {

enum Result { kSuccess = 0, kCudaError = 1, kSystemError = 2, kInvalidArgument = 4, kInvalidUsage = 5 };
enum { kMaxRanks = 8, kPart = 1 << 20, kFloat = 7, kDouble = 8, kSum = 0, kDeviceMemory = 2 };
constexpr char kMark[] = "minicaffe fake nccl ";

thread_local std::string last_error;

Result refuse(Result code, const std::string& why) {
  last_error = why;
  return code;
}
[[noreturn]] void end(const std::string& why) {
  std::fprintf(stderr, "the fake NCCL: %s\n", why.c_str());
  std::_Exit(86);
}

template <class... A> int driver(const char* name, A... arguments) {
  static void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  auto function = library ? reinterpret_cast<int (*)(A...)>(dlsym(library, name)) : nullptr;
  if (!function) end(std::string("no ") + name + " in the process");
  return function(arguments...);
}

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

/// What the ranks share.
struct Request {
  long count;
  int type;
  bool operator==(const Request& other) const { return count == other.count && type == other.type; }
};
struct Board {
  std::atomic<int> size, here[kMaxRanks], arrived, round;
  int device[kMaxRanks];
  Request request[kMaxRanks];
  alignas(64) char part[kMaxRanks][kPart];
};

struct Comm {
  int rank, size, device;
  Board* board;
  void* staging = nullptr;
  size_t staging_bytes = 0;

  /// Wait for all ranks; false if one does not come.
  bool meet() {
    const char* limit = std::getenv("FAKE_NCCL_SECONDS");
    const double until = now() + (limit ? std::atof(limit) : 20);
    const int round = board->round;
    if (board->arrived.fetch_add(1) + 1 == size) {
      board->arrived = 0;
      board->round = round + 1;
      return true;
    }
    while (board->round == round) {
      if (now() > until) return false;
      usleep(50);
    }
    return true;
  }
};

struct Work {
  Comm* comm;
  Request request;
  const void* from;
  void* to;
  void* stream;
  void* staging = nullptr;  // its own, as a longer one may follow before it has run
  size_t bytes() const { return size_t(request.count) * (request.type == kDouble ? 8 : 4); }
};

template <class T> void add(Comm& comm, T* values, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    T sum = 0;
    for (int rank = 0; rank < comm.size; ++rank) sum += reinterpret_cast<T*>(comm.board->part[rank])[i];
    values[i] = sum;
  }
}

/// The host function: what lies in the staging memory becomes the result.
void exchange(void* data) {
  const Work& work = *static_cast<Work*>(data);
  Comm& comm = *work.comm;
  Board& board = *comm.board;
  const std::string who = "rank " + std::to_string(comm.rank) + " of " + std::to_string(comm.size);
  char* values = static_cast<char*>(work.staging);
  for (size_t at = 0; at < work.bytes(); at += kPart) {
    const size_t n = std::min(size_t(kPart), work.bytes() - at);
    board.request[comm.rank] = work.request;
    std::memcpy(board.part[comm.rank], values + at, n);
    if (!comm.meet()) end(who + " waits for a rank that does not come");
    for (int rank = 0; rank < comm.size; ++rank)
      if (!(board.request[rank] == work.request))
        end(who + " and rank " + std::to_string(rank) + " ask for different things: " + std::to_string(work.request.count) + " and " +
            std::to_string(board.request[rank].count) + " elements, or other types");
    if (work.request.type == kDouble) add(comm, reinterpret_cast<double*>(values + at), n / 8);
    else add(comm, reinterpret_cast<float*>(values + at), n / 4);
    if (!comm.meet()) end(who + " waits for a rank that does not come");
  }
}

thread_local int depth = 0;
thread_local std::vector<Work> queued;

Result issue() {
  std::vector<Work> works;
  works.swap(queued);
  for (Work& work : works) {
    Comm& comm = *work.comm;
    if (work.bytes() > comm.staging_bytes) {
      if (driver("cuMemHostAlloc", &comm.staging, work.bytes(), 0u)) return refuse(kCudaError, "no page-locked memory");
      comm.staging_bytes = work.bytes();
    }
    work.staging = comm.staging;
    // Never freed, as a graph may run it again.
    if (driver("cuMemcpyDtoHAsync_v2", work.staging, const_cast<void*>(work.from), work.bytes(), work.stream) ||
        driver("cuLaunchHostFunc", work.stream, exchange, static_cast<void*>(new Work(work))) ||
        driver("cuMemcpyHtoDAsync_v2", work.to, work.staging, work.bytes(), work.stream))
      return refuse(kCudaError, "the driver refused a copy or a host function");
    if (const char* path = std::getenv("FAKE_NCCL_LOG"))
      if (FILE* file = std::fopen(path, "a")) {
        std::fprintf(file, "allreduce %ld of %zu\n", work.request.count, works.size());
        std::fclose(file);
      }
  }
  return kSuccess;
}

Result put(const Work& work) {
  if (!work.comm) return refuse(kInvalidArgument, "no communicator");
  if (work.request.type != kFloat && work.request.type != kDouble) return refuse(kInvalidArgument, "only float and double are added here");
  for (const void* p : {work.from, const_cast<const void*>(work.to)}) {
    unsigned kind = 0;
    if (work.request.count && (driver("cuPointerGetAttribute", &kind, 2, reinterpret_cast<size_t>(p)) || kind != kDeviceMemory))
      return refuse(kInvalidArgument, "a buffer is not in the device's memory");
  }
  queued.push_back(work);
  return depth ? kSuccess : issue();
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = 23203;
  return kSuccess;
}

int ncclGetUniqueId(char* id) {
  std::memset(id, 0, 128);
  std::snprintf(id, 128, "%s/mc-%d-%u", kMark, int(getpid()), unsigned(std::random_device()()));
  return kSuccess;
}

int ncclCommInitRankScalable(void** made, int size, int rank, int ids, const char* id, void*) {
  if (size < 1 || size > kMaxRanks || rank < 0 || rank >= size || ids != 1)
    return refuse(kInvalidArgument, "rank " + std::to_string(rank) + " of " + std::to_string(size));
  if (std::strncmp(id, kMark, std::strlen(kMark))) return refuse(kInvalidArgument, "the unique id is none of ncclGetUniqueId");
  int device = -1;
  if (driver("cuCtxGetDevice", &device)) return refuse(kCudaError, "the thread has no current device");
  const char* name = id + std::strlen(kMark);
  int file = shm_open(name, O_CREAT | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, sizeof(Board))) return refuse(kSystemError, "no shared memory");
  auto* board = static_cast<Board*>(mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  close(file);
  if (board == MAP_FAILED) return refuse(kSystemError, "no shared memory");
  int none = 0;
  if (!board->size.compare_exchange_strong(none, size) && none != size)
    return refuse(kInvalidUsage, "the ranks give different sizes");
  if (board->here[rank].exchange(1)) return refuse(kInvalidUsage, "rank " + std::to_string(rank) + " is given twice");
  board->device[rank] = device;
  std::unique_ptr<Comm> comm(new Comm{rank, size, device, board});
  const bool all = comm->meet();
  shm_unlink(name);
  if (!all) return refuse(kSystemError, "not all of " + std::to_string(size) + " ranks have come");
  for (int other = 0; other < size; ++other)
    if (other != rank && board->device[other] == device)
      return refuse(kInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(rank) + " and rank " + std::to_string(other) +
                                       " both on CUDA device " + std::to_string(device));
  *made = comm.release();
  return kSuccess;
}

int ncclCommCount(const Comm* comm, int* count) {
  *count = comm->size;
  return kSuccess;
}
int ncclCommCuDevice(const Comm* comm, int* device) {
  *device = comm->device;
  return kSuccess;
}
int ncclCommUserRank(const Comm* comm, int* rank) {
  *rank = comm->rank;
  return kSuccess;
}
int ncclCommFinalize(Comm*) { return kSuccess; }
int ncclCommDestroy(Comm*) { return kSuccess; }
int ncclCommAbort(Comm*) { return kSuccess; }
int ncclCommGetAsyncError(Comm*, int* error) {
  *error = kSuccess;
  return kSuccess;
}

int ncclAllReduce(const void* from, void* to, size_t count, int type, int op, Comm* comm, void* stream) {
  return op == kSum ? put({comm, {long(count), type}, from, to, stream}) : refuse(kInvalidArgument, "only SUM is known here");
}
int ncclGroupStart() {
  ++depth;
  return kSuccess;
}
int ncclGroupEnd() {
  if (!depth) return refuse(kInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  return --depth ? kSuccess : int(issue());
}

const char* ncclGetErrorString(int code) {
  static const char* const texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error", "invalid argument",
                                      "invalid usage", "remote process exited or there was a network error", "NCCL operation in progress"};
  return code >= 0 && code < 8 ? texts[code] : "unknown result code";
}
const char* ncclGetLastError(const Comm*) { return last_error.c_str(); }

}  // extern "C"
