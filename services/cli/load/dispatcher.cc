#include "services/cli/load/dispatcher.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/random.h"

namespace sluice::cli {

std::vector<absl::Duration> PoissonArrivals(double rate, size_t count, uint64_t seed) {
  SLUICE_CHECK(rate > 0) << rate;
  std::vector<absl::Duration> arrivals(count);
  if (std::isinf(rate)) return arrivals;
  SeededRandom random(seed);
  double at = 0;
  for (absl::Duration& arrival : arrivals) {
    // Gaps are exponential; the first request arrives after one, too.
    at += -std::log1p(-random.Unit()) / rate;
    arrival = absl::Seconds(at);
  }
  return arrivals;
}

Dispatcher::Dispatcher(DispatchOptions options, std::vector<size_t> turns, absl::Time start)
    : options_(std::move(options)), turns_(std::move(turns)), sent_(turns_.size()) {
  SLUICE_CHECK(options_.arrivals.size() == turns_.size() && options_.max_concurrency > 0);
  for (size_t i = 0; i < turns_.size(); ++i) {
    if (turns_[i] > 0) waiting_.push({i, 0, start + options_.arrivals[i]});
  }
}

std::optional<Dispatch> Dispatcher::Next(absl::Time now) {
  if (waiting_.empty() || in_flight_ >= options_.max_concurrency) return std::nullopt;
  if (waiting_.top().due > now) return std::nullopt;
  const Dispatch next = waiting_.top();
  waiting_.pop();
  ++sent_[next.session];
  peak_in_flight_ = std::max(peak_in_flight_, ++in_flight_);
  return next;
}

absl::Time Dispatcher::next_due() const {
  if (waiting_.empty() || in_flight_ >= options_.max_concurrency) return absl::InfiniteFuture();
  return waiting_.top().due;
}

void Dispatcher::OnDone(size_t session, bool ok, absl::Time now) {
  SLUICE_CHECK(in_flight_ > 0);
  --in_flight_;
  const size_t left = turns_[session] - sent_[session];
  if (left == 0) return;
  if (ok && !stopped_) {
    waiting_.push({session, sent_[session], now + options_.think_time});
  } else {
    not_sent_ += left;
  }
}

void Dispatcher::Stop() {
  stopped_ = true;
  for (; !waiting_.empty(); waiting_.pop()) {
    const Dispatch& next = waiting_.top();
    not_sent_ += turns_[next.session] - next.turn;
  }
}

}  // namespace sluice::cli
