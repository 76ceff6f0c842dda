#include "text/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "absl/strings/str_cat.h"
#include "text/utf8.h"

namespace sluice::text {
namespace {

bool IsMark(uint32_t code_point) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
         category == UTF8PROC_CATEGORY_ME;
}

struct FreeBuffer {
  void operator()(utf8proc_uint8_t* buffer) const { std::free(buffer); }
};

}  // namespace

absl::StatusOr<std::string> ToNfc(absl::string_view text) {
  const bool ascii =
      std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
  if (ascii) return std::string(text);
  size_t run = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = DecodeUtf8(text.substr(at));
    run = step.code_point >= 0x80 && IsMark(step.code_point) ? run + 1 : 0;
    if (run > kCombiningRunMax) {
      return absl::InvalidArgumentError(absl::StrCat("text has more than ", kCombiningRunMax,
                                                     " combining marks in a row, up to byte ", at,
                                                     "; remove them"));
    }
    at += step.length;
  }
  utf8proc_uint8_t* raw = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &raw,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, FreeBuffer> buffer(raw);
  if (size < 0) {
    return absl::InternalError(
        absl::StrCat("normalising ", text.size(), " bytes: ", utf8proc_errmsg(size)));
  }
  return std::string(reinterpret_cast<const char*>(raw), static_cast<size_t>(size));
}

}  // namespace sluice::text
