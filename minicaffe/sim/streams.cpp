// The order of work: streams, events, which operation waits for which, and races.
//
// Each operation has a list of its predecessors. It runs in its call; with deferred=1 it runs, after its predecessors, when
// another operation or the host waits for it. With race=1 each has a vector clock of all work before it by streams, events and
// waits of the host. Two unordered operations that access the same bytes, one of them writing, are a race.
#include <sched.h>

#include <algorithm>
#include <exception>

#include "sim.hpp"

namespace mcsim {
namespace {

/// Set each lane of `into` to the later of both clocks: what is ordered before either is ordered before the result.
void merge(Clock& into, const Clock& other) {
  for (auto& lane : other) {
    uint64_t& tick = into[lane.first];
    tick = std::max(tick, lane.second);
  }
}

/// The number of operations of `lane` that a clock contains: these are ordered before its operation.
uint64_t tick_in(const Clock& clock, unsigned lane) {
  auto it = clock.find(lane);
  return it == clock.end() ? 0 : it->second;
}

/// Fail if an earlier access to the same bytes is not ordered before `op`; then add this access to the history.
void check_race(const Operation& op, const MemoryAccess& access) {
  std::vector<Access>& history = access.allocation->history;
  const std::string operation = op.work.name + " in " + op.location;
  std::string conflict;
  // An old access can be in no later race if the host has waited for it, or if this access is ordered after it and covers it.
  auto is_obsolete = [&](const Access& old) {
    bool ordered = old.tick <= tick_in(op.clock, old.lane);
    bool covered = access.begin <= old.begin && old.end <= access.end && (access.write || !old.write);
    return old.tick <= tick_in(state().host, old.lane) || (ordered && covered);
  };
  for (const Access& old : history)
    if (old.begin < access.end && access.begin < old.end && (old.write || access.write) && old.tick > tick_in(op.clock, old.lane))
      conflict = formatted("race: %s %s and %s %s the same bytes of %s, and neither waits for the other", operation.c_str(),
                           access.write ? "writes" : "reads", old.operation.c_str(), old.write ? "writes" : "reads",
                           access.allocation->text().c_str());
  history.erase(std::remove_if(history.begin(), history.end(), is_obsolete), history.end());
  history.push_back({access.begin, access.end, access.write, op.lane, op.tick, operation});
  if (!conflict.empty()) fail(CUDA_ERROR_INVALID_VALUE, "%s", conflict.c_str());
}

/// Run an operation whose predecessors have run, if it has not run itself; with race=1 check its accesses.
void run(Operation& op) {
  if (op.started) {  // by another thread, which has released the lock for a host function: wait for it
    while (!op.done) {
      state().lock.unlock();
      sched_yield();
      state().lock.lock();
    }
    return;
  }
  op.started = true;
  struct Done {  // also when the work fails
    Operation& op;
    ~Done() {
      op.done = true;
      op.finished_at = std::chrono::steady_clock::now();
      op.after.clear();  // otherwise a stream would keep all its earlier operations alive
      op.accesses.clear();
      op.work.run = nullptr;
    }
  } done{op};
  if (!op.work.run) return;
  if (op.work.context->lost) fail(op.work.context->lost, "%s", op.work.context->lost_text.c_str());
  op.work.run(op);
  if (state().settings.race)
    for (const MemoryAccess& access : op.accesses) check_race(op, access);
}

/// All streams of a context: its default one and the created ones.
template <class F> void for_each_stream(Context& context, F f) {
  f(*context.legacy);
  for (auto& stream : state().streams.all())
    if (stream.second->context == &context) f(*stream.second);
}

}  // namespace

unsigned new_lane() {  // for the clocks of race=1
  static unsigned last = 0;
  return ++last;
}

std::shared_ptr<Stream> new_stream(Context& context, const std::string& name) {
  auto stream = std::make_shared<Stream>();
  stream->context = &context;
  stream->name = name;
  stream->lane = new_lane();
  return stream;
}

/// The stream of a handle, of any context; for 0 the default stream of the current one. Fails if the stream's context is lost.
std::shared_ptr<Stream> stream_of(Context& current, CUstream handle) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY) return current.legacy;
  auto stream = state().streams.find(handle);
  if (stream->context->lost) fail(stream->context->lost, "%s", stream->context->lost_text.c_str());
  return stream;
}

/// The operations that the next operation of a stream waits for: the stream's last one, and by CUDA's rules of the default stream.
std::vector<Op> predecessors_of_next(Stream& stream) {
  std::vector<Op> edges;
  auto add = [&](const Op& op) {
    if (op) edges.push_back(op);
  };
  add(stream.last);
  if (stream.legacy) {
    for_each_stream(*stream.context, [&](Stream& other) {
      if (other.blocking && !other.legacy) add(other.last);
    });
    for (const Op& op : stream.context->last_of_destroyed) add(op);
  } else if (stream.blocking) {
    add(stream.context->legacy->last);
  }
  return edges;
}

