// Template text to its tree.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/jinja/ast.h"

namespace sluice::text::jinja {

inline constexpr size_t kTemplateBytesMax = size_t{1} << 20;

// INVALID_ARGUMENT for a template that is wrong, UNIMPLEMENTED for one that uses a construct that
// is not supported; both name the line and the construct. Nesting is bounded.
absl::StatusOr<Block> ParseTemplate(absl::string_view source);

}  // namespace sluice::text::jinja
