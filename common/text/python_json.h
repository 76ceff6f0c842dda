// JSON text as Python's json.dumps writes it: what `tojson` of a chat template prints.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "formats/json.h"

namespace sluice::text {

struct PythonJsonStyle {
  bool ascii = false;  // \uXXXX for everything outside ASCII
  int indent = -1;     // spaces per level; negative: one line
  absl::string_view item_separator = ", ";
  absl::string_view key_separator = ": ";
  bool sort_keys = false;
};

// json.dumps with `indent` breaks lines behind a bare comma.
PythonJsonStyle IndentedJson(int indent);

// Keys keep their order. Cost: linear in the text.
std::string PythonJson(const formats::JsonValue& value, const PythonJsonStyle& style = {});

}  // namespace sluice::text
