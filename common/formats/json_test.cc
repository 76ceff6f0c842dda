#include "formats/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace sluice::formats {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(absl::string_view text, const JsonLimits& limits = {}) {
  const auto value = ParseJson(text, "f.json", limits);
  EXPECT_FALSE(value.ok()) << text;
  return std::string(value.status().message());
}

TEST(Json, NumbersAreReadExactly) {
  for (const char* text :
       {"0.1", "1e-05", "2.2250738585072014e-308", "9007199254740993.0", "0.30000000000000004",
        "123456789.12345678e3", "-1.7976931348623157e308", "8.41e21", "5e-324"}) {
    const auto value = ParseJson(text, "f.json");
    ASSERT_TRUE(value.ok()) << value.status();
    EXPECT_EQ(*value->AsDouble(), std::strtod(text, nullptr)) << text;
  }
}

TEST(Json, KeepsOrderAndTypes) {
  const auto value = ParseJson(
      R"( {"z": 1, "a": [true, null, -2.5, "x\u00e9\n"], "big": 18446744073709551615} )", "f.json");
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(value->members()[0].first, "z");
  EXPECT_EQ(value->members()[1].first, "a");
  const auto items = value->Find("a")->array();
  ASSERT_EQ(items.size(), 4u);
  EXPECT_EQ(*items[0].AsBool(), true);
  EXPECT_TRUE(items[1].is_null());
  EXPECT_EQ(*items[2].AsDouble(), -2.5);
  EXPECT_EQ(*items[3].AsString(), "x\xc3\xa9\n");
  EXPECT_FALSE(value->GetInt("big").ok());
  EXPECT_EQ(*value->GetDouble("big"), 18446744073709551615.0);
  EXPECT_EQ(*value->GetDouble("z"), 1.0);
}

TEST(Json, AccessorsNameTheKey) {
  const auto value = ParseJson(R"({"a": "x", "n": null})", "f.json");
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(value->GetInt("b").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(value->GetInt("a").status().message(), "'a' is string, expected integer");
  EXPECT_EQ(*value->GetIntOr("b", 5), 5);
  EXPECT_EQ(*value->GetIntOr("n", 6), 6);
  EXPECT_FALSE(value->GetBoolOr("a", true).ok());
  EXPECT_EQ(ParseJson("[1]", "f.json")->Find("a"), nullptr);
}

TEST(Json, RefusesBadTextAndSaysWhere) {
  EXPECT_THAT(ErrorOf(R"({"a":1,"a":2})"), HasSubstr("duplicate key 'a'"));
  EXPECT_THAT(ErrorOf("[1] x"), HasSubstr("byte 4"));
  EXPECT_THAT(ErrorOf("[1,]"), HasSubstr("f.json: bad JSON at byte 3"));
  ErrorOf("");
  ErrorOf("{");
  ErrorOf("\"\xff\"");
  ErrorOf("[NaN]");
  ErrorOf("[1] // comment");
}

TEST(Json, LimitsAreEnforced) {
  const std::string deep(33, '[');
  EXPECT_THAT(ErrorOf(deep), HasSubstr("bad JSON"));
  const std::string fits = std::string(32, '[') + std::string(32, ']');
  EXPECT_TRUE(ParseJson(fits, "f.json").ok());
  JsonLimits limits;
  limits.max_values = 3;
  EXPECT_TRUE(ParseJson("[1,2]", "f.json", limits).ok());
  EXPECT_THAT(ErrorOf("[1,2,3]", limits), HasSubstr("more than 3 values"));
  limits.max_bytes = 4;
  EXPECT_THAT(ErrorOf("[1,2]", limits), HasSubstr("over the limit of 4"));
}

// Long strings and keys arrive from the parser in parts.
TEST(Json, LongEscapedStringsArriveWhole) {
  std::string text = "{\"", want;
  for (int i = 0; i < 3000; ++i) {
    text += "\\u0041b";
    want += "Ab";
  }
  text += "\":\"" + text.substr(2) + "\"}";
  const auto value = ParseJson(text, "f.json");
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(value->members()[0].first, want);
  EXPECT_EQ(*value->members()[0].second.AsString(), want);
}

}  // namespace
}  // namespace sluice::formats
