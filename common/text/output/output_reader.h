// From sampled tokens to what a client gets: detokenizer, stop strings and output parser in a row.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "text/detokenizer.h"
#include "text/output/output_parser.h"
#include "text/output/text_markers.h"
#include "text/stop_matcher.h"

namespace sluice::text {

struct OutputOptions {
  OutputFormat format = OutputFormat::kPlain;
  // False: the markup of reasoning stays in the content as it was written.
  bool split_reasoning = true;
  // The prompt ended with an open <think>.
  bool inside_thinking = false;
  // Parses calls when `calls.tools` is there; without tools their markup stays in the content.
  CallOptions calls;
  bool skip_special_tokens = true;
};

// One continuation. A marker that is a token of the vocabulary is recognised as that token only:
// the same characters written with other tokens are text. Stop strings are found in the text as the
// model wrote it, markers and arguments included, unless the marker is a special token that is left
// out. The concatenated output depends on the tokens only. Thread-compatible; the tokenizer must
// outlive it.
class OutputReader {
 public:
  OutputReader(const Tokenizer& tokenizer, StopMatcher stops, OutputOptions options);

  // The next token. Once a stop string was found, tokens are ignored and the same match is
  // returned.
  std::optional<StopMatch> Append(TokenId token, OutputDelta* out);
  // The end. `ended`: the model stopped by itself, with a token that is not part of the text;
  // otherwise it was cut off. What was held back may still complete a stop string.
  std::optional<StopMatch> Finish(bool ended, OutputDelta* out);

  // The answer has tool calls, and all of them are complete.
  bool called_tools() const { return parser_ && parser_->called_tools(); }

 private:
  // A marker token, by where its text lies in what the model wrote.
  struct Span {
    uint64_t begin = 0;
    size_t length = 0;
    MarkerText marker;
  };

  void Pass(absl::string_view text, OutputDelta* out);
  void Dispatch(absl::string_view released, OutputDelta* out);
  void Text(absl::string_view text, OutputDelta* out);
  void MarkerToken(const MarkerText& marker, OutputDelta* out);
  void FinishParser(bool ended, OutputDelta* out);

  const Tokenizer& tokenizer_;
  StreamDetokenizer detokenizer_;
  StopMatcher stops_;
  std::optional<OutputParser> parser_;  // absent: everything is content
  absl::flat_hash_map<TokenId, MarkerText> marker_tokens_;
  TextMarkers text_markers_;
  const bool skip_special_tokens_;
  uint64_t written_bytes_ = 0;  // into the stop matcher
  uint64_t ready_begin_ = 0;    // where ready_ begins in what was written
  std::string ready_;           // released by the stop matcher, not yet dispatched
  std::deque<Span> spans_;      // not yet dispatched
};

}  // namespace sluice::text
