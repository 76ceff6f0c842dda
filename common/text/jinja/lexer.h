// Cuts a template into text and tokens.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::text::jinja {

enum class TokenKind {
  kData,        // text between tags
  kBlockBegin,  // {%
  kBlockEnd,
  kPrintBegin,  // {{
  kPrintEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  // of strings: their value
  int line = 0;
};

// INVALID_ARGUMENT with the line: a template that is wrong. UNIMPLEMENTED: one that uses what is
// not supported.
absl::Status WrongTemplate(int line, absl::string_view what);
absl::Status UnsupportedTemplate(int line, absl::string_view what);

// White space control, trim_blocks and lstrip_blocks as Hugging Face sets them; comments are gone,
// raw blocks are text. Ends with kEnd. Cost: linear.
absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source);

}  // namespace sluice::text::jinja
