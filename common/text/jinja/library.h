// The filters, tests and methods of the language. language.h names them.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/jinja/arguments.h"
#include "text/jinja/value.h"

namespace sluice::text::jinja {

absl::StatusOr<Value> ApplyFilter(absl::string_view name, const Value& input,
                                  const Arguments& arguments, Context& context);
absl::StatusOr<bool> ApplyTest(absl::string_view name, const Value& input,
                               const Arguments& arguments, Context& context);
// A method of a string, list or mapping.
absl::StatusOr<Value> CallMethod(absl::string_view name, const Value& object,
                                 const Arguments& arguments, Context& context);

// Charges for replacing `old_text` everywhere.
absl::Status SpendReplace(const Text& text, absl::string_view old_text, const Text& new_text,
                          Context& context);

}  // namespace sluice::text::jinja
