// Values to text.
#pragma once

#include "absl/status/statusor.h"
#include "text/jinja/value.h"
#include "text/python_json.h"

namespace sluice::text::jinja {

// str(): what printing a value gives. Undefined is empty.
absl::StatusOr<Text> ToText(const Value& value, Context& context);

// json.dumps(): an error for what is no data.
absl::StatusOr<Text> ToJson(const Value& value, const PythonJsonStyle& style, Context& context);

}  // namespace sluice::text::jinja
