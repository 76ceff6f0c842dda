// A parsed template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace sluice::text::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Keyword {
  std::string name;
  ExprPtr value;
};

struct Expr {
  enum class Kind {
    kConstant,   // value
    kName,       // name
    kList,       // operands
    kTuple,      // operands
    kDict,       // operands: key, value, key, value, ...
    kAttribute,  // operands[0].name
    kSubscript,  // operands[0][operands[1]]
    kSlice,      // operands[0][operands[1]:operands[2]:operands[3]]; each but the first may be null
    kCall,       // operands[0](operands[1]..., keywords)
    kMethod,     // operands[0].name(operands[1]..., keywords)
    kFilter,     // operands[0] | name(operands[1]..., keywords)
    kTest,       // operands[0] is name(operands[1]...)
    kNot,        // operands[0]
    kNegate,     // operands[0]
    kAnd,        // operands[0], operands[1]
    kOr,
    kArithmetic,   // operands[0] name operands[1]
    kConcat,       // operands, joined as text
    kCompare,      // operands[0] comparisons[0] operands[1] comparisons[1] operands[2] ...
    kConditional,  // operands[1] if operands[0] else operands[2], which may be null
  };
  using Constant = std::variant<std::monostate, bool, int64_t, double, std::string>;  // none first

  Kind kind = Kind::kConstant;
  int line = 0;
  int height = 1;  // of the tree below
  std::string name;
  Constant value;
  std::vector<ExprPtr> operands;
  std::vector<Keyword> keywords;
  std::vector<std::string> comparisons;  // "==", "<", "in", "not in", ...
};

struct Node;
using Block = std::vector<std::unique_ptr<const Node>>;

struct Node {
  enum class Kind {
    kText,      // name: the text
    kPrint,     // expression
    kIf,        // expression, body, otherwise
    kFor,       // targets in expression [if condition], body, otherwise
    kSet,       // targets = expression; name is the attribute of a namespace, if any
    kSetBlock,  // targets = the text of body
    kMacro,     // name(parameters), body
    kScope,     // body, as it is
    kBreak,
    kContinue,
  };

  Kind kind = Kind::kText;
  int line = 0;
  std::string name;
  std::vector<std::string> targets;
  ExprPtr expression;
  ExprPtr condition;
  std::vector<Keyword> parameters;  // of a macro; the value is the default, or null
  Block body;
  Block otherwise;
};

}  // namespace sluice::text::jinja
