#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "text/jinja/language.h"
#include "text/jinja/library.h"
#include "text/jinja/operations.h"
#include "text/jinja/printing.h"
#include "text/jinja/text_operations.h"

namespace sluice::text::jinja {

absl::Status CheckArguments(const Arguments& arguments, absl::string_view callee,
                            std::initializer_list<absl::string_view> names,
                            const Context& context) {
  bool known = arguments.positional.size() <= names.size();
  for (const auto& [name, value] : arguments.named) {
    known = known && std::find(names.begin(), names.end(), name) != names.end();
  }
  if (known) return absl::OkStatus();
  return Fail(context, absl::StrCat("'", callee, "' does not take these arguments"));
}

namespace {

bool Flag(const Value* value, bool absent) { return value == nullptr ? absent : IsTrue(*value); }

absl::StatusOr<int64_t> Integer(const Value* value, int64_t absent, const Context& context) {
  if (value == nullptr || IsNone(*value)) return absent;
  if (const auto* number = As<int64_t>(*value)) return *number;
  return Fail(context, absl::StrCat("an integer is needed, not ", TypeName(*value)));
}

// The argument as text; `absent` if it is left out.
absl::StatusOr<Text> TextArgument(const Value* value, absl::string_view absent, Context& context) {
  if (value == nullptr) return Text(absent, true);
  return ToText(*value, context);
}

Value NewList(std::vector<Value> items, Context& context) {
  return Value(context.heap.NewList(std::move(items)));
}

// item.a.b, the way attribute= names members.
absl::StatusOr<Value> Attribute(const Value& item, const Value& path, Context& context) {
  const Text* text = AsText(path);
  if (text == nullptr) return GetItem(item, path, context);
  Value value = item;
  for (const Text& name : Split(*text, ".", -1)) {
    int64_t index = 0;
    const bool number = absl::SimpleAtoi(name.view(), &index);
    SLUICE_ASSIGN_OR_RETURN(value,
                            GetItem(value, number ? Value(index) : TextValue(name), context));
  }
  return value;
}

absl::StatusOr<Value> Default(const Value& input, const Arguments& arguments, Context& context) {
  SLUICE_RETURN_IF_ERROR(
      CheckArguments(arguments, "default", {"default_value", "boolean"}, context));
  const bool missing =
      IsUndefined(input) || (Flag(arguments.Get(1, "boolean"), false) && !IsTrue(input));
  if (!missing) return input;
  const Value* value = arguments.Get(0, "default_value");
  return value == nullptr ? TextValue(Text()) : *value;
}

absl::StatusOr<Value> Join(const Value& input, const Arguments& arguments, Context& context) {
  SLUICE_RETURN_IF_ERROR(CheckArguments(arguments, "join", {"d", "attribute"}, context));
  SLUICE_ASSIGN_OR_RETURN(const Text separator, TextArgument(arguments.Get(0, "d"), "", context));
  const Value* attribute = arguments.Get(1, "attribute");
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Value> items, Items(input, context));
  Text out;
  for (size_t i = 0; i < items.size(); ++i) {
    Value item = items[i];
    if (attribute != nullptr) {
      SLUICE_ASSIGN_OR_RETURN(item, Attribute(item, *attribute, context));
    }
    SLUICE_ASSIGN_OR_RETURN(const Text text, ToText(item, context));
    SLUICE_RETURN_IF_ERROR(context.budget.SpendText(text.size() + separator.size()));
    if (i > 0) out.Append(separator);
    out.Append(text);
  }
  return TextValue(std::move(out));
}

absl::StatusOr<Value> ToJsonFilter(const Value& input, const Arguments& arguments,
                                   Context& context) {
  SLUICE_RETURN_IF_ERROR(CheckArguments(
      arguments, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, context));
  SLUICE_ASSIGN_OR_RETURN(const int64_t indent, Integer(arguments.Get(1, "indent"), -1, context));
  if (indent > 16) return Fail(context, "tojson with an indent over 16");
  PythonJsonStyle style = indent >= 0 ? IndentedJson(static_cast<int>(indent)) : PythonJsonStyle();
  style.ascii = Flag(arguments.Get(0, "ensure_ascii"), false);
  style.sort_keys = Flag(arguments.Get(3, "sort_keys"), false);
  const Value* separators = arguments.Get(2, "separators");
  std::string item, key;
  if (separators != nullptr && !IsNone(*separators)) {
    const List* pair = AsList(*separators);
    if (pair == nullptr || pair->items.size() != 2) return Fail(context, "separators are no pair");
    SLUICE_ASSIGN_OR_RETURN(const Text first, ToText(pair->items[0], context));
    SLUICE_ASSIGN_OR_RETURN(const Text second, ToText(pair->items[1], context));
    item = std::string(first.view());
    key = std::string(second.view());
    style.item_separator = item;
    style.key_separator = key;
  }
  SLUICE_ASSIGN_OR_RETURN(Text text, ToJson(input, style, context));
  return TextValue(std::move(text));
}

absl::StatusOr<Value> Map(const Value& input, const Arguments& arguments, Context& context) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Value> items, Items(input, context));
  std::vector<Value> mapped;
  const Value* attribute = arguments.positional.empty() ? arguments.Get(0, "attribute") : nullptr;
  const Text* filter = arguments.positional.empty() ? nullptr : AsText(arguments.positional[0]);
  if (attribute == nullptr && (filter == nullptr || !IsFilter(filter->view()))) {
    return Fail(context, "map without a filter that is known");
  }
  Arguments rest;
  if (filter != nullptr)
    rest.positional.assign(arguments.positional.begin() + 1, arguments.positional.end());
  if (filter != nullptr) rest.named = arguments.named;
  const Value* absent = attribute == nullptr ? nullptr : arguments.Get(1, "default");
  for (const Value& item : items) {
    Value value;
    if (attribute != nullptr) {
      SLUICE_ASSIGN_OR_RETURN(value, Attribute(item, *attribute, context));
      if (IsUndefined(value) && absent != nullptr) value = *absent;
    } else {
      SLUICE_ASSIGN_OR_RETURN(value, ApplyFilter(filter->view(), item, rest, context));
    }
    mapped.push_back(std::move(value));
  }
  return NewList(std::move(mapped), context);
}

