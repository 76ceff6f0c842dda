// Any tokens are read as the output of every format; the result must not depend on when it is
// taken, and calls must come in order, each with one beginning.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/check.h"
#include "text/output/output_reader.h"

namespace {

using sluice::text::MarkersOf;
using sluice::text::OutputDelta;
using sluice::text::OutputFormat;
using sluice::text::OutputReader;
using sluice::text::TokenId;

constexpr OutputFormat kFormats[] = {OutputFormat::kPlain, OutputFormat::kThinking,
                                     OutputFormat::kKimi,  OutputFormat::kDeepSeek,
                                     OutputFormat::kGlm,   OutputFormat::kHermes};

// A byte vocabulary with the markers of a format as tokens, but for every third.
const sluice::text::Tokenizer& TokenizerOf(OutputFormat format) {
  static auto* const kTokenizers =
      new std::vector<std::unique_ptr<const sluice::text::Tokenizer>>(6);
  auto& tokenizer = (*kTokenizers)[static_cast<size_t>(format)];
  if (tokenizer == nullptr) {
    sluice::text::TokenizerSpec spec = sluice::text::ByteTokenizerSpec();
    TokenId id = 257;
    for (const auto& marker : MarkersOf(format)) {
      if (id++ % 3 != 0) spec.added.push_back({id, std::string(marker.text)});
    }
    tokenizer = *sluice::text::Tokenizer::Create(std::move(spec));
  }
  return *tokenizer;
}

struct Result {
  std::string content, reasoning;
  std::vector<sluice::text::ToolCallDelta> calls;
};

Result Read(OutputFormat format, uint8_t flags, absl::Span<const TokenId> tokens, size_t group) {
  sluice::text::OutputOptions options;
  options.format = format;
  options.inside_thinking = (flags & 1) != 0;
  options.split_reasoning = (flags & 2) == 0;
  if ((flags & 4) == 0) {
    options.calls.tools = std::make_shared<sluice::text::ToolSchemas>(*sluice::formats::ParseJson(
        R"([{"function":{"name":"f","parameters":{"properties":{"a":{"type":"string"},"b":{"type":"integer"}}}}},
            {"function":{"name":"g"}}])",
        "tools"));
  }
  std::vector<std::string> stops;
  if ((flags & 8) != 0) stops = {"ab", "k>a"};
  OutputReader reader(TokenizerOf(format), *sluice::text::StopMatcher::Create(stops), options);
  Result result;
  OutputDelta delta;
  const auto take = [&] {
    result.content += delta.content;
    result.reasoning += delta.reasoning;
    for (const auto& call : delta.tool_calls) {
      if (call.index == result.calls.size()) {
        SLUICE_CHECK(!call.name.empty() || !call.id.empty());
        result.calls.push_back(call);
      } else {
        SLUICE_CHECK(call.index < result.calls.size() && call.id.empty() && call.name.empty());
        result.calls[call.index].arguments += call.arguments;
      }
    }
    delta = {};
  };
  bool matched = false;
  for (size_t i = 0; i < tokens.size() && !matched; ++i) {
    matched = reader.Append(tokens[i], &delta).has_value();
    if ((i + 1) % group == 0) take();
  }
  reader.Finish(/*ended=*/(flags & 16) != 0, &delta);
  take();
  return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || size > 4096) return 0;
  const OutputFormat format = kFormats[data[0] % 6];
  const uint8_t flags = data[1];
  std::vector<TokenId> tokens;
  // Bytes from 128 on are markers, or fragments of characters.
  for (size_t i = 2; i < size; ++i) {
    tokens.push_back(data[i] >= 0xF0 ? 257 + (data[i] & 0xF) : static_cast<TokenId>(data[i]));
  }
  const Result one = Read(format, flags, tokens, 1);
  for (const size_t group : {size_t{3}, tokens.size() + 1}) {
    const Result other = Read(format, flags, tokens, group);
    SLUICE_CHECK(other.content == one.content && other.reasoning == one.reasoning &&
                 other.calls == one.calls);
  }
  return 0;
}
