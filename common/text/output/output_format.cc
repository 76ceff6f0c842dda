#include "text/output/output_format.h"

#include "absl/strings/match.h"

namespace sluice::text {
namespace {

constexpr MarkerText kThinking[] = {{OutputMarker::kThinkBegin, "<think>"},
                                    {OutputMarker::kThinkEnd, "</think>"}};
constexpr MarkerText kKimi[] = {{OutputMarker::kThinkBegin, "<think>"},
                                {OutputMarker::kThinkEnd, "</think>"},
                                {OutputMarker::kCallsBegin, "<|tool_calls_section_begin|>"},
                                {OutputMarker::kCallsEnd, "<|tool_calls_section_end|>"},
                                {OutputMarker::kCallBegin, "<|tool_call_begin|>"},
                                {OutputMarker::kCallArguments, "<|tool_call_argument_begin|>"},
                                {OutputMarker::kCallEnd, "<|tool_call_end|>"}};
constexpr MarkerText kDeepSeek[] = {{OutputMarker::kThinkBegin, "<think>"},
                                    {OutputMarker::kThinkEnd, "</think>"},
                                    {OutputMarker::kCallsBegin, "<｜tool▁calls▁begin｜>"},
                                    {OutputMarker::kCallsEnd, "<｜tool▁calls▁end｜>"},
                                    {OutputMarker::kCallBegin, "<｜tool▁call▁begin｜>"},
                                    {OutputMarker::kCallArguments, "<｜tool▁sep｜>"},
                                    {OutputMarker::kCallEnd, "<｜tool▁call▁end｜>"}};
constexpr MarkerText kGlm[] = {
    {OutputMarker::kThinkBegin, "<think>"},     {OutputMarker::kThinkEnd, "</think>"},
    {OutputMarker::kCallBegin, "<tool_call>"},  {OutputMarker::kCallEnd, "</tool_call>"},
    {OutputMarker::kKeyBegin, "<arg_key>"},     {OutputMarker::kKeyEnd, "</arg_key>"},
    {OutputMarker::kValueBegin, "<arg_value>"}, {OutputMarker::kValueEnd, "</arg_value>"}};
constexpr MarkerText kHermes[] = {{OutputMarker::kThinkBegin, "<think>"},
                                  {OutputMarker::kThinkEnd, "</think>"},
                                  {OutputMarker::kCallBegin, "<tool_call>"},
                                  {OutputMarker::kCallEnd, "</tool_call>"}};

}  // namespace

absl::Span<const MarkerText> MarkersOf(OutputFormat format) {
  switch (format) {
    case OutputFormat::kPlain:
      return {};
    case OutputFormat::kThinking:
      return kThinking;
    case OutputFormat::kKimi:
      return kKimi;
    case OutputFormat::kDeepSeek:
      return kDeepSeek;
    case OutputFormat::kGlm:
      return kGlm;
    case OutputFormat::kHermes:
      return kHermes;
  }
  return {};
}

OutputFormat FormatOfTemplate(absl::string_view template_text) {
  const auto has = [&](absl::string_view part) { return absl::StrContains(template_text, part); };
  if (has("<|tool_calls_section_begin|>")) return OutputFormat::kKimi;
  // Older DeepSeek templates fence the arguments, which kDeepSeek does not read.
  if (has("<｜tool▁calls▁begin｜>") && !has("```json")) return OutputFormat::kDeepSeek;
  if (has("<tool_call>") && has("<arg_key>")) return OutputFormat::kGlm;
  if (has("<tool_call>") && (has("\"arguments\"") || has("\\\"arguments\\\"")))
    return OutputFormat::kHermes;
  return has("</think>") ? OutputFormat::kThinking : OutputFormat::kPlain;
}

}  // namespace sluice::text
