// The arguments of a call, by position or by name.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "text/jinja/value.h"

namespace sluice::text::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at `index` (from 0) or called `name`; null when it is left out.
  const Value* Get(size_t index, absl::string_view name) const {
    if (index < positional.size()) return &positional[index];
    for (const auto& [given, value] : named) {
      if (given == name) return &value;
    }
    return nullptr;
  }
};

// An error when there are more by position than `names`, or others by name.
absl::Status CheckArguments(const Arguments& arguments, absl::string_view callee,
                            std::initializer_list<absl::string_view> names, const Context& context);

}  // namespace sluice::text::jinja
