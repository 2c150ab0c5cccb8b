// MINICAFFE_SIM: settings, planned failures, and the list of objects that were not freed. Separated by commas:
//   devices=N        how many (1)
//   peers=0-1,1-2    pairs of devices that can have access to each other's memory (none); nothing after = means none again
//   memory=SIZE      of each (4GiB)
//   capability=M.N   the compute capability of each (9.0)
//   fail=CALL:N      the N-th call of CALL from now on fails: an allocation for lack of memory, others with
//                    CUDA_ERROR_UNKNOWN
//   fail=CALL:N:CODE the same with that code
//   race=1           two streams that touch the same bytes, neither waiting for the other, are an error. Kernels count with
//                    whole allocations, so a pool that does not mark its blocks (mcsim_unpoison) makes false alarms, and with
//                    deferred=1, where nothing is marked, each pool does
//   uninitialized=1  data copied to the host must have been written, and a kernel must not read an allocation that was never
//                    written. A kernel's reads of unwritten parts of an allocation are not detected
//   leak=1           objects that were not freed are listed on stderr, at the context's end or the process's
//   deferred=1       work is delayed until a call waits for it, so a host that does not wait sees old values
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <regex>

#include "sim.hpp"

namespace mcsim {
namespace {

constexpr std::pair<const char*, bool Settings::*> kFlags[] = {
    {"race", &Settings::race}, {"uninitialized", &Settings::uninitialized}, {"leak", &Settings::leak},
    {"deferred", &Settings::deferred}};

[[noreturn]] void bad_setting(const std::string& setting, const char* rule) {
  fail(CUDA_ERROR_INVALID_VALUE, "MINICAFFE_SIM: '%s': %s", setting.c_str(), rule);
}

/// The texts of the groups of a regular expression, from index 1 on, if it matches the whole text; otherwise empty.
std::vector<std::string> matched_groups(const std::string& text, const char* expression) {
  std::smatch found;
  if (!std::regex_match(text, found, std::regex(expression))) return {};
  return {found.begin(), found.end()};
}

/// The bytes of 4096, 64K, 512MiB or 2GB, all in powers of 1024; `setting` is the whole setting, for errors.
size_t parse_size(const std::string& setting, const std::string& text) {
  auto found = matched_groups(text, "([0-9]{1,18})(?:B|([KMGT])(?:i?B)?)?");
  const size_t value = found.empty() ? 0 : std::stoull(found[1]);
  const int shift = found.empty() || found[2].empty() ? 0 : 10 * int(std::string("KMGT").find(found[2]) + 1);
  if (!value || value > (1ull << 36 >> shift))
    bad_setting(setting, "a size is a number up to 64GiB with K, M or G (or KiB, MiB, GiB)");
  return value << shift;
}

/// Plan the failure CALL:N or CALL:N:CODE, in place of the one planned for CALL.
void parse_failure(const std::string& setting, const std::string& text) {
  auto found = matched_groups(text, "([^:]*):([^:]*)(?::(.*))?");
  if (found.empty()) bad_setting(setting, "must be fail=CALL:N or fail=CALL:N:CODE");
  const std::string &call = found[1], &code = found[3];
  if (!is_entry_point(call)) bad_setting(setting, "the simulated driver has no such call");
  if (matched_groups(found[2], "0*[1-9][0-9]{0,17}").empty()) bad_setting(setting, "N must be a number from 1");
  Planned planned = {std::stoull(found[2]),
                     call.find("Alloc") != std::string::npos ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN};
  if (std::count(text.begin(), text.end(), ':') > 1 && (!error_code(code, &planned.code) || planned.code == CUDA_SUCCESS))
    bad_setting(setting, "the code must be a name such as CUDA_ERROR_NOT_SUPPORTED");
  state().planned[call] = planned;
}

/// Add the two devices of A-B to `pairs`, in both orders; false if the text is no such pair.
bool parse_pair(const std::string& text, std::set<std::pair<int, int>>* pairs) {
  auto found = matched_groups(text, "([0-7])-(?!\\1)([0-7])");
  if (found.empty()) return false;
  const int one = std::stoi(found[1]), other = std::stoi(found[2]);
  pairs->insert({{one, other}, {other, one}});
  return true;
}

/// Apply one setting, KEY=VALUE or a further pair of peers=; fail if it is ill-formed.
void parse(Settings& settings, const std::string& setting) {
  size_t equals = setting.find('=');
  std::string key = setting.substr(0, equals), value = equals == std::string::npos ? "" : setting.substr(equals + 1);
  if (key == "devices") {
    if (matched_groups(value, "0*[0-8]").empty()) bad_setting(setting, "must be 0 to 8");
    const int count = std::stoi(value);
    if (state().initialized && count != settings.devices) bad_setting(setting, "cannot change after cuInit");
    settings.devices = count;
  } else if (key == "peers" && equals != std::string::npos) {
    settings.peers.clear();
    if (!value.empty() && !parse_pair(value, &settings.peers))
      bad_setting(setting, "must be pairs of different devices such as 0-1,1-2");
  } else if (equals == std::string::npos && !settings.peers.empty() && parse_pair(setting, &settings.peers)) {
    // a further pair of peers=
  } else if (key == "memory") {
    size_t size = parse_size(setting, value);
    if (state().initialized)
      for (auto& device : state().devices)
        if (size > device->range / 2) bad_setting(setting, "cannot grow so far after cuInit");
    settings.memory = size;
  } else if (key == "capability") {
    auto found = matched_groups(value, "([0-9]{1,2})[.]([0-9])");
    if (found.empty()) bad_setting(setting, "must be a compute capability such as 7.5");
    settings.capability = 10 * std::stoi(found[1]) + std::stoi(found[2]);
  } else if (key == "fail") {
    parse_failure(setting, value);
  } else {
    for (auto [name, flag] : kFlags)
      if (key == name) {
        if (value != "0" && value != "1") bad_setting(setting, "must be 0 or 1");
        settings.*flag = value == "1";
        return;
      }
    bad_setting(setting, "unknown; known are devices, peers, memory, capability, fail, race, uninitialized, leak, deferred");
  }
}

/// Apply settings, separated by commas. Others stay as they are; after an error none has changed but planned failures.
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

/// Apply MINICAFFE_SIM, once, so that a planned failure of cuInit is not planned again; an ill-formed setting fails each time.
void configure_from_environment() {
  static bool done = false;
  if (done) return;
  const char* text = getenv("MINICAFFE_SIM");
  configure(text ? text : "");
  done = true;
}

/// Count a call of this name; fail if its turn, planned by fail=, has come. Each entry point but a few queries begins with it.
void apply_planned_failure(const char* call) {
  if (state().planned.empty()) return;
  auto found = state().planned.find(call);
  if (found == state().planned.end() || --found->second.calls_left) return;
  CUresult code = found->second.code;
  state().planned.erase(found);
  fail(code, "%s: made to fail by MINICAFFE_SIM", call);
}

/// List on stderr the memory, streams, events and modules that the context still holds, for leak=1.
void report_leaks(Context& context) {
  std::string text;
  for (auto& entry : context.device->live) text += "  " + entry.second->text() + "\n";
  for (auto& entry : state().pinned)
    if (entry.second.context == &context)
      text += formatted("  %zu bytes of pinned host memory at 0x%llx\n", entry.second.size, (unsigned long long)entry.first);
  auto list = [&](const char* what, const auto& handles, auto holds) {
    for (auto& entry : handles)
      if (holds(*entry.second)) text += formatted("  %s #%llu\n", what, (unsigned long long)entry.first);
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

/// Not in CUDA: change settings, as in MINICAFFE_SIM, at run time. Tests call it.
__attribute__((visibility("default"))) CUresult mcsim_configure(const char* text) {
  return locked([&] {
    configure_from_environment();
    configure(text ? text : "");
  });
}

/// Not in CUDA: the number of calls of one name up to the one that fails as planned; 0: none is planned, or it has failed.
__attribute__((visibility("default"))) unsigned long long mcsim_planned(const char* call) {
  std::lock_guard<std::recursive_mutex> hold(state().lock);
  auto found = state().planned.find(call);
  return found == state().planned.end() ? 0 : found->second.calls_left;
}

}  // extern "C"
