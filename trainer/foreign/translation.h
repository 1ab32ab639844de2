// Translation: another trainer's keys as a Keel configuration, with the answer to each of them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/options/schema.h"
#include "trainer/foreign/given_values.h"
#include "trainer/foreign/key_table.h"

namespace keel::trainer::foreign {

struct AnsweredKey {
  std::string key;
  Answer answer = Answer::kNotSupported;
  bool known = true;   // the table has a row for it
  bool asked = false;  // not supported: its value asks for something
  std::string value;   // as it reads
  std::string target;  // the key here
  std::string why;
};

class Translation {
 public:
  // `program`: "verl 0.9.1". All three must outlive it.
  Translation(std::string program, const KeyTable& table, const options::Schema& schema,
              const GivenValues& given);

  // Keys for which there is nothing to say in this run, before TakeAll: they, and presets of them,
  // are left alone.
  void LeaveOut(const std::string& start, std::string why);
  // Answers each key that was given, then takes the presets of the others where Keel's defaults
  // differ from them. A row whose key or value this build's schema does not have is not supported
  // in it.
  void TakeAll();

  // Values that no single row says. `from` is what a comment says of it. One that this build's
  // schema does not take is unresolved.
  void Set(const std::string& target, Json value, const std::string& from);
  void Unset(const std::string& target);
  bool Has(const std::string& target) const { return values_.contains(target); }
  Json Get(const std::string& target) const { return values_.at(target).value; }
  void Note(std::string sentence) { notes_.push_back(std::move(sentence)); }
  // What has to be said before the file can be trusted.
  void Unresolved(std::string sentence) { unresolved_.push_back(std::move(sentence)); }
  // Another answer than the table's to a key that was given, for a hook that made something of it.
  AnsweredKey* Find(const std::string& key);

  // kConfig where keys were given and the trainer has none of them: the file is something else.
  Status HasSome(const std::string& file) const;

  const std::vector<AnsweredKey>& keys() const { return keys_; }
  const std::vector<std::string>& unresolved() const { return unresolved_; }

  // The title and what was not taken as comments, then all values in the schema's order.
  std::string Yaml(const std::string& title) const;
  // Counts of the groups, what was asked for and is not supported first.
  std::string Report(const std::string& file) const;

 private:
  struct Value {
    Json value;
    std::string from;    // of a comment; "" for a key of the same name
    bool preset = true;  // nobody said it
  };

  const options::Option* OptionOf(const std::string& target) const;
  void Answered(const Given& given, const KeyTable::Found& found, AnsweredKey* key);
  void NotSupportedHere(const Given& given, const Row& row, AnsweredKey* key);
  void Take(const Given& given, const KeyTable::Found& found, AnsweredKey* key);
  void TakePresets();
  const std::string* LeftOut(const std::string& key) const;
  void Put(const std::string& target, Value value, const std::string& key);

  std::string program_;
  const KeyTable& table_;
  const options::Schema& schema_;
  const GivenValues& given_;
  std::vector<std::pair<std::string, std::string>> left_out_;
  std::vector<AnsweredKey> keys_;
  std::map<std::string, Value> values_;
  std::map<std::string, std::string> said_by_;  // target: the key that said it
  std::vector<std::string> notes_, unresolved_;
};

// A Markdown table of all rows, with what this build's schema lacks.
std::string TableText(const KeyTable& table, const options::Schema& schema);

}  // namespace keel::trainer::foreign
