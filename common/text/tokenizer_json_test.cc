// What the readers of vocabulary files accept and what they refuse, by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "text/byte_level.h"
#include "text/testing/golden.h"
#include "text/tokenizer.h"
#include "text/tokenizer_spec.h"

namespace sluice::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::MakeTokenizer;

constexpr auto kInvalidArgument = absl::StatusCode::kInvalidArgument;

// Parts of a small tokenizer.json; each test replaces one.
struct Parts {
  std::string normalizer = "null";
  std::string pre_tokenizer =
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";
  std::string post_processor = "null";
  std::string decoder = R"({"type":"ByteLevel"})";
  std::string added = R"([{"id":5,"content":"<s>","special":true},{"id":6,"content":"<t>"}])";
  std::string model = R"("type":"BPE","dropout":null,"byte_fallback":false)";
  std::string vocab = R"({"a":0,"b":1,"c":2,"ab":3,"\u0120":4})";
  std::string merges = R"(["a b"])";
  std::string config = "";
};

absl::StatusOr<TokenizerSpec> Read(const Parts& p) {
  return SpecFromTokenizerJson(
      absl::StrCat(R"({"version":"1.0","added_tokens":)", p.added, R"(,"normalizer":)",
                   p.normalizer, R"(,"pre_tokenizer":)", p.pre_tokenizer, R"(,"post_processor":)",
                   p.post_processor, R"(,"decoder":)", p.decoder, R"(,"model":{)", p.model,
                   R"(,"vocab":)", p.vocab, R"(,"merges":)", p.merges, "}}"),
      p.config);
}

void ExpectRefused(const Parts& parts, const std::string& named) {
  const auto spec = Read(parts);
  ASSERT_EQ(spec.status().code(), kInvalidArgument) << named;
  EXPECT_THAT(std::string(spec.status().message()), HasSubstr(named));
}

TEST(TokenizerJson, ReadsBothSpellingsOfMerges) {
  for (const char* merges : {R"(["a b"])", R"([["a","b"]])"}) {
    Parts parts;
    parts.merges = merges;
    const auto spec = Read(parts);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto tokenizer = MakeTokenizer(*spec);
    EXPECT_THAT(*tokenizer->Encode("ab c<s>a", true), ElementsAre(3, 4, 2, 5, 0));
    EXPECT_TRUE(tokenizer->IsSpecial(5));
    EXPECT_FALSE(tokenizer->IsSpecial(6));
    EXPECT_EQ(tokenizer->TokenBytes(4), " ");
    EXPECT_EQ(tokenizer->TokenBytes(6), "<t>");
  }
}

TEST(TokenizerJson, RefusesNodesItDoesNotKnow) {
  const std::string byte_level = Parts().pre_tokenizer;
  const auto refused = [](std::string Parts::*part, const std::string& value,
                          const std::string& named) {
    Parts parts;
    parts.*part = value;
    ExpectRefused(parts, named);
  };
  refused(&Parts::normalizer, R"({"type":"Lowercase"})", "Lowercase");
  refused(&Parts::normalizer, R"({"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"X1"}]})",
          "X1");
  refused(&Parts::normalizer, R"({"type":"Sequence"})", "normalizer");
  refused(&Parts::pre_tokenizer, "null", "without ByteLevel");
  refused(&Parts::pre_tokenizer, R"({"type":"Metaspace"})", "Metaspace");
  refused(&Parts::pre_tokenizer, R"({"type":"ByteLevel","add_prefix_space":true})",
          "add_prefix_space");
  refused(&Parts::pre_tokenizer,
          absl::StrCat(R"({"type":"Sequence","pretokenizers":[)", byte_level,
                       R"(,{"type":"Digits"}]})"),
          "behind ByteLevel");
  refused(&Parts::pre_tokenizer,
          R"({"type":"Split","pattern":{"String":"x"},"behavior":"Isolated"})", "Regex");
  refused(&Parts::pre_tokenizer, R"({"type":"Split","pattern":{"Regex":"x"},"behavior":"Removed"})",
          "Removed");
  refused(&Parts::pre_tokenizer,
          R"({"type":"Split","pattern":{"Regex":"\\w"},"behavior":"Isolated"})", "\\w");
  refused(&Parts::post_processor, R"({"type":"BertProcessing"})", "BertProcessing");
  refused(&Parts::decoder, R"({"type":"Metaspace"})", "Metaspace");
  refused(&Parts::model, R"("type":"Unigram")", "Unigram");
  refused(&Parts::model, R"("type":"BPE","byte_fallback":true)", "byte_fallback");
  refused(&Parts::model, R"("type":"BPE","end_of_word_suffix":"</w>")", "end_of_word_suffix");
  refused(&Parts::model, R"("type":"BPE","dropout":0.1)", "dropout");
  refused(&Parts::model, R"("type":"BPE","unk_token":"?")", "unk_token");
  refused(&Parts::added, R"([{"id":5,"content":"<s>","single_word":true}])", "single_word");
}

