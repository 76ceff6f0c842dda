#include "kernels/isa.h"

#include <gtest/gtest.h>

namespace sluice::kernels {
namespace {

TEST(Isa, NamesParseBackAndAutoIsTheBestPath) {
  for (IsaPath path : {IsaPath::kReference, IsaPath::kAvx2, IsaPath::kAvx512}) {
    EXPECT_EQ(ParseIsaPath(IsaPathName(path)), path);
  }
  EXPECT_EQ(ParseIsaPath("auto"), BestIsaPath());
  EXPECT_EQ(ParseIsaPath("AVX2"), std::nullopt);
  EXPECT_EQ(ParseIsaPath(""), std::nullopt);
}

TEST(Isa, AvailablePathsStartWithReferenceAndEndWithTheBest) {
  const std::vector<IsaPath> paths = AvailableIsaPaths();
  ASSERT_FALSE(paths.empty());
  EXPECT_EQ(paths.front(), IsaPath::kReference);
  EXPECT_EQ(paths.back(), BestIsaPath());
  for (IsaPath path : paths) EXPECT_TRUE(IsaPathAvailable(path));
}

}  // namespace
}  // namespace sluice::kernels
