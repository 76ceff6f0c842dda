// Reads tokens one after the other.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "text/jinja/lexer.h"

namespace sluice::text::jinja {

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  int line() const { return current().line; }
  Token Take() {
    Token token = current();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool Is(TokenKind kind) const { return current().kind == kind; }
  bool IsOperator(absl::string_view text) const {
    return Is(TokenKind::kOperator) && current().text == text;
  }
  bool IsName(absl::string_view text) const {
    return Is(TokenKind::kName) && current().text == text;
  }
  bool TakeOperator(absl::string_view text) {
    if (!IsOperator(text)) return false;
    Take();
    return true;
  }
  bool TakeName(absl::string_view text) {
    if (!IsName(text)) return false;
    Take();
    return true;
  }
  absl::Status Expect(TokenKind kind, absl::string_view what) {
    if (!Is(kind)) return Unexpected(what);
    Take();
    return absl::OkStatus();
  }
  absl::Status ExpectOperator(absl::string_view text) {
    return TakeOperator(text) ? absl::OkStatus() : Unexpected(absl::StrCat("'", text, "'"));
  }
  absl::StatusOr<std::string> ExpectName() {
    if (!Is(TokenKind::kName)) return Unexpected("a name");
    return Take().text;
  }
  absl::Status Unexpected(absl::string_view wanted) const {
    const Token& token = current();
    const absl::string_view found = token.kind == TokenKind::kEnd        ? "the end of the template"
                                    : token.kind == TokenKind::kBlockEnd ? "%}"
                                    : token.kind == TokenKind::kPrintEnd
                                        ? "}}"
                                        : absl::string_view(token.text);
    return WrongTemplate(token.line,
                         absl::StrCat("expected ", wanted, ", found '", found.substr(0, 32), "'"));
  }

 private:
  const std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace sluice::text::jinja
