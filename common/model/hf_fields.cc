#include "model/hf_fields.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::model {
namespace {

using formats::JsonValue;

absl::StatusOr<int32_t> Narrow(absl::string_view key, int64_t value) {
  if (value < 0 || value > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", key, "' is ", value, ", out of range; possible are 0 to 2147483647"));
  }
  return static_cast<int32_t>(value);
}

}  // namespace

absl::StatusOr<int32_t> GetCount(const JsonValue& config, absl::string_view key) {
  SLUICE_ASSIGN_OR_RETURN(const int64_t value, config.GetInt(key));
  return Narrow(key, value);
}

absl::StatusOr<int32_t> GetCountOr(const JsonValue& config, absl::string_view key,
                                   int32_t fallback) {
  SLUICE_ASSIGN_OR_RETURN(const int64_t value, config.GetIntOr(key, fallback));
  return Narrow(key, value);
}

absl::Status RefuseOption(const JsonValue& config, absl::string_view key) {
  SLUICE_ASSIGN_OR_RETURN(const bool on, config.GetBoolOr(key, false));
  if (on) return absl::UnimplementedError(absl::StrCat("'", key, "' is on; it is not built"));
  return absl::OkStatus();
}

absl::Status ExpectString(const JsonValue& config, absl::string_view key, absl::string_view only) {
  const JsonValue* value = config.Find(key);
  if (value == nullptr || value->is_null()) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const absl::string_view text, config.GetString(key));
  if (text == only) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("'", key, "' is '", text.substr(0, 64), "'; only '", only, "' is built"));
}

absl::StatusOr<std::vector<bool>> GetLayerFlags(const JsonValue& config, absl::string_view key,
                                                absl::string_view yes, absl::string_view no) {
  std::vector<bool> flags;
  const JsonValue* list = config.Find(key);
  if (list == nullptr || list->is_null()) return flags;
  if (!list->is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", key, "' is ", list->kind(), ", expected an array"));
  }
  for (const JsonValue& entry : list->array()) {
    const absl::StatusOr<absl::string_view> text = entry.AsString();
    if (!text.ok() || (*text != yes && *text != no)) {
      return absl::InvalidArgumentError(absl::StrCat("'", key, "' entry ", flags.size(),
                                                     " is neither '", yes, "' nor '", no, "'"));
    }
    flags.push_back(*text == yes);
  }
  return flags;
}

absl::Status AddTokens(const JsonValue& config, absl::string_view key, std::vector<int32_t>* out) {
  const JsonValue* value = config.Find(key);
  if (value == nullptr || value->is_null()) return absl::OkStatus();
  const absl::Span<const JsonValue> tokens =
      value->is_array() ? value->array() : absl::MakeConstSpan(value, 1);
  for (const JsonValue& token : tokens) {
    const absl::StatusOr<int64_t> id = token.AsInt();
    if (!id.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("'", key, "' ", id.status().message()));
    }
    SLUICE_ASSIGN_OR_RETURN(const int32_t narrow, Narrow(key, *id));
    out->push_back(narrow);
  }
  return absl::OkStatus();
}

}  // namespace sluice::model