// select, reject, selectattr, rejectattr: the items that pass a test, or do not.
absl::StatusOr<Value> Select(absl::string_view name, const Value& input, const Arguments& arguments,
                             Context& context) {
  const bool keep = absl::StartsWith(name, "select");
  const bool by_attribute = absl::EndsWith(name, "attr");
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Value> items, Items(input, context));
  const size_t test_at = by_attribute ? 1 : 0;
  if (by_attribute && arguments.positional.empty())
    return Fail(context, absl::StrCat(name, " needs an attribute"));
  const Text* test =
      arguments.positional.size() > test_at ? AsText(arguments.positional[test_at]) : nullptr;
  if (arguments.positional.size() > test_at && (test == nullptr || !IsTest(test->view()))) {
    return Fail(context, absl::StrCat(name, " with an unknown test"));
  }
  Arguments rest;
  if (test != nullptr) {
    rest.positional.assign(arguments.positional.begin() + static_cast<ptrdiff_t>(test_at) + 1,
                           arguments.positional.end());
  }
  std::vector<Value> selected;
  for (const Value& item : items) {
    Value subject = item;
    if (by_attribute) {
      SLUICE_ASSIGN_OR_RETURN(subject, Attribute(item, arguments.positional[0], context));
    }
    bool passes = IsTrue(subject);
    if (test != nullptr) {
      SLUICE_ASSIGN_OR_RETURN(passes, ApplyTest(test->view(), subject, rest, context));
    }
    if (passes == keep) selected.push_back(item);
  }
  return NewList(std::move(selected), context);
}

// What items are sorted and told apart by: strings without regard to case.
Value SortKey(const Value& value, bool case_sensitive) {
  const Text* text = AsText(value);
  return text == nullptr || case_sensitive ? value : TextValue(ChangeCase(*text, Case::kLower));
}

