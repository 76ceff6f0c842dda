#include "text/output/trimmed_text.h"

#include "text/python_text.h"

namespace sluice::text {

void TrimmedText::Append(absl::string_view text, bool drop_leading, std::string* out) {
  const absl::string_view head = PythonStrip(text, Side::kRight);
  const absl::string_view space = text.substr(head.size());
  if (!head.empty()) {
    if (!empty_ || !drop_leading) *out += held_;
    held_.clear();
    const absl::string_view fresh = empty_ && drop_leading ? PythonStrip(head, Side::kLeft) : head;
    out->append(fresh.data(), fresh.size());
    empty_ = false;
  }
  held_.append(space.data(), space.size());
}

}  // namespace sluice::text
