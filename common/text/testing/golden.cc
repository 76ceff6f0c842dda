#include "text/testing/golden.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace sluice::text::testing {

std::string GoldenFile(const std::string& path) {
  std::ifstream file(std::string(SLUICE_TEST_DATA) + "/golden/" + path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

boost::json::value GoldenJson(const std::string& path) {
  return boost::json::parse(GoldenFile(path));
}

std::vector<TokenId> Ids(const boost::json::value& array) {
  return boost::json::value_to<std::vector<TokenId>>(array);
}

TokenizerSpec SmolLm2Spec() {
  const auto lines = [](const char* name) -> std::vector<std::string> {
    const std::string file = GoldenFile(std::string("tokenizer/smollm2/") + name);
    return absl::StrSplit(absl::string_view(file), '\n', absl::SkipEmpty());
  };
  std::vector<std::string> tokens = lines("tokens.txt");
  const std::vector<std::string> merges = lines("merges.txt");
  std::vector<int32_t> types(tokens.size(), 1);
  std::fill_n(types.begin(), 17, 3);
  for (const std::string& merge : merges) {
    const size_t space = merge.find(' ');
    tokens.push_back(merge.substr(0, space) + merge.substr(space + 1));
    types.push_back(1);
  }
  GgufVocabulary gguf;
  gguf.model = "gpt2";
  gguf.pre = "smollm";
  gguf.tokens = tokens;
  gguf.token_types = types;
  gguf.merges = merges;
  gguf.bos = 1;
  gguf.eos = {2};
  gguf.unknown = 0;
  gguf.pad = 2;
  gguf.add_bos = false;
  auto spec = SpecFromGguf(gguf);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.value_or(TokenizerSpec());
}

std::unique_ptr<const Tokenizer> MakeTokenizer(TokenizerSpec spec) {
  auto tokenizer = Tokenizer::Create(std::move(spec));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::unique_ptr<const Tokenizer> GoldenTokenizer(const std::string& name) {
  if (name == "smollm2") return MakeTokenizer(SmolLm2Spec());
  const std::string folder = "tokenizer/" + name + "/";
  const auto spec = name == "kimi"
                        ? SpecFromTiktoken(GoldenFile(folder + "tiktoken.model"),
                                           GoldenFile(folder + "tokenizer_config.json"))
                        : SpecFromTokenizerJson(GoldenFile(folder + "tokenizer.json"), "");
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? MakeTokenizer(*spec) : nullptr;
}

}  // namespace sluice::text::testing
