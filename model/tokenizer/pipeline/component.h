// Component: one part of a tokenizer.json, as its file says it: an object with a "type". Every key
// is asked for by name, and one that nobody asks for is an error: nothing that changes ids is
// passed over.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/json.h"
#include "common/status.h"

namespace keel::model {

// Looks into the Json, which must outlive it. The getters throw Error(kInvalidData) that names the
// place and the key; ParseTokenizerJson makes a Status of it.
class Component {
 public:
  // `where` is the component's place: "tokenizer.json: pre_tokenizer[1]".
  Component(const Json& json, std::string where);

  const std::string& where() const { return where_; }
  const std::string& type() const { return type_; }

  bool Bool(std::string_view key) const;
  bool Bool(std::string_view key, bool fallback) const;  // when the key is absent or null
  int64_t Int(std::string_view key) const;
  std::string String(std::string_view key) const;
  std::string String(std::string_view key, std::string_view fallback) const;
  // Null when absent.
  const Json* Find(std::string_view key) const;
  // The components of a list.
  std::vector<Component> List(std::string_view key) const;

  // Refuses any key beside these and "type".
  void RefuseOtherKeys(const std::vector<std::string_view>& keys) const;
  // For a type that no one knows: "... is not supported; ... are".
  [[noreturn]] void RefuseType(std::string_view kind, std::string_view accepted) const;
  [[noreturn]] void Refuse(std::string_view problem) const;

 private:
  const Json* json_;
  std::string where_;
  std::string type_;
};

}  // namespace keel::model
