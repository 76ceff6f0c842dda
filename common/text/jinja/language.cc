#include "text/jinja/language.h"

#include <algorithm>
#include <iterator>

namespace sluice::text::jinja {
namespace {

constexpr absl::string_view kFilters[] = {
    "abs",     "capitalize", "count",  "d",      "default",    "dictsort", "first",
    "float",   "indent",     "int",    "items",  "join",       "last",     "length",
    "list",    "lower",      "map",    "max",    "min",        "reject",   "rejectattr",
    "replace", "reverse",    "safe",   "select", "selectattr", "sort",     "string",
    "sum",     "title",      "tojson", "trim",   "unique",     "upper"};
constexpr absl::string_view kTests[] = {
    "boolean",  "defined", "divisibleby", "eq",        "equalto", "even",     "false",
    "float",    "ge",      "gt",          "in",        "integer", "iterable", "le",
    "lower",    "lt",      "mapping",     "ne",        "none",    "number",   "odd",
    "sequence", "string",  "true",        "undefined", "upper"};
constexpr absl::string_view kMethods[] = {
    "append",     "capitalize", "count",  "endswith", "extend",       "find",
    "get",        "index",      "insert", "isdigit",  "items",        "join",
    "keys",       "lower",      "lstrip", "pop",      "removeprefix", "removesuffix",
    "replace",    "rfind",      "rsplit", "rstrip",   "split",        "splitlines",
    "startswith", "strip",      "title",  "upper",    "values"};
constexpr absl::string_view kFunctions[] = {"dict", "namespace", "raise_exception", "range",
                                            "strftime_now"};

template <typename Words>
bool Has(const Words& words, absl::string_view name) {
  return std::find(std::begin(words), std::end(words), name) != std::end(words);
}

}  // namespace

bool IsFilter(absl::string_view name) { return Has(kFilters, name); }
bool IsTest(absl::string_view name) { return Has(kTests, name); }
bool IsMethod(absl::string_view name) { return Has(kMethods, name); }
bool IsFunction(absl::string_view name) { return Has(kFunctions, name); }

}  // namespace sluice::text::jinja
