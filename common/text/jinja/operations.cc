#include "text/jinja/operations.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "text/jinja/lexer.h"
#include "text/utf8.h"

namespace sluice::text::jinja {
namespace {

// A number as Python's arithmetic sees it; booleans count.
std::optional<double> Number(const Value& value) {
  if (const auto* flag = As<bool>(value)) return *flag ? 1 : 0;
  if (const auto* number = As<int64_t>(value)) return static_cast<double>(*number);
  if (const auto* number = As<double>(value)) return *number;
  return std::nullopt;
}

std::optional<int64_t> Integer(const Value& value) {
  if (const auto* flag = As<bool>(value)) return *flag ? 1 : 0;
  if (const auto* number = As<int64_t>(value)) return *number;
  return std::nullopt;
}

absl::StatusOr<Value> IntegerArithmetic(absl::string_view sign, int64_t a, int64_t b,
                                        Context& context) {
  int64_t result = 0;
  bool overflow = false;
  if (sign == "+") overflow = __builtin_add_overflow(a, b, &result);
  if (sign == "-") overflow = __builtin_sub_overflow(a, b, &result);
  if (sign == "*") overflow = __builtin_mul_overflow(a, b, &result);
  if (sign == "//" || sign == "%") {
    if (b == 0) return Fail(context, "a division by zero");
    if (b == -1) return sign == "%" ? Value(int64_t{0}) : IntegerArithmetic("*", a, -1, context);
    // Python rounds down, so that the remainder has the sign of the divisor.
    const int64_t rest = a % b;
    const bool adjust = rest != 0 && (rest < 0) != (b < 0);
    result = sign == "%" ? rest + (adjust ? b : 0) : a / b - (adjust ? 1 : 0);
  }
  if (overflow) return Fail(context, "a number of more than 64 bits");
  return Value(result);
}

absl::StatusOr<Value> RealArithmetic(absl::string_view sign, double a, double b, Context& context) {
  if (sign == "+") return Value(a + b);
  if (sign == "-") return Value(a - b);
  if (sign == "*") return Value(a * b);
  if (b == 0) return Fail(context, "a division by zero");
  if (sign == "/") return Value(a / b);
  const double quotient = std::floor(a / b);
  return Value(sign == "//" ? quotient : a - quotient * b);
}

absl::StatusOr<Value> Repeat(const Value& value, int64_t times, Context& context) {
  const uint64_t count = static_cast<uint64_t>(std::max<int64_t>(times, 0));
  if (const Text* text = AsText(value)) {
    const uint64_t bytes = text->size();
    if (bytes > 0 && count > std::numeric_limits<uint32_t>::max() / bytes) {
      return Fail(context, "a text is repeated too often");
    }
    SLUICE_RETURN_IF_ERROR(context.budget.Spend(count + bytes * count / 16));
    Text repeated;
    for (uint64_t i = 0; i < count && bytes > 0; ++i) repeated.Append(*text);
    return TextValue(std::move(repeated));
  }
  const std::vector<Value>& items = AsList(value)->items;
  SLUICE_RETURN_IF_ERROR(context.budget.Spend(count));
  SLUICE_RETURN_IF_ERROR(context.budget.Spend(std::min<uint64_t>(items.size(), 1u << 20) *
                                              std::min<uint64_t>(count, 1u << 30)));
  List* list = context.heap.NewList({}, AsList(value)->tuple);
  for (uint64_t i = 0; i < count; ++i)
    list->items.insert(list->items.end(), items.begin(), items.end());
  return Value(list);
}

absl::StatusOr<Value> Add(const Value& a, const Value& b, Context& context) {
  if (const Text* left = AsText(a), *right = AsText(b); left != nullptr && right != nullptr) {
    SLUICE_RETURN_IF_ERROR(context.budget.SpendText(left->size() + right->size()));
    Text joined = *left;
    joined.Append(*right);
    return TextValue(std::move(joined));
  }
  const List *left = AsList(a), *right = AsList(b);
  if (left != nullptr && right != nullptr && left->tuple == right->tuple) {
    SLUICE_RETURN_IF_ERROR(context.budget.Spend(left->items.size() + right->items.size()));
    List* joined = context.heap.NewList(left->items, left->tuple);
    joined->items.insert(joined->items.end(), right->items.begin(), right->items.end());
    return Value(joined);
  }
  return Fail(context, absl::StrCat("'+' of ", TypeName(a), " and ", TypeName(b)));
}

// The position that a Python index names, or nothing.
std::optional<size_t> Position(int64_t index, size_t size) {
  if (index < 0) index += static_cast<int64_t>(size);
  if (index < 0 || index >= static_cast<int64_t>(size)) return std::nullopt;
  return static_cast<size_t>(index);
}

absl::StatusOr<Value> LoopAttribute(const Loop& loop, absl::string_view name) {
  const size_t size = loop.items->size();
  const auto number = [](size_t value) { return Value(static_cast<int64_t>(value)); };
  if (name == "index") return number(loop.index0 + 1);
  if (name == "index0") return number(loop.index0);
  if (name == "revindex") return number(size - loop.index0);
  if (name == "revindex0") return number(size - loop.index0 - 1);
  if (name == "first") return Value(loop.index0 == 0);
  if (name == "last") return Value(loop.index0 + 1 == size);
  if (name == "length") return number(size);
  // Only loops that call themselves are deeper.
  if (name == "depth" || name == "depth0") return number(name == "depth" ? 1 : 0);
  if (name == "previtem" && loop.index0 > 0) return (*loop.items)[loop.index0 - 1];
  if (name == "nextitem" && loop.index0 + 1 < size) return (*loop.items)[loop.index0 + 1];
  return Value(Undefined{absl::StrCat("loop.", name)});
}

absl::StatusOr<bool> EqualAt(const Value& a, const Value& b, int depth, Context& context) {
  SLUICE_RETURN_IF_ERROR(context.budget.Spend(1));
  if (depth > kValueDepthMax) return Fail(context, "values are nested too deeply");
  if (const auto left = Integer(a), right = Integer(b); left && right) return *left == *right;
  if (const auto left = Number(a), right = Number(b); left && right) return *left == *right;
  if (const Text* left = AsText(a), *right = AsText(b); left != nullptr && right != nullptr) {
    return left->view() == right->view();
  }
  if (const List* left = AsList(a), *right = AsList(b); left != nullptr && right != nullptr) {
    if (left->items.size() != right->items.size() || left->tuple != right->tuple) return false;
    for (size_t i = 0; i < left->items.size(); ++i) {
      SLUICE_ASSIGN_OR_RETURN(const bool same,
                              EqualAt(left->items[i], right->items[i], depth + 1, context));
      if (!same) return false;
    }
    return true;
  }
  if (const Dict* left = AsDict(a), *right = AsDict(b); left != nullptr && right != nullptr) {
    if (left->members.size() != right->members.size()) return false;
    for (const auto& [key, value] : left->members) {
      const Value* other = right->Find(key.view());
      if (other == nullptr) return false;
      SLUICE_ASSIGN_OR_RETURN(const bool same, EqualAt(value, *other, depth + 1, context));
      if (!same) return false;
    }
    return true;
  }
  return (IsNone(a) && IsNone(b)) || (IsUndefined(a) && IsUndefined(b));
}

}  // namespace

absl::Status Fail(const Context& context, absl::string_view what) {
  return WrongTemplate(context.line, what);
}

std::vector<absl::string_view> Characters(absl::string_view text) {
  std::vector<absl::string_view> characters;
  while (!text.empty()) {
    const size_t length = DecodeUtf8(text).length;
    characters.push_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  return characters;
}

absl::StatusOr<bool> Equal(const Value& a, const Value& b, Context& context) {
  return EqualAt(a, b, 0, context);
}

absl::StatusOr<int> Order(const Value& a, const Value& b, Context& context) {
  if (const auto left = Number(a), right = Number(b); left && right) {
    return *left < *right ? -1 : *left > *right ? 1 : 0;
  }
  if (const Text* left = AsText(a), *right = AsText(b); left != nullptr && right != nullptr) {
    const int order = left->view().compare(right->view());
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  return Fail(context, absl::StrCat(TypeName(a), " and ", TypeName(b), " have no order"));
}

absl::StatusOr<bool> Contains(const Value& container, const Value& item, Context& context) {
  if (const Text* text = AsText(container)) {
    const Text* part = AsText(item);
    if (part == nullptr) return Fail(context, absl::StrCat(TypeName(item), " 'in' a string"));
    SLUICE_RETURN_IF_ERROR(context.budget.SpendText(text->size()));
    return absl::StrContains(text->view(), part->view());
  }
  if (const Dict* dict = AsDict(container)) {
    const Text* key = AsText(item);
    return key != nullptr && dict->Find(key->view()) != nullptr;
  }
  if (const List* list = AsList(container)) {
    for (const Value& one : list->items) {
      SLUICE_ASSIGN_OR_RETURN(const bool same, Equal(one, item, context));
      if (same) return true;
    }
    return false;
  }
  if (IsUndefined(container)) return false;
  return Fail(context, absl::StrCat("'in' ", TypeName(container)));
}

absl::StatusOr<Value> Arithmetic(absl::string_view sign, const Value& a, const Value& b,
                                 Context& context) {
  const auto left = Number(a), right = Number(b);
  if (left && right) {
    const auto whole_left = Integer(a), whole_right = Integer(b);
    if (whole_left && whole_right && sign != "/") {
      return IntegerArithmetic(sign, *whole_left, *whole_right, context);
    }
    return RealArithmetic(sign, *left, *right, context);
  }
  if (sign == "+") return Add(a, b, context);
  if (sign == "*") {
    const auto repeatable = [](const Value& value) {
      return AsText(value) != nullptr || AsList(value) != nullptr;
    };
    if (repeatable(a) && Integer(b)) return Repeat(a, *Integer(b), context);
    if (repeatable(b) && Integer(a)) return Repeat(b, *Integer(a), context);
  }
  return Fail(context, absl::StrCat("'", sign, "' of ", TypeName(a), " and ", TypeName(b)));
}

absl::StatusOr<Value> Negate(const Value& value, Context& context) {
  if (const auto whole = Integer(value)) return IntegerArithmetic("-", 0, *whole, context);
  if (const auto number = Number(value)) return Value(-*number);
  return Fail(context, absl::StrCat("'-' of ", TypeName(value)));
}

absl::StatusOr<std::vector<Value>> Items(const Value& value, Context& context) {
  std::vector<Value> items;
  if (const List* list = AsList(value)) {
    items = list->items;
  } else if (const Dict* dict = AsDict(value)) {
    for (const auto& [key, member] : dict->members) items.push_back(TextValue(key));
  } else if (const Text* text = AsText(value)) {
    SLUICE_RETURN_IF_ERROR(context.budget.Spend(text->size()));
    for (const absl::string_view c : Characters(text->view()))
      items.push_back(TextValue(text->Part(c)));
  } else if (!IsUndefined(value)) {
    return Fail(context, absl::StrCat("a loop over ", TypeName(value)));
  }
  SLUICE_RETURN_IF_ERROR(context.budget.Spend(items.size()));
  return items;
}

absl::StatusOr<int64_t> Length(const Value& value, Context& context) {
  if (const List* list = AsList(value)) return static_cast<int64_t>(list->items.size());
  if (const Dict* dict = AsDict(value)) return static_cast<int64_t>(dict->members.size());
  if (const Text* text = AsText(value)) {
    SLUICE_RETURN_IF_ERROR(context.budget.SpendText(text->size()));
    return static_cast<int64_t>(Characters(text->view()).size());
  }
  if (IsUndefined(value)) return 0;
  return Fail(context, absl::StrCat("the length of ", TypeName(value)));
}

absl::StatusOr<Value> GetAttribute(const Value& object, absl::string_view name, Context& context) {
  if (const auto* undefined = As<Undefined>(object)) {
    return Fail(context,
                absl::StrCat("'", undefined->what, "' is undefined, so it has no '", name, "'"));
  }
  if (const Dict* dict = AsDict(object)) {
    if (const Value* value = dict->Find(name)) return *value;
  }
  if (const auto* space = std::get_if<Namespace*>(&object)) {
    for (const auto& [key, value] : (*space)->members) {
      if (key == name) return value;
    }
  }
  if (const auto* loop = std::get_if<const Loop*>(&object)) return LoopAttribute(**loop, name);
  return Value(Undefined{std::string(name)});
}

absl::StatusOr<Value> GetItem(const Value& object, const Value& key, Context& context) {
  if (const Text* name = AsText(key);
      name != nullptr && AsText(object) == nullptr && AsList(object) == nullptr) {
    return GetAttribute(object, name->view(), context);
  }
  if (IsUndefined(object)) return GetAttribute(object, "[...]", context);
  const auto index = Integer(key);
  if (!index) return Value(Undefined{"[...]"});
  if (const List* list = AsList(object)) {
    const auto at = Position(*index, list->items.size());
    return at ? list->items[*at] : Value(Undefined{absl::StrCat("[", *index, "]")});
  }
  if (const Text* text = AsText(object)) {
    SLUICE_RETURN_IF_ERROR(context.budget.SpendText(text->size()));
    const auto characters = Characters(text->view());
    const auto at = Position(*index, characters.size());
    if (at) return TextValue(text->Part(characters[*at]));
  }
  return Value(Undefined{absl::StrCat("[", *index, "]")});
}

absl::StatusOr<Value> GetSlice(const Value& object, const Value* begin, const Value* end,
                               const Value* step, Context& context) {
  const Text* text = AsText(object);
  const List* list = AsList(object);
  if (text == nullptr && list == nullptr)
    return Fail(context, absl::StrCat("a slice of ", TypeName(object)));
  const std::vector<absl::string_view> characters =
      text == nullptr ? std::vector<absl::string_view>() : Characters(text->view());
  const auto size = static_cast<int64_t>(text == nullptr ? list->items.size() : characters.size());
  SLUICE_RETURN_IF_ERROR(context.budget.Spend(1 + static_cast<uint64_t>(size)));
  const auto bound = [&](const Value* value, int64_t absent) -> std::optional<int64_t> {
    return value == nullptr || IsNone(*value) ? absent : Integer(*value);
  };
  const auto stride = bound(step, 1);
  if (!stride || *stride == 0) return Fail(context, "a slice with a bad step");
  const bool forward = *stride > 0;
  // Python's rule: bounds count from the end when negative, and are clamped.
  const int64_t low = forward ? 0 : -1, high = forward ? size : size - 1;
  const auto clamp = [&](const Value* value, int64_t absent) -> std::optional<int64_t> {
    if (value == nullptr || IsNone(*value)) return absent;
    const auto index = Integer(*value);
    if (!index) return std::nullopt;
    return std::clamp(*index < 0 ? *index + size : *index, low, high);
  };
  const auto from = clamp(begin, forward ? 0 : size - 1), to = clamp(end, forward ? size : -1);
  if (!from || !to) return Fail(context, "a slice with a bound that is no integer");
  // A longer step leaves the value all the same.
  const int64_t leap = std::clamp(*stride, -size - 1, size + 1);
  Text slice;
  std::vector<Value> items;
  for (int64_t i = *from; forward ? i < *to : i > *to; i += leap) {
    const auto at = static_cast<size_t>(i);
    if (text == nullptr) {
      items.push_back(list->items[at]);
    } else {
      slice.Append(text->Part(characters[at]));
    }
  }
  if (text != nullptr) return TextValue(std::move(slice));
  return Value(context.heap.NewList(std::move(items), list->tuple));
}

}  // namespace sluice::text::jinja
