// SPDX-License-Identifier: Apache-2.0
// Any bytes, as YAML and as JSON: a spec or faults with places. A spec that is accepted compiles or
// says why not.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "agent/policy/compile.h"
#include "agent/policy/reload.h"
#include "agent/policy/spec.h"

namespace {

using namespace mapgate::policy;

void require(bool condition) {
  if (!condition) std::abort();
}

void check_errors(const std::vector<SpecError>& errors) {
  require(!errors.empty() && errors.size() <= kMaxSpecErrors + 1);
  for (const SpecError& error : errors)
    require(error.line > 0 && error.column > 0 && !error.reason.empty());
}

void check_spec(const Spec& spec) {
  Allocations allocations;
  const auto policy =
      compile(spec, allocations, {.addresses = 0, .prefixes = 1, .ports = 2, .workloads = 3});
  if (!policy) return;
  const auto again = plan_reload(*policy, *policy, spec.node.maps);
  require(again && again->split.empty() && again->widen.empty() && again->narrow.empty() &&
          again->merge.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const SpecFormat format : {SpecFormat::kYaml, SpecFormat::kJson}) {
    const auto spec = parse_spec(text, format, "fuzz");
    if (spec) {
      check_spec(*spec);
    } else {
      check_errors(spec.error());
    }
  }
  return 0;
}
