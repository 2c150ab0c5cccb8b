// cuDNN's graph interface (cudnnBackend...) for convolutions, as NVIDIA's header describes it: part of fake_cudnn.cpp.
//
// Each descriptor has a table of its attributes: what is set is checked for type, number and order, and what is finalized for what is
// missing and what does not fit together. What is wrong is said on standard error and is status 2000. Numbers are written down again
// here, so that a slip in minicaffe's shows.
//
// Of an operation graph the heuristic lists the engines of FAKE_OFFERS, "number/notes/workspace/microseconds/status of making/status of
// executing;...", where a note is T (tensor cores), N (not deterministic) or D (inputs rounded). Graphs with beta 1 or a bias get numbers
// from 100 on and take half the time, or FAKE_WHOLE times it. FAKE_NONE names what has no engines: "instant", "fallback", "beta", "bias", "nhwc".
// The time goes by on a clock of its own, fake_clock(); with FAKE_SLEEP in the world, too.
#pragma once
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>

namespace graph {

enum { HANDLE, DATA_TYPE, BOOLEAN, INT64, FLOAT, DOUBLE, POINTER, CONV_MODE, HEUR_MODE, NOTE = 11, POINTWISE_MODE = 14, NODE = 15, REAL = 99 };
enum { POINTWISE, CONVOLUTION, ENGINE, SETTINGS, HEURISTIC, PLAN, FORWARD = 10, WEIGHTS, DATA, ADD, GRAPH = 15, PACK, TENSOR, OPERATION = 98 };
const std::map<int, const char*> kNames = {
    {POINTWISE, "pointwise"}, {CONVOLUTION, "convolution"}, {ENGINE, "engine"}, {SETTINGS, "settings"}, {HEURISTIC, "heuristic"},
    {PLAN, "plan"}, {FORWARD, "forward"}, {WEIGHTS, "weights"}, {DATA, "data"}, {ADD, "add"}, {GRAPH, "graph"}, {PACK, "pack"},
    {TENSOR, "tensor"}};

struct Rule {
  int attribute, type, most, nested;  // how many values at most; the kind of descriptors
  bool optional;
};
const std::map<int, std::vector<Rule>> kRules = {
    {POINTWISE, {{0, POINTWISE_MODE, 1}, {1, DATA_TYPE, 1}}},
    {CONVOLUTION, {{100, DATA_TYPE, 1}, {101, CONV_MODE, 1}, {102, INT64, 8}, {103, INT64, 8}, {104, INT64, 8}, {105, INT64, 8}, {106, INT64, 1}}},
    {ENGINE, {}},
    {SETTINGS, {}},
    {HEURISTIC, {{200, HEUR_MODE, 1}, {201, NODE, 1, GRAPH}}},
    {PLAN, {{400, HANDLE, 1}, {401, NODE, 1, SETTINGS}}},
    {FORWARD, {{700, REAL, 1}, {701, REAL, 1}, {702, NODE, 1, CONVOLUTION}, {703, NODE, 1, TENSOR}, {704, NODE, 1, TENSOR}, {705, NODE, 1, TENSOR}}},
    {DATA, {{706, REAL, 1}, {707, REAL, 1}, {708, NODE, 1, CONVOLUTION}, {709, NODE, 1, TENSOR}, {710, NODE, 1, TENSOR}, {711, NODE, 1, TENSOR}}},
    {WEIGHTS, {{712, REAL, 1}, {713, REAL, 1}, {714, NODE, 1, CONVOLUTION}, {715, NODE, 1, TENSOR}, {716, NODE, 1, TENSOR}, {717, NODE, 1, TENSOR}}},
    {ADD, {{750, NODE, 1, POINTWISE}, {751, NODE, 1, TENSOR}, {752, NODE, 1, TENSOR}, {753, NODE, 1, TENSOR}}},
    {GRAPH, {{800, HANDLE, 1}, {801, NODE, 9, OPERATION}}},
    {PACK, {{1000, INT64, 9}, {1001, POINTER, 9}, {1003, POINTER, 1}}},
    {TENSOR, {{900, INT64, 1}, {901, DATA_TYPE, 1}, {902, INT64, 8}, {903, INT64, 8}, {906, INT64, 1}, {907, BOOLEAN, 1, 0, true}}}};

struct Offer {
  int engine = 0;
  std::string notes;
  long long workspace = 0, microseconds = 0, make = 0, run = 0;
};
struct Node;
using Shared = std::shared_ptr<Node>;
struct Values {
  int type;
  std::vector<int64_t> ints;
  std::vector<double> reals;
  std::vector<void*> pointers;
  std::vector<Shared> nodes;
};
struct Node {
  int kind;
  bool done = false;
  std::map<int, Values> values;
  Offer offer;                // of settings and engines
  std::vector<Offer> offers;  // of a heuristic
  Shared graph;               // of settings

