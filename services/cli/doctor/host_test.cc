#include "services/cli/doctor/host.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/clock.h"

namespace sluice::cli {
namespace {

class HostTest : public testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text) const {
    const std::string path = folder_ + name;
    std::ofstream(path) << text;
    return path;
  }
  const std::string folder_ = testing::TempDir();
};

TEST_F(HostTest, SpaceOfAFolderOrItsNearestParent) {
  const auto space = SpaceOf(folder_);
  ASSERT_TRUE(space.ok()) << space.status();
  EXPECT_GT(space->total_bytes, 0u);
  EXPECT_LE(space->free_bytes, space->total_bytes);
  EXPECT_EQ(SpaceOf(folder_ + "not/made/yet")->total_bytes, space->total_bytes);
  EXPECT_TRUE(absl::IsNotFound(SpaceOf("").status()));
}

TEST_F(HostTest, FirstLineAndMeminfo) {
  EXPECT_EQ(*FirstLine(Write("thp", "always [madvise] never\n")), "always [madvise] never");
  EXPECT_TRUE(absl::IsNotFound(FirstLine(folder_ + "missing").status()));
  EXPECT_EQ(*AvailableMemory(Write("meminfo", "MemTotal: 9 kB\nMemAvailable:   2048 kB\n")),
            uint64_t{2} << 20);
  EXPECT_TRUE(absl::IsNotFound(AvailableMemory(Write("meminfo2", "MemTotal: 9 kB\n")).status()));
}

TEST_F(HostTest, ModelsAreKeptWhereTheUserKeepsCaches) {
  EXPECT_EQ(DefaultCacheFolder("/x/cache"), "/x/cache/sluice");
  const std::string home = DefaultCacheFolder("");
  EXPECT_EQ(home.substr(home.size() - 14), "/.cache/sluice");
  EXPECT_EQ(DefaultCacheFolder("not/absolute"), home);
}

TEST_F(HostTest, FindsRdmaDevices) {
  EXPECT_FALSE(HasRdmaDevice(folder_ + "missing"));
  std::filesystem::create_directories(folder_ + "infiniband/mlx5_0");
  EXPECT_TRUE(HasRdmaDevice(folder_ + "infiniband"));
  EXPECT_FALSE(HasRdmaDevice(folder_ + "infiniband/mlx5_0"));
}

TEST_F(HostTest, DescribesModelsAndSaysWhatIsMissing) {
  uint64_t bytes = 0;
  EXPECT_TRUE(DescribeModel("toy", &bytes).ok());
  EXPECT_FALSE(DescribeModel(folder_ + "missing.gguf", &bytes).ok());
  EXPECT_FALSE(DescribeModel(Write("lies.gguf", "GGUF\3\0\0\0 nonsense"), &bytes).ok());
}

TEST_F(HostTest, ProbesEveryTransportOfThisBuild) {
  const SystemClock clock;
  for (const TransportProbe& probe : ProbeTransports(clock)) {
    EXPECT_FALSE(probe.name.empty());
    if (probe.gb_per_s.ok()) {
      EXPECT_GT(*probe.gb_per_s, 0) << probe.name;
    } else {
      EXPECT_FALSE(probe.gb_per_s.status().message().empty()) << probe.name;
    }
  }
}

}  // namespace
}  // namespace sluice::cli
