"""Writes HTML's entities, as Python's html.unescape has them, for Keel's chat templates.

    tools/html_entity_table.py > model/chat_template/builtins/html_entity_table.cc

The table is Python's html.entities.html5, which is the standard's and has not changed since 2011; template_edges_test.py holds
the two against each other.
"""

import html.entities
import textwrap


def entries():
    """"name=c6", with "!" for "=" where the name counts without a semicolon, too; the characters are hexadecimal."""
    known = html.entities.html5
    for name in sorted(name[:-1] for name in known if name.endswith(";")):
        characters = ",".join(f"{ord(c):x}" for c in known[name + ";"])
        yield f"{name}{'!' if name in known else '='}{characters}"


def main():
    print('// Written by tools/html_entity_table.py.\n#include "model/chat_template/builtins/html_entity_table.h"\n')
    print("namespace keel::model::jinja {\n\nstd::string_view HtmlEntityTable() {\n  // clang-format off\n  return")
    lines = textwrap.wrap(" ".join(entries()), 120, break_long_words=False, break_on_hyphens=False)
    print("\n".join(f'    "{line}{" " if line is not lines[-1] else ""}"' for line in lines) + ";")
    print("  // clang-format on\n}\n\n}  // namespace keel::model::jinja")


if __name__ == "__main__":
    main()
