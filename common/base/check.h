// SLUICE_CHECK for bugs of our own: always on, prints where and why, then aborts.
// Never for what a peer, a client or a file can cause: that is an absl::Status.
#pragma once

#include <sstream>
#include <string>

namespace sluice::internal {

// Collects the streamed message; its destructor prints and aborts.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  CheckFailure(const CheckFailure&) = delete;
  CheckFailure& operator=(const CheckFailure&) = delete;
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

// Makes the two branches of the conditional expression below have one type.
struct CheckVoidify {
  void operator&(std::ostream&) const {}
};

}  // namespace sluice::internal

#define SLUICE_CHECK(condition)                      \
  (condition) ? static_cast<void>(0)                 \
              : ::sluice::internal::CheckVoidify() & \
                    ::sluice::internal::CheckFailure(__FILE__, __LINE__, #condition).stream()

#ifdef NDEBUG
#define SLUICE_DCHECK(condition) SLUICE_CHECK(true || (condition))
#else
#define SLUICE_DCHECK(condition) SLUICE_CHECK(condition)
#endif
