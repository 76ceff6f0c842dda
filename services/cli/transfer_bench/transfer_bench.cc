#include "services/cli/transfer_bench/transfer_bench.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/certificates/trial_folder.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "services/cli/flag_range.h"
#include "transport/factory.h"
#include "transport/measure.h"

namespace sluice::cli {
namespace {

using transport::Transport;

constexpr int kCopyTries = 3;

double CopyRate(const Clock& clock, size_t bytes) {
  std::vector<uint8_t> from(bytes, 1), to(bytes, 2);
  double best = 0;
  for (int i = 0; i < kCopyTries; ++i) {
    const absl::Time start = clock.Now();
    std::memcpy(to.data(), from.data(), bytes);
    best = std::max(best,
                    static_cast<double>(bytes) / absl::ToDoubleSeconds(clock.Now() - start) / 1e9);
    from[0] = to[bytes - 1];  // what was copied is used
  }
  return best;
}

absl::Status Validate(const TransferBenchOptions& options) {
  SLUICE_RETURN_IF_ERROR(CheckRange("--region-mib", options.region_mib, 1, 4096));
  SLUICE_RETURN_IF_ERROR(CheckRange("--repetitions", options.repetitions, 1, 1000));
  if (options.pieces_kib.empty())
    return absl::InvalidArgumentError("--piece-kib is empty; write --piece-kib 64,256");
  for (uint32_t kib : options.pieces_kib) {
    SLUICE_RETURN_IF_ERROR(
        CheckRange("--piece-kib", kib, 1, std::min<uint64_t>(options.region_mib, 16) << 10));
    SLUICE_RETURN_IF_ERROR(
        CheckRange("--bytes", options.bytes, uint64_t{kib} << 10, uint64_t{1} << 40));
  }
  return absl::OkStatus();
}

std::string FullName(const std::string& name) {
  return name == "shm" || name == "tcp" ? absl::StrCat("ucx-", name) : name;
}

class TransferBench {
 public:
  TransferBench(const TransferBenchOptions& options, const CertificateFiles& certificates)
      : options_(options) {
    made_.trusted_network = true;  // both ends are this process, on `lo`
    made_.certificates = certificates;
    // A frame is a piece and a header of a few bytes.
    made_.limits.message_bytes_max = (size_t{16} << 20) + 64;
  }

  // Every size of pieces over one transport, added to `report`.
  absl::Status Measure(const std::string& name, TransferBenchReport* report) const {
    for (uint32_t kib : options_.pieces_kib) {
      SLUICE_ASSIGN_OR_RETURN(TransferFigure figure, Median(name, size_t{kib} << 10));
      figure.share = figure.gb_per_s / report->copy_gb_per_s;
      report->figures.push_back(std::move(figure));
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<TransferFigure> Median(const std::string& name, size_t piece_bytes) const {
    transport::TransportOptions options = made_;
    options.backends = {name};
    transport::MeasureOptions what;
    what.piece_bytes = piece_bytes;
    what.region_bytes = size_t{options_.region_mib} << 20;
    what.total_bytes = options_.bytes;
    TransferFigure figure{name, "", piece_bytes};
    std::vector<double> rates;
    for (uint32_t i = 0; i < options_.repetitions; ++i) {
      SLUICE_ASSIGN_OR_RETURN(const auto taker, transport::CreateTransport(options));
      SLUICE_ASSIGN_OR_RETURN(const auto holder, transport::CreateTransport(options));
      const bool fetches = taker->capabilities().true_get;
      figure.verb = fetches ? "fetch" : "send";
      SLUICE_ASSIGN_OR_RETURN(const transport::Measurement measured,
                              fetches ? transport::MeasureFetch(*taker, *holder, what, clock_)
                                      : transport::MeasureSend(*holder, *taker, what, clock_));
      rates.push_back(measured.gigabytes_per_second());
    }
    std::nth_element(rates.begin(), rates.begin() + rates.size() / 2, rates.end());
    figure.gb_per_s = rates[rates.size() / 2];
    return figure;
  }

  const TransferBenchOptions& options_;
  transport::TransportOptions made_;
  SystemClock clock_;
};

}  // namespace

absl::StatusOr<TransferBenchReport> RunTransferBench(const TransferBenchOptions& options) {
  SLUICE_RETURN_IF_ERROR(Validate(options));
  std::vector<std::string> names;
  for (const std::string& name : options.transports) names.push_back(FullName(name));
  const bool all = names.empty();
  for (const transport::Backend& backend : transport::BuiltBackends()) {
    // An adapter must be named, and the loopback of the simulation moves nothing.
    if (all && backend.name != "ucx-rdma" && backend.name != "loopback")
      names.push_back(backend.name);
  }
  SLUICE_ASSIGN_OR_RETURN(const TrialFolder certificates, TrialFolder::Create());
  TransferBenchReport report;
  report.copy_gb_per_s = CopyRate(SystemClock(), size_t{options.region_mib} << 20);
  const TransferBench bench(options, certificates.Of(ServiceRole::kDecode));
  for (const std::string& name : names) {
    const absl::Status status = bench.Measure(name, &report);
    if (all && absl::IsUnavailable(status)) {
      SLUICE_LOG(kWarning) << "left out" << Field("transport", name)
                           << Field("why", status.message());
      continue;
    }
    SLUICE_RETURN_IF_ERROR(status);
  }
  return report;
}

}  // namespace sluice::cli
