// MINICAFFE_SIM: settings, planned failures, the report and the list of what was not given back. Separated by commas:
//   devices=N        how many (1)
//   peers=0-1,1-2    pairs of devices that can have access to each other's memory (none); nothing after = means none again
//   memory=SIZE      of each (4GiB)
//   capability=M.N   the compute capability of each (9.0)
//   fail=CALL:N      the N-th call of CALL from now on fails: an allocation for lack of memory, others with
//                    CUDA_ERROR_UNKNOWN
//   fail=CALL:N:CODE the same with that code
//   race=1           two streams that touch the same bytes, neither waiting for the other, are an error. Kernels count with
//                    whole allocations, so a pool that puts many blobs into one allocation makes false alarms
//   uninitialized=1  what a copy brings to the host must have been written, and what a kernel reads must not be an allocation
//                    to which nothing was ever written. A kernel's reads of unwritten parts of one are not seen
//   leak=1           what is not given back is listed on stderr, at the context's end or the process's
//   deferred=1       work waits until somebody waits for it, so a host that does not wait sees old values
//   report=1         counts of launches, copies and allocations on stderr at the end
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "sim.hpp"

namespace mcsim {
namespace {

constexpr std::pair<const char*, bool Settings::*> kFlags[] = {
    {"race", &Settings::race}, {"uninitialized", &Settings::uninitialized}, {"leak", &Settings::leak},
    {"deferred", &Settings::deferred}, {"report", &Settings::report}};

[[noreturn]] void ill_formed(const std::string& setting, const char* rule) {
  fail(CUDA_ERROR_INVALID_VALUE, "MINICAFFE_SIM: '%s': %s", setting.c_str(), rule);
}

bool parse_number(const std::string& text, unsigned long long* value, std::string* rest) {
  if (text.empty() || text[0] < '0' || text[0] > '9' || text.size() > 18) return false;
  char* end;
  *value = strtoull(text.c_str(), &end, 10);
  *rest = end;
  return true;
}

/// 4096, 64K, 512MiB, 2GB: all in powers of 1024.
size_t parse_size(const std::string& setting, const std::string& text) {
  unsigned long long value;
  std::string rest;
  int shift = -1;
  if (parse_number(text, &value, &rest)) {
    if (rest.empty() || rest == "B") shift = 0;
    const std::string units = "KMGT";
    size_t unit = rest.empty() ? std::string::npos : units.find(rest[0]);
    if (unit != std::string::npos && (rest.size() == 1 || rest.substr(1) == "B" || rest.substr(1) == "iB"))
      shift = 10 * int(unit + 1);
  }
  if (shift < 0 || !value || value > (1ull << 36 >> shift))
    ill_formed(setting, "a size is a number up to 64GiB with K, M or G (or KiB, MiB, GiB)");
  return size_t(value) << shift;
}

/// CALL:N or CALL:N:CODE
void parse_failure(const std::string& setting, const std::string& text) {
  size_t first = text.find(':'), second = first == std::string::npos ? first : text.find(':', first + 1);
  std::string call = text.substr(0, first), rest;
  Planned planned = {0, call.find("Alloc") != std::string::npos ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN};
  if (first == std::string::npos) ill_formed(setting, "must be fail=CALL:N or fail=CALL:N:CODE");
  if (!is_entry_point(call)) ill_formed(setting, "the simulated driver has no such call");
  size_t length = second == std::string::npos ? second : second - first - 1;
  if (!parse_number(text.substr(first + 1, length), &planned.in, &rest) || !rest.empty() || !planned.in)
    ill_formed(setting, "N must be a number from 1");
  if (second != std::string::npos && (!error_code(text.substr(second + 1), &planned.code) || planned.code == CUDA_SUCCESS))
    ill_formed(setting, "the code must be a name such as CUDA_ERROR_NOT_SUPPORTED");
  state().planned[call] = planned;
}

/// A-B, two devices
bool parse_pair(const std::string& text, std::set<std::pair<int, int>>* pairs) {
  if (text.size() != 3 || text[0] < '0' || text[0] > '7' || text[1] != '-' || text[2] < '0' || text[2] > '7' || text[0] == text[2])
    return false;
  pairs->insert({text[0] - '0', text[2] - '0'});
  pairs->insert({text[2] - '0', text[0] - '0'});
  return true;
}

void parse(Settings& settings, const std::string& setting) {
  size_t equals = setting.find('=');
  std::string key = setting.substr(0, equals), value = equals == std::string::npos ? "" : setting.substr(equals + 1);
  if (key == "devices") {
    unsigned long long count;
    std::string rest;
    if (!parse_number(value, &count, &rest) || !rest.empty() || count > 8) ill_formed(setting, "must be 0 to 8");
    if (state().initialized && int(count) != settings.devices) ill_formed(setting, "cannot change after cuInit");
    settings.devices = int(count);
  } else if (key == "peers" && equals != std::string::npos) {
    settings.peers.clear();
    if (!value.empty() && !parse_pair(value, &settings.peers))
      ill_formed(setting, "must be pairs of different devices such as 0-1,1-2");
  } else if (equals == std::string::npos && !settings.peers.empty() && parse_pair(setting, &settings.peers)) {
    // a further pair of peers=
  } else if (key == "memory") {
    size_t size = parse_size(setting, value);
    if (state().initialized)
      for (auto& device : state().devices)
        if (size > device->range / 2) ill_formed(setting, "cannot grow so far after cuInit");
    settings.memory = size;
  } else if (key == "capability") {
    unsigned long long major;
    std::string rest;
    if (!parse_number(value, &major, &rest) || major > 99 || rest.size() != 2 || rest[0] != '.' || rest[1] < '0' || rest[1] > '9')
      ill_formed(setting, "must be a compute capability such as 7.5");
    settings.capability = 10 * int(major) + rest[1] - '0';
  } else if (key == "fail") {
    parse_failure(setting, value);
  } else {
    for (auto [name, flag] : kFlags)
      if (key == name) {
        if (value != "0" && value != "1") ill_formed(setting, "must be 0 or 1");
        settings.*flag = value == "1";
        return;
      }
    ill_formed(setting, "unknown; known are devices, peers, memory, capability, fail, race, uninitialized, leak, deferred, report");
  }
}

/// Settings not named stay as they are; after an error none has changed but planned failures.
void configure(const std::string& text) {
  Settings settings = state().settings;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(text.find(',', begin), text.size());
    if (end > begin) parse(settings, text.substr(begin, end - begin));
    begin = end + 1;
  }
  state().settings = settings;
}

}  // namespace

