#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "text/jinja/library.h"
#include "text/jinja/operations.h"
#include "text/jinja/text_operations.h"

namespace sluice::text::jinja {
namespace {

bool IsNumber(const Value& value) {
  return As<int64_t>(value) != nullptr || As<double>(value) != nullptr ||
         As<bool>(value) != nullptr;
}

bool IsBoolean(const Value& value, bool wanted) {
  const auto* flag = As<bool>(value);
  return flag != nullptr && *flag == wanted;
}

// What has items, though a string counts, and what is undefined does too: it has none.
bool IsSequence(const Value& value) {
  return AsText(value) != nullptr || AsList(value) != nullptr || AsDict(value) != nullptr ||
         IsUndefined(value);
}

// Tests of one value.
absl::StatusOr<bool> Unary(absl::string_view name, const Value& input, Context& context) {
  if (name == "defined") return !IsUndefined(input);
  if (name == "undefined") return IsUndefined(input);
  if (name == "none") return IsNone(input);
  if (name == "true") return IsBoolean(input, true);
  if (name == "false") return IsBoolean(input, false);
  if (name == "boolean") return As<bool>(input) != nullptr;
  if (name == "integer") return As<int64_t>(input) != nullptr;
  if (name == "float") return As<double>(input) != nullptr;
  if (name == "number") return IsNumber(input);
  if (name == "string") return AsText(input) != nullptr;
  if (name == "mapping") return AsDict(input) != nullptr;
  if (name == "iterable" || name == "sequence") return IsSequence(input);
  if (name == "odd" || name == "even") {
    SLUICE_ASSIGN_OR_RETURN(const Value rest, Arithmetic("%", input, Value(int64_t{2}), context));
    return IsTrue(rest) == (name == "odd");
  }
  const Text* text = AsText(input);  // upper, lower
  if (text == nullptr) return Fail(context, absl::StrCat(TypeName(input), " has no case"));
  SLUICE_RETURN_IF_ERROR(context.budget.SpendText(text->size() * 2));
  const Text upper = ChangeCase(*text, Case::kUpper), lower = ChangeCase(*text, Case::kLower);
  return upper.view() != lower.view() && text->view() == (name == "upper" ? upper : lower).view();
}

bool IsBinary(absl::string_view name) {
  return name == "divisibleby" || name == "eq" || name == "equalto" || name == "ne" ||
         name == "in" || name == "lt" || name == "le" || name == "gt" || name == "ge";
}

}  // namespace

absl::StatusOr<bool> ApplyTest(absl::string_view name, const Value& input,
                               const Arguments& arguments, Context& context) {
  SLUICE_RETURN_IF_ERROR(context.budget.Spend(1));
  const size_t wanted = IsBinary(name) ? 1 : 0;
  if (arguments.positional.size() != wanted || !arguments.named.empty()) {
    return Fail(context, absl::StrCat("the test '", name, "' does not take these arguments"));
  }
  if (wanted == 0) return Unary(name, input, context);
  const Value& other = arguments.positional[0];
  if (name == "eq" || name == "equalto") return Equal(input, other, context);
  if (name == "in") return Contains(other, input, context);
  if (name == "ne") {
    SLUICE_ASSIGN_OR_RETURN(const bool same, Equal(input, other, context));
    return !same;
  }
  if (name == "divisibleby") {
    SLUICE_ASSIGN_OR_RETURN(const Value rest, Arithmetic("%", input, other, context));
    return !IsTrue(rest);
  }
  SLUICE_ASSIGN_OR_RETURN(const int order, Order(input, other, context));
  if (name == "lt") return order < 0;
  if (name == "le") return order <= 0;
  return name == "gt" ? order > 0 : order >= 0;
}

}  // namespace sluice::text::jinja