  const std::vector<int64_t>& ints(int attribute) const { return values.at(attribute).ints; }
  int64_t number(int attribute) const { return ints(attribute).at(0); }
  double real(int attribute) const { return values.at(attribute).reals.at(0); }
  const Node& node(int attribute) const { return *values.at(attribute).nodes.at(0); }
  bool is_virtual() const { return values.count(907) && number(907); }
};

std::mutex mutex;
std::map<void*, Shared> live;
std::atomic<long long> clock{0};  // microseconds
std::atomic<int> calls{0}, fail_at{-1}, fail_status{0}, busy{0};

Shared find(void* handle) {
  auto at = live.find(handle);
  require(at != live.end(), "a descriptor that is not there, or no longer");
  return at->second;
}
std::string list(const std::vector<int64_t>& values) {
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i) text += (i ? "," : "") + std::to_string(values[i]);
  return text + "]";
}

/// Run work() as the call `name` on a descriptor of `kind`; the handle serves one thread at a time.
template <class Work> int guarded(const char* name, int kind, const Work& work) {
  const bool alone = busy++ == 0;
  std::lock_guard<std::mutex> lock(mutex);
  const std::string full = std::string(name) + " " + (kNames.count(kind) ? kNames.at(kind) : "nothing");
  const int status = checked(full.c_str(), 2000, [&] {
    require(alone, "two threads at once");
    if (calls++ == fail_at && fail_status) return int(fail_status);
    for (const std::string& call : {std::string(name), full})
      if (int code = failing(call)) return code;
    return work();
  });
  --busy;
  return status;
}
int kind_of(void* handle) {
  std::lock_guard<std::mutex> lock(mutex);
  auto at = live.find(handle);
  return at == live.end() ? -1 : at->second->kind;
}

size_t size_of(int type) { return type == BOOLEAN ? 1 : type == INT64 || type == DOUBLE || type == HANDLE || type == POINTER || type == NODE ? 8 : 4; }

void set(Node& node, int attribute, int type, int64_t count, const void* from) {
  require(!node.done, "set after it was finalized");
  const auto& rules = kRules.at(node.kind);
  auto rule = std::find_if(rules.begin(), rules.end(), [&](const Rule& r) { return r.attribute == attribute; });
  require(rule != rules.end(), "has no attribute " + std::to_string(attribute) + " to set");
  require(rule->type == type || (rule->type == REAL && (type == FLOAT || type == DOUBLE)), "type of attribute " + std::to_string(attribute));
  require(count >= 1 && count <= rule->most && from, "number of values of attribute " + std::to_string(attribute));
  Values values = {type};
  for (int64_t i = 0; i < count; ++i) {
    const char* at = static_cast<const char*>(from) + i * size_of(type);
    if (type == FLOAT) values.reals.push_back(*(const float*)at);
    else if (type == DOUBLE) values.reals.push_back(*(const double*)at);
    else if (type == INT64) values.ints.push_back(*(const int64_t*)at);
    else if (type == BOOLEAN) values.ints.push_back(*(const bool*)at);
    else if (type == HANDLE || type == POINTER) values.pointers.push_back(*(void* const*)at);
    else if (type != NODE) values.ints.push_back(*(const int*)at);
    else {
      Shared other = find(*(void* const*)at);
      const int kind = other->kind;
      require(kind == rule->nested || (rule->nested == OPERATION && kind >= FORWARD && kind <= ADD),
              std::string("takes no ") + kNames.at(kind) + " as attribute " + std::to_string(attribute));
      require(other->done, std::string("is given a ") + kNames.at(kind) + " that is not finalized");
      values.nodes.push_back(other);
    }
    if (type == HANDLE) require(values.pointers.back() == (void*)0x1234, "no handle");
  }
  node.values[attribute] = values;
}

/// The convolution of an operation: attributes are alpha, beta, convolution, w, x, y from here on.
int first_of(int kind) { return kind == FORWARD ? 700 : kind == DATA ? 706 : 712; }

