#include "services/cli/model_name.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

class ModelNameTest : public testing::Test {
 protected:
  ModelNameTest() { fs::create_directories(bin_); }
  ~ModelNameTest() override { fs::remove_all(root_); }

  // Returns the folder.
  static std::string MakeModel(const std::string& folder) {
    fs::create_directories(folder);
    std::ofstream(folder + "/config.json") << "{}";
    return folder;
  }

  const std::string root_ = testing::TempDir() + "model_name_test";
  const std::string bin_ = root_ + "/build/release/bin";
};

TEST_F(ModelNameTest, FindsNamesInTheCheckoutAndFirstBesideTheProgram) {
  const std::string in_checkout = MakeModel(root_ + "/deploy/models/small");
  EXPECT_EQ(FindModel("small", bin_), in_checkout);
  const std::string beside = MakeModel(bin_ + "/models/small");
  EXPECT_EQ(FindModel("small", bin_), beside);
}

TEST_F(ModelNameTest, LeavesPathsAndUnknownNamesAsTheyAre) {
  MakeModel(root_ + "/deploy/models/small");
  MakeModel(root_ + "/deploy/models/toy");
  fs::create_directories(root_ + "/deploy/models/empty");
  for (const char* model : {"", "toy", "other", "empty", "./small", "../small", "/models/small"}) {
    EXPECT_EQ(FindModel(model, bin_), model);
  }
  const fs::path before = fs::current_path();
  fs::current_path(MakeModel(root_ + "/here"));
  MakeModel("small");
  EXPECT_EQ(FindModel("small", bin_), "small");
  fs::current_path(before);
}

}  // namespace
}  // namespace sluice::cli
