// Schema: the one table of options. Each line binds a dotted path to a field, with its default (the
// field's value when the table is made), range, unit and meaning. Parsing, overrides, help, the
// resolved dump, the documentation page and the JSON Schema all come from it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/enum_names.h"
#include "common/json.h"
#include "common/options/option.h"
#include "common/options/yaml_tree.h"
#include "common/status.h"

namespace keel::options {

// The origin of what an override sets.
inline constexpr const char* kCommandLine = "command line";

class Schema {
 public:
  // The fields must outlive the schema. `doc` is one sentence or two. What is returned is for the
  // builders, and good until the next Add.
  Option& Add(std::string path, bool& field, std::string doc);
  Option& Add(std::string path, int64_t& field, std::string doc);
  Option& Add(std::string path, double& field, std::string doc);
  Option& Add(std::string path, std::string& field, std::string doc);
  Option& Add(std::string path, std::optional<bool>& field, std::string doc);
  Option& Add(std::string path, std::optional<int64_t>& field, std::string doc);
  Option& Add(std::string path, std::optional<double>& field, std::string doc);
  Option& Add(std::string path, std::optional<std::string>& field, std::string doc);
  Option& Add(std::string path, std::vector<std::string>& field, std::string doc);
  Option& Add(std::string path, std::vector<int64_t>& field, std::string doc);
  Option& Add(std::string path, std::vector<double>& field, std::string doc);
  Option& Add(std::string path, Json& field, std::string doc);               // a free map
  Option& Add(std::string path, std::vector<Json>& field, std::string doc);  // a list of such
  // A choice by the names of its enum, with `null` for nothing, and a list of such.
  template <NamedEnum E>
  Option& Add(std::string path, E& field, std::string doc) {
    return AddChoice(std::move(path), Kind::kString, AllNames<E>(), std::move(doc),
                     {[&field] { return Json(NameOf(field)); },
                      [&field](const Json& value) { field = ChoiceOf<E>(value); }});
  }
  template <NamedEnum E>
  Option& Add(std::string path, std::optional<E>& field, std::string doc) {
    Option& option =
        AddChoice(std::move(path), Kind::kString, AllNames<E>(), std::move(doc),
                  {[&field] { return field ? Json(NameOf(*field)) : Json(nullptr); },
                   [&field](const Json& value) {
                     field = value.is_null() ? std::nullopt : std::optional<E>(ChoiceOf<E>(value));
                   }});
    option.nullable = true;
    return option;
  }
  template <NamedEnum E>
  Option& Add(std::string path, std::vector<E>& field, std::string doc) {
    return AddChoice(std::move(path), Kind::kStringList, AllNames<E>(), std::move(doc),
                     {[&field] {
                        Json list = Json::array();
                        for (const E value : field) list.push_back(NameOf(value));
                        return list;
                      },
                      [&field](const Json& list) {
                        field.clear();
                        for (const Json& value : list) field.push_back(ChoiceOf<E>(value));
                      }});
  }

  // Sets fields from a document, then from overrides: "a.b=c", "+a.b=c" (the same), "~a.b" (back to
  // the default). Every problem of all of them in one kConfig message.
  Status Load(const Source& file, const std::vector<std::string>& overrides);

  // The current values as YAML that loads back to them; with `origins`, each with a comment.
  std::string Dump(bool origins) const;
  // A Markdown page, a section per root.
  std::string Markdown() const;
  // draft-07, for editors.
  Json JsonSchema() const;
  // "run.yaml:3" for a path, for cross-field messages.
  std::string Origin(std::string_view path) const;
  const std::vector<Option>& options() const { return options_; }

 private:
  struct Access {
    std::function<Json()> get;
    std::function<void(const Json&)> set;
  };
  // Only names of E get here: Convert knows the choices.
  template <NamedEnum E>
  static E ChoiceOf(const Json& value) {
    return ParseName<E>(value.get_ref<const std::string&>()).value();
  }
  Option& AddChoice(std::string path, Kind kind, std::vector<std::string> choices, std::string doc,
                    Access field);
  Option& Append(Option option);
  Option* Find(std::string_view path);
  void Apply(const YamlNode& node, const std::string& path, const std::string& source_name,
             Position key, std::vector<Problem>& problems);
  void ApplyOverride(const std::string& argument, std::vector<std::string>& errors);
  std::string Suggest(std::string_view path) const;

  std::vector<Option> options_;
};

}  // namespace keel::options
