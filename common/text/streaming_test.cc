// The streaming detokenizer and the stop matcher: what they emit must not depend on how the stream
// was cut.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "text/detokenizer.h"
#include "text/stop_matcher.h"
#include "text/testing/golden.h"
#include "text/utf8.h"

namespace sluice::text {
namespace {

using testing::MakeTokenizer;

// With the byte tokenizer the ids of a text are its bytes, valid or not.
std::vector<TokenId> ByteIds(absl::string_view bytes) {
  std::vector<TokenId> ids;
  for (const char c : bytes) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

class DetokenizerTest : public ::testing::Test {
 protected:
  std::unique_ptr<const Tokenizer> tokenizer_ = MakeTokenizer(ByteTokenizerSpec());
};

TEST_F(DetokenizerTest, ReplacesMaximalIllFormedRuns) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"abc", "abc"},
      {"a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x9A\x80", "aä€🚀"},
      {"\xFF", "\uFFFD"},
      {"\x80x", "\uFFFDx"},
      {"\xC3x", "\uFFFDx"},
      {"\xE2\x82x", "\uFFFDx"},
      {"\xE2\x82\xE2\x82\xAC", "\uFFFD€"},
      {"\xF0\x9F\x9A", "\uFFFD"},
      {"\xC0\x80", "\uFFFD\uFFFD"},                      // Overlong.
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},            // A surrogate.
      {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},  // Above U+10FFFF.
      {"\xE0\x9F\xBF", "\uFFFD\uFFFD\uFFFD"},            // Overlong.
      {"\xF4\x8F\xBF\xBF\xEF\xBF\xBF", "\U0010FFFF\uFFFF"},
  };
  for (const auto& [bytes, text] : cases) {
    EXPECT_EQ(Detokenize(*tokenizer_, ByteIds(bytes)), text);
    EXPECT_EQ(IsValidUtf8(bytes), bytes == text);
  }
}

TEST_F(DetokenizerTest, EmitsACharacterWithItsLastByteAndAnInvalidByteAtOnce) {
  StreamDetokenizer stream(*tokenizer_);
  std::string out;
  for (const TokenId id : {0xF0, 0x9F, 0x9A}) stream.Append(id, &out);
  EXPECT_EQ(out, "");
  EXPECT_EQ(stream.pending_bytes(), 3u);
  stream.Append(0x80, &out);
  EXPECT_EQ(out, "🚀");
  stream.Append(0xFF, &out);
  EXPECT_EQ(out, "🚀\uFFFD");
  stream.Append(0xE2, &out);
  stream.Flush(&out);
  EXPECT_EQ(out, "🚀\uFFFD\uFFFD");
  stream.Flush(&out);
  EXPECT_EQ(out, "🚀\uFFFD\uFFFD");
}

TEST_F(DetokenizerTest, SkipsSpecialTokensAndIdsWithoutText) {
  const std::vector<TokenId> ids = {'a', kByteTokenizerEos, 'b', -1, 100000, 'c'};
  EXPECT_EQ(Detokenize(*tokenizer_, ids), "abc");
  EXPECT_EQ(Detokenize(*tokenizer_, ids, {.skip_special_tokens = false}), "a<|eos|>bc");
}

TEST_F(DetokenizerTest, OutputIsValidUtf8ForRandomBytes) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::string bytes;
    for (int i = 0; i < 40; ++i) {
      constexpr uint8_t kInteresting[] = {0x41, 0x80, 0xBF, 0xC3, 0xE0,
                                          0xE2, 0xED, 0xF0, 0xF4, 0xFF};
      bytes.push_back(static_cast<char>(kInteresting[random() % 10]));
    }
    StreamDetokenizer stream(*tokenizer_);
    std::string text;
    for (const TokenId id : ByteIds(bytes)) {
      stream.Append(id, &text);
      ASSERT_TRUE(IsValidUtf8(text));
      ASSERT_LE(stream.pending_bytes(), 3u);
    }
    stream.Flush(&text);
    ASSERT_TRUE(IsValidUtf8(text));
  }
}

struct Outcome {
  std::string text;
  std::optional<size_t> index;
  uint64_t begin = 0;
};

Outcome RunStops(const std::vector<std::string>& stops, const std::vector<std::string>& chunks,
                 bool include = false) {
  auto matcher = StopMatcher::Create(stops, include);
  EXPECT_TRUE(matcher.ok()) << matcher.status();
  Outcome outcome;
  for (const std::string& chunk : chunks) {
    const auto match = matcher->Append(chunk, &outcome.text);
    if (match.has_value()) {
      outcome.index = match->index;
      outcome.begin = match->begin_offset;
    }
  }
  matcher->Flush(&outcome.text);
  return outcome;
}