void check_operation(const Node& op) {
  const int at = first_of(op.kind);
  const Node &conv = op.node(at + 2), &w = op.node(at + 3), &x = op.node(at + 4), &y = op.node(at + 5);
  const int64_t axes = conv.number(106), type = conv.number(100);
  require(op.values.at(at).type == (type == 1 ? DOUBLE : FLOAT) && op.values.at(at + 1).type == op.values.at(at).type, "type of alpha and beta");
  for (const Node* tensor : {&w, &x, &y}) {
    require(int64_t(tensor->ints(902).size()) == axes + 2, "a tensor does not have the axes of the convolution");
    const bool rounded = tensor->number(901) == 9 && type == 0;  // bfloat16, added up in float
    require(tensor->number(901) == type || rounded, "a tensor of another type than the convolution");
  }
  const bool gradient = op.kind == WEIGHTS;
  require(x.number(901) == y.number(901) || y.is_virtual(), "types of image and columns");
  require(w.number(901) == x.number(901) || (gradient && w.number(901) == 0), "type of the weights");
  const auto &dw = w.ints(902), &dx = x.ints(902), &dy = y.ints(902);
  require(std::set<int64_t>{w.number(906), x.number(906), y.number(906)}.size() == 3, "unique identifiers that are not unique");
  require(dx[0] == dy[0] && dy[1] == dw[0] && dx[1] % dw[1] == 0 && dy[1] % (dx[1] / dw[1]) == 0, "channels that do not fit");
  for (int64_t a = 0; a < axes; ++a) {
    int64_t room = dx[2 + a] + conv.ints(105)[a] + conv.ints(104)[a] - conv.ints(102)[a] * (dw[2 + a] - 1) - 1;
    require(room >= 0 && dy[2 + a] == room / conv.ints(103)[a] + 1, "sizes that do not fit");
  }
}

/// The tensors of a graph by their unique identifiers.
std::map<int64_t, const Node*> tensors_of(const Node& graph) {
  std::map<int64_t, const Node*> found;
  for (const Shared& op : graph.values.at(801).nodes)
    for (const auto& entry : op->values)
      for (const Shared& node : entry.second.nodes)
        if (node->kind == TENSOR) {
          const Node*& other = found[node->number(906)];
          require(!other || (other->ints(902) == node->ints(902) && other->is_virtual() == node->is_virtual()), "two tensors with one identifier");
          other = node.get();
        }
  return found;
}
bool biased(const Node& graph) { return graph.values.at(801).nodes.size() > 1; }
bool adds(const Node& graph) {
  const Node& op = *graph.values.at(801).nodes[0];
  return op.real(first_of(op.kind) + 1) != 0;
}

std::vector<Offer> offers_of(const Node& graph, int64_t mode) {
  auto word = [](const char* name, const char* other) { return std::string(std::getenv(name) ? std::getenv(name) : other); };
  const std::string none = word("FAKE_NONE", "");
  auto lacks = [&](const char* what) { return none.find(what) != std::string::npos; };
  std::vector<Offer> offers;
  const Node& product = *graph.values.at(801).nodes[0];
  if (lacks("nhwc") && product.node(first_of(product.kind) + 4).ints(903)[1] == 1) return offers;
  if ((lacks("beta") && adds(graph)) || (lacks("bias") && biased(graph)) || (mode == 0 && lacks("instant")) || (mode == 2 && lacks("fallback")))
    return offers;
  // The first is not the fastest; 13 needs more memory than there is, 14 cannot be made.
  std::istringstream all(mode == 2 ? "30//0/1000/0/0" : word("FAKE_OFFERS",
      "10//4096/4000/0/0;11/N/1048576/1200/0/0;13//1125899906842624/1/0/0;14//0/1/3000/0;12/T/524288/400/0/0;15//0/8000/0/0;16/D/0/1/0/0"));
  const bool whole = adds(graph) || biased(graph);
  for (std::string one, field; std::getline(all, one, ';');) {
    std::istringstream fields(one);
    Offer offer;
    long long* const numbers[] = {&offer.workspace, &offer.microseconds, &offer.make, &offer.run};
    std::getline(fields, field, '/'), offer.engine = std::stoi(field) + (whole ? 100 : 0);
    std::getline(fields, offer.notes, '/');
    for (long long* number : numbers) std::getline(fields, field, '/'), *number = std::stoll(field);
    if (whole) offer.microseconds = (long long)(double(offer.microseconds) * std::stod(word("FAKE_WHOLE", "0.5")));
    offers.push_back(offer);
  }
  return offers;
}

