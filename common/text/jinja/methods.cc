#include <algorithm>
#include <cctype>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "text/jinja/library.h"
#include "text/jinja/operations.h"
#include "text/jinja/text_operations.h"

namespace sluice::text::jinja {
namespace {

absl::StatusOr<int64_t> IntegerArgument(const Arguments& arguments, size_t index,
                                        absl::string_view name, int64_t absent,
                                        const Context& context) {
  const Value* value = arguments.Get(index, name);
  if (value == nullptr) return absent;
  if (const auto* number = As<int64_t>(*value)) return *number;
  return Fail(context, absl::StrCat("an integer is needed, not ", TypeName(*value)));
}

absl::StatusOr<const Text*> TextArgument(const Arguments& arguments, size_t index,
                                         const Context& context) {
  const Text* text =
      arguments.positional.size() > index ? AsText(arguments.positional[index]) : nullptr;
  if (text != nullptr) return text;
  return Fail(context, "a string is needed");
}

absl::StatusOr<Value> StripMethod(absl::string_view name, const Text& text,
                                  const Arguments& arguments, const Context& context) {
  const Side side = name == "lstrip" ? Side::kLeft : name == "rstrip" ? Side::kRight : Side::kBoth;
  if (arguments.positional.empty() || IsNone(arguments.positional[0]))
    return TextValue(Strip(text, side));
  SLUICE_ASSIGN_OR_RETURN(const Text* characters, TextArgument(arguments, 0, context));
  return TextValue(Strip(text, characters->view(), side));
}

absl::StatusOr<Value> SplitMethod(absl::string_view name, const Text& text,
                                  const Arguments& arguments, Context& context) {
  SLUICE_RETURN_IF_ERROR(CheckArguments(arguments, name, {"sep", "maxsplit"}, context));
  SLUICE_ASSIGN_OR_RETURN(const int64_t times,
                          IntegerArgument(arguments, 1, "maxsplit", -1, context));
  const Value* separator = arguments.Get(0, "sep");
  std::vector<Text> parts;
  if (separator == nullptr || IsNone(*separator)) {
    if (name == "rsplit" && times >= 0) return Fail(context, "rsplit at white space with a limit");
    parts = SplitWords(text, times);
  } else {
    const Text* at = AsText(*separator);
    if (at == nullptr || at->empty()) return Fail(context, "an empty separator");
    parts =
        name == "rsplit" ? SplitFromRight(text, at->view(), times) : Split(text, at->view(), times);
  }
  SLUICE_RETURN_IF_ERROR(context.budget.Spend(parts.size()));
  std::vector<Value> values;
  for (Text& part : parts) values.push_back(TextValue(std::move(part)));
  return Value(context.heap.NewList(std::move(values)));
}

// startswith and endswith, of one string or any of a tuple.
absl::StatusOr<Value> Affix(bool start, const Text& text, const Arguments& arguments,
                            const Context& context) {
  if (arguments.positional.size() != 1) return Fail(context, "one prefix or suffix is needed");
  const auto matches = [&](const Value& affix) {
    const Text* part = AsText(affix);
    return part != nullptr && (start ? absl::StartsWith(text.view(), part->view())
                                     : absl::EndsWith(text.view(), part->view()));
  };
  const Value& affix = arguments.positional[0];
  if (const List* several = AsList(affix); several != nullptr && several->tuple) {
    return Value(std::any_of(several->items.begin(), several->items.end(), matches));
  }
  if (AsText(affix) == nullptr)
    return Fail(context, absl::StrCat(TypeName(affix), " for a prefix or suffix"));
  return Value(matches(affix));
}

absl::StatusOr<Value> Find(absl::string_view name, const Text& text, const Arguments& arguments,
                           Context& context) {
  if (arguments.positional.size() != 1)
    return Fail(context, absl::StrCat("'", name, "' with bounds"));
  SLUICE_ASSIGN_OR_RETURN(const Text* part, TextArgument(arguments, 0, context));
  const size_t at =
      name == "rfind" ? text.view().rfind(part->view()) : text.view().find(part->view());
  if (at == absl::string_view::npos) {
    if (name == "index") return Fail(context, "a part that is not there");
    return Value(int64_t{-1});
  }
  return Value(static_cast<int64_t>(Characters(text.view().substr(0, at)).size()));
}

int64_t CountParts(absl::string_view text, absl::string_view part) {
  if (part.empty()) return static_cast<int64_t>(Characters(text).size()) + 1;
  int64_t count = 0;
  for (size_t at = text.find(part); at != absl::string_view::npos;
       at = text.find(part, at + part.size()))
    ++count;
  return count;
}

absl::StatusOr<Value> Affixless(bool prefix, const Text& text, const Arguments& arguments,
                                const Context& context) {
  SLUICE_ASSIGN_OR_RETURN(const Text* affix, TextArgument(arguments, 0, context));
  const absl::string_view view = text.view(), part = affix->view();
  if (prefix && absl::StartsWith(view, part)) return TextValue(text.Part(view.substr(part.size())));
  if (!prefix && absl::EndsWith(view, part))
    return TextValue(text.Part(view.substr(0, view.size() - part.size())));
  return TextValue(text);
}

absl::StatusOr<Value> TextMethod(absl::string_view name, const Text& text,
                                 const Arguments& arguments, Context& context) {
  SLUICE_RETURN_IF_ERROR(context.budget.SpendText(text.size() * 2));
  if (name == "strip" || name == "lstrip" || name == "rstrip")
    return StripMethod(name, text, arguments, context);
  if (name == "split" || name == "rsplit") return SplitMethod(name, text, arguments, context);
  if (name == "startswith" || name == "endswith")
    return Affix(name == "startswith", text, arguments, context);
  if (name == "find" || name == "rfind" || name == "index")
    return Find(name, text, arguments, context);
  if (name == "upper") return TextValue(ChangeCase(text, Case::kUpper));
  if (name == "lower") return TextValue(ChangeCase(text, Case::kLower));
  if (name == "title") return TextValue(ChangeCase(text, Case::kTitle));
  if (name == "capitalize") return TextValue(ChangeCase(text, Case::kCapitalize));
  if (name == "removeprefix" || name == "removesuffix") {
    return Affixless(name == "removeprefix", text, arguments, context);
  }
  if (name == "replace") {
    SLUICE_ASSIGN_OR_RETURN(const Text* old_text, TextArgument(arguments, 0, context));
    SLUICE_ASSIGN_OR_RETURN(const Text* new_text, TextArgument(arguments, 1, context));
    SLUICE_ASSIGN_OR_RETURN(const int64_t times,
                            IntegerArgument(arguments, 2, "count", -1, context));
    SLUICE_RETURN_IF_ERROR(SpendReplace(text, old_text->view(), *new_text, context));
    return TextValue(Replace(text, old_text->view(), *new_text, times));
  }
  if (name == "count") {
    SLUICE_ASSIGN_OR_RETURN(const Text* part, TextArgument(arguments, 0, context));
    return Value(CountParts(text.view(), part->view()));
  }
  if (name == "splitlines") {
    const Value* keep = arguments.Get(0, "keepends");
    std::vector<Value> lines;
    for (Text& line : SplitLines(text, keep != nullptr && IsTrue(*keep)))
      lines.push_back(TextValue(std::move(line)));
    SLUICE_RETURN_IF_ERROR(context.budget.Spend(lines.size()));
    return Value(context.heap.NewList(std::move(lines)));
  }
  if (name == "isdigit") {
    const absl::string_view view = text.view();
    return Value(!view.empty() && std::all_of(view.begin(), view.end(), [](unsigned char c) {
      return std::isdigit(c) != 0;
    }));
  }
  if (name == "join") {
    if (arguments.positional.size() != 1) return Fail(context, "join needs a list");
    Arguments separator;
    separator.positional = {TextValue(text)};
    return ApplyFilter("join", arguments.positional[0], separator, context);
  }
  return Fail(context, absl::StrCat("a string has no method '", name, "'"));
}

absl::StatusOr<Value> DictMethod(absl::string_view name, const Dict& dict, const Value& object,
                                 const Arguments& arguments, Context& context) {
  if (name == "items") return ApplyFilter("items", object, {}, context);
  if (name == "keys") return ApplyFilter("list", object, {}, context);
  if (name == "values") {
    SLUICE_RETURN_IF_ERROR(context.budget.Spend(dict.members.size()));
    std::vector<Value> values;
    for (const auto& [key, value] : dict.members) values.push_back(value);
    return Value(context.heap.NewList(std::move(values)));
  }
  if (name == "get") {
    if (arguments.positional.empty()) return Fail(context, "get needs a key");
    const Text* key = AsText(arguments.positional[0]);
    const Value* found = key == nullptr ? nullptr : dict.Find(key->view());
    const Value* absent = arguments.Get(1, "default");
    return found != nullptr ? *found : absent != nullptr ? *absent : Value(None{});
  }
  return Fail(context, absl::StrCat("a mapping has no method '", name, "'"));
}

absl::StatusOr<Value> ListMethod(absl::string_view name, List& list, const Arguments& arguments,
                                 Context& context) {
  const auto& positional = arguments.positional;
  if (list.tuple && name != "index" && name != "count") {
    return Fail(context, absl::StrCat("a tuple has no method '", name, "'"));
  }
  if (name == "append" && positional.size() == 1) {
    list.items.push_back(positional[0]);
    return Value(None{});
  }
  if (name == "extend" && positional.size() == 1) {
    SLUICE_ASSIGN_OR_RETURN(const std::vector<Value> items, Items(positional[0], context));
    list.items.insert(list.items.end(), items.begin(), items.end());
    return Value(None{});
  }
  const auto size = static_cast<int64_t>(list.items.size());
  if (name == "insert" && positional.size() == 2) {
    SLUICE_ASSIGN_OR_RETURN(const int64_t at, IntegerArgument(arguments, 0, "", 0, context));
    SLUICE_RETURN_IF_ERROR(context.budget.Spend(list.items.size()));
    list.items.insert(list.items.begin() + std::clamp<int64_t>(at < 0 ? at + size : at, 0, size),
                      positional[1]);
    return Value(None{});
  }
  if (name == "pop") {
    SLUICE_ASSIGN_OR_RETURN(int64_t at, IntegerArgument(arguments, 0, "", -1, context));
    if (at < 0) at += size;
    if (at < 0 || at >= size) return Fail(context, "pop of what is not there");
    SLUICE_RETURN_IF_ERROR(context.budget.Spend(list.items.size()));
    Value item = list.items[static_cast<size_t>(at)];
    list.items.erase(list.items.begin() + at);
    return item;
  }
  if ((name == "index" || name == "count") && positional.size() == 1) {
    int64_t count = 0;
    for (size_t i = 0; i < list.items.size(); ++i) {
      SLUICE_ASSIGN_OR_RETURN(const bool same, Equal(list.items[i], positional[0], context));
      if (same && name == "index") return Value(static_cast<int64_t>(i));
      count += same;
    }
    if (name == "count") return Value(count);
    return Fail(context, "an item that is not there");
  }
  return Fail(context, absl::StrCat("a list has no method '", name, "' with these arguments"));
}

}  // namespace

absl::StatusOr<Value> CallMethod(absl::string_view name, const Value& object,
                                 const Arguments& arguments, Context& context) {
  SLUICE_RETURN_IF_ERROR(context.budget.Spend(1));
  if (const Text* text = AsText(object)) return TextMethod(name, *text, arguments, context);
  if (const Dict* dict = AsDict(object)) return DictMethod(name, *dict, object, arguments, context);
  if (List* list = AsList(object)) return ListMethod(name, *list, arguments, context);
  const auto* undefined = As<Undefined>(object);
  return Fail(context, undefined == nullptr
                           ? absl::StrCat(TypeName(object), " has no method '", name, "'")
                           : absl::StrCat("'", undefined->what, "' is undefined, so it has no '",
                                          name, "'"));
}

}  // namespace sluice::text::jinja
