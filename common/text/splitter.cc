#include "text/splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "text/utf8.h"

namespace sluice::text {
namespace {

// The known patterns need a few steps for each byte; a pattern of a model file may not take much
// more.
constexpr uint32_t kMatchSteps = 1u << 26;
constexpr uint32_t kHeapKibibytes = 64 * 1024;
constexpr size_t kJitStackStart = size_t{64} << 10;
constexpr size_t kJitStackMax = size_t{64} << 20;
constexpr size_t kPatternBytesMax = 4096;

std::string ErrorText(int code) {
  std::array<PCRE2_UCHAR, 128> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return std::string(reinterpret_cast<const char*>(buffer.data()));
}

template <auto Function>
struct Free {
  template <typename T>
  void operator()(T* value) const {
    Function(value);
  }
};

// One pattern applied to one text after the other; holds what a match writes to.
class Matcher {
 public:
  explicit Matcher(const pcre2_code* code)
      : code_(code),
        context_(pcre2_match_context_create(nullptr)),
        data_(pcre2_match_data_create(1, nullptr)) {
    SLUICE_CHECK(context_ != nullptr && data_ != nullptr) << "out of memory";
    pcre2_set_match_limit(context_.get(), kMatchSteps);
    pcre2_set_heap_limit(context_.get(), kHeapKibibytes);
  }

  absl::Status Cut(absl::string_view text, std::vector<absl::string_view>* pieces) {
    size_t done = 0, at = 0;
    while (at < text.size()) {
      const int rc = Match(text, at);
      if (rc == PCRE2_ERROR_NOMATCH) break;
      if (rc < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("text of ", text.size(), " bytes cannot be split at byte ", at, ": ",
                         ErrorText(rc), "; shorten its longest word"));
      }
      const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data_.get());
      const size_t begin = bounds[0], end = bounds[1];
      if (end <= begin) {  // An empty match cuts nothing; look on behind the next character.
        at = begin < text.size() ? begin + DecodeUtf8(text.substr(begin)).length : text.size();
        continue;
      }
      if (begin > done) pieces->push_back(text.substr(done, begin - done));
      pieces->push_back(text.substr(begin, end - begin));
      done = at = end;
    }
    if (done < text.size()) pieces->push_back(text.substr(done));
    return absl::OkStatus();
  }

 private:
  int Match(absl::string_view text, size_t at) {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    // The caller has validated the text once: checking it at every match would be quadratic.
    const auto match = [&] {
      return pcre2_match(code_, subject, text.size(), at, PCRE2_NO_UTF_CHECK, data_.get(),
                         context_.get());
    };
    int rc = match();
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && stack_ == nullptr) {
      stack_.reset(pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr));
      if (stack_ == nullptr) return PCRE2_ERROR_NOMEMORY;
      pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
      rc = match();
    }
    return rc;
  }

  const pcre2_code* code_;
  std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>> context_;
  std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>> data_;
  std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack_free>> stack_;
};

}  // namespace

void Splitter::FreeCode::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

absl::StatusOr<Splitter> Splitter::Create(absl::Span<const std::string> patterns,
                                          size_t run_characters_max) {
  std::vector<Code> codes;
  for (const std::string& pattern : patterns) {
    if (pattern.size() > kPatternBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("split pattern of ", pattern.size(), " bytes; at most ", kPatternBytesMax));
    }
    int error = 0;
    PCRE2_SIZE offset = 0;
    Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                            PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                            nullptr));
    if (code == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("split pattern does not compile at byte ",
                                                     offset, " (", ErrorText(error),
                                                     "): ", pattern));
    }
    // Without JIT (some hardened kernels forbid it) the interpreter gives the same pieces, slower.
    pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
    codes.push_back(std::move(code));
  }
  return Splitter(std::move(codes), run_characters_max);
}

std::vector<absl::string_view> Splitter::CutLongRuns(absl::string_view text) const {
  std::vector<absl::string_view> runs;
  if (run_characters_max_ == 0 || text.size() <= run_characters_max_) {
    if (!text.empty()) runs.push_back(text);
    return runs;
  }
  size_t begin = 0, length = 0;
  bool space = false;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = DecodeUtf8(text.substr(at));
    const bool now_space = IsPythonSpace(step.code_point);
    length = now_space == space ? length + 1 : 1;
    space = now_space;
    if (length > run_characters_max_) {
      runs.push_back(text.substr(begin, at - begin));
      begin = at;
      length = 1;
    }
    at += step.length;
  }
  runs.push_back(text.substr(begin));
  return runs;
}

absl::StatusOr<std::vector<absl::string_view>> Splitter::Split(absl::string_view text) const {
  std::vector<absl::string_view> pieces = CutLongRuns(text);
  for (const Code& code : codes_) {
    Matcher matcher(code.get());
    std::vector<absl::string_view> finer;
    for (const absl::string_view piece : pieces) {
      SLUICE_RETURN_IF_ERROR(matcher.Cut(piece, &finer));
    }
    pieces = std::move(finer);
  }
  return pieces;
}

}  // namespace sluice::text