int finalize(Node& node) {
  require(!node.done, "is finalized twice");
  require(node.kind != ENGINE && node.kind != SETTINGS, "is only read here");
  for (const Rule& rule : kRules.at(node.kind))
    require(rule.optional || node.values.count(rule.attribute), "lacks attribute " + std::to_string(rule.attribute));
  if (node.kind == TENSOR) {
    const auto &dims = node.ints(902), &strides = node.ints(903);
    require(dims.size() == strides.size() && dims.size() >= 4, "dimensions and strides");
    for (int64_t number : dims) require(number > 0, "a dimension below 1");
    for (int64_t number : strides) require(number > 0, "a stride below 1");
    require(node.number(900) % (node.number(901) == 1 ? 8 : node.number(901) == 9 ? 2 : 4) == 0, "alignment");
  } else if (node.kind == CONVOLUTION) {
    for (int a = 102; a <= 105; ++a) require(int64_t(node.ints(a).size()) == node.number(106), "values for each axis");
  } else if (node.kind >= FORWARD && node.kind <= DATA) {
    check_operation(node);
  } else if (node.kind == ADD) {
    const auto &x = node.node(751).ints(902), &b = node.node(752).ints(902);
    require(x == node.node(753).ints(902) && x.size() == b.size() && b[1] == x[1], "shapes of an addition");
  } else if (node.kind == GRAPH) {
    const auto& ops = node.values.at(801).nodes;
    for (const auto& entry : tensors_of(node))
      require(entry.second->is_virtual() == (ops.size() > 1 && &ops[0]->node(705) == entry.second), "only the sum in between is virtual");
  } else if (node.kind == HEURISTIC) {
    require(node.number(200) == 0 || node.number(200) == 2, "mode of the heuristic");
    call("cudnnBackendFinalize", "kind", quoted("heuristic"), "mode", show(int(node.number(200))));
    node.offers = offers_of(node.node(201), node.number(200));
  } else if (node.kind == PLAN) {
    const Offer& offer = node.node(401).offer;
    require(slow::may_load(), "is made, which loads kernels, during a graph capture whose mode is not relaxed");
    call("cudnnBackendFinalize", "kind", quoted("plan"), "engine", show(offer.engine));
    if (offer.make) return int(offer.make);
  } else if (node.kind == PACK) {
    const auto& uids = node.ints(1000);
    require(uids.size() == node.values.at(1001).pointers.size(), "a pointer for each identifier");
    require(std::set<int64_t>(uids.begin(), uids.end()).size() == uids.size(), "unique identifiers that are not unique");
    for (void* pointer : node.values.at(1001).pointers) require(pointer, "a null pointer");
  }
  node.done = true;
  return 0;
}

int get(const Node& node, int attribute, int type, int64_t asked, int64_t* count, void* to) {
  require(node.done, "is read before it is finalized");
  require(count && (to || !asked), "no place for the values");
  auto fill = [&](int kind, int64_t i) {
    Shared other = find(static_cast<void**>(to)[i]);
    require(other->kind == kind && !other->done, "a place that is no new descriptor of its kind");
    other->done = true;
    return other;
  };
  if (node.kind == HEURISTIC && attribute == 202 && type == NODE) {
    *count = int64_t(node.offers.size());
    for (int64_t i = 0; i < std::min(asked, *count); ++i) {
      Shared settings = fill(SETTINGS, i);
      settings->offer = node.offers[size_t(i)], settings->graph = node.values.at(201).nodes[0];
    }
  } else if (node.kind == SETTINGS && attribute == 300 && type == NODE && asked == 1) {
    fill(ENGINE, 0)->offer = node.offer;
    *count = 1;
  } else if (node.kind == ENGINE && attribute == 1301 && type == INT64 && asked == 1) {
    *static_cast<int64_t*>(to) = node.offer.engine, *count = 1;
  } else if (node.kind == ENGINE && attribute == 1303 && type == NOTE) {
    *count = int64_t(node.offer.notes.size());
    for (int64_t i = 0; i < std::min(asked, *count); ++i)
      static_cast<int*>(to)[i] = node.offer.notes[size_t(i)] == 'T' ? 0 : node.offer.notes[size_t(i)] == 'D' ? 1 : 4;
  } else if (node.kind == PLAN && attribute == 402 && type == INT64 && asked == 1) {
    *static_cast<int64_t*>(to) = node.node(401).offer.workspace, *count = 1;
  } else {
    require(false, "attribute " + std::to_string(attribute) + " cannot be read so");
  }
  return 0;
}

