// What a request's tools say about the arguments of their calls.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "formats/json.h"

namespace sluice::text {

// Which JSON values a parameter may be: a set of bits. Empty: unknown.
enum JsonKind : uint8_t {
  kJsonNull = 1,
  kJsonBool = 2,
  kJsonInteger = 4,
  kJsonNumber = 8,
  kJsonString = 16,
  kJsonArray = 32,
  kJsonObject = 64,
};
using JsonKinds = uint8_t;

// The bit of a value.
JsonKind KindOf(const formats::JsonValue& value);

// Immutable and thread-safe.
class ToolSchemas {
 public:
  // `tools`: a list of OpenAI tools. What is malformed is as good as unknown.
  explicit ToolSchemas(const formats::JsonValue& tools);

  // What the parameter of a tool may be; 0 when the tools do not say.
  JsonKinds KindsOf(absl::string_view tool, absl::string_view parameter) const;
  // The tool that a call without a name is most likely meant for: the only one, or the first of
  // those that know most of the arguments and lack fewest of their required ones. "" when none
  // knows any.
  absl::string_view Infer(absl::Span<const absl::string_view> arguments) const;

 private:
  struct Tool {
    std::string name;
    absl::flat_hash_map<std::string, JsonKinds> parameters;
    std::vector<std::string> required;
  };

  std::vector<Tool> tools_;
};

}  // namespace sluice::text
