// Stream capture and graphs. A captured stream appends nodes instead of doing work; a stream that waits for an event recorded there
// joins the capture. Graphs come from capture only; their nodes can be counted, and they can be launched.
#include <algorithm>

#include "sim.hpp"

namespace mcsim {

/// Append `work` to the graph that the stream captures, after the newest nodes of that stream.
void capture(Stream& stream, Work work) {
  Capture& c = *stream.capture;
  if (!c.invalid.empty()) fail(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "%s: %s", work.name.c_str(), c.invalid.c_str());
  c.graph->push_back({std::move(work), stream.tails});
  stream.tails = {int(c.graph->size()) - 1};
}

/// Fail with `code`, and make the capture fail at its end, as CUDA does after a call that is not allowed in it.
void break_capture(Capture& c, CUresult code, const std::string& why) {
  if (c.invalid.empty()) c.invalid = "the capture is broken: " + why;
  fail(code, "%s", why.c_str());
}

/// cuStreamWaitEvent for an event recorded in a captured stream: the waiting stream is captured, too, after the event's nodes.
void join_capture(const std::shared_ptr<Stream>& joining, Event& event) {
  Stream& stream = *joining;
  if (!event.capture->active)
    fail(CUDA_ERROR_CAPTURED_EVENT, "cuStreamWaitEvent: the event was recorded in a capture that has ended");
  if (stream.legacy)
    break_capture(*event.capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                  "cuStreamWaitEvent: the default stream cannot be captured");
  if (stream.capture && stream.capture != event.capture)
    break_capture(*event.capture, CUDA_ERROR_STREAM_CAPTURE_MERGE, "cuStreamWaitEvent: two captures cannot become one");
  stream.capture = event.capture;
  stream.tails.insert(event.nodes.begin(), event.nodes.end());
}

/// Fail, and break the capture, if CUDA's capture modes forbid this call, which waits or allocates, in this thread during it.
void forbid_in_capture(const char* call) {
  const ThreadState& thread = this_thread();
  if (thread.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return;
  for (auto& c : state().captures) {
    bool mine = c->thread == thread.number && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    bool anyone = c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (mine || anyone)
      break_capture(*c, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                    formatted("%s is not allowed while %s is being captured", call, c->origin->name.c_str()));
  }
}

/// Return all streams of a capture to normal work; the graph is left to the caller.
void end_capture(const std::shared_ptr<Capture>& c) {
  c->active = false;
  auto leave = [&](Stream& stream) {
    if (stream.capture != c) return;
    stream.capture = nullptr;
    stream.tails.clear();
  };
  for (auto& stream : state().streams.all()) leave(*stream.second);
  c->origin->capture = nullptr;  // also where the stream was destroyed
  auto& captures = state().captures;
  captures.erase(std::remove(captures.begin(), captures.end(), c), captures.end());
}

namespace {

/// Nodes that no other comes after.
std::set<int> leaves(const Graph& graph) {
  std::set<int> last;
  for (size_t i = 0; i < graph.size(); ++i) last.insert(int(i));
  for (const Node& node : graph)
    for (int before : node.after) last.erase(before);
  return last;
}

/// Queue a launch: each node becomes an operation after its predecessors; later work of the stream comes after the last ones.
void launch(Exec& exec, Stream& stream) {
  const Graph& graph = *exec.graph;
  if (stream.capture)
    break_capture(*stream.capture, CUDA_ERROR_NOT_SUPPORTED, "cuGraphLaunch: the simulated device has no graph within a graph");
  std::vector<Op> before = predecessors_of_next(stream), operations, last;
  if (exec.last) before.push_back(exec.last);  // as in CUDA, launches of one executable graph never overlap
  for (size_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph[i];
    std::vector<Op> after;
    for (int earlier : node.after) after.push_back(operations[size_t(earlier)]);
    Op op = make_operation(stream, node.work, after.empty() ? before : after, exec.lanes[i]);
    op->location += formatted(", graph node %zu", i);
    operations.push_back(op);
  }
  for (int i : leaves(graph)) last.push_back(operations[size_t(i)]);
  exec.last = submit(stream, {"graph", stream.context, nullptr}, last);
}

}  // namespace
}  // namespace mcsim

using namespace mcsim;

extern "C" {

CUresult CUDAAPI cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
  return on_context("cuStreamBeginCapture", [&](Context& context) {
    auto stream = stream_of(context, handle);
    if (stream->legacy)
      fail(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "cuStreamBeginCapture: the default stream cannot be captured");
    if (stream->capture) fail(CUDA_ERROR_ILLEGAL_STATE, "cuStreamBeginCapture: %s is being captured", stream->name.c_str());
    auto c = std::make_shared<Capture>();
    c->mode = mode;
    c->origin = stream;
    c->thread = this_thread().number;
    stream->capture = c;
    state().captures.push_back(c);
  });
}

CUresult CUDAAPI cuStreamEndCapture(CUstream handle, CUgraph* out) {
  return on_context("cuStreamEndCapture", [&](Context& context) {
    check_pointer(out, "cuStreamEndCapture", "the pointer for the graph");
    *out = nullptr;
    auto stream = stream_of(context, handle);
    auto c = stream->capture;
    if (!c) fail(CUDA_ERROR_ILLEGAL_STATE, "cuStreamEndCapture: %s is not being captured", stream->name.c_str());
    if (c->origin != stream)
      fail(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "cuStreamEndCapture: the capture began in %s, not in %s",
           c->origin->name.c_str(), stream->name.c_str());
    if (c->thread != this_thread().number && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED)
      fail(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "cuStreamEndCapture: the capture was begun by another thread");
    const std::set<int> tails = stream->tails;
    end_capture(c);
    if (!c->invalid.empty()) fail(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "cuStreamEndCapture: %s", c->invalid.c_str());
    for (int node : leaves(*c->graph))
      if (!tails.count(node))
        fail(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "cuStreamEndCapture: %s does not wait for %s, which another stream did",
             stream->name.c_str(), (*c->graph)[size_t(node)].work.name.c_str());
    *out = state().graphs.add<CUgraph>(c->graph);
  });
}

CUresult CUDAAPI cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  return on_context("cuStreamIsCapturing", status, "the pointer for the status", [&](Context& context) {
    auto stream = stream_of(context, handle);
    return !stream->capture ? CU_STREAM_CAPTURE_STATUS_NONE
           : stream->capture->invalid.empty() ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  });
}

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return on_driver("cuThreadExchangeStreamCaptureMode", [&] {
    check_pointer(mode, "cuThreadExchangeStreamCaptureMode", "the pointer for the mode");
    std::swap(*mode, this_thread().capture_mode);
  });
}

