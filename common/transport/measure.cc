#include "transport/measure.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/wait.h"

namespace sluice::transport {
namespace {

constexpr absl::Duration kWaitMax = absl::Milliseconds(100);

// Counts what the measurement waits for: fetches or acknowledgements.
class Counter final : public Events {
 public:
  void OnMessage(EndpointId /*from*/, absl::string_view /*header*/,
                 absl::Span<const uint8_t> /*payload*/) override {
    ++done;
  }
  void OnFetchDone(FetchId /*fetch*/, const absl::Status& fetched) override {
    if (!fetched.ok()) status = fetched;
    ++done;
  }
  void OnPeerDown(EndpointId /*endpoint*/, const absl::Status& reason) override { status = reason; }

  uint64_t done = 0;
  absl::Status status;
};

// Copies payloads into memory, round and round, and acknowledges each.
class Sink final : public Events {
 public:
  Sink(Transport& transport, size_t bytes) : transport_(transport), memory_(bytes, 2) {}

  void OnMessage(EndpointId from, absl::string_view /*header*/,
                 absl::Span<const uint8_t> payload) override {
    if (payload.size() > memory_.size()) return;
    if (payload.size() > memory_.size() - at_) at_ = 0;
    std::memcpy(memory_.data() + at_, payload.data(), payload.size());
    at_ += payload.size();
    // A refused acknowledgement shows as the measurement's timeout.
    static_cast<void>(transport_.Send(from, "taken", {}));
  }
  void OnFetchDone(FetchId /*fetch*/, const absl::Status& /*status*/) override {}
  void OnPeerDown(EndpointId /*endpoint*/, const absl::Status& /*reason*/) override {}

 private:
  Transport& transport_;
  std::vector<uint8_t> memory_;
  size_t at_ = 0;
};

absl::Status CheckOptions(const MeasureOptions& options) {
  if (options.piece_bytes == 0 || options.piece_bytes > options.region_bytes ||
      options.outstanding_max == 0) {
    return absl::InvalidArgumentError(absl::StrCat("pieces of ", options.piece_bytes,
                                                   " bytes from ", options.region_bytes, ", ",
                                                   options.outstanding_max, " at a time"));
  }
  return absl::OkStatus();
}

absl::Status TooLate(uint64_t done, uint64_t pieces, absl::Duration timeout) {
  return absl::DeadlineExceededError(absl::StrCat(
      done, " of ", pieces, " pieces were moved within ", absl::FormatDuration(timeout)));
}

// Where piece `i` of a region lies.
size_t OffsetOf(uint64_t i, const MeasureOptions& options) {
  return (i % (options.region_bytes / options.piece_bytes)) * options.piece_bytes;
}

}  // namespace

absl::StatusOr<Measurement> MeasureFetch(Transport& taker, Transport& holder,
                                         const MeasureOptions& options, const Clock& clock) {
  SLUICE_RETURN_IF_ERROR(CheckOptions(options));
  SLUICE_ASSIGN_OR_RETURN(const Region source, holder.AllocateRegion(options.region_bytes));
  SLUICE_ASSIGN_OR_RETURN(const Region sink, taker.AllocateRegion(options.region_bytes));
  std::memset(source.memory.data(), 1, source.memory.size());
  std::memset(sink.memory.data(), 2, sink.memory.size());
  SLUICE_ASSIGN_OR_RETURN(const EndpointId from, taker.Connect(holder.LocalAddress()));
  Counter at_taker, at_holder;
  const uint64_t pieces = std::max<uint64_t>(1, options.total_bytes / options.piece_bytes);
  absl::Time start = clock.Now();
  const absl::Time deadline = start + options.timeout;
  // The first piece connects the two and is not counted.
  uint64_t started = 0;
  while (at_taker.done < pieces + 1) {
    const uint64_t limit =
        at_taker.done == 0 ? 1 : std::min(at_taker.done + options.outstanding_max, pieces + 1);
    for (; started < limit; ++started) {
      const size_t offset = OffsetOf(started, options);
      SLUICE_RETURN_IF_ERROR(taker
                                 .Fetch(from, source.remote_key, offset,
                                        sink.memory.subspan(offset, options.piece_bytes))
                                 .status());
    }
    const bool connecting = at_taker.done == 0;
    if (!taker.Poll(at_taker) && !holder.Poll(at_holder)) WaitForWork({&taker, &holder}, kWaitMax);
    if (connecting && at_taker.done > 0) start = clock.Now();
    SLUICE_RETURN_IF_ERROR(at_taker.status);
    if (clock.Now() > deadline) return TooLate(at_taker.done, pieces, options.timeout);
  }
  return Measurement{pieces, pieces * options.piece_bytes, clock.Now() - start};
}

absl::StatusOr<Measurement> MeasureSend(Transport& sender, Transport& receiver,
                                        const MeasureOptions& options, const Clock& clock) {
  SLUICE_RETURN_IF_ERROR(CheckOptions(options));
  std::vector<uint8_t> source(options.region_bytes, 1);
  Counter at_sender;
  Sink at_receiver(receiver, options.region_bytes);
  SLUICE_ASSIGN_OR_RETURN(const EndpointId to, sender.Connect(receiver.LocalAddress()));
  const uint64_t pieces = std::max<uint64_t>(1, options.total_bytes / options.piece_bytes);
  std::atomic<bool> stop{false};
  std::thread receiving([&] {
    while (!stop) {
      if (!receiver.Poll(at_receiver)) WaitForWork({&receiver}, kWaitMax);
    }
  });
  absl::Time start = clock.Now();
  const absl::Time deadline = start + options.timeout;
  absl::Status status;
  uint64_t sent = 0;
  // The first piece connects the two and is not counted.
  while (status.ok() && at_sender.done < pieces + 1) {
    const bool connecting = at_sender.done == 0;
    const uint64_t limit =
        connecting ? 1 : std::min(at_sender.done + options.outstanding_max, pieces + 1);
    for (; sent < limit && status.ok(); ++sent) {
      status =
          sender.Send(to, "piece",
                      absl::MakeSpan(source).subspan(OffsetOf(sent, options), options.piece_bytes));
    }
    if (!sender.Poll(at_sender)) WaitForWork({&sender}, kWaitMax);
    if (connecting && at_sender.done > 0) start = clock.Now();
    if (status.ok()) status = at_sender.status;
    if (clock.Now() > deadline) status = TooLate(at_sender.done, pieces, options.timeout);
  }
  const absl::Duration took = clock.Now() - start;
  stop = true;
  receiving.join();
  SLUICE_RETURN_IF_ERROR(status);
  return Measurement{pieces, pieces * options.piece_bytes, took};
}

}  // namespace sluice::transport
