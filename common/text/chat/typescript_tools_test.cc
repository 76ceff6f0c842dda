#include "text/chat/typescript_tools.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace sluice::text {
namespace {

using formats::JsonValue;

JsonValue Parse(absl::string_view text) {
  auto value = formats::ParseJson(text, "test");
  EXPECT_TRUE(value.ok()) << value.status();
  return value.ok() ? *std::move(value) : JsonValue();
}

TEST(TypeScriptTools, EqualThePublishedEncoder) {
  std::ifstream file(SLUICE_TEST_DATA "/golden/chat/kimi_tools.json");
  const JsonValue cases = Parse(std::string(std::istreambuf_iterator<char>(file), {}));
  ASSERT_EQ(cases.array().size(), 16u);
  for (const JsonValue& c : cases.array()) {
    EXPECT_EQ(KimiToolDeclarations(*c.Find("tools")), *c.GetString("declarations"));
  }
}

TEST(TypeScriptTools, RefusesSchemasWithoutAnEquivalent) {
  for (const char* property :
       {R"(1)", R"({"type":7})", R"({"type":["string","what"]})", R"({"enum":3})",
        R"({"enum":[[1]]})", R"({"type":["a","b"],"enum":[1]})", R"({"anyOf":{}})",
        R"({"description":1,"type":"string"})", R"({"type":"array","items":[{}]})", R"({"$ref":7})",
        R"({"$ref":"other.json"})", R"({"type":"object","required":1,"properties":{}})",
        R"({"type":"object","properties":[]})"}) {
    const JsonValue tools = Parse(absl::StrCat(
        R"([{"type":"function","function":{"name":"f","parameters":{"properties":{"p":)", property,
        "}}}}]"));
    EXPECT_TRUE(absl::IsInvalidArgument(TypeScriptTools(tools).status())) << property;
  }
}

}  // namespace
}  // namespace sluice::text
