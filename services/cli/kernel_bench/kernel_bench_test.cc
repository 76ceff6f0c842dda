#include "services/cli/kernel_bench/kernel_bench.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

namespace sluice::cli {
namespace {

TEST(KernelBench, EveryPathHasFiguresBesideTheirRoofs) {
  for (kernels::IsaPath path : kernels::AvailableIsaPaths()) {
    KernelBenchOptions options;
    options.kernels = std::string(kernels::IsaPathName(path));
    options.threads = 2;
    options.memory_mib = 1;
    options.repetitions = 1;
    options.rows = {1, 3};
    const auto report = RunKernelBench(options);
    ASSERT_TRUE(report.ok()) << report.status();
    const bool vectors = path != kernels::IsaPath::kReference;
    // 3 formats of float32 activations and 5 of blocks, with 8 and 16 bits of these.
    EXPECT_EQ(report->linear.size(), (vectors ? 13u : 8u) * 2);
    EXPECT_GT(report->read_gb_per_s, 0);
    for (const KernelFigure& figure : report->linear) {
      EXPECT_GT(figure.gb_per_s, 0);
      EXPECT_NEAR(figure.gops * figure.matrix_us, 2e-3 * figure.rows * 1536 * 768,
                  1e-6 * figure.gops * figure.matrix_us);
      EXPECT_EQ(figure.roof == "read", figure.rows == 1);
      EXPECT_TRUE(figure.share > 0 || !vectors);
    }
    const auto object = boost::json::parse(KernelBenchJson(*report)).as_object();
    EXPECT_EQ(object.at("linear").as_array().size(), report->linear.size());
    EXPECT_EQ(object.at("kernels").as_string(), options.kernels);
  }
}

TEST(KernelBench, RefusesOptionsOutOfRange) {
  const auto code = [](const KernelBenchOptions& options) {
    return RunKernelBench(options).status().code();
  };
  EXPECT_EQ(code({.kernels = "sse"}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.memory_mib = 0}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.repetitions = 0}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.rows = {}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.rows = {5000}}), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice::cli
