// Reference data of the text tests.
#pragma once

#include <boost/json.hpp>
#include <memory>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace sluice::text::testing {

// The file at `path` below tests/golden; fails the test and returns "" if it cannot be read.
std::string GoldenFile(const std::string& path);
boost::json::value GoldenJson(const std::string& path);
std::vector<TokenId> Ids(const boost::json::value& array);

// A tokenizer of tests/golden/tokenizer; null after a test failure.
std::unique_ptr<const Tokenizer> GoldenTokenizer(const std::string& name);
TokenizerSpec SmolLm2Spec();
std::unique_ptr<const Tokenizer> MakeTokenizer(TokenizerSpec spec);

}  // namespace sluice::text::testing
