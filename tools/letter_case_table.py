"""Writes which characters are lower case, upper case, title case or of no account for case, as Python's str has them.

    tools/letter_case_table.py > model/chat_template/unicode/letter_case_table.cc

With the Python that transformers is compared under: its Unicode is the one that unicode_tables.cc is of;
template_edges_test.py holds the two against each other.
"""

import textwrap
import unicodedata


def runs(characters):
    """[first, last, step], of which each is as long as it can be."""
    found, at = [], 0
    while at < len(characters):
        longest, step = 1, 1
        for by in (1, 2):
            count = 1
            while at + count < len(characters) and characters[at + count] == characters[at] + count * by:
                count += 1
            if count > longest:
                longest, step = count, by
        found.append((characters[at], characters[at + longest - 1], step))
        at += longest
    return found


def main():
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    sets = {
        "Lower": [c for c in every if c.islower()],
        "Upper": [c for c in every if c.isupper()],
        "Title": [c for c in every if c.istitle() and not c.isupper()],
        # A capital sigma ends a word where a letter stands before these, and does not where they stand alone.
        "Ignorable": [c for c in every if ("A" + c + "Σ").lower().endswith("ς") and not (c + "Σ").lower().endswith("ς")],
    }
    print(f"// Written by tools/letter_case_table.py, of Unicode {unicodedata.unidata_version}.")
    print('#include "model/chat_template/unicode/letter_case_table.h"\n\nnamespace keel::model::jinja {\nnamespace {\n\n// clang-format off')
    for name, characters in sets.items():
        text = " ".join(f"{{0x{a:x},0x{b:x},{step}}}," for a, b, step in runs([ord(c) for c in characters]))
        print(f"constexpr SteppedRange k{name}[] = {{\n" + textwrap.fill(text, 120, initial_indent="    ", subsequent_indent="    ") + "\n};\n")
    print("// clang-format on\n}  // namespace\n")
    for name in sets:
        print(f"std::span<const SteppedRange> {name}Ranges() {{ return k{name}; }}")
    print("\n}  // namespace keel::model::jinja")


if __name__ == "__main__":
    main()