/// Give `work` a position in the order: after the operations `after`, in `lane`. It does not run here.
Op make_operation(Stream& stream, Work work, std::vector<Op> after, unsigned lane) {
  static uint64_t sequence = 0;
  auto op = std::make_shared<Operation>();
  op->work = std::move(work);
  op->location = stream.name;
  op->sequence = ++sequence;
  op->lane = lane;
  if (state().settings.race) {
    op->clock = state().host;
    for (const Op& earlier : after) merge(op->clock, earlier->clock);
    op->tick = ++op->clock[lane];
  }
  for (Op& earlier : after)
    if (!earlier->done) op->after.push_back(std::move(earlier));
  return op;
}

/// Append work to a stream, also after the operations `after`, and run it unless deferred=1; under capture append it to the graph.
Op submit(Stream& stream, Work work, const std::vector<Op>& after) {
  if (stream.capture) return capture(stream, std::move(work)), nullptr;
  if (stream.legacy)
    for_each_stream(*stream.context, [&](Stream& other) {
      if (other.capture && other.blocking)
        break_capture(*other.capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                      work.name + " in the default stream would wait for " + other.name + ", which is being captured");
    });
  std::vector<Op> edges = predecessors_of_next(stream);
  edges.insert(edges.end(), after.begin(), after.end());
  Op op = stream.last = make_operation(stream, std::move(work), std::move(edges), stream.lane);
  if (!state().settings.deferred) finish({op});
  return op;
}

