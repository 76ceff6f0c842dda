#include "services/process/loop_watch.h"

#include "absl/strings/str_cat.h"

namespace sluice::services {
namespace {

constexpr absl::Duration kBeatPeriod = absl::Seconds(5);

}  // namespace

void LoopWatch::Add(absl::string_view name, Loop& loop) {
  const auto beat = std::make_shared<Beat>(std::string(name), clock_.Now());
  beats_.push_back(beat);
  loop.Post([beat, &loop] { Tick(beat, loop); });
}

void LoopWatch::Tick(const std::shared_ptr<Beat>& beat, Loop& loop) {
  const absl::Time now = loop.clock().Now();
  {
    MutexLock lock(beat->mutex);
    beat->at = now;
  }
  loop.RunAt(now + kBeatPeriod, [beat, &loop] { Tick(beat, loop); });
}

absl::Status LoopWatch::Check() const {
  for (const auto& beat : beats_) {
    MutexLock lock(beat->mutex);
    const absl::Duration silence = clock_.Now() - beat->at;
    if (silence > kLoopSilenceMax) {
      return absl::UnavailableError(absl::StrCat("the loop \"", beat->name, "\" has not moved for ",
                                                 absl::FormatDuration(silence)));
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice::services
