// tokenizer_config.json: which tokens play which role.
#pragma once

#include <boost/json.hpp>

#include "absl/status/status.h"
#include "text/tokenizer_spec.h"

namespace sluice::text {

// One entry of `added_tokens` or `added_tokens_decoder`. INVALID_ARGUMENT for flags that are not
// supported.
absl::StatusOr<AddedToken> ReadAddedToken(const boost::json::value& value, int64_t id);

// Takes over added_tokens_decoder (tokens that `spec` does not have yet), bos, eos and pad token
// and add_bos_token.
absl::Status ApplyTokenizerConfig(const boost::json::object& config, TokenizerSpec* spec);

}  // namespace sluice::text
