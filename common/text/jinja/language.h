// The words of the language that are there. A template that uses others is refused when it is read.
#pragma once

#include "absl/strings/string_view.h"

namespace sluice::text::jinja {

bool IsFilter(absl::string_view name);
bool IsTest(absl::string_view name);
bool IsMethod(absl::string_view name);
bool IsFunction(absl::string_view name);

}  // namespace sluice::text::jinja
