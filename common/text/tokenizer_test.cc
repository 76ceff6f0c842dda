// Behaviour of the tokenizer that the reference cases do not show.
#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/bpe.h"
#include "text/detokenizer.h"
#include "text/nfc.h"
#include "text/split_pattern.h"
#include "text/splitter.h"
#include "text/testing/golden.h"

namespace sluice::text {
namespace {

using ::testing::ElementsAre;
using testing::GoldenTokenizer;
using ::testing::HasSubstr;
using testing::MakeTokenizer;
using testing::SmolLm2Spec;

constexpr auto kInvalidArgument = absl::StatusCode::kInvalidArgument;

std::string Repeat(absl::string_view unit, size_t bytes) {
  std::string text;
  while (text.size() < bytes) text.append(unit.data(), unit.size());
  return text;
}

TEST(Bpe, WorkGrowsWithTheTextOnly) {
  for (const TokenizerSpec& spec : {SmolLm2Spec(), [] {
                                      TokenizerSpec doubling = ByteTokenizerSpec();
                                      doubling.vocabulary.resize(257);
                                      TokenId last = 'a';
                                      for (int i = 0; i < 18; ++i) {
                                        const auto next = static_cast<TokenId>(257 + i);
                                        doubling.vocabulary.push_back(std::string(2u << i, 'a'));
                                        doubling.merges.push_back({last, last, next, i});
                                        last = next;
                                      }
                                      return doubling;
                                    }()}) {
    const auto bpe = Bpe::Create(spec);
    ASSERT_TRUE(bpe.ok()) << bpe.status();
    for (const char* unit : {"a", " ", "=", "ab", "the ", "\xE2\x82\xAC"}) {
      const std::string piece = Repeat(unit, 1 << 20);
      BpeWorkspace workspace;
      std::vector<TokenId> ids;
      ASSERT_TRUE(bpe->Encode(piece, &workspace, &ids).ok());
      EXPECT_LE(workspace.queue_operations, 6 * piece.size()) << unit;
      EXPECT_LE(ids.size(), piece.size());
    }
  }
}

TEST(Bpe, LowestRankFirstThenLeftmost) {
  TokenizerSpec spec = ByteTokenizerSpec();
  spec.vocabulary.resize(257);
  const auto add = [&](TokenId left, TokenId right) {
    const auto bytes = [&](TokenId id) { return spec.vocabulary[static_cast<size_t>(id)]; };
    const auto id = static_cast<TokenId>(spec.vocabulary.size());
    spec.vocabulary.push_back(bytes(left) + bytes(right));
    spec.merges.push_back({left, right, id, static_cast<int32_t>(spec.merges.size())});
    return id;
  };
  const TokenId bc = add('b', 'c'), ab = add('a', 'b'), aa = add('a', 'a');
  const auto tokenizer = MakeTokenizer(spec);
  EXPECT_THAT(*tokenizer->Encode("abc"), ElementsAre('a', bc));
  EXPECT_THAT(*tokenizer->Encode("ab"), ElementsAre(ab));
  EXPECT_THAT(*tokenizer->Encode("aaa"), ElementsAre(aa, 'a'));
}

TEST(Bpe, IgnoreMergesTakesWholePiecesAndNoSpecialTokens) {
  TokenizerSpec spec = ByteTokenizerSpec();
  spec.vocabulary.resize(257);
  spec.vocabulary.push_back("abc");
  spec.vocabulary.push_back("secret");
  spec.added.push_back({258, "secret", /*special=*/true});
  EXPECT_EQ(MakeTokenizer(spec)->Encode("abc")->size(), 3u);
  spec.ignore_merges = true;
  const auto tokenizer = MakeTokenizer(spec);
  EXPECT_THAT(*tokenizer->Encode("abc"), ElementsAre(257));
  EXPECT_EQ(tokenizer->Encode("secret")->size(), 6u);
  EXPECT_THAT(*tokenizer->Encode("secret", true), ElementsAre(258));
}

TEST(Tokenizer, LongRunsOfOneCharacterStayCheap) {
  // A quadratic step anywhere would take minutes for these and run into the time limit of the test.
  for (const char* name : {"glm", "qwen", "kimi", "smollm2"}) {
    const auto tokenizer = GoldenTokenizer(name);
    ASSERT_NE(tokenizer, nullptr);
    for (const char* unit : {"a", " ", "\n", "1", "=", "漢", "e\u0301", " \n", "'s", "aB"}) {
      const std::string text = Repeat(unit, 1 << 19);
      const auto ids = tokenizer->Encode(text);
      ASSERT_TRUE(ids.ok()) << name << " '" << unit << "': " << ids.status();
      const bool same = Detokenize(*tokenizer, *ids) == text;
      EXPECT_TRUE(same || std::string(name) == "qwen") << name << " '" << unit << "'";
    }
  }
}

TEST(Tokenizer, RefusesInvalidUtf8) {
  const auto tokenizer = MakeTokenizer(ByteTokenizerSpec());
  for (const char* text : {"\xFF", "a\xC3", "\xED\xA0\x80", "\xC0\x80"}) {
    EXPECT_EQ(tokenizer->Encode(text).status().code(), kInvalidArgument);
    EXPECT_EQ(tokenizer->EncodeSegments({{"ok", true}, {text, false}}).status().code(),
              kInvalidArgument);
  }
  // A character may not straddle segments either.
  EXPECT_EQ(tokenizer->EncodeSegments({{"\xC3", true}, {"\xA4", true}}).status().code(),
            kInvalidArgument);
}

TEST(Tokenizer, RefusesAByteWithoutToken) {
  TokenizerSpec spec = ByteTokenizerSpec();
  spec.vocabulary[7].clear();
  const auto status = MakeTokenizer(spec)->Encode("a\x07").status();
  EXPECT_EQ(status.code(), kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("0x07"));
}

TEST(Tokenizer, TrustedTextTakesTheLongestMarker) {
  TokenizerSpec spec = ByteTokenizerSpec();
  spec.added.push_back({257, "<a>", false});
  spec.added.push_back({258, "<a><b>", false});
  spec.added.push_back({259, "b", false});
  const auto tokenizer = MakeTokenizer(spec);
  EXPECT_THAT(*tokenizer->Encode("<a><b>x<a>b", true), ElementsAre(258, 'x', 257, 259));
  EXPECT_THAT(*tokenizer->Encode("<a><", true), ElementsAre(257, '<'));
  EXPECT_EQ(tokenizer->Encode("<a><b>")->size(), 6u);
  EXPECT_EQ(tokenizer->vocab_size(), 260);
  EXPECT_EQ(tokenizer->FindAdded("<a>"), 257);
  EXPECT_EQ(tokenizer->FindAdded("<a"), std::nullopt);
  EXPECT_EQ(tokenizer->FindAdded(""), std::nullopt);
}

TEST(Tokenizer, StrippingMarkersSwallowWhiteSpace) {
  TokenizerSpec spec = ByteTokenizerSpec();
  spec.added.push_back({257, "<l>", true, /*lstrip=*/true, /*rstrip=*/false});
  spec.added.push_back({258, "<r>", true, /*lstrip=*/false, /*rstrip=*/true});
  const auto tokenizer = MakeTokenizer(spec);
  EXPECT_THAT(*tokenizer->Encode("a \u00a0<l> b", true), ElementsAre('a', 257, ' ', 'b'));
  EXPECT_THAT(*tokenizer->Encode("a <r>\n b", true), ElementsAre('a', ' ', 258, 'b'));
  EXPECT_THAT(*tokenizer->Encode("<r> <l>", true), ElementsAre(258, 257));
  // Never over the border of what is trusted.
  EXPECT_THAT(*tokenizer->EncodeSegments({{" ", false}, {"<l>", true}}), ElementsAre(' ', 257));
}

TEST(Tokenizer, SegmentsGiveTheIdsOfTheWholeTextButNoMarkerFromUsers) {
  const auto tokenizer = GoldenTokenizer("smollm2");
  ASSERT_NE(tokenizer, nullptr);
  // White space at the border belongs to the piece that it belongs to in the whole text.
  const std::vector<Segment> segments = {
      {"<|im_start|>user\n", true}, {"\n  hello ", false}, {"<|im_end|>", true}};
  EXPECT_EQ(*tokenizer->EncodeSegments(segments),
            *tokenizer->Encode("<|im_start|>user\n\n  hello <|im_end|>", true));
  // A marker is not put together from both sides.
  const auto split = tokenizer->EncodeSegments({{"<|im_", true}, {"end|>", false}});
  EXPECT_EQ(*split, *tokenizer->Encode("<|im_end|>", false));
  EXPECT_THAT(*tokenizer->EncodeSegments({{"<|im_", true}, {"", false}, {"end|>", true}}),
              ElementsAre(2));
  EXPECT_TRUE(tokenizer->EncodeSegments({})->empty());
}

TEST(Tokenizer, RefusesSpecsThatContradictThemselves) {
  const auto code = [](auto change) {
    TokenizerSpec spec = ByteTokenizerSpec();
    change(&spec);
    return Tokenizer::Create(std::move(spec)).status().code();
  };
  using Spec = TokenizerSpec;
  EXPECT_EQ(code([](Spec*) {}), absl::StatusCode::kOk);
  EXPECT_EQ(code([](Spec* s) { *s = {}; }), kInvalidArgument);
  EXPECT_EQ(code([](Spec* s) { s->bos = 257; }), kInvalidArgument);
  EXPECT_EQ(code([](Spec* s) { s->pad = -1; }), kInvalidArgument);
  EXPECT_EQ(code([](Spec* s) { s->eos.push_back(1 << 30); }), kInvalidArgument);
  EXPECT_EQ(code([](Spec* s) { s->add_bos = true; }), kInvalidArgument);
  EXPECT_EQ(code([](Spec* s) { s->added.push_back({1 << 30, "x", true}); }), kInvalidArgument);
  EXPECT_EQ(code([](Spec* s) { s->added.push_back({-1, "x", true}); }), kInvalidArgument);
  EXPECT_EQ(code([](Spec* s) { s->added.push_back({257, "", true}); }), kInvalidArgument);
  EXPECT_EQ(code([](Spec* s) { s->added.push_back({257, "<|eos|>", true}); }), kInvalidArgument);
  EXPECT_EQ(code([](Spec* s) { s->added.push_back({257, "\xFF", true}); }), kInvalidArgument);
  EXPECT_EQ(code([](Spec* s) { s->merges.push_back({'a', 'b', 'c', 0}); }), kInvalidArgument);
  EXPECT_EQ(code([](Spec* s) { s->merges.push_back({'a', 999, 'c', 0}); }), kInvalidArgument);
  EXPECT_EQ(code([](Spec* s) { s->splits.push_back("("); }), kInvalidArgument);
  // No text may become a special token by merging.
  EXPECT_EQ(code([](Spec* s) {
              s->vocabulary.resize(257);
              s->vocabulary.push_back("ab");
              s->merges.push_back({'a', 'b', 257, 0});
              s->added.push_back({257, "ab", true});
            }),
            kInvalidArgument);
}

TEST(Nfc, ComposesAndBoundsCombiningRuns) {
  EXPECT_EQ(*ToNfc("e\u0301 x"), "\u00e9 x");
  EXPECT_EQ(*ToNfc("\u1112\u1161\u11ab"), "\ud55c");
  EXPECT_EQ(*ToNfc(std::string("a\0b\u0301", 5)), std::string("a\0b\u0301", 5));
  EXPECT_TRUE(ToNfc("x" + Repeat("\u0301\u0323", 2000)).ok());
  EXPECT_EQ(ToNfc("x" + Repeat("\u0301\u0323", 1 << 20)).status().code(), kInvalidArgument);
  EXPECT_EQ(ToNfc("x" + Repeat("\u0F73", 1 << 20)).status().code(), kInvalidArgument);
}

std::vector<std::string> Pieces(const std::vector<std::string>& patterns, absl::string_view text,
                                size_t run_max = 0) {
  const auto splitter = Splitter::Create(patterns, run_max);
  EXPECT_TRUE(splitter.ok()) << splitter.status();
  const auto pieces = splitter->Split(text);
  EXPECT_TRUE(pieces.ok()) << pieces.status();
  return {pieces->begin(), pieces->end()};
}

TEST(Splitter, KnownPatterns) {
  EXPECT_THAT(Pieces({EachDigitSplit(), Gpt2Split()}, "a  12's \n b"),
              ElementsAre("a", "  ", "1", "2", "'s", " \n", " b"));
  EXPECT_THAT(Pieces({Llama3Split()}, "I'LL 12345  (x)\n\n y"),
              ElementsAre("I", "'LL", " ", "123", "45", " ", " (", "x", ")\n\n", " y"));
  // U+017F is a case variant of s, U+180E is no white space, U+0085 is.
  EXPECT_THAT(Pieces({Llama3Split()}, "a'\u017f b\u180e\u180e\u0085\u0085c"),
              ElementsAre("a", "'\u017f", " b", "\u180e\u180e", "\u0085", "\u0085c"));
  EXPECT_THAT(Pieces({KimiSplit()}, "漢字Abc〆々CDe"), ElementsAre("漢字", "Abc〆", "々", "CDe"));
}

TEST(Splitter, KeepsWhatNoMatchCovers) {
  EXPECT_THAT(Pieces({"b+"}, "abbc"), ElementsAre("a", "bb", "c"));
  EXPECT_THAT(Pieces({"b*"}, "äbbc"), ElementsAre("ä", "bb", "c"));
  EXPECT_THAT(Pieces({}, "abc"), ElementsAre("abc"));
  EXPECT_TRUE(Pieces({"b+"}, "").empty());
}

TEST(Splitter, CutsLongRuns) {
  EXPECT_THAT(Pieces({}, "aaaaa  bb", 2), ElementsAre("aa", "aa", "a  bb"));
  EXPECT_THAT(Pieces({}, "ääää", 3), ElementsAre("äää", "ä"));
}

TEST(Splitter, BoundsThePatternsOfModelFiles) {
  const auto splitter = Splitter::Create({"(?:a|aa)+[bc]"}, 0);
  ASSERT_TRUE(splitter.ok());
  EXPECT_EQ(splitter->Split(std::string(100, 'a')).status().code(), kInvalidArgument);
}

TEST(SplitPattern, RefusesConstructsThatDifferBetweenEngines) {
  for (const char* pattern :
       {"[a&&b]", "[a[b]]", "\\w+", "\\h", "^a", "a$", "(?m:.)", "(?<n>a)", "a{1,2}+", "[\\S]",
        "\\1", "\\pL", "\\p{L", "[a", "a\\", "[]a]", "\\u0041"}) {
    EXPECT_EQ(PcreFromOniguruma(pattern).status().code(), kInvalidArgument) << pattern;
  }
  EXPECT_EQ(*PcreFromOniguruma(R"(\p{Han}\p{^Lu}[\p{L}\-]\.(?i:x)\P{N}++)"),
            R"(\p{sc:Han}\p{^Lu}[\p{L}\-]\.(?i:x)\P{N}++)");
}

}  // namespace
}  // namespace sluice::text
