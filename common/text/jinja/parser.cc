#include "text/jinja/parser.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "text/jinja/expression_parser.h"
#include "text/jinja/language.h"

namespace sluice::text::jinja {
namespace {

using Kind = Node::Kind;

constexpr int kDepthMax = 64;

std::unique_ptr<Node> Make(Kind kind, int line) {
  auto node = std::make_unique<Node>();
  node->kind = kind;
  node->line = line;
  return node;
}

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)), expressions_(tokens_) {}

  absl::StatusOr<Block> Run() {
    SLUICE_ASSIGN_OR_RETURN(Block block, Body({}));
    for (const auto& [name, line] : expressions_.called()) {
      if (!IsFunction(name) && !macros_.contains(name)) {
        return UnsupportedTemplate(line, absl::StrCat("the function '", name, "'"));
      }
    }
    return block;
  }

 private:
  // Nodes up to a tag with one of the names `ends`, whose "{%" and name are taken too.
  absl::StatusOr<Block> Body(const std::vector<std::string>& ends) {
    const int line = tokens_.line();
    if (++depth_ > kDepthMax) return WrongTemplate(line, "blocks are nested too deeply");
    Block block;
    for (;;) {
      if (tokens_.Is(TokenKind::kEnd)) {
        if (!ends.empty()) {
          return WrongTemplate(line, absl::StrCat("a block lacks its {% ", ends.back(), " %}"));
        }
        break;
      }
      if (tokens_.Is(TokenKind::kData)) {
        auto text = Make(Kind::kText, tokens_.line());
        text->name = tokens_.Take().text;
        block.push_back(std::move(text));
      } else if (tokens_.Is(TokenKind::kPrintBegin)) {
        auto print = Make(Kind::kPrint, tokens_.Take().line);
        SLUICE_ASSIGN_OR_RETURN(print->expression, expressions_.ParseTuple());
        SLUICE_RETURN_IF_ERROR(tokens_.Expect(TokenKind::kPrintEnd, "}}"));
        block.push_back(std::move(print));
      } else {
        tokens_.Take();  // {%
        SLUICE_ASSIGN_OR_RETURN(end_, tokens_.ExpectName());
        if (std::find(ends.begin(), ends.end(), end_) != ends.end()) break;
        SLUICE_ASSIGN_OR_RETURN(auto node, Statement(end_));
        block.push_back(std::move(node));
      }
    }
    --depth_;
    return block;
  }

  absl::StatusOr<std::unique_ptr<const Node>> Statement(const std::string name) {
    const int line = tokens_.line();
    if (name == "if") return If();
    if (name == "for") return For();
    if (name == "set") return Set();
    if (name == "macro") return Macro();
    if (name == "break" || name == "continue") {
      if (loops_ == 0) return WrongTemplate(line, absl::StrCat("'", name, "' outside of a loop"));
      SLUICE_RETURN_IF_ERROR(BlockEnd());
      return Make(name == "break" ? Kind::kBreak : Kind::kContinue, line);
    }
    if (name == "generation") {
      // Marks what the model wrote, for training.
      auto scope = Make(Kind::kScope, line);
      SLUICE_RETURN_IF_ERROR(BlockEnd());
      SLUICE_ASSIGN_OR_RETURN(scope->body, Body({"endgeneration"}));
      SLUICE_RETURN_IF_ERROR(BlockEnd());
      return scope;
    }
    if (absl::StartsWith(name, "end") || name == "else" || name == "elif") {
      return WrongTemplate(line, absl::StrCat("'", name, "' without its beginning"));
    }
    return UnsupportedTemplate(line, absl::StrCat("the tag '", name, "'"));
  }

  absl::Status BlockEnd() { return tokens_.Expect(TokenKind::kBlockEnd, "%}"); }

  absl::StatusOr<std::unique_ptr<const Node>> If() {
    auto node = Make(Kind::kIf, tokens_.line());
    SLUICE_ASSIGN_OR_RETURN(node->expression, expressions_.ParseTuple());
    SLUICE_RETURN_IF_ERROR(BlockEnd());
    SLUICE_ASSIGN_OR_RETURN(node->body, Body({"elif", "else", "endif"}));
    if (end_ == "elif") {
      if (++depth_ > kDepthMax)
        return WrongTemplate(tokens_.line(), "blocks are nested too deeply");
      SLUICE_ASSIGN_OR_RETURN(auto next, If());
      --depth_;
      node->otherwise.push_back(std::move(next));
      return node;  // the inner one took the end
    }
    SLUICE_RETURN_IF_ERROR(BlockEnd());
    if (end_ == "else") {
      SLUICE_ASSIGN_OR_RETURN(node->otherwise, Body({"endif"}));
      SLUICE_RETURN_IF_ERROR(BlockEnd());
    }
    return node;
  }

  absl::StatusOr<std::unique_ptr<const Node>> For() {
    auto node = Make(Kind::kFor, tokens_.line());
    SLUICE_RETURN_IF_ERROR(Targets(node.get()));
    if (!tokens_.TakeName("in")) return tokens_.Unexpected("'in'");
    SLUICE_ASSIGN_OR_RETURN(node->expression, expressions_.ParseTuple(/*conditional=*/false));
    if (tokens_.TakeName("if")) {
      SLUICE_ASSIGN_OR_RETURN(node->condition, expressions_.Parse());
    }
    if (tokens_.IsName("recursive")) return UnsupportedTemplate(tokens_.line(), "a recursive loop");
    SLUICE_RETURN_IF_ERROR(BlockEnd());
    ++loops_;
    SLUICE_ASSIGN_OR_RETURN(node->body, Body({"else", "endfor"}));
    --loops_;
    SLUICE_RETURN_IF_ERROR(BlockEnd());
    if (end_ == "else") {
      SLUICE_ASSIGN_OR_RETURN(node->otherwise, Body({"endfor"}));
      SLUICE_RETURN_IF_ERROR(BlockEnd());
    }
    return node;
  }

  // "a" or "a, b" or "(a, b)".
  absl::Status Targets(Node* node) {
    const bool parenthesis = tokens_.TakeOperator("(");
    do {
      SLUICE_ASSIGN_OR_RETURN(std::string name, tokens_.ExpectName());
      node->targets.push_back(std::move(name));
    } while (tokens_.TakeOperator(","));
    return parenthesis ? tokens_.ExpectOperator(")") : absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<const Node>> Set() {
    auto node = Make(Kind::kSet, tokens_.line());
    SLUICE_RETURN_IF_ERROR(Targets(node.get()));
    if (node->targets.size() == 1 && tokens_.TakeOperator(".")) {
      SLUICE_ASSIGN_OR_RETURN(node->name, tokens_.ExpectName());
    }
    if (tokens_.TakeOperator("=")) {
      SLUICE_ASSIGN_OR_RETURN(node->expression, expressions_.ParseTuple());
      SLUICE_RETURN_IF_ERROR(BlockEnd());
      return node;
    }
    if (tokens_.IsOperator("|"))
      return UnsupportedTemplate(tokens_.line(), "a filter of a set block");
    if (!node->name.empty() || node->targets.size() != 1) return tokens_.Unexpected("'='");
    node->kind = Kind::kSetBlock;
    SLUICE_RETURN_IF_ERROR(BlockEnd());
    SLUICE_ASSIGN_OR_RETURN(node->body, Body({"endset"}));
    SLUICE_RETURN_IF_ERROR(BlockEnd());
    return node;
  }

  absl::StatusOr<std::unique_ptr<const Node>> Macro() {
    auto node = Make(Kind::kMacro, tokens_.line());
    // Its variables would outlive those it sees.
    if (loops_ > 0 || in_macro_)
      return UnsupportedTemplate(node->line, "a macro inside a loop or macro");
    SLUICE_ASSIGN_OR_RETURN(node->name, tokens_.ExpectName());
    macros_.insert(node->name);
    SLUICE_RETURN_IF_ERROR(tokens_.ExpectOperator("("));
    while (!tokens_.TakeOperator(")")) {
      if (!node->parameters.empty()) SLUICE_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      Keyword parameter;
      SLUICE_ASSIGN_OR_RETURN(parameter.name, tokens_.ExpectName());
      if (tokens_.TakeOperator("=")) {
        SLUICE_ASSIGN_OR_RETURN(parameter.value, expressions_.Parse());
      }
      node->parameters.push_back(std::move(parameter));
    }
    SLUICE_RETURN_IF_ERROR(BlockEnd());
    in_macro_ = true;
    SLUICE_ASSIGN_OR_RETURN(node->body, Body({"endmacro"}));
    in_macro_ = false;
    // The name may stand behind the end.
    if (tokens_.Is(TokenKind::kName)) tokens_.Take();
    SLUICE_RETURN_IF_ERROR(BlockEnd());
    return node;
  }

  TokenStream tokens_;
  ExpressionParser expressions_;
  std::set<std::string> macros_;
  std::string end_;  // the name of the last tag that was read
  int depth_ = 0;
  int loops_ = 0;
  bool in_macro_ = false;
};

}  // namespace

absl::StatusOr<Block> ParseTemplate(absl::string_view source) {
  if (source.size() > kTemplateBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the chat template has ", source.size(),
                                                   " bytes; at most ", kTemplateBytesMax));
  }
  SLUICE_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace sluice::text::jinja