TEST(TokenizerJson, RefusesBrokenVocabularies) {
  const auto refused = [](std::string Parts::*part, const std::string& value) {
    Parts parts;
    parts.*part = value;
    const auto spec = Read(parts);
    EXPECT_EQ(spec.status().code(), kInvalidArgument) << value;
  };
  refused(&Parts::vocab, R"({"a":0,"b":0})");
  refused(&Parts::vocab, R"({"a":-1})");
  refused(&Parts::vocab, R"({"a":4000000000})");
  refused(&Parts::vocab, R"({"a":0.5})");
  refused(&Parts::vocab, "[]");
  refused(&Parts::merges, R"(["ab"])");
  refused(&Parts::merges, R"(["a z"])");
  refused(&Parts::merges, R"(["b a"])");
  refused(&Parts::merges, R"([["a"]])");
  refused(&Parts::merges, R"([1])");
  refused(&Parts::added, R"([{"id":-5,"content":"<s>"}])");
  refused(&Parts::added, R"([{"content":"<s>"}])");
  refused(&Parts::added, R"([7])");
  refused(&Parts::added, R"([{"id":5,"content":""}])");
  refused(&Parts::decoder, "7");
  refused(&Parts::config, "{");
  refused(&Parts::config, "[]");
  EXPECT_EQ(SpecFromTokenizerJson("", "").status().code(), kInvalidArgument);
  EXPECT_EQ(SpecFromTokenizerJson("{}", "").status().code(), kInvalidArgument);
  const std::string deep(100000, '[');
  EXPECT_EQ(SpecFromTokenizerJson(deep, "").status().code(), kInvalidArgument);
}

TEST(TokenizerJson, PostProcessorMayPrefixBos) {
  Parts parts;
  const std::string text = R"({"Sequence":{"id":"A","type_id":0}})";
  const std::string token = R"({"SpecialToken":{"id":"<s>","type_id":0}})";
  const auto processor = [](const std::string& items) {
    return absl::StrCat(R"({"type":"Sequence","processors":[{"type":"ByteLevel"},)",
                        R"({"type":"TemplateProcessing","single":[)", items, R"(],"pair":[]}]})");
  };
  parts.post_processor = processor(token + "," + text);
  auto spec = Read(parts);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->add_bos);
  EXPECT_EQ(spec->bos, 5);
  parts.config = R"({"add_bos_token":false})";
  EXPECT_FALSE(Read(parts)->add_bos);
  parts.post_processor = processor(text + "," + token);
  ExpectRefused(parts, "TemplateProcessing");
  parts.post_processor = processor(token + "," + token + "," + text);
  ExpectRefused(parts, "TemplateProcessing");
}

