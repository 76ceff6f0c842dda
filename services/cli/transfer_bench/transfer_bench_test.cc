#include "services/cli/transfer_bench/transfer_bench.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <set>

namespace sluice::cli {
namespace {

TransferBenchOptions Small() {
  TransferBenchOptions options;
  options.pieces_kib = {4, 64};
  options.bytes = uint64_t{1} << 20;
  options.region_mib = 1;
  options.repetitions = 1;
  return options;
}

TEST(TransferBench, EveryTransportOfThisHostHasAFigureForEachSize) {
  const auto report = RunTransferBench(Small());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_GT(report->copy_gb_per_s, 0);
  std::set<std::string> transports;
  for (const TransferFigure& figure : report->figures) {
    transports.insert(figure.transport);
    EXPECT_GT(figure.gb_per_s, 0);
    EXPECT_NEAR(figure.share, figure.gb_per_s / report->copy_gb_per_s, 1e-9);
    EXPECT_EQ(figure.verb, figure.transport == "ucx-shm" ? "fetch" : "send");
  }
  EXPECT_TRUE(transports.contains("tls"));
  EXPECT_EQ(report->figures.size(), transports.size() * 2);
  const auto object = boost::json::parse(TransferBenchJson(*report)).as_object();
  EXPECT_EQ(object.at("figures").as_array().size(), report->figures.size());
}

TEST(TransferBench, RefusesWhatItCannotDo) {
  const auto code = [](auto change) {
    TransferBenchOptions options = Small();
    change(options);
    return RunTransferBench(options).status().code();
  };
  using enum absl::StatusCode;
  EXPECT_EQ(code([](auto& o) { o.pieces_kib = {}; }), kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.pieces_kib = {0}; }), kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.pieces_kib = {2048}; }), kInvalidArgument) << "beyond the region";
  EXPECT_EQ(code([](auto& o) { o.bytes = 1000; }), kInvalidArgument) << "less than a piece";
  EXPECT_EQ(code([](auto& o) { o.repetitions = 0; }), kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.region_mib = 0; }), kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.transports = {"pigeon"}; }), kInvalidArgument);
}

}  // namespace
}  // namespace sluice::cli
