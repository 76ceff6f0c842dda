// The conversation of a chat request, with its tools, to the messages of inference.proto.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "http/json_fields.h"
#include "sluice/v1/inference.pb.h"

namespace sluice::http {

// Reads messages, tools and tool_choice, template arguments and the reasoning switches. Errors go
// into `fields`, names of members that mean nothing into `ignored`.
void ReadMessages(JsonFields* fields, v1::Messages* out, std::vector<std::string>* ignored);

// Is the value this string?
bool IsString(const formats::JsonValue& value, absl::string_view text);

}  // namespace sluice::http
