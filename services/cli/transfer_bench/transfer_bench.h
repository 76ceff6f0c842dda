// How fast this machine moves pages between two transports of one process, by piece size, beside
// the rate at which one thread copies memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice::cli {

struct TransferBenchOptions {
  // As in a worker's configuration; "shm" and "tcp" stand for those of UCX. Empty: every one of
  // this build that needs no second host.
  std::vector<std::string> transports;
  std::vector<uint32_t> pieces_kib = {4, 16, 64, 256, 1024};  // each 1..16,384
  uint64_t bytes = uint64_t{256} << 20;  // moved for each figure; at least a piece, at most 1 TiB
  uint32_t region_mib = 64;              // where pieces lie; more than the caches hold; 1..4,096
  uint32_t repetitions = 3;              // the median counts; 1..1000
};

struct TransferFigure {
  std::string transport;
  std::string verb;  // "fetch": the taker reads the holder's memory; "send": bytes in messages
  uint64_t piece_bytes = 0;
  double gb_per_s = 0;
  double share = 0;  // of copy_gb_per_s
};

struct TransferBenchReport {
  double copy_gb_per_s = 0;  // one thread, memory to memory, the best of three
  std::vector<TransferFigure> figures;
};

// Both ends are in this process and on its loopback. Errors: INVALID_ARGUMENT for an option;
// UNAVAILABLE for a transport that was asked for and that this host or build lacks (one that was
// not asked for is left out); DEADLINE_EXCEEDED when a piece does not arrive. Before other threads
// run, see transport::CreateTransport. Takes some seconds.
absl::StatusOr<TransferBenchReport> RunTransferBench(const TransferBenchOptions& options);

std::string TransferBenchJson(const TransferBenchReport& report);   // one object
std::string TransferBenchTable(const TransferBenchReport& report);  // for people

}  // namespace sluice::cli
