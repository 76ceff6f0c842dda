#include "text/output/output_reader.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace sluice::text {
namespace {

std::unique_ptr<CallParser> MakeCallParser(OutputFormat format, CallOptions options) {
  if (options.tools == nullptr) return nullptr;
  switch (format) {
    case OutputFormat::kKimi:
    case OutputFormat::kDeepSeek:
      return HeaderCallParser(format, std::move(options));
    case OutputFormat::kGlm:
      return GlmCallParser(std::move(options));
    case OutputFormat::kHermes:
      return HermesCallParser(std::move(options));
    case OutputFormat::kPlain:
    case OutputFormat::kThinking:
      break;
  }
  return nullptr;
}

// The markers of the format that are to be recognised.
std::vector<MarkerText> WantedMarkers(const OutputOptions& options) {
  std::vector<MarkerText> wanted;
  for (const MarkerText& marker : MarkersOf(options.format)) {
    const bool of_thinking = IsThinkMarker(marker.marker);
    if (of_thinking ? options.split_reasoning : options.calls.tools != nullptr) {
      wanted.push_back(marker);
    }
  }
  return wanted;
}

// Those that the vocabulary does not hold as a token.
std::vector<MarkerText> TextOnly(const Tokenizer& tokenizer, std::vector<MarkerText> markers) {
  const auto is_token = [&](const MarkerText& marker) {
    return tokenizer.FindAdded(marker.text).has_value();
  };
  markers.erase(std::remove_if(markers.begin(), markers.end(), is_token), markers.end());
  return markers;
}

}  // namespace

OutputReader::OutputReader(const Tokenizer& tokenizer, StopMatcher stops, OutputOptions options)
    : tokenizer_(tokenizer),
      detokenizer_(tokenizer, {.skip_special_tokens = options.skip_special_tokens}),
      stops_(std::move(stops)),
      text_markers_(TextOnly(tokenizer, WantedMarkers(options))),
      skip_special_tokens_(options.skip_special_tokens) {
  const std::vector<MarkerText> wanted = WantedMarkers(options);
  for (const MarkerText& marker : wanted) {
    if (const auto id = tokenizer.FindAdded(marker.text)) marker_tokens_.emplace(*id, marker);
  }
  if (wanted.empty()) return;
  parser_.emplace(MakeCallParser(options.format, std::move(options.calls)),
                  options.inside_thinking && options.split_reasoning);
}

std::optional<StopMatch> OutputReader::Append(TokenId token, OutputDelta* out) {
  if (stops_.match()) return stops_.match();
  std::string text;
  const auto marker = marker_tokens_.find(token);
  if (marker == marker_tokens_.end()) {
    detokenizer_.Append(token, &text);
  } else {
    // A character that the marker interrupts stays incomplete.
    detokenizer_.Flush(&text);
    const bool hidden = skip_special_tokens_ && tokenizer_.IsSpecial(token);
    const absl::string_view written = hidden ? absl::string_view() : marker->second.text;
    spans_.push_back({written_bytes_ + text.size(), written.size(), marker->second});
    text.append(written.data(), written.size());
  }
  Pass(text, out);
  return stops_.match();
}

std::optional<StopMatch> OutputReader::Finish(bool ended, OutputDelta* out) {
  if (stops_.match()) return stops_.match();
  std::string text;
  detokenizer_.Flush(&text);
  Pass(text, out);
  if (stops_.match()) return stops_.match();
  std::string rest;
  stops_.Flush(&rest);
  Dispatch(rest, out);
  FinishParser(ended, out);
  return std::nullopt;
}

void OutputReader::Pass(absl::string_view text, OutputDelta* out) {
  written_bytes_ += text.size();
  std::string released;
  const bool matched = stops_.Append(text, &released).has_value();
  Dispatch(released, out);
  if (matched) FinishParser(/*ended=*/false, out);
}

void OutputReader::Dispatch(absl::string_view released, OutputDelta* out) {
  ready_.append(released.data(), released.size());
  for (;;) {
    size_t length = ready_.size();
    if (!spans_.empty()) {
      const Span& next = spans_.front();
      if (next.begin == ready_begin_) {
        if (ready_.size() < next.length)
          return;  // the rest of its text may be part of a stop string
        const Span span = next;
        spans_.pop_front();
        ready_.erase(0, span.length);
        ready_begin_ += span.length;
        MarkerToken(span.marker, out);
        continue;
      }
      length = static_cast<size_t>(std::min<uint64_t>(length, next.begin - ready_begin_));
    }
    if (length == 0) return;
    const std::string text = ready_.substr(0, length);
    ready_.erase(0, length);
    ready_begin_ += length;
    Text(text, out);
  }
}

void OutputReader::Text(absl::string_view text, OutputDelta* out) {
  if (!parser_) {
    out->content.append(text.data(), text.size());
    return;
  }
  text_markers_.Append(
      text, [&](absl::string_view piece) { parser_->Text(piece, out); },
      [&](const MarkerText& marker) { parser_->Marker(marker.marker, marker.text, out); });
}

void OutputReader::MarkerToken(const MarkerText& marker, OutputDelta* out) {
  if (const std::string held = text_markers_.TakeHeld(); !held.empty()) parser_->Text(held, out);
  parser_->Marker(marker.marker, marker.text, out);
}

// After a stop string the text may end inside a marker: what is left of it is text.
void OutputReader::FinishParser(bool ended, OutputDelta* out) {
  spans_.clear();
  const std::string rest = std::exchange(ready_, {});
  if (!rest.empty()) Text(rest, out);
  if (!parser_) return;
  if (const std::string held = text_markers_.TakeHeld(); !held.empty()) parser_->Text(held, out);
  parser_->Finish(ended, out);
}

}  // namespace sluice::text
