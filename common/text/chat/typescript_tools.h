// Tools as TypeScript declarations, the form in which Kimi K2.5 and later read them.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "formats/json.h"

namespace sluice::text {

// "# Tools ... namespace functions {...}" for a list of OpenAI tools; "" when none is a function.
// INVALID_ARGUMENT for a JSON schema that this form cannot express. Expects keys in order: see
// SortedByKey. Cost: linear in the schemas.
absl::StatusOr<std::string> TypeScriptTools(const formats::JsonValue& tools);

// The declarations as Kimi's own tokenizer makes them: keys sorted, TypeScript, or compact JSON
// where that is not possible.
std::string KimiToolDeclarations(const formats::JsonValue& tools);

// The same value with the members of every object in the order of their names.
formats::JsonValue SortedByKey(const formats::JsonValue& value);

}  // namespace sluice::text
