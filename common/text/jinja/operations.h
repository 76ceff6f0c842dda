// What Python's operators do to values.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/jinja/value.h"

namespace sluice::text::jinja {

// Containers may hold themselves, so walks through them end here.
inline constexpr int kValueDepthMax = 48;

// INVALID_ARGUMENT with the line.
absl::Status Fail(const Context& context, absl::string_view what);

// Equality of contents; numbers and booleans compare by value. Bounded by the budget.
absl::StatusOr<bool> Equal(const Value& a, const Value& b, Context& context);
// -1, 0 or 1 for numbers and for strings; an error for anything else.
absl::StatusOr<int> Order(const Value& a, const Value& b, Context& context);
// a in b.
absl::StatusOr<bool> Contains(const Value& container, const Value& item, Context& context);
// `sign` is one of + - * / // %.
absl::StatusOr<Value> Arithmetic(absl::string_view sign, const Value& a, const Value& b,
                                 Context& context);
absl::StatusOr<Value> Negate(const Value& value, Context& context);
// What a loop over the value sees: items, keys, characters.
absl::StatusOr<std::vector<Value>> Items(const Value& value, Context& context);
// len().
absl::StatusOr<int64_t> Length(const Value& value, Context& context);

// object.name: members and the attributes of loop and namespace; undefined when there is none.
absl::StatusOr<Value> GetAttribute(const Value& object, absl::string_view name, Context& context);
// object[key].
absl::StatusOr<Value> GetItem(const Value& object, const Value& key, Context& context);
// object[begin:end:step]; null bounds are left out.
absl::StatusOr<Value> GetSlice(const Value& object, const Value* begin, const Value* end,
                               const Value* step, Context& context);

// The characters of a text, as views into it.
std::vector<absl::string_view> Characters(absl::string_view text);

}  // namespace sluice::text::jinja