CUresult CUDAAPI cuGraphDestroy(CUgraph handle) {
  return on_driver("cuGraphDestroy", [&] { state().graphs.remove(handle); });
}

/// Only the number of nodes, which have no handles here.
CUresult CUDAAPI cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  return on_driver("cuGraphGetNodes", count, "the pointer for the number", [&] {
    if (nodes) fail(CUDA_ERROR_NOT_SUPPORTED, "cuGraphGetNodes: the simulated device only counts nodes; nodes must be null");
    return state().graphs.find(handle)->size();
  });
}

CUresult CUDAAPI cuGraphInstantiate(CUgraphExec* out, CUgraph graph, unsigned long long) {
  return on_context("cuGraphInstantiateWithFlags", out, "the pointer for the executable graph", [&](Context&) {
    auto exec = std::make_shared<Exec>();
    exec->graph = std::make_shared<Graph>(*state().graphs.find(graph));
    for (size_t i = 0; i < exec->graph->size(); ++i) exec->lanes.push_back(new_lane());
    return state().execs.add<CUgraphExec>(exec);
  });
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  return on_context("cuGraphLaunch", [&](Context& context) {
    auto graph = state().execs.find(exec);
    launch(*graph, *stream_of(context, stream));
  });
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec handle) {
  return on_driver("cuGraphExecDestroy", [&] { state().execs.remove(handle); });
}

}  // extern "C"
