// RowNotes: what is to be said of a file's rows, so that nothing is dropped without a word.
//
// A key that would change what is learnt is refused, any other that nothing reads is counted and
// named once a file. Rows that were cut to the length there is room for are counted as well.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/json.h"
#include "common/status.h"

namespace keel::trainer {

// What JSON has nothing for: what tables have in a value (arrow_values.h), and, for whoever gets
// JSON as its standard has it, numbers that are none.
enum class Lost { kOfTables, kNumbersToo };
// What of a value is lost where its row is written again, or handed to a verifier:
// "decimal128(5, 2)", "nan"; "" where all of it gets there.
std::string LostIn(const Json& value, Lost lost);

class RowNotes {
 public:
  // What a row's tokens come from.
  enum class Form {
    kIds,   // they are in the row: what they were made from may stand beside them
    kText,  // text or messages: all that a chat template would show the model counts
  };

  // Looks at one row, or one message of it: everything but `read`. A null or an empty text or list
  // counts as absent. kInvalidData at `where` for keys that would change what is learnt, and for
  // one of `read` that ParseRow has set apart. `prefix` stands before the counted names.
  Status Look(const Json& row, const std::vector<std::string_view>& read, Form form,
              const std::string& where, std::string_view prefix = "");
  // Counts what is neither `read` nor absent, and refuses nothing: where nothing is learnt.
  void CountOthers(const Json& row, const std::vector<std::string_view>& read);
  // Counts of these what says something that a chat template shows a model (tools, a system's text,
  // earlier turns), of a row or, with `prefix`, of a message: where it is asked without.
  void CountUnshown(const Json& row, const std::vector<std::string_view>& read,
                    std::string_view prefix = "");
  // Refuses one of `read` that ParseRow has set apart, and nothing else.
  static Status RefuseSetApart(const Json& row, const std::vector<std::string_view>& read);
  // Refuses keys of pictures, films and sound alone: where nothing is learnt any other key of a row
  // may stand there for its owner, and these say that a text model is not what was meant.
  static Status RefuseMedia(const Json& row, Form form, const std::string& where);
  // Whether Look() would refuse the key beside text or messages.
  static bool Tells(std::string_view key);
  void CountRow() { ++rows_; }
  void Count(const std::string& key) { ++counts_[key]; }
  bool Counts(const std::string& key) const { return counts_.contains(key); }
  // Counts the members of which LostIn says something. `prefix` stands before their names.
  void CountLost(const Json& object, Lost lost, std::string_view prefix = "");
  // A row of which data.truncation left a part alone.
  void CountCut() { ++cut_; }
  // A row with an answer that no special token ends, so that its end is not learnt.
  void CountUnended() { ++unended_; }
  // A message of a role that is none of a conversation's, and so is not learnt.
  void CountUnlearntRole(const std::string& role) { ++unlearnt_roles_[role]; }
  // A row with calls whose arguments, JSON in a string, the template encodes once more. A row
  // counts once.
  void CountTextArguments();
  bool has_text_arguments() const { return text_arguments_ > 0; }
  // A row whose ground truth a reward's rule cannot read, and why: it gets no score.
  void CountUnscored(const std::string& why);
  // A template that expects text wrote a list of parts down as Python prints it.
  void NotePartsShown() { parts_shown_ = true; }
  bool parts_shown() const { return parts_shown_; }
  // What was counted of another part of the same file.
  void Add(const RowNotes& part);
  // As a document, and back: {"rows": 20, "keys": {"id": 20}, "cut": 3}. kInvalidData.
  Json ToJson() const;
  static Result<RowNotes> FromJson(const Json& json, std::string_view where);
  int64_t rows() const { return rows_; }

  // "rows.jsonl: keys that nothing reads: id (20 of 20 rows)"; "" when there is nothing to say.
  std::string Warning(const std::string& path) const;

 private:
  int64_t rows_ = 0;
  int64_t cut_ = 0;
  int64_t unended_ = 0;
  int64_t text_arguments_ = 0;
  int64_t last_text_arguments_ = -1;  // the row that was counted last
  int64_t unscored_ = 0;
  // Of the first of these: which row it is, from 0 on, and why.
  int64_t first_unscored_ = 0;
  std::string why_unscored_;
  std::map<std::string, int64_t> counts_, lost_, unlearnt_roles_;
  bool parts_shown_ = false;
};

// What is said of rows that were cut: "3 rows were cut to data.max_length ...".
std::string CutWarning(int64_t rows, std::string_view limits);

}  // namespace keel::trainer
