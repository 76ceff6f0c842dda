#include "text/split_pattern.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"

namespace sluice::text {
namespace {

// Members of a class equal to the property White_Space. PCRE2's own \s also takes U+180E.
constexpr absl::string_view kSpaceMembers =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a})"
    R"(\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

absl::Status Refuse(absl::string_view pattern, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "split pattern uses ", what, ", which is not supported: ", pattern.substr(0, 200)));
}

// Our own patterns are written in the common dialect and translated like those of files.
std::string Known(absl::string_view pattern) {
  auto translated = PcreFromOniguruma(pattern);
  SLUICE_CHECK(translated.ok()) << translated.status().ToString();
  return *std::move(translated);
}

class Translator {
 public:
  explicit Translator(absl::string_view pattern) : pattern_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (at_ < pattern_.size()) {
      const absl::Status status = in_class_ ? ClassStep() : Step();
      if (!status.ok()) return status;
    }
    if (in_class_) return Refuse(pattern_, "an unterminated class");
    return std::move(out_);
  }

 private:
  bool Next(absl::string_view prefix) const {
    return pattern_.substr(at_, prefix.size()) == prefix;
  }
  void Copy(size_t count) {
    absl::StrAppend(&out_, pattern_.substr(at_, count));
    at_ += count;
  }

  absl::Status Step() {
    const char c = pattern_[at_];
    if (c == '\\') return Escape();
    if (c == '^' || c == '$') return Refuse(pattern_, "a line anchor");
    if (Next("}+")) return Refuse(pattern_, "'+' after an interval");
    if (Next("(?") && !Next("(?:") && !Next("(?i:") && !Next("(?=") && !Next("(?!") &&
        !Next("(?<=") && !Next("(?<!") && !Next("(?>")) {
      return Refuse(pattern_, absl::StrCat("the group '", pattern_.substr(at_, 4), "'"));
    }
    if (c == '[') {
      in_class_ = true;
      Copy(Next("[^") ? 2 : 1);
      if (at_ < pattern_.size() && pattern_[at_] == ']') return Refuse(pattern_, "']' as a member");
      return absl::OkStatus();
    }
    Copy(1);
    return absl::OkStatus();
  }

  absl::Status ClassStep() {
    if (pattern_[at_] == '\\') return Escape();
    if (pattern_[at_] == '[') return Refuse(pattern_, "a class inside a class");
    if (Next("&&")) return Refuse(pattern_, "an intersection of classes");
    if (pattern_[at_] == ']') in_class_ = false;
    Copy(1);
    return absl::OkStatus();
  }

  absl::Status Escape() {
    if (at_ + 1 == pattern_.size()) return Refuse(pattern_, "a trailing backslash");
    const char c = pattern_[at_ + 1];
    switch (c) {
      case 's':
        absl::StrAppend(&out_, in_class_ ? "" : "[", kSpaceMembers, in_class_ ? "" : "]");
        at_ += 2;
        return absl::OkStatus();
      case 'S':
        if (in_class_) return Refuse(pattern_, "\\S inside a class");
        absl::StrAppend(&out_, "[^", kSpaceMembers, "]");
        at_ += 2;
        return absl::OkStatus();
      case 'p':
      case 'P':
        return Property();
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'd':
      case 'x':
        Copy(2);
        return absl::OkStatus();
      default:
        if (absl::ascii_isalnum(static_cast<unsigned char>(c))) {
          return Refuse(pattern_, absl::StrCat("'\\", pattern_.substr(at_ + 1, 1), "'"));
        }
        Copy(2);
        return absl::OkStatus();
    }
  }

  // \p{L} and \p{Lu} are general categories in both dialects; longer names are taken as scripts.
  absl::Status Property() {
    const size_t close = pattern_.find('}', at_);
    if (pattern_.substr(at_ + 2, 1) != "{" || close == absl::string_view::npos) {
      return Refuse(pattern_, "a property without braces");
    }
    absl::string_view name = pattern_.substr(at_ + 3, close - at_ - 3);
    absl::StrAppend(&out_, pattern_.substr(at_, 3));
    if (!name.empty() && name[0] == '^') {
      out_.push_back('^');
      name.remove_prefix(1);
    }
    absl::StrAppend(&out_, name.size() > 2 ? "sc:" : "", name, "}");
    at_ = close + 1;
    return absl::OkStatus();
  }

  absl::string_view pattern_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

constexpr absl::string_view kContractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
constexpr absl::string_view kCommonTail = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace

absl::StatusOr<std::string> PcreFromOniguruma(absl::string_view pattern) {
  return Translator(pattern).Run();
}

std::string Gpt2Split() {
  return Known(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)");
}

std::string Llama3Split() {
  return Known(absl::StrCat(kContractions, R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})", kCommonTail));
}

std::string Qwen2Split() {
  return Known(absl::StrCat(kContractions, R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})", kCommonTail));
}

std::string KimiSplit() {
  // PCRE2 has no intersection of classes: "not Han" becomes a look-ahead.
  constexpr absl::string_view kUpper = R"((?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]))";
  constexpr absl::string_view kLower = R"((?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}]))";
  constexpr absl::string_view kBefore = R"([^\r\n\p{L}\p{N}]?)";
  return Known(absl::StrCat(R"(\p{Han}+|)", kBefore, kUpper, "*", kLower, "+", kContractions, "?|",
                            kBefore, kUpper, "+", kLower, "*", kContractions, R"(?|\p{N}{1,3})",
                            kCommonTail));
}

std::string EachDigitSplit() { return Known(R"(\p{N})"); }

}  // namespace sluice::text