/// The array of a tensor in the order of its dimensions.
struct Array {
  slow::Tensor memory;  // from the first element to the last
  slow::Shape shape;
  std::vector<size_t> places;

  explicit Array(const Node& tensor) {
    const auto &dims = tensor.ints(902), &strides = tensor.ints(903);
    size_t extent = 1;
    for (size_t a = 0; a < dims.size(); ++a) shape.push_back(int(dims[a])), extent += size_t((dims[a] - 1) * strides[a]);
    for (size_t i = 0; i < slow::count(shape); ++i) {
      size_t rest = i, place = 0;
      for (size_t a = dims.size(); a-- > 0; rest /= size_t(dims[a])) place += rest % size_t(dims[a]) * size_t(strides[a]);
      places.push_back(place);
    }
    require(std::set<size_t>(places.begin(), places.end()).size() == places.size(), "strides by which elements lie on each other");
    memory = {{int(extent)}, int(tensor.number(901))};
  }
  slow::Values read(const void* p) const {
    const slow::Values all = memory.read(p);
    slow::Values values;
    for (size_t place : places) values.push_back(all[place]);
    return values;
  }
  void write(void* p, const slow::Values& values) const {
    slow::Values all = memory.shape[0] == int(places.size()) ? slow::Values(places.size()) : memory.read(p);
    for (size_t i = 0; i < places.size(); ++i) all[places[i]] = values[i];
    memory.write(p, all);
  }
};

int execute(void* handle, const Node& plan, const Node& pack) {
  require(handle == (void*)0x1234, "no handle");
  require(plan.kind == PLAN && plan.done && pack.kind == PACK && pack.done, "a plan and a pack, both finalized");
  const Node& settings = plan.node(401);
  const Node& graph = *settings.graph;
  const Node& op = *graph.values.at(801).nodes[0];
  const int at = first_of(op.kind);
  const Node &conv = op.node(at + 2), &w = op.node(at + 3), &x = op.node(at + 4);
  const Node& y = biased(graph) ? graph.values.at(801).nodes[1]->node(753) : op.node(at + 5);
  std::map<int64_t, void*> bound;
  for (size_t i = 0; i < pack.ints(1000).size(); ++i) bound[pack.ints(1000)[i]] = pack.values.at(1001).pointers[i];
  size_t in_memory = 0;
  for (const auto& entry : tensors_of(graph)) {
    if (entry.second->is_virtual()) continue;
    ++in_memory;
    require(bound.count(entry.first), "tensor " + std::to_string(entry.first) + " is not bound");
    require(size_t(bound.at(entry.first)) % size_t(entry.second->number(900)) == 0, "an array that is less aligned than was said");
  }
  require(in_memory == bound.size(), "more arrays than the graph has");
  void* workspace = pack.values.at(1003).pointers[0];
  require(workspace || !settings.offer.workspace, "no workspace");
  require(size_t(workspace) % 16 == 0, "a workspace that is not aligned");
  const Node* bias = biased(graph) ? &graph.values.at(801).nodes[1]->node(752) : nullptr;
  auto tensor = [&](const Node& node) {
    return quoted(show(int(node.number(901))) + " " + list(node.ints(902)) + " " + list(node.ints(903)) + " " + show(int(node.number(900))));
  };
  auto place = [&](const Node* node) { return node ? show((const void*)bound.at(node->number(906))) : show(0); };
  int status = call("cudnnBackendExecute", "product", quoted(kNames.at(op.kind)), "engine", show(settings.offer.engine), "x", tensor(x), "w", tensor(w),
                    "y", tensor(y), "px", place(&x), "pw", place(&w), "py", place(&y), "pbias", place(bias), "alpha", show(op.real(at)),
                    "beta", show(op.real(at + 1)), "conv", quoted("pad " + list(conv.ints(105)) + " " + list(conv.ints(104)) + " stride " +
                    list(conv.ints(103)) + " dilation " + list(conv.ints(102)) + " mode " + show(int(conv.number(101))) + " type " +
                    show(int(conv.number(100)))), "workspace", show((const void*)workspace), "bytes", show(size_t(settings.offer.workspace)),
                    "live", show(int(live.size())));
  if (!status) status = int(settings.offer.run);
  if (!status) clock += settings.offer.microseconds;
  if (!status && std::getenv("FAKE_SLEEP")) usleep(useconds_t(settings.offer.microseconds));
  // The nodes live as long as their graph.
  return computed(status, [graph = settings.graph, &op, &conv, &w, &x, &y, bias, bound, workspace, bytes = settings.offer.workspace, at] {
    if (workspace) std::memset(workspace, 0xff, size_t(bytes));  // all of it is there, and no code relies on what it held: NaN
    const Array image(x), weights(w), columns(y);
    auto at_node = [&](const Node& node) { return bound.at(node.number(906)); };
    auto ints = [](const std::vector<int64_t>& values) { return slow::Shape(values.begin(), values.end()); };
    const Node& result = op.kind == FORWARD ? y : op.kind == DATA ? x : w;
    const Array& to = op.kind == FORWARD ? columns : op.kind == DATA ? image : weights;
    const slow::Values none;
    const slow::Values vx = op.kind == DATA ? none : image.read(at_node(x)), vw = op.kind == WEIGHTS ? none : weights.read(at_node(w)),
                       vy = op.kind == FORWARD ? none : columns.read(at_node(y));
    slow::Values out(to.places.size());
    slow::convolve(image.shape, weights.shape, columns.shape, ints(conv.ints(105)), ints(conv.ints(103)), ints(conv.ints(102)),
                   int(x.ints(902)[1] / w.ints(902)[1]), [&](size_t i, size_t t, size_t o) {
                     if (op.kind == FORWARD) out[o] += vx[i] * vw[t];
                     else if (op.kind == DATA) out[i] += vw[t] * vy[o];
                     else out[t] += vx[i] * vy[o];
                   });
    const double alpha = op.real(at), beta = op.real(at + 1);
    const slow::Values old = beta ? to.read(at_node(result)) : none;
    const slow::Values shift = bias ? Array(*bias).read(at_node(*bias)) : none;
    const size_t inner = slow::count(to.shape) / size_t(to.shape[0]) / size_t(to.shape[1]);
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = alpha * out[i] + (beta ? beta * old[i] : 0) + (bias ? shift[i / inner % size_t(to.shape[1])] : 0);
    to.write(at_node(result), out);
  });
}

}  // namespace graph

