// Cuts text into the pieces that are tokenized on their own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

struct pcre2_real_code_8;

namespace sluice::text {

// Immutable and thread-safe.
class Splitter {
 public:
  // See TokenizerSpec::splits and run_characters_max. INVALID_ARGUMENT if a pattern does not
  // compile.
  static absl::StatusOr<Splitter> Create(absl::Span<const std::string> patterns,
                                         size_t run_characters_max);

  // The non-empty pieces of `text`, in order; together they are `text`. `text` must be valid UTF-8.
  // INVALID_ARGUMENT if a pattern needs more work than any natural text does.
  absl::StatusOr<std::vector<absl::string_view>> Split(absl::string_view text) const;

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  using Code = std::unique_ptr<pcre2_real_code_8, FreeCode>;

  Splitter(std::vector<Code> codes, size_t run_characters_max)
      : codes_(std::move(codes)), run_characters_max_(run_characters_max) {}
  std::vector<absl::string_view> CutLongRuns(absl::string_view text) const;

  std::vector<Code> codes_;
  size_t run_characters_max_;
};

}  // namespace sluice::text