absl::StatusOr<Value> Sort(const Value& input, const Arguments& arguments, Context& context) {
  SLUICE_RETURN_IF_ERROR(
      CheckArguments(arguments, "sort", {"reverse", "case_sensitive", "attribute"}, context));
  const bool reverse = Flag(arguments.Get(0, "reverse"), false);
  const bool case_sensitive = Flag(arguments.Get(1, "case_sensitive"), false);
  const Value* attribute = arguments.Get(2, "attribute");
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Value> items, Items(input, context));
  SLUICE_RETURN_IF_ERROR(context.budget.Spend(items.size() * 32));
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : items) {
    Value key = item;
    if (attribute != nullptr) {
      SLUICE_ASSIGN_OR_RETURN(key, Attribute(item, *attribute, context));
    }
    keyed.emplace_back(SortKey(key, case_sensitive), item);
    // Everything must have an order with everything: check once against the first.
    SLUICE_RETURN_IF_ERROR(Order(keyed[0].first, keyed.back().first, context).status());
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return Order(reverse ? b.first : a.first, reverse ? a.first : b.first, context).value_or(0) < 0;
  });
  std::vector<Value> sorted;
  for (auto& [key, item] : keyed) sorted.push_back(std::move(item));
  return NewList(std::move(sorted), context);
}

absl::StatusOr<Value> DictSort(const Value& input, const Arguments& arguments, Context& context) {
  SLUICE_RETURN_IF_ERROR(
      CheckArguments(arguments, "dictsort", {"case_sensitive", "by", "reverse"}, context));
  const Value* by = arguments.Get(1, "by");
  if (by != nullptr && (AsText(*by) == nullptr || AsText(*by)->view() != "key")) {
    return Fail(context, "dictsort by anything but the key");
  }
  Arguments sort;
  sort.named = {{"reverse", Value(Flag(arguments.Get(2, "reverse"), false))},
                {"case_sensitive", Value(Flag(arguments.Get(0, "case_sensitive"), false))},
                {"attribute", Value(int64_t{0})}};
  SLUICE_ASSIGN_OR_RETURN(const Value items, ApplyFilter("items", input, {}, context));
  return Sort(items, sort, context);
}

absl::StatusOr<Value> Unique(const Value& input, const Arguments& arguments, Context& context) {
  SLUICE_RETURN_IF_ERROR(CheckArguments(arguments, "unique", {"case_sensitive"}, context));
  const bool case_sensitive = Flag(arguments.Get(0, "case_sensitive"), false);
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Value> items, Items(input, context));
  std::vector<Value> keys, unique;
  for (const Value& item : items) {
    const Value key = SortKey(item, case_sensitive);
    bool known = false;
    for (const Value& other : keys) {
      SLUICE_ASSIGN_OR_RETURN(const bool same, Equal(key, other, context));
      known = known || same;
    }
    if (known) continue;
    keys.push_back(key);
    unique.push_back(item);
  }
  return NewList(std::move(unique), context);
}

absl::StatusOr<Value> Extreme(absl::string_view name, const Value& input, Context& context) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Value> items, Items(input, context));
  Value best = Undefined{"an empty list"};
  for (const Value& item : items) {
    if (IsUndefined(best)) {
      best = item;
      continue;
    }
    SLUICE_ASSIGN_OR_RETURN(const int order, Order(item, best, context));
    if (name == "max" ? order > 0 : order < 0) best = item;
  }
  return best;
}

absl::StatusOr<Value> Sum(const Value& input, const Arguments& arguments, Context& context) {
  SLUICE_RETURN_IF_ERROR(CheckArguments(arguments, "sum", {"attribute", "start"}, context));
  const Value* attribute = arguments.Get(0, "attribute");
  const Value* start = arguments.Get(1, "start");
  Value total = start == nullptr ? Value(int64_t{0}) : *start;
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Value> items, Items(input, context));
  for (Value item : items) {
    if (attribute != nullptr) {
      SLUICE_ASSIGN_OR_RETURN(item, Attribute(item, *attribute, context));
    }
    SLUICE_ASSIGN_OR_RETURN(total, Arithmetic("+", total, item, context));
  }
  return total;
}

