#include "text/python_text.h"

#include <gtest/gtest.h>

#include <cmath>

#include "formats/json.h"
#include "text/python_json.h"

namespace sluice::text {
namespace {

TEST(PythonText, StripsAsPythonDoes) {
  EXPECT_EQ(PythonStrip("\u00a0 a b \u3000\n\x1f"), "a b");
  EXPECT_EQ(PythonStrip("  x ", Side::kLeft), "x ");
  EXPECT_EQ(PythonStrip("  x ", Side::kRight), "  x");
  EXPECT_EQ(PythonStrip(" \t\n"), "");
  EXPECT_EQ(PythonStrip("\n\n x\n", "\n", Side::kBoth), " x");
  EXPECT_EQ(PythonStrip("xxaxx", "x", Side::kRight), "xxa");
  EXPECT_EQ(PythonStrip("\xff", Side::kBoth), "\xff");  // no character, so no space
}

TEST(PythonText, PrintsFloatsAsPythonDoes) {
  const std::pair<double, const char*> cases[] = {{1, "1.0"},
                                                  {-0.0, "-0.0"},
                                                  {0.1, "0.1"},
                                                  {1e16, "1e+16"},
                                                  {1e15, "1000000000000000.0"},
                                                  {123456789.125, "123456789.125"},
                                                  {1e-4, "0.0001"},
                                                  {0.00001, "1e-05"},
                                                  {1.5e-7, "1.5e-07"},
                                                  {1e100, "1e+100"},
                                                  {5e-324, "5e-324"},
                                                  {0.30000000000000004, "0.30000000000000004"},
                                                  {HUGE_VAL, "inf"},
                                                  {-HUGE_VAL, "-inf"},
                                                  {std::nan(""), "nan"}};
  for (const auto& [value, text] : cases) EXPECT_EQ(PythonFloat(value), text);
}

TEST(PythonText, EscapesStringsAsJsonDumps) {
  const auto escaped = [](absl::string_view text, bool ascii) {
    std::string out;
    AppendPythonJsonString(text, ascii, &out);
    return out;
  };
  EXPECT_EQ(escaped("a\"\\/\b\f\n\r\t\x01\x7f", false), "\"a\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\x7f\"");
  EXPECT_EQ(escaped("ü🚀<", false), "\"ü🚀<\"");
  EXPECT_EQ(escaped("ü🚀\x7f", true), "\"\\u00fc\\ud83d\\ude80\\u007f\"");
}

TEST(PythonJson, WritesAsJsonDumps) {
  const auto value =
      formats::ParseJson(R"({"b":[1,2.0,true,null,[],{}],"a":{"x":"é"},"n":1e-5})", "test");
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(PythonJson(*value),
            R"({"b": [1, 2.0, true, null, [], {}], "a": {"x": "é"}, "n": 1e-05})");
  EXPECT_EQ(
      PythonJson(*value,
                 {.ascii = true, .item_separator = ",", .key_separator = ":", .sort_keys = true}),
      R"({"a":{"x":"\u00e9"},"b":[1,2.0,true,null,[],{}],"n":1e-05})");
  EXPECT_EQ(PythonJson(*value, IndentedJson(2)),
            "{\n  \"b\": [\n    1,\n    2.0,\n    true,\n    null,\n    [],\n    {}\n  ],\n"
            "  \"a\": {\n    \"x\": \"é\"\n  },\n  \"n\": 1e-05\n}");
}

}  // namespace
}  // namespace sluice::text