extern "C" {

int fake_live() { return int(graph::live.size()); }
int fake_calls() { return graph::calls; }
long long fake_clock() { return graph::clock; }
/// Let the backend call number `call` from now on return `status`.
void fake_fail_at(int call, int status) { graph::fail_status = status, graph::fail_at = graph::calls + call; }

int cudnnBackendCreateDescriptor(int kind, void** made) {
  return graph::guarded("cudnnBackendCreateDescriptor", kind, [&] {
    require(graph::kRules.count(kind), "is no descriptor of a convolution");
    auto node = std::make_shared<graph::Node>();
    node->kind = kind;
    *made = node.get(), graph::live[*made] = node;
    return 0;
  });
}
int cudnnBackendDestroyDescriptor(void* node) {
  std::lock_guard<std::mutex> lock(graph::mutex);
  if (!graph::live.erase(node)) std::fprintf(stderr, "the slow cuDNN: a descriptor is destroyed twice\n");
  return 0;
}
int cudnnBackendSetAttribute(void* node, int attribute, int type, int64_t count, const void* values) {
  return graph::guarded("cudnnBackendSetAttribute", graph::kind_of(node), [&] { return graph::set(*graph::find(node), attribute, type, count, values), 0; });
}
int cudnnBackendGetAttribute(void* node, int attribute, int type, int64_t asked, int64_t* count, void* values) {
  return graph::guarded("cudnnBackendGetAttribute", graph::kind_of(node), [&] { return graph::get(*graph::find(node), attribute, type, asked, count, values); });
}
int cudnnBackendFinalize(void* node) {
  return graph::guarded("cudnnBackendFinalize", graph::kind_of(node), [&] { return graph::finalize(*graph::find(node)); });
}
int cudnnBackendExecute(void* handle, void* plan, void* pack) {
  return graph::guarded("cudnnBackendExecute", graph::kind_of(plan), [&] { return graph::execute(handle, *graph::find(plan), *graph::find(pack)); });
}
}