/// Run the operations `wanted` and all that they wait for; rethrow the first failure after all have run.
void finish(const std::vector<Op>& wanted) {
  std::vector<Op> found;
  std::set<Operation*> seen;
  std::vector<Op> open(wanted);
  while (!open.empty()) {
    Op op = open.back();
    open.pop_back();
    if (!op || op->done || !seen.insert(op.get()).second) continue;
    open.insert(open.end(), op->after.begin(), op->after.end());
    found.push_back(std::move(op));
  }
  // An operation waits only for operations that were submitted earlier, so the order of submission is valid for all streams.
  std::sort(found.begin(), found.end(), [](const Op& a, const Op& b) { return a->sequence < b->sequence; });
  std::exception_ptr first;
  for (const Op& op : found) {
    try {
      run(*op);
    } catch (const Failure&) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

/// Run `op` (null: nothing) and all before it, and order the host's later work after it, for race=1.
void synchronize(const Op& op) {
  if (!op) return;
  finish({op});
  merge(state().host, op->clock);
}

/// As above, for all work of all streams of a context.
void synchronize(Context& context) {
  std::vector<Op> all;
  for_each_stream(context, [&](Stream& stream) {
    if (stream.last) all.push_back(stream.last);
  });
  all.insert(all.end(), context.last_of_destroyed.begin(), context.last_of_destroyed.end());
  context.last_of_destroyed.clear();
  finish(all);
  for (const Op& op : all) merge(state().host, op->clock);
}

}  // namespace mcsim

using namespace mcsim;

namespace {

/// The event for a call of the host that waits for it or reads its time; fails if it was last recorded in a captured stream.
std::shared_ptr<Event> event_of(CUevent handle, const char* call) {
  auto event = state().events.find(handle);
  if (!event->capture) return event;
  std::string why = formatted("%s: the event was last recorded in a captured stream", call);
  if (event->capture->active) break_capture(*event->capture, CUDA_ERROR_CAPTURED_EVENT, why);
  fail(CUDA_ERROR_CAPTURED_EVENT, "%s", why.c_str());
}

}  // namespace

extern "C" {

/// Create a stream; its name in error messages is "stream #" and the number of its handle.
CUresult CUDAAPI cuStreamCreate(CUstream* out, unsigned flags) {
  return on_context("cuStreamCreate", [&](Context& context) {
    check_pointer(out, "cuStreamCreate", "the pointer for the stream");
    if (flags & ~unsigned(CU_STREAM_NON_BLOCKING)) fail(CUDA_ERROR_INVALID_VALUE, "cuStreamCreate: unknown flags 0x%x", flags);
    auto stream = new_stream(context, "");
    stream->blocking = !(flags & CU_STREAM_NON_BLOCKING);
    *out = state().streams.add<CUstream>(stream);
    stream->name = formatted("stream #%llu", (unsigned long long)(reinterpret_cast<uint64_t>(*out) & 0xffffffff));
  });
}

CUresult CUDAAPI cuStreamDestroy(CUstream handle) {
  return on_context("cuStreamDestroy", [&](Context&) {
    auto stream = state().streams.remove(handle);
    // As in CUDA, the work of the destroyed stream is still run.
    if (stream->last && (!stream->last->done || state().settings.race)) stream->context->last_of_destroyed.push_back(stream->last);
    if (auto c = stream->capture) {
      if (c->origin == stream) end_capture(c);
      break_capture(*c, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "cuStreamDestroy: " + stream->name + " was being captured");
    }
  });
}

CUresult CUDAAPI cuStreamSynchronize(CUstream handle) {
  return on_context("cuStreamSynchronize", [&](Context& context) {
    auto stream = stream_of(context, handle);
    if (stream->capture)
      break_capture(*stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                    "cuStreamSynchronize: " + stream->name + " is being captured and does no work");
    for (const Op& op : predecessors_of_next(*stream)) synchronize(op);  // for the default stream also the last of the others
  });
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned) {
  return on_context("cuStreamWaitEvent", [&](Context& context) {
    auto stream = stream_of(context, handle);
    auto event = state().events.find(event_handle);
    if (event->capture) return join_capture(stream, *event);
    if (!event->recorded) return;
    if (stream->capture)
      break_capture(*stream->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
                    "cuStreamWaitEvent: " + stream->name + " is being captured, the event was recorded outside of the capture");
    submit(*stream, {"wait for event", stream->context, nullptr}, {event->recorded});
  });
}

CUresult CUDAAPI cuStreamGetCtx(CUstream handle, CUcontext* out) {
  return on_context("cuStreamGetCtx", out, "the pointer for the context", [&](Context& context) {
    return mcsim::handle_of(*stream_of(context, handle)->context);
  });
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  return on_context("cuLaunchHostFunc", [&](Context& context) {
    check_pointer(function, "cuLaunchHostFunc", "the function");
    auto stream = stream_of(context, handle);
    submit(*stream, {"host function", stream->context, [=](Operation&) {
                       // Without our lock: the function may wait for another lock (the GIL) whose holder waits for ours.
                       this_thread().in_callback = true;
                       state().lock.unlock();
                       function(data);
                       state().lock.lock();
                       this_thread().in_callback = false;
                     }});
  });
}

CUresult CUDAAPI cuEventCreate(CUevent* out, unsigned flags) {
  return on_context("cuEventCreate", out, "the pointer for the event", [&](Context& context) {
    if (flags & ~7u) fail(CUDA_ERROR_INVALID_VALUE, "cuEventCreate: unknown flags 0x%x", flags);
    auto event = std::make_shared<Event>();
    event->context = &context;
    event->flags = flags;
    return state().events.add<CUevent>(event);
  });
}

CUresult CUDAAPI cuEventDestroy(CUevent handle) {
  return on_context("cuEventDestroy", [&](Context&) { state().events.remove(handle); });
}

CUresult CUDAAPI cuEventRecord(CUevent handle, CUstream stream_handle) {
  return on_context("cuEventRecord", [&](Context& context) {
    auto event = state().events.find(handle);
    auto stream = stream_of(context, stream_handle);
    if (event->context != stream->context)
      fail(CUDA_ERROR_INVALID_HANDLE, "cuEventRecord: the event is of device %d, the stream of device %d",
           event->context->device->ordinal, stream->context->device->ordinal);
    event->capture = stream->capture;
    event->nodes = stream->tails;
    event->recorded = nullptr;
    if (stream->capture) {
      if (!stream->capture->invalid.empty())
        fail(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "cuEventRecord: %s", stream->capture->invalid.c_str());
      return;
    }
    event->recorded = submit(*stream, {"event record", stream->context, nullptr});
  });
}

/// With deferred=1 the first query returns "not ready" and runs the work, as a device would have run it before the next query.
CUresult CUDAAPI cuEventQuery(CUevent handle) {
  return on_context("cuEventQuery", [&](Context&) {
    auto event = event_of(handle, "cuEventQuery");
    forbid_in_capture("cuEventQuery");
    const bool ready = !event->recorded || event->recorded->done;
    if (!ready) finish({event->recorded}), fail(CUDA_ERROR_NOT_READY, "cuEventQuery: not ready");
    synchronize(event->recorded);
  });
}

CUresult CUDAAPI cuEventSynchronize(CUevent handle) {
  return on_context("cuEventSynchronize", [&](Context&) {
    auto event = event_of(handle, "cuEventSynchronize");
    forbid_in_capture("cuEventSynchronize");
    synchronize(event->recorded);
  });
}

/// Return the time between the events on the host, which does not predict the time on a GPU.
CUresult CUDAAPI cuEventElapsedTime(float* milliseconds, CUevent begin_handle, CUevent end_handle) {
  return on_context("cuEventElapsedTime", milliseconds, "the pointer for the time", [&](Context&) {
    auto begin = event_of(begin_handle, "cuEventElapsedTime"), end = event_of(end_handle, "cuEventElapsedTime");
    for (auto& event : {begin, end}) {
      if (event->flags & CU_EVENT_DISABLE_TIMING)
        fail(CUDA_ERROR_INVALID_HANDLE, "cuEventElapsedTime: an event was created with CU_EVENT_DISABLE_TIMING");
      if (!event->recorded) fail(CUDA_ERROR_INVALID_HANDLE, "cuEventElapsedTime: an event was never recorded");
    }
    if (!begin->recorded->done || !end->recorded->done)
      fail(CUDA_ERROR_NOT_READY, "cuEventElapsedTime: the work before an event is not done; wait for it");
    return std::chrono::duration<float, std::milli>(end->recorded->finished_at - begin->recorded->finished_at).count();
  });
}

}  // extern "C"
