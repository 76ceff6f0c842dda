// Reading fields of a config.json with errors that name the key and the value. Internal to this
// folder.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/json.h"
#include "model/config.h"

namespace sluice::model {

// A count that fits int32 and is not negative. `...Or`: `fallback` when missing or null.
absl::StatusOr<int32_t> GetCount(const formats::JsonValue& config, absl::string_view key);
absl::StatusOr<int32_t> GetCountOr(const formats::JsonValue& config, absl::string_view key,
                                   int32_t fallback);

// UNIMPLEMENTED when the boolean `key` is true.
absl::Status RefuseOption(const formats::JsonValue& config, absl::string_view key);

// UNIMPLEMENTED when the string `key` is there and not `only`.
absl::Status ExpectString(const formats::JsonValue& config, absl::string_view key,
                          absl::string_view only);

// One entry per layer of the array of strings `key`: whether it is `yes`; any other entry must be
// `no`. Empty when the key is missing.
absl::StatusOr<std::vector<bool>> GetLayerFlags(const formats::JsonValue& config,
                                                absl::string_view key, absl::string_view yes,
                                                absl::string_view no);

// Adds the token or tokens at `key`: missing, null, a number or an array of numbers.
absl::Status AddTokens(const formats::JsonValue& config, absl::string_view key,
                       std::vector<int32_t>* out);

// The parts of a config below. Each reads what `out->family` has and expects the shape (layers,
// heads, ...) to be there.
absl::Status ParseRope(const formats::JsonValue& config, ModelConfig* out);
absl::Status ParseMla(const formats::JsonValue& config, ModelConfig* out);
absl::Status ParseDsa(const formats::JsonValue& config, ModelConfig* out);
absl::Status ParseMoe(const formats::JsonValue& config, ModelConfig* out);
// Refuses a quantization_config whose tensors this project would misread.
absl::Status CheckQuantization(const formats::JsonValue& config);

}  // namespace sluice::model
