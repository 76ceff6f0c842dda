// The ways in which models mark up reasoning and tool calls in what they write.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice::text {

enum class OutputFormat {
  kPlain,     // no markup: everything is content
  kThinking,  // <think>reasoning</think> content
  kKimi,      // and <|tool_calls_section_begin|> ...
  kDeepSeek,  // and <｜tool▁calls▁begin｜> ...
  kGlm,       // and <tool_call>NAME<arg_key>...
  kHermes,    // and <tool_call>{"name": ..., "arguments": ...}</tool_call>
};

enum class OutputMarker : uint8_t {
  kThinkBegin,
  kThinkEnd,
  kCallsBegin,  // of all calls
  kCallsEnd,
  kCallBegin,  // of one call
  kCallArguments,
  kCallEnd,
  kKeyBegin,
  kKeyEnd,
  kValueBegin,
  kValueEnd,
};

struct MarkerText {
  OutputMarker marker;
  absl::string_view text;
};

inline bool IsThinkMarker(OutputMarker marker) {
  return marker == OutputMarker::kThinkBegin || marker == OutputMarker::kThinkEnd;
}

// The markers of a format. Vocabularies hold them as single tokens.
absl::Span<const MarkerText> MarkersOf(OutputFormat format);

// The format that the text of a chat template speaks of; kPlain when it names no markup.
OutputFormat FormatOfTemplate(absl::string_view template_text);

}  // namespace sluice::text