absl::StatusOr<Value> Indent(const Text& text, const Arguments& arguments, Context& context) {
  SLUICE_RETURN_IF_ERROR(CheckArguments(arguments, "indent", {"width", "first", "blank"}, context));
  const Value* given = arguments.Get(0, "width");
  std::string space(4, ' ');
  if (given != nullptr && AsText(*given) != nullptr) {
    space = std::string(AsText(*given)->view());
  } else {
    SLUICE_ASSIGN_OR_RETURN(const int64_t width, Integer(given, 4, context));
    if (width < 0 || width > 64) return Fail(context, "an indent of more than 64");
    space = std::string(static_cast<size_t>(width), ' ');
  }
  const bool first = Flag(arguments.Get(1, "first"), false),
             blank = Flag(arguments.Get(2, "blank"), false);
  Text out;
  bool begin = true;
  for (const Text& line : Split(text, "\n", -1)) {
    SLUICE_RETURN_IF_ERROR(context.budget.SpendText(line.size() + space.size()));
    if (!begin) out.Append("\n", true);
    if (begin ? first : (blank || !line.empty())) out.Append(space, true);
    out.Append(line);
    begin = false;
  }
  return TextValue(std::move(out));
}

// Python's int() and float() of anything; the default for what is no number.
absl::StatusOr<Value> ToNumber(bool whole, const Value& input, const Arguments& arguments,
                               Context& context) {
  SLUICE_RETURN_IF_ERROR(CheckArguments(arguments, whole ? "int" : "float", {"default"}, context));
  const Value* given = arguments.Get(0, "default");
  const Value absent = given != nullptr ? *given : whole ? Value(int64_t{0}) : Value(0.0);
  double number = 0;
  if (const Text* text = AsText(input)) {
    const absl::string_view digits = PythonStrip(text->view());
    int64_t integer = 0;
    if (whole && absl::SimpleAtoi(digits, &integer)) return Value(integer);
    if (!absl::SimpleAtod(digits, &number)) return absent;
  } else if (const auto* integer = As<int64_t>(input)) {
    if (whole) return input;
    number = static_cast<double>(*integer);
  } else if (const auto* real = As<double>(input)) {
    number = *real;
  } else if (const auto* flag = As<bool>(input)) {
    number = *flag ? 1 : 0;
  } else {
    return absent;
  }
  if (!whole) return Value(number);
  if (!(std::fabs(number) < 9e18)) return absent;
  return Value(static_cast<int64_t>(number));
}

absl::StatusOr<Value> Title(const Text& text) {
  // Jinja's own: words begin behind white space and opening brackets.
  Text out;
  size_t at = 0;
  bool begins = true;
  for (const absl::string_view c : Characters(text.view())) {
    const Text one(c, true);
    out.AppendLike(text, at, ChangeCase(one, begins ? Case::kUpper : Case::kLower).view());
    begins = absl::StrContains("-({[<", c) || PythonStrip(c).empty();
    at += c.size();
  }
  return TextValue(std::move(out));
}

// Filters whose input is text, whatever it was.
absl::StatusOr<Value> TextFilter(absl::string_view name, const Text& text,
                                 const Arguments& arguments, Context& context) {
  SLUICE_RETURN_IF_ERROR(context.budget.SpendText(text.size() * 2));
  if (name == "upper") return TextValue(ChangeCase(text, Case::kUpper));
  if (name == "lower") return TextValue(ChangeCase(text, Case::kLower));
  if (name == "capitalize") return TextValue(ChangeCase(text, Case::kCapitalize));
  if (name == "title") return Title(text);
  if (name == "indent") return Indent(text, arguments, context);
  if (name == "trim") {
    SLUICE_RETURN_IF_ERROR(CheckArguments(arguments, name, {"chars"}, context));
    const Value* characters = arguments.Get(0, "chars");
    if (characters == nullptr || IsNone(*characters)) return TextValue(Strip(text, Side::kBoth));
    SLUICE_ASSIGN_OR_RETURN(const Text set, ToText(*characters, context));
    return TextValue(Strip(text, set.view(), Side::kBoth));
  }
  if (name == "replace") {
    SLUICE_RETURN_IF_ERROR(CheckArguments(arguments, name, {"old", "new", "count"}, context));
    SLUICE_ASSIGN_OR_RETURN(const Text old_text,
                            TextArgument(arguments.Get(0, "old"), "", context));
    SLUICE_ASSIGN_OR_RETURN(const Text new_text,
                            TextArgument(arguments.Get(1, "new"), "", context));
    SLUICE_ASSIGN_OR_RETURN(const int64_t count, Integer(arguments.Get(2, "count"), -1, context));
    SLUICE_RETURN_IF_ERROR(SpendReplace(text, old_text.view(), new_text, context));
    return TextValue(Replace(text, old_text.view(), new_text, count));
  }
  return TextValue(text);  // string, safe
}

