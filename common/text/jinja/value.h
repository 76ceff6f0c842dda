// The values of the language: Python's plain data, and what templates themselves make.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "text/jinja/ast.h"
#include "text/jinja/text.h"

namespace sluice::text::jinja {

struct List;
struct Dict;
struct Namespace;
struct Loop;
struct Scope;

struct Undefined {
  std::string what;  // the expression that gave nothing
};
struct None {};
struct Function {
  absl::string_view name;
};
struct Macro {
  const Node* node;
  Scope* scope;  // where it was defined
};

// Containers are owned by a Heap and compared and copied by reference, as in Python.
using Value = std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>,
                           List*, Dict*, Namespace*, const Loop*, Function, Macro>;

struct List {
  std::vector<Value> items;
  bool tuple = false;
};

struct Dict {
  std::vector<std::pair<Text, Value>> members;  // in the order of their insertion

  const Value* Find(absl::string_view key) const;
  void Set(Text key, Value value);
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> members;
};

// What `loop` is inside a loop.
struct Loop {
  size_t index0 = 0;
  const std::vector<Value>* items = nullptr;
};

// Owns the containers of one rendering. They may refer to each other in circles.
class Heap {
 public:
  List* NewList(std::vector<Value> items = {}, bool tuple = false) {
    return &lists_.emplace_back(List{std::move(items), tuple});
  }
  Dict* NewDict() { return &dicts_.emplace_back(); }
  Namespace* NewNamespace() { return &namespaces_.emplace_back(); }
  Loop* NewLoop() { return &loops_.emplace_back(); }
  std::vector<Value>* NewItems(std::vector<Value> items) {
    return &items_.emplace_back(std::move(items));
  }

 private:
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::deque<Namespace> namespaces_;
  std::deque<Loop> loops_;
  std::deque<std::vector<Value>> items_;
};

// Bounds the work and with it the memory of one rendering.
class Budget {
 public:
  explicit Budget(uint64_t steps) : steps_(steps) {}
  absl::Status Spend(uint64_t steps);
  // For text of so many bytes.
  absl::Status SpendText(size_t bytes) { return Spend(1 + bytes / 16); }

 private:
  uint64_t steps_;
};

// What everything that works on values needs.
struct Context {
  Heap& heap;
  Budget& budget;
  int line = 0;  // of the template, for errors
};

inline Value TextValue(Text text) { return std::make_shared<const Text>(std::move(text)); }
inline Value Trusted(absl::string_view text) { return TextValue(Text(text, true)); }

template <typename T>
const T* As(const Value& value) {
  return std::get_if<T>(&value);
}
// The text, or null.
inline const Text* AsText(const Value& value) {
  const auto* text = std::get_if<std::shared_ptr<const Text>>(&value);
  return text == nullptr ? nullptr : text->get();
}
inline List* AsList(const Value& value) {
  const auto* list = std::get_if<List*>(&value);
  return list == nullptr ? nullptr : *list;
}
inline Dict* AsDict(const Value& value) {
  const auto* dict = std::get_if<Dict*>(&value);
  return dict == nullptr ? nullptr : *dict;
}
inline bool IsUndefined(const Value& value) { return std::holds_alternative<Undefined>(value); }
inline bool IsNone(const Value& value) { return std::holds_alternative<None>(value); }

// "a string", "a number", ...: for errors.
absl::string_view TypeName(const Value& value);
// Python's truth.
bool IsTrue(const Value& value);

}  // namespace sluice::text::jinja