/// Once, so that a planned failure of cuInit is counted and not planned anew; an ill-formed setting fails each time.
void configure_from_environment() {
  static bool done = false;
  if (done) return;
  const char* text = getenv("MINICAFFE_SIM");
  configure(text ? text : "");
  done = true;
}

void strike_planned(const char* call) {
  if (state().planned.empty()) return;
  auto found = state().planned.find(call);
  if (found == state().planned.end() || --found->second.in) return;
  CUresult code = found->second.code;
  state().planned.erase(found);
  fail(code, "%s: made to fail by MINICAFFE_SIM", call);
}

std::string report() {
  std::string text = "minicaffe simulated device: report\n";
  for (auto& d : state().devices)
    text += print("  device %d: %llu allocations, %zu bytes at most, %zu now, %zu in all\n", d->ordinal, d->allocations,
                  d->peak, d->used, state().settings.memory);
  for (auto& c : state().counters.copies)
    text += print("  %-16s %10llu times %16llu bytes\n", c.first.c_str(), c.second.count, c.second.bytes);
  for (auto& k : state().counters.kernels)
    text += print("  kernel %s: %llu launches, %llu threads\n", k.first.c_str(), k.second.launches, k.second.threads);
  return text;
}

/// On stderr, what the context still holds.
void report_leaks(Context& context) {
  std::string text;
  for (auto& entry : context.device->live) text += "  " + entry.second->text() + "\n";
  for (auto& entry : state().pinned)
    if (entry.second.context == &context)
      text += print("  %zu bytes of %s host memory at 0x%llx\n", entry.second.size,
                    entry.second.owned ? "pinned" : "registered", (unsigned long long)entry.first);
  auto list = [&](const char* what, const auto& handles, auto holds) {
    for (auto& entry : handles)
      if (holds(*entry.second)) text += print("  %s #%llu\n", what, (unsigned long long)entry.first);
  };
  auto in_context = [&](const auto& object) { return object.context == &context; };
  list("stream", state().streams.all(), in_context);
  list("event", state().events.all(), in_context);
  list("module", state().modules.all(), in_context);
  if (text.empty()) return;
  fprintf(stderr, "minicaffe simulated device: device %d: not given back:\n%s", context.device->ordinal, text.c_str());
}

}  // namespace mcsim

using namespace mcsim;

extern "C" {

/// Settings as in MINICAFFE_SIM, for tests, at run time.
__attribute__((visibility("default"))) CUresult mcsim_configure(const char* text) {
  std::lock_guard<std::recursive_mutex> hold(state().lock);
  return guarded([&] {
    configure_from_environment();
    configure(text ? text : "");
  });
}

/// The report into `out` of `size` bytes; the bytes it takes with its end.
__attribute__((visibility("default"))) size_t mcsim_report(char* out, size_t size) {
  std::lock_guard<std::recursive_mutex> hold(state().lock);
  std::string text = report();
  if (out && size) snprintf(out, size, "%s", text.c_str());
  return text.size() + 1;
}

}  // extern "C"