absl::StatusOr<Value> Reverse(const Value& input, Context& context) {
  SLUICE_ASSIGN_OR_RETURN(std::vector<Value> items, Items(input, context));
  std::reverse(items.begin(), items.end());
  if (AsText(input) == nullptr) return NewList(std::move(items), context);
  return Join(NewList(std::move(items), context), {}, context);
}

absl::StatusOr<Value> MembersOf(const Value& input, Context& context) {
  std::vector<Value> members;
  const Dict* dict = AsDict(input);
  if (dict == nullptr && !IsUndefined(input))
    return Fail(context, absl::StrCat("the items of ", TypeName(input)));
  if (dict != nullptr) {
    SLUICE_RETURN_IF_ERROR(context.budget.Spend(dict->members.size()));
    for (const auto& [key, value] : dict->members) {
      members.push_back(Value(context.heap.NewList({TextValue(key), value}, /*tuple=*/true)));
    }
  }
  return NewList(std::move(members), context);
}

absl::StatusOr<Value> Absolute(const Value& input, Context& context) {
  SLUICE_ASSIGN_OR_RETURN(const int order, Order(input, Value(int64_t{0}), context));
  return order < 0 ? Negate(input, context) : absl::StatusOr<Value>(input);
}

}  // namespace

absl::Status SpendReplace(const Text& text, absl::string_view old_text, const Text& new_text,
                          Context& context) {
  // How often, at most, the old text occurs.
  const uint64_t times = text.size() / std::max<size_t>(old_text.size(), 1) + 1;
  SLUICE_RETURN_IF_ERROR(context.budget.SpendText(text.size()));
  if (new_text.size() <= old_text.size()) return absl::OkStatus();
  uint64_t found = 0;
  for (size_t at = old_text.empty() ? absl::string_view::npos : text.view().find(old_text);
       at != absl::string_view::npos; at = text.view().find(old_text, at + old_text.size())) {
    ++found;
  }
  return context.budget.Spend((old_text.empty() ? times : found) * (1 + new_text.size() / 16));
}

absl::StatusOr<Value> ApplyFilter(absl::string_view name, const Value& input,
                                  const Arguments& arguments, Context& context) {
  SLUICE_RETURN_IF_ERROR(context.budget.Spend(1));
  if (name == "default" || name == "d") return Default(input, arguments, context);
  if (name == "tojson") return ToJsonFilter(input, arguments, context);
  if (name == "join") return Join(input, arguments, context);
  if (name == "map") return Map(input, arguments, context);
  if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr") {
    return Select(name, input, arguments, context);
  }
  if (name == "sort") return Sort(input, arguments, context);
  if (name == "dictsort") return DictSort(input, arguments, context);
  if (name == "unique") return Unique(input, arguments, context);
  if (name == "sum") return Sum(input, arguments, context);
  if (name == "int" || name == "float") return ToNumber(name == "int", input, arguments, context);
  if (name == "trim" || name == "replace" || name == "indent" || name == "upper" ||
      name == "lower" || name == "capitalize" || name == "title" || name == "string" ||
      name == "safe") {
    SLUICE_ASSIGN_OR_RETURN(const Text text, ToText(input, context));
    return TextFilter(name, text, arguments, context);
  }
  SLUICE_RETURN_IF_ERROR(CheckArguments(arguments, name, {}, context));
  if (name == "length" || name == "count") {
    SLUICE_ASSIGN_OR_RETURN(const int64_t length, Length(input, context));
    return Value(length);
  }
  if (name == "items") return MembersOf(input, context);
  if (name == "reverse") return Reverse(input, context);
  if (name == "abs") return Absolute(input, context);
  if (name == "min" || name == "max") return Extreme(name, input, context);
  SLUICE_ASSIGN_OR_RETURN(std::vector<Value> items, Items(input, context));
  if (name == "list") return NewList(std::move(items), context);
  if (items.empty()) return Value(Undefined{"an empty list"});
  return name == "first" ? items.front() : items.back();
}

}  // namespace sluice::text::jinja