TEST(StopMatcher, PassesTextThroughWithoutStops) {
  EXPECT_EQ(RunStops({}, {"a", "b"}).text, "ab");
  const Outcome none = RunStops({"xyz"}, {"xy", "xyab", "xy"});
  EXPECT_EQ(none.text, "xyxyabxy");
  EXPECT_FALSE(none.index.has_value());
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBegin) {
  auto matcher = StopMatcher::Create(std::vector<std::string>{"STOP", "TOPS!"});
  ASSERT_TRUE(matcher.ok());
  std::string out;
  matcher->Append("an ST", &out);
  EXPECT_EQ(out, "an ");
  matcher->Append("O", &out);
  EXPECT_EQ(out, "an ");
  matcher->Append("x", &out);
  EXPECT_EQ(out, "an STOx");
  EXPECT_EQ(matcher->held_bytes(), 0u);
}

TEST(StopMatcher, ReportsWhereAndCutsTheText) {
  const Outcome cut = RunStops({"###", "END"}, {"one EN", "D two"});
  EXPECT_EQ(cut.text, "one ");
  EXPECT_EQ(cut.index, 1u);
  EXPECT_EQ(cut.begin, 4u);
  EXPECT_EQ(RunStops({"END"}, {"one E", "ND two", "more"}, /*include=*/true).text, "one END");
}

TEST(StopMatcher, FirstEndWinsThenTheLongest) {
  EXPECT_EQ(RunStops({"abc", "b"}, {"xabc"}).begin, 2u);
  const Outcome longest = RunStops({"c", "abc"}, {"xabc"});
  EXPECT_EQ(longest.index, 1u);
  EXPECT_EQ(longest.text, "x");
  EXPECT_EQ(RunStops({"a", "a"}, {"a"}).index, 0u);
}

TEST(StopMatcher, FindsAMatchThatOverlapsAFailedOne) {
  EXPECT_EQ(RunStops({"aab"}, {"aa", "ab!"}).text, "a");
  EXPECT_EQ(RunStops({"abab!"}, {"abab", "ab!"}).text, "ab");
}

TEST(StopMatcher, DoesNotDependOnCuts) {
  std::mt19937 random(11);
  const std::vector<std::string> letters = {"a", "b", "é", "è", "€"};
  const auto text_of = [&](size_t length) {
    std::string text;
    for (size_t i = 0; i < length; ++i) text += letters[random() % letters.size()];
    return text;
  };
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> stops;
    for (size_t i = 0; i < 1 + random() % 4; ++i) stops.push_back(text_of(1 + random() % 4));
    std::vector<std::string> chunks;
    std::string whole;
    for (size_t i = 0; i < 1 + random() % 6; ++i) {
      chunks.push_back(text_of(random() % 6));
      whole += chunks.back();
    }
    // The definition: the smallest end of any occurrence, of those the smallest begin.
    size_t best_end = std::string::npos, best_begin = 0;
    for (const std::string& stop : stops) {
      const size_t begin = whole.find(stop);
      if (begin == std::string::npos) continue;
      const size_t end = begin + stop.size();
      if (end < best_end || (end == best_end && begin < best_begin)) {
        best_end = end;
        best_begin = begin;
      }
    }
    const Outcome cut = RunStops(stops, chunks);
    ASSERT_EQ(cut.index.has_value(), best_end != std::string::npos) << whole;
    ASSERT_EQ(cut.text, cut.index.has_value() ? whole.substr(0, best_begin) : whole);
    ASSERT_EQ(RunStops(stops, {whole}).text, cut.text);
    ASSERT_TRUE(IsValidUtf8(cut.text));
  }
}

TEST(StopMatcher, NeverEmitsPartOfACharacter) {
  auto matcher = StopMatcher::Create(std::vector<std::string>{"é"});  // C3 A9
  ASSERT_TRUE(matcher.ok());
  std::string out;
  for (const char* chunk : {"x", "è", "y"}) {  // C3 A8
    matcher->Append(chunk, &out);
    EXPECT_TRUE(IsValidUtf8(out));
  }
  EXPECT_EQ(out, "xèy");
}

TEST(StopMatcher, RefusesWhatIsOutOfBounds) {
  const auto code = [](std::vector<std::string> stops) {
    return StopMatcher::Create(stops).status().code();
  };
  EXPECT_EQ(code({"a", "b", "c", "d"}), absl::StatusCode::kOk);
  EXPECT_EQ(code({"a", "b", "c", "d", "e"}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({std::string(128, 'a')}), absl::StatusCode::kOk);
  EXPECT_EQ(code({std::string(129, 'a')}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({""}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({"\xC3"}), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice::text
