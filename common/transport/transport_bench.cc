// GB/s of fetches and of messages by backend and piece size.
#include <benchmark/benchmark.h>

#include <string>

#include "base/certificates/trial_folder.h"
#include "base/clock.h"
#include "transport/factory.h"
#include "transport/measure.h"

namespace sluice::transport {
namespace {

using Measure = absl::StatusOr<Measurement> (*)(Transport&, Transport&, const MeasureOptions&,
                                                const Clock&);

void Run(benchmark::State& state, const std::string& backend, Measure measure,
         size_t region_bytes) {
  SystemClock clock;
  LoopbackNetwork::Options network_options;
  network_options.self_driven = true;
  LoopbackNetwork network(network_options, clock);
  TransportOptions options;
  options.backends = {backend};
  options.trusted_network = true;
  options.loopback = &network;
  const absl::StatusOr<TrialFolder> certificates = TrialFolder::Create();
  if (certificates.ok()) options.certificates = certificates->Of(ServiceRole::kDecode);
  MeasureOptions what;
  what.piece_bytes = static_cast<size_t>(state.range(0));
  what.region_bytes = region_bytes;
  for (auto _ : state) {
    auto a = CreateTransport(options);
    auto b = CreateTransport(options);
    if (!a.ok() || !b.ok()) return state.SkipWithError("the backend is not available");
    const auto measured = measure(**a, **b, what, clock);
    if (!measured.ok())
      return state.SkipWithError(std::string(measured.status().message()).c_str());
    state.SetIterationTime(absl::ToDoubleSeconds(measured->took));
    state.counters["GB/s"] = measured->gigabytes_per_second();
  }
}

void Register() {
  constexpr size_t kInCache = 1u << 20, kInMemory = 256u << 20;
  for (const Backend& backend : BuiltBackends()) {
    if (backend.name == "ucx-rdma") continue;
    const auto add = [&](const std::string& what, Measure measure, size_t region_bytes) {
      benchmark::RegisterBenchmark((backend.name + "/" + what).c_str(), Run, backend.name, measure,
                                   region_bytes)
          ->Arg(64 << 10)
          ->Arg(256 << 10)
          ->Arg(1 << 20)
          ->UseManualTime()
          ->Iterations(3)
          ->Unit(benchmark::kMillisecond);
    };
    if (backend.name != "ucx-tcp" && backend.name != "tls") {
      add("fetch/cache", MeasureFetch, kInCache);
      add("fetch/memory", MeasureFetch, kInMemory);
    }
    add("send", MeasureSend, kInMemory);
  }
}

}  // namespace
}  // namespace sluice::transport

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  sluice::transport::Register();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
