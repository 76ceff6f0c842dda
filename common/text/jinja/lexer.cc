#include "text/jinja/lexer.h"

#include <cctype>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "text/jinja/string_literal.h"
#include "text/python_text.h"

namespace sluice::text::jinja {
namespace {

// The longest operators first.
constexpr absl::string_view kOperators[] = {"**", "//", "==", "!=", "<=", ">=", "+", "-", "*",
                                            "/",  "%",  "~",  "<",  ">",  "=",  "(", ")", "[",
                                            "]",  "{",  "}",  ",",  ":",  ".",  "|"};

bool IsNameStart(char c) { return absl::ascii_isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool IsNameRest(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_'; }
bool IsDigit(char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); }

class Lexer {
 public:
  explicit Lexer(absl::string_view source) : rest_(source) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (!rest_.empty()) SLUICE_RETURN_IF_ERROR(Next());
    Push(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  // Text up to the next tag, and the tag.
  absl::Status Next() {
    size_t at = 0;
    for (;; ++at) {
      at = rest_.find('{', at);
      if (at == absl::string_view::npos || at + 1 == rest_.size()) {
        Data(rest_);
        rest_ = {};
        return absl::OkStatus();
      }
      const char kind = rest_[at + 1];
      if (kind == '%' || kind == '{' || kind == '#') break;
    }
    const char kind = rest_[at + 1];
    const char sign = at + 2 < rest_.size() ? rest_[at + 2] : '\0';
    Data(TextBefore(rest_.substr(0, at), kind, sign));
    Skip(at + 2);
    if (sign == '-' || sign == '+') Skip(1);
    if (kind == '#') return Comment();
    if (kind == '{') return Tag(TokenKind::kPrintBegin, TokenKind::kPrintEnd, "}}");
    if (IsRaw()) return Raw();
    return Tag(TokenKind::kBlockBegin, TokenKind::kBlockEnd, "%}");
  }

  // What is left of the text in front of a tag.
  absl::string_view TextBefore(absl::string_view text, char kind, char sign) const {
    if (sign == '-') return PythonStrip(text, Side::kRight);
    if (sign == '+' || kind == '{') return text;
    const size_t line_break = text.rfind('\n');
    if (line_break == absl::string_view::npos && !line_start_) return text;
    const size_t begin = line_break == absl::string_view::npos ? 0 : line_break + 1;
    return PythonStrip(text.substr(begin)).empty() ? text.substr(0, begin) : text;
  }

  // Behind the end of a tag. `trims`: it takes a line break with it.
  void TextBehind(char sign, bool trims) {
    const absl::string_view before = rest_;
    if (sign == '-') {
      Skip(rest_.size() - PythonStrip(rest_, Side::kLeft).size());
    } else if (sign != '+' && trims && absl::StartsWith(rest_, "\n")) {
      Skip(1);
    }
    const size_t skipped = before.size() - rest_.size();
    line_start_ = skipped > 0 && before[skipped - 1] == '\n';
  }

  absl::Status Comment() {
    const int line = line_;
    const size_t end = rest_.find("#}");
    if (end == absl::string_view::npos) return WrongTemplate(line, "a comment does not end");
    const char sign = end > 0 ? rest_[end - 1] : '\0';
    Skip(end + 2);
    TextBehind(sign, true);
    return absl::OkStatus();
  }

  bool IsRaw() const {
    absl::string_view tag = PythonStrip(rest_, Side::kLeft);
    if (!absl::StartsWith(tag, "raw")) return false;
    tag = PythonStrip(tag.substr(3), Side::kLeft);
    return absl::StartsWith(tag, "%}") || absl::StartsWith(tag, "-%}");
  }

  absl::Status Raw() {
    const int line = line_;
    const size_t open_end = rest_.find("%}");
    const char open_sign = rest_[open_end - 1];
    Skip(open_end + 2);
    TextBehind(open_sign, false);
    for (size_t at = rest_.find("{%"); at != absl::string_view::npos;
         at = rest_.find("{%", at + 1)) {
      absl::string_view tag = rest_.substr(at + 2);
      const char sign = tag.empty() ? '\0' : tag[0];
      if (sign == '-' || sign == '+') tag.remove_prefix(1);
      tag = PythonStrip(tag, Side::kLeft);
      if (!absl::StartsWith(tag, "endraw")) continue;
      const size_t close = rest_.find("%}", at + 2);
      if (close == absl::string_view::npos) break;
      const char close_sign = rest_[close - 1];
      Data(TextBefore(rest_.substr(0, at), '%', sign));
      Skip(close + 2);
      TextBehind(close_sign, true);
      return absl::OkStatus();
    }
    return WrongTemplate(line, "a raw block does not end");
  }

  absl::Status Tag(TokenKind begin, TokenKind end, absl::string_view end_text) {
    const int line = line_;
    Push(begin, "");
    int depth = 0;  // of brackets: "}}" may close two of them
    for (;;) {
      Skip(rest_.size() - PythonStrip(rest_, Side::kLeft).size());
      if (rest_.empty()) return WrongTemplate(line, "a tag does not end");
      const bool has_sign = rest_[0] == '-' || (rest_[0] == '+' && end == TokenKind::kBlockEnd);
      const absl::string_view tail = has_sign ? rest_.substr(1) : rest_;
      if (depth == 0 && absl::StartsWith(tail, end_text)) {
        const char sign = has_sign ? rest_[0] : '\0';
        Push(end, "");
        Skip(end_text.size() + (has_sign ? 1 : 0));
        TextBehind(sign, end == TokenKind::kBlockEnd);
        return absl::OkStatus();
      }
      SLUICE_RETURN_IF_ERROR(Expression(&depth));
    }
  }

  absl::Status Expression(int* depth) {
    const char c = rest_[0];
    if (IsNameStart(c)) {
      Take(TokenKind::kName, CountWhile(IsNameRest));
      return absl::OkStatus();
    }
    if (IsDigit(c)) return Number();
    if (c == '\'' || c == '"') return String();
    for (const absl::string_view text : kOperators) {
      if (!absl::StartsWith(rest_, text)) continue;
      if (text == "(" || text == "[" || text == "{") ++*depth;
      if ((text == ")" || text == "]" || text == "}") && *depth > 0) --*depth;
      Take(TokenKind::kOperator, text.size());
      return absl::OkStatus();
    }
    return WrongTemplate(line_, absl::StrCat("unexpected character '", rest_.substr(0, 1), "'"));
  }

  absl::Status Number() {
    size_t length = CountWhile(IsDigit);
    TokenKind kind = TokenKind::kInteger;
    const auto at = [&](size_t i) { return i < rest_.size() ? rest_[i] : '\0'; };
    if (at(length) == '.' && IsDigit(at(length + 1))) {
      kind = TokenKind::kFloat;
      ++length;
      while (IsDigit(at(length))) ++length;
    }
    const size_t sign = at(length + 1) == '+' || at(length + 1) == '-' ? 1 : 0;
    if ((at(length) == 'e' || at(length) == 'E') && IsDigit(at(length + 1 + sign))) {
      kind = TokenKind::kFloat;
      length += 1 + sign;
      while (IsDigit(at(length))) ++length;
    }
    if (IsNameStart(at(length))) return UnsupportedTemplate(line_, "a number that is not decimal");
    Take(kind, length);
    return absl::OkStatus();
  }

  absl::Status String() {
    const int line = line_;
    const char quote = rest_[0];
    size_t end = 1;
    while (end < rest_.size() && rest_[end] != quote) end += rest_[end] == '\\' ? 2 : 1;
    if (end >= rest_.size()) return WrongTemplate(line, "a string does not end");
    auto value = UnescapeString(rest_.substr(1, end - 1));
    if (!value.ok()) return WrongTemplate(line, value.status().message());
    Push(TokenKind::kString, *value);
    Skip(end + 1);
    return absl::OkStatus();
  }

  size_t CountWhile(bool (*belongs)(char)) const {
    size_t length = 0;
    while (length < rest_.size() && belongs(rest_[length])) ++length;
    return length;
  }

  void Data(absl::string_view text) {
    if (!text.empty()) Push(TokenKind::kData, text);
  }
  void Push(TokenKind kind, absl::string_view text) {
    tokens_.push_back({kind, std::string(text), line_});
  }
  void Take(TokenKind kind, size_t length) {
    Push(kind, rest_.substr(0, length));
    Skip(length);
  }
  void Skip(size_t length) {
    for (const char c : rest_.substr(0, length)) line_ += c == '\n';
    rest_.remove_prefix(length);
  }

  absl::string_view rest_;
  std::vector<Token> tokens_;
  int line_ = 1;
  bool line_start_ = true;  // the text that follows begins a line
};

std::string AtLine(int line, absl::string_view what) {
  return absl::StrCat("chat template, line ", line, ": ", what);
}

}  // namespace

absl::Status WrongTemplate(int line, absl::string_view what) {
  return absl::InvalidArgumentError(AtLine(line, what));
}

absl::Status UnsupportedTemplate(int line, absl::string_view what) {
  return absl::UnimplementedError(AtLine(line, absl::StrCat(what, " is not supported")));
}

absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source) {
  std::string text = absl::StrReplaceAll(source, {{"\r\n", "\n"}, {"\r", "\n"}});
  if (absl::EndsWith(text, "\n")) text.pop_back();
  return Lexer(text).Run();
}

}  // namespace sluice::text::jinja