TEST(TokenizerJson, ConfigNamesRolesAndAddsTokens) {
  Parts parts;
  parts.config = R"({"bos_token":{"content":"<s>"},"eos_token":"<u>","pad_token":null,
      "add_bos_token":true,"added_tokens_decoder":{"5":{"content":"<s>","special":true},
      "9":{"content":"<u>","special":true}}})";
  const auto spec = Read(parts);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->bos, 5);
  EXPECT_EQ(spec->pad, std::nullopt);
  EXPECT_THAT(spec->eos, ElementsAre(9));
  EXPECT_TRUE(spec->add_bos);
  EXPECT_EQ(spec->added.size(), 3u);
  EXPECT_EQ(MakeTokenizer(*spec)->vocab_size(), 10);
  parts.config = R"({"eos_token":"<nowhere>"})";
  ExpectRefused(parts, "eos_token");
  parts.config = R"({"added_tokens_decoder":{"5":{"content":"<other>"}}})";
  ExpectRefused(parts, "differs");
}

TEST(Gguf, KnowsItsPreTokenizersAndTokenTypes) {
  const std::vector<std::string> tokens = {"a", "b", "ab", "<c>", "<u>", "unused", ""};
  const std::vector<int32_t> types = {1, 1, 1, 3, 4, 5, 5};
  const std::vector<std::string> merges = {"a b"};
  GgufVocabulary gguf;
  gguf.model = "gpt2";
  gguf.pre = "llama-bpe";
  gguf.tokens = tokens;
  gguf.token_types = types;
  gguf.merges = merges;
  gguf.bos = 3;
  auto spec = SpecFromGguf(gguf);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->add_bos);
  EXPECT_TRUE(spec->ignore_merges);
  const auto tokenizer = MakeTokenizer(*spec);
  EXPECT_THAT(*tokenizer->Encode("ab<c><u>", true), ElementsAre(2, 3, 4));
  EXPECT_TRUE(tokenizer->IsSpecial(3));
  EXPECT_FALSE(tokenizer->IsSpecial(4));
  EXPECT_EQ(tokenizer->TokenBytes(5), "");
  EXPECT_EQ(tokenizer->vocab_size(), 7);
  gguf.pre = "mystery";
  EXPECT_THAT(std::string(SpecFromGguf(gguf).status().message()), HasSubstr("smollm"));
  gguf.pre = "qwen2";
  EXPECT_TRUE(SpecFromGguf(gguf)->nfc);
  gguf.token_types = absl::MakeSpan(types).subspan(1);
  EXPECT_EQ(SpecFromGguf(gguf).status().code(), kInvalidArgument);
  gguf.token_types = {};
  gguf.model = "llama";
  EXPECT_THAT(std::string(SpecFromGguf(gguf).status().message()), HasSubstr("gpt2"));
}

TEST(Tiktoken, RefusesMalformedFiles) {
  const auto code = [](absl::string_view model, absl::string_view config) {
    return SpecFromTiktoken(model, config).status().code();
  };
  EXPECT_EQ(code("YQ== 0\nYg== 1\n", "{}"), absl::StatusCode::kOk);
  EXPECT_EQ(code("YQ== 0\nYg== 0\n", "{}"), kInvalidArgument);
  EXPECT_EQ(code("YQ== 0\nYQ== 1\n", "{}"), kInvalidArgument);
  EXPECT_EQ(code("YQ==\n", "{}"), kInvalidArgument);
  EXPECT_EQ(code("!! 0\n", "{}"), kInvalidArgument);
  EXPECT_EQ(code("YQ== -1\n", "{}"), kInvalidArgument);
  EXPECT_EQ(code("YQ== 3000000\n", "{}"), kInvalidArgument);
  EXPECT_EQ(code("YQ== 0\n", ""), kInvalidArgument);
}

TEST(ByteLevel, AlphabetIsABijection) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  EXPECT_EQ(DecodeByteLevel(EncodeByteLevel(all)), all);
  EXPECT_EQ(EncodeByteLevel(" \n"), "\u0120\u010A");
  EXPECT_EQ(DecodeByteLevel("\u0144"), std::nullopt);
  EXPECT_EQ(DecodeByteLevel(" "), std::nullopt);
  EXPECT_EQ(DecodeByteLevel("\xC4"), std::nullopt);
}

}  // namespace
}  // namespace sluice::text
