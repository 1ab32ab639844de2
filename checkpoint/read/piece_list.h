// PieceList: which byte ranges of a checkpoint's files are wanted, and by whom, in file order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace keel::checkpoint {

// The part that one saved box gives to one wanted box. Both are named by number, so that a million
// pieces stay small; what they have in common is found again when it is copied.
struct Piece {
  int64_t begin = 0;   // first byte in the file that is wanted
  int64_t end = 0;     // end of the last one; between them may be some that are not
  int64_t box = 0;     // record of the index
  int32_t file = 0;    // of the index
  int32_t list = 0;    // which list of wanted boxes ...
  int64_t wanted = 0;  // ... and which of them
};

// Filled, then sealed, then read. Thread-safe once sealed.
class PieceList {
 public:
  void Add(const Piece& piece) { pieces_.push_back(piece); }
  // Sorts by place; pieces at the same place stay in the order in which they were added.
  void Seal() {
    const auto before = [](const Piece& a, const Piece& b) {
      return a.file != b.file ? a.file < b.file : a.begin < b.begin;
    };
    if (!std::is_sorted(pieces_.begin(), pieces_.end(), before))
      std::stable_sort(pieces_.begin(), pieces_.end(), before);
    max_end_.resize(pieces_.size());
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const bool same_file = i > 0 && pieces_[i - 1].file == pieces_[i].file;
      max_end_[i] = same_file ? std::max(max_end_[i - 1], pieces_[i].end) : pieces_[i].end;
    }
  }

  std::span<const Piece> all() const { return pieces_; }

  // Pieces with a byte in [low, high) of a file, in order.
  template <typename Body>
  void ForEachIn(int32_t file, int64_t low, int64_t high, const Body& body) const {
    // Within a file the highest end so far never falls, so that the first piece that can reach past
    // `low` is found by halving.
    size_t from = 0;
    size_t to = pieces_.size();
    while (from < to) {
      const size_t middle = from + (to - from) / 2;
      const Piece& piece = pieces_[middle];
      if (piece.file < file || (piece.file == file && max_end_[middle] <= low)) {
        from = middle + 1;
      } else {
        to = middle;
      }
    }
    for (; from < pieces_.size(); ++from) {
      const Piece& piece = pieces_[from];
      if (piece.file != file || piece.begin >= high) return;
      if (piece.end > low) body(piece);
    }
  }

 private:
  std::vector<Piece> pieces_;
  std::vector<int64_t> max_end_;  // beside pieces_, from the start of their file
};

}  // namespace keel::checkpoint
